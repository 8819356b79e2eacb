"""`check_kernel` and `cugraphs check` pass right declarations and say what is wrong with others."""

import dataclasses
import json
import shutil
import textwrap

import numpy as np
import pytest
from conftest import needs_compiler

from cugraphs import gpu_runs, testing
from cugraphs.cli import main
from cugraphs.kernel import CUDA_TYPES
from cugraphs.kernels import ADD, RMS_NORM
from cugraphs.testing import assert_kernel, check_kernel

pytestmark = needs_compiler

CUDA = """
#include "common.cuh"

template <typename T>
__global__ void scaled_relu(T* __restrict__ out, const T* __restrict__ x, int n, float factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = from_float<T>(fmaxf(to_float(x[i]), 0.0f) * factor);
}
"""
PYTHON = """
from pathlib import Path

import numpy as np

from cugraphs.kernel import CUDA_TYPES, Access, Case, Cost, Kernel, Launch, Operand


def reference(x, *, factor):
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    return ((np.maximum(wide, 0) * factor).astype(x.dtype),)


def launches(axes, dtype, *, factor):
    function, n = f"scaled_relu<{CUDA_TYPES[dtype]}>", axes["n"]
    scalars = (np.int32(n), np.float32(factor))
    return (Launch(function, (-(-n // 256), 1, 1), 256, scalars),)


SCALED_RELU = Kernel(
    name="scaled_relu",
    operands=(Operand("out", ("n",), "T", Access.WRITE), Operand("x", ("n",), "T")),
    reference=reference,
    cost=lambda axes, dtype, *, factor: Cost(4 * axes["n"], 2 * axes["n"]),
    cases=(Case("odd", lambda rng, t: (rng.standard_normal(1001).astype(t),), {"factor": 0.3}),),
    source=Path(__file__).with_name("scaled_relu.cu"),
    launches=launches,
)
"""


@pytest.fixture
def user(tmp_path):
    """Writes a user's two files, with some text of the source replaced; gives the declaration's."""

    def write(old="", new=""):
        assert old in CUDA
        (tmp_path / "scaled_relu.cu").write_text(CUDA.replace(old, new))
        file = tmp_path / "my_kernels.py"
        file.write_text(textwrap.dedent(PYTHON))
        return file

    return write


def declared(file):
    names = {"__file__": str(file)}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return names["SCALED_RELU"]


def test_a_users_kernel_passes_every_stage(user):
    results = check_kernel(declared(user()), stages=["compile", "emulate"])
    assert [(r.case, r.dtype, r.stage) for r in results] == [
        ("odd", dtype, stage) for dtype in CUDA_TYPES for stage in ("compile", "emulate")
    ]
    for result in results:
        assert result.passed
        if result.stage == "compile":
            assert "1 function for 6 architectures" in result.message
        else:
            assert 0 <= result.found.max <= result.allowed.max and result.allowed.rms > 0


@pytest.mark.parametrize(
    ("old", "new", "stage", "message"),
    [
        ("i < n", "i <= n", "emulate", r"checked: scaled_relu.cu:7: .* read of 2 bytes out of bo"),
        ("i < n", "i < n - 1", "emulate", r"checked: out: check_close: error is inf"),
        ("0.0f", "0.1f", "emulate", r"checked: out: check_close: error is .* expected at most"),
        ("x[i]", "y[i]", "compile", r'scaled_relu.cu:7: identifier "y" is undefined'),
        ("x[i]", "y[i]", "emulate", r"checked: scaled_relu.cu:7: 'y' was not declared"),
        ("float factor", "double factor", "emulate", r"parameter 3 is a float of 8 bytes"),
    ],
)
def test_a_wrong_kernel_fails_with_the_reason(user, old, new, stage, message):
    kernel = declared(user(old, new))
    with pytest.raises(
        AssertionError, match=f"odd bfloat16 {stage}: failed: .*{message}"
    ) as caught:
        assert_kernel(kernel, stages=[stage], dtypes=["bfloat16"])
    assert str(caught.value).splitlines()[0] == "1 of 1 check failed"


def test_too_much_shared_memory_for_some_card_fails(user):
    kernel = declared(user())
    greedy = dataclasses.replace(
        kernel,
        launches=lambda *args, **attrs: tuple(
            dataclasses.replace(launch, shared_bytes=100 * 1024)
            for launch in kernel.launches(*args, **attrs)
        ),
    )
    (result,) = check_kernel(greedy, stages=["compile"], dtypes=["float32"])
    assert "sm_86: a block needs 102400 bytes of shared memory, expected at most 101376" in str(
        result
    )


