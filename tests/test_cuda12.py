"""The cuda12 extra without a GPU: it installs, imports, compiles every kernel, and has the bindings
that we call. cuBLAS (600 MB) is left out: nothing here calls it."""

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

CHECKS = """
import inspect

import cupy
from cuda.bindings import driver
from nvmath.bindings import cublasLt

import cugraphs.cublaslt, cugraphs.cuda_device, cugraphs.launch
from cugraphs.emulation.emulate import bind_launches
from cugraphs.kernel import Launch
from cugraphs.kernels import ALL
from cugraphs.nvrtc import compile_cubin, nvrtc_version
from cugraphs.testing import case_arrays

assert cupy.cuda.runtime.runtimeGetVersion() // 1000 == 12
assert nvrtc_version()[0] == 12
for kernel in ALL:
    case = kernel.cases[0]
    arrays = case_arrays(kernel, case, "bfloat16")
    for launch in bind_launches(kernel, arrays, case.attrs)[1]:
        if isinstance(launch, Launch):
            for arch in ("sm_80", "sm_90", "sm_120"):
                assert compile_cubin(kernel.source, launch.function, arch).data
            print("compiled", launch.function)

config = driver.CUlaunchConfig()
for name in ("gridDimX", "blockDimX", "sharedMemBytes", "hStream", "attrs", "numAttrs"):
    assert hasattr(config, name), name
assert driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
assert driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
for function, count in (("cuLaunchKernelEx", 4), ("cuFuncSetAttribute", 3)):
    signature = getattr(driver, function).__doc__.split(")")[0]
    assert signature.count(",") == count - 1, signature
for function, count in (
    ("create", 0),
    ("matmul_desc_create", 2),
    ("matmul_desc_set_attribute", 4),
    ("matrix_layout_create", 4),
    ("matmul_preference_create", 0),
    ("matmul_preference_set_attribute", 4),
    ("matmul_algo_get_heuristic", 10),
    ("matmul", 16),
    ("matmul_desc_destroy", 1),
    ("matrix_layout_destroy", 1),
):
    inside = getattr(cublasLt, function).__doc__.split("(")[1].split(")")[0]
    assert (inside.count(",") + 1 if inside else 0) == count, (function, inside)
for owner, name in (
    (cupy.cuda.function.Module, "load"),
    (cupy.cuda.Stream, "begin_capture"),
    (cupy.cuda.Stream, "end_capture"),
    (cupy.cuda, "Memory"),
    (cupy.cuda, "alloc_pinned_memory"),
    (cupy.cuda.runtime, "memGetInfo"),
):
    assert hasattr(owner, name), name
print("all checked")
"""


def test_the_cuda12_extra_imports_and_compiles(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(p for p in project["optional-dependencies"]["cuda12"] if "cublas" not in p),
    ]
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *wanted], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [python, "-c", CHECKS],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith("all checked")


def test_extras_name_one_cupy_each() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra, wheel in (("cuda12", "cupy-cuda12x"), ("cuda13", "cupy-cuda13x")):
        found = [p for p in extras[extra] if p.startswith("cupy")]
        assert len(found) == 1 and found[0].startswith(wheel)


if sys.version_info >= (3, 15):  # wheels of CuPy 14 exist up to 3.14
    pytestmark = pytest.mark.skip(reason="CuPy 14.2 has no wheels for this Python")
