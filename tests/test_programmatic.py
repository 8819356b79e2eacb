"""What a programmatic launch reads of the launch before it must not be called `__restrict__ const`.

NVRTC may then load it as read-only memory, ahead of the wait for the launch that writes it.
"""

import re

from cugraphs.emulation.emulate import bind_launches
from cugraphs.kernel import WORKSPACE, Launch
from cugraphs.kernels import ALL
from cugraphs.testing import case_arrays, check_plan

PARAMETERS = re.compile(r"(\w+)\(((?:[^()]|\([^()]*\))*)\)\s*\{", re.S)


def programmatic_readers():
    """(kernel, function) of every programmatic launch that is handed the workspace."""
    found = {}
    for kernel in ALL:
        for case, dtype in check_plan(kernel):
            _, launches = bind_launches(kernel, case_arrays(kernel, case, dtype), case.attrs)
            for launch in launches:
                if isinstance(launch, Launch) and launch.programmatic:
                    names = launch.operands or ()
                    if WORKSPACE in names:
                        found[kernel.name, launch.function.partition("<")[0]] = kernel
    return found


def test_no_programmatic_launch_takes_the_workspace_as_read_only():
    readers = programmatic_readers()
    assert len(readers) >= 4
    for (name, function), kernel in readers.items():
        folder = kernel.source.parent
        texts = [file.read_text() for file in sorted(folder.glob("*.cu*"))]
        declared = [m for text in texts for m in PARAMETERS.finditer(text) if m[1] == function]
        assert declared, f"{name}: {function} is not found"
        for match in declared:
            for parameter in match[2].split(","):
                read_only = "const" in parameter and "__restrict__" in parameter
                assert not (read_only and "workspace" in parameter), f"{function}: {parameter}"


def test_the_check_itself_finds_one():
    text = "void reader(const float* __restrict__ workspace, int n) {"
    (match,) = PARAMETERS.finditer(text)
    assert match[1] == "reader" and "__restrict__" in match[2]