def test_every_result_is_reported_as_it_comes(user):
    seen = []
    results = check_kernel(declared(user()), stages=["emulate"], progress=seen.append)
    assert seen == results


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": ["compiled"]}, "stage is 'compiled', expected one of compile, emulate, gpu"),
        ({"dtypes": ["float64"]}, "dtype is 'float64', expected one of float32, float16, bfloat16"),
        ({"cases": ["none"]}, "rms_norm: case is 'none', expected one of one_row, odd"),
    ],
)
def test_unknown_names_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        check_kernel(RMS_NORM, **options)


def test_a_kernel_without_source_or_cases_is_refused():
    for change, message in (
        ({"source": None}, "source or launches is None"),
        ({"cases": ()}, "cases is empty"),
    ):
        with pytest.raises(ValueError, match=f"^rms_norm: {message}"):
            check_kernel(dataclasses.replace(RMS_NORM, **change), stages=["compile"])


def test_inputs_are_the_same_in_every_run_and_dtype():
    case = RMS_NORM.cases[1]
    first = testing.case_arrays(RMS_NORM, case, "float32")
    for dtype in CUDA_TYPES:
        for array, expected in zip(testing.case_arrays(RMS_NORM, case, dtype), first, strict=True):
            np.testing.assert_allclose(array.astype(np.float32), expected, rtol=1e-2)


def without_gpu(monkeypatch):
    def refuse():
        raise RuntimeError("cuda: no GPU here")

    monkeypatch.setattr(gpu_runs, "gpu_runs", refuse)


def test_a_stage_without_its_tools_is_left_out_or_refused(monkeypatch):
    without_gpu(monkeypatch)
    assert testing.missing_tools() == {"gpu": "cuda: no GPU here"}
    stages = {result.stage for result in check_kernel(ADD, cases=["one_row"])}
    assert stages == {"compile", "emulate"}
    with pytest.raises(RuntimeError, match=r"^cuda: no GPU here$"):
        check_kernel(ADD, stages=["gpu"])


# --------------------------------------------------------------------------------- the command line


def test_check_prints_a_row_for_each_case_and_says_what_was_not_run(user, capsys, monkeypatch):
    without_gpu(monkeypatch)
    assert main(["check", f"{user()}:SCALED_RELU"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert "max error" in lines[0] and "rms error" in lines[0]
    for line, dtype in zip(lines[1:], CUDA_TYPES, strict=False):
        assert line.split()[:3] == ["scaled_relu", "odd", dtype] and line.endswith("passed")
    assert "not run: gpu (cuda: no GPU here)" in out
    assert lines[-1] == "6 passed, 0 failed; stages: compile, emulate"


def test_check_exits_with_1_and_the_reason_where_something_fails(user, capsys):
    file = user("i < n", "i <= n")
    assert main(["check", str(file), "--stage", "emulate", "--dtype", "float32"]) == 1
    out = capsys.readouterr().out
    assert "FAILED: emulate" in out and "not run" not in out  # the others were not asked for
    assert "scaled_relu.cu:7: block (3, 0, 0), thread 233: read of 4 bytes out of bounds" in out


def test_check_prints_json(user, capsys):
    options = ["--stage", "emulate", "--dtype", "float16", "--json"]
    assert main(["check", str(user()), *options]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["passed"], record["failed"], record["stages"]) == (1, 0, ["emulate"])
    (result,) = record["results"]
    assert result["kernel"] == "scaled_relu" and result["dtype"] == "float16" and result["passed"]
    assert result["found"]["max"] <= result["allowed"]["max"]


def test_check_takes_a_kernel_of_the_project_by_name(capsys):
    assert main(["check", "add", "--stage", "compile", "--dtype", "float32"]) == 0
    assert "add" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "kernel is 'nothing', expected FILE.py:NAME or one of apply_changes"),
        ("none.py:X", "none.py does not exist, expected a Python file"),
        ("{file}:OTHER", "has no kernel 'OTHER', expected one of SCALED_RELU"),
        ("{empty}", "declares no Kernel, expected at least one"),
        ("{broken}", "does not run: ZeroDivisionError: division by zero"),
    ],
)
def test_check_refuses_what_it_cannot_find(user, tmp_path, capsys, name, message):
    (tmp_path / "empty.py").write_text("X = 1\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    paths = {"file": user(), "empty": tmp_path / "empty.py", "broken": tmp_path / "broken.py"}
    assert main(["check", name.format(**paths)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_check_without_a_compiler_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    testing.compiler.cache_clear()
    try:
        assert main(["check", "add", "--stage", "emulate"]) == 2
    finally:
        testing.compiler.cache_clear()
    assert "apt-get install g++" in capsys.readouterr().err
