"""Each CUDA extra (less cuBLAS) installs, imports, offers what we call and compiles every kernel.

An extra whose NVRTC is the development install's compiles them here for one architecture alone: its
cubins for the others would be some of those that the compile gate makes.

`cuda12` is run on no GPU by this project, so this is what stands for it. Takes a download of some
hundred MB, so it runs in continuous integration only, or with `CI=true`.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import IN_CI

from cugraphs.kernels import ALL
from cugraphs.nvrtc import LOWEST_NVRTC, nvrtc_version

pytestmark = pytest.mark.skipif(not IN_CI, reason="downloads the CUDA extras: set CI=true")

ROOT = Path(__file__).resolve().parent.parent
LARGE = ("nvidia-cublas",)  # 600 MB, and nothing is computed here
ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
NOT_OF_THE_GATE = ("sm_120",)  # for which test_compile_gate.py compiles other functions
VERSION = "from cugraphs.nvrtc import nvrtc_version; print(*nvrtc_version())"


def run(*command: object, **environment: str) -> str:
    """Stdout; a failure shows everything that the command printed."""
    done = subprocess.run(
        [*map(str, command)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("major", [12, 13])
def test_the_extra_offers_what_we_call(major: int, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"][f"cuda{major}"]
    wanted = [*project["dependencies"][:2], *(p for p in extra if not p.startswith(LARGE))]
    assert len(wanted) == 1 + len(extra)
    assert [p.split(">")[0] for p in wanted[:2]] == ["numpy", "ml_dtypes"]
    folder = tmp_path / "venv"
    try:
        run(sys.executable, "-m", "venv", folder)
        python = folder / "bin" / "python"
        # Bytecode is made of what is imported, which is little of it.
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
        run(python, *pip, *wanted)
        version = tuple(map(int, run(python, "-c", VERSION, PYTHONPATH=str(ROOT)).split()))
        architectures = NOT_OF_THE_GATE if version == nvrtc_version() else ARCHITECTURES
        printed = run(
            python,
            ROOT / "tests" / "cuda_bindings.py",
            *architectures,
            PYTHONPATH=str(ROOT),
            XDG_CACHE_HOME=str(folder / "cache"),  # nothing is compiled yet
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # 0.7 GB
    found = json.loads(printed)
    print(f"cuda{major}: {found}")
    assert found["bindings"].split(".")[0] == str(major)
    assert found["cupy_runtime"] // 1000 == major
    assert found["nvrtc"][0] == major and tuple(found["nvrtc"]) >= LOWEST_NVRTC
    # A toolkit of the machine must not stand in for a wheel that the extra lacks.
    assert Path(found["headers"]).is_relative_to(folder)
    with_launches = len(ALL) - 1  # LINEAR_RESIDUAL is cuBLASLt's alone
    assert found["compiled"] == with_launches * len(architectures)
    assert found["functions"] > 20
