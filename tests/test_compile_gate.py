"""Every instantiation that a kernel's cases launch compiles for every architecture, without spills.

The cubins are made on all cores and kept on disk, so a second run only reads them. The text is one
for sm_80 to sm_89, and one from sm_90 on: all instantiations are compiled for the first of each,
and for the others one of each kernel, and all find the shared memory that they need. With
`--every-cubin` all are compiled for all, since the assembler may spill on any of them.
"""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os

import pytest

from cugraphs.emulation.emulate import bind_launches
from cugraphs.kernel import Launch, running_on
from cugraphs.kernels import ALL, LINEAR_RESIDUAL
from cugraphs.nvrtc import ARCHITECTURES, compile_cubin
from cugraphs.testing import case_arrays, check_needs, check_plan, compile_launch

SAME_TEXT = {"sm_86": "sm_80", "sm_89": "sm_80", "sm_100": "sm_90", "sm_120": "sm_90"}
WITH_SOURCE = [kernel for kernel in ALL if kernel.source is not None]


@functools.cache  # it makes the inputs of every case, and is asked for thrice
def instantiations(kernel, every_cubin):
    """What the cases launch: architecture, the one it is compiled for, and launch.

    Of one function, the most demanding launch.
    """
    found, listed = {}, []
    for case, dtype in check_plan(kernel):
        _, launches = bind_launches(kernel, case_arrays(kernel, case, dtype), case.attrs)
        for arch in ARCHITECTURES:
            for launch in running_on(arch, launches):
                if not isinstance(launch, Launch):
                    continue
                key = (arch, launch.function, launch.block)
                if key not in found or launch.shared_bytes > found[key].shared_bytes:
                    found[key] = launch
    own = set()  # of architectures that have an instantiation of their own
    for (arch, _, _), launch in found.items():
        shares = arch in own and not every_cubin
        own.add(arch)
        listed.append((arch, SAME_TEXT.get(arch, arch) if shares else arch, launch))
    return listed


def compile_quietly(job):
    """Puts a cubin into the cache; what is wrong with it, the kernel's own test says."""
    source, function, arch = job
    with contextlib.suppress(ValueError):
        compile_cubin(source, function, arch)


@pytest.fixture(scope="module")
def every_cubin(request):
    return request.config.getoption("every_cubin")


@pytest.fixture(scope="module")
def compiled(every_cubin):
    """Every cubin, made in as many processes as there are cores: NVRTC compiles one at a time."""
    jobs = dict.fromkeys(
        (kernel.source, launch.function, launch.arch or compiled_for)
        for kernel in WITH_SOURCE
        for _, compiled_for, launch in instantiations(kernel, every_cubin)
    )
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        list(pool.map(compile_quietly, jobs, chunksize=4))


@pytest.mark.parametrize("kernel", WITH_SOURCE, ids=lambda kernel: kernel.name)
def test_compiles_for_every_architecture_without_spills(kernel, compiled, every_cubin):
    rows, problems = {}, []
    for arch, compiled_for, launch in instantiations(kernel, every_cubin):
        try:
            cubin = compile_launch(kernel, launch, compiled_for)
            check_needs(cubin, launch, arch)
        except ValueError as problem:
            problems.append(str(problem))
        else:
            need = f"{cubin.registers} + {cubin.shared_bytes + launch.shared_bytes}"
            rows.setdefault(launch.function, {})[arch] = need
    print(
        f"\n{'registers + bytes of shared memory':60}" + "".join(f"{a:>14}" for a in ARCHITECTURES)
    )
    for function, needs in rows.items():
        print(f"{function:60}" + "".join(f"{needs.get(a, '-'):>14}" for a in ARCHITECTURES))
    assert not problems, "\n".join(problems)


def test_every_kernel_of_the_gate_launches_something():
    assert WITH_SOURCE
    for kernel in WITH_SOURCE:
        if kernel is not LINEAR_RESIDUAL:  # which is cuBLASLt's alone
            assert instantiations(kernel, False), kernel.name
