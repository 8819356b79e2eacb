"""On a GPU: what is tuned computes the same products, in captures too."""

import dataclasses

import numpy as np
import pytest
from device_arrays import copy_to

from cugraphs.cli import main
from cugraphs.kernel import DTYPES
from cugraphs.tolerance import check_close
from cugraphs.tuning_table import Choice, Product, TuningTable, read_table, row_class

pytestmark = pytest.mark.gpu

ROWS, OUT, IN = 40, 1536, 1024


class Operands:
    """Arrays of one product on the device, and its expected results."""

    def __init__(self, device, dtype, *, bias):
        rng = np.random.default_rng(5)
        x, weight = (
            rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in ((ROWS, IN), (OUT, IN))
        )
        values = rng.standard_normal(OUT).astype(DTYPES[dtype]) if bias else np.zeros(0)
        wide = [array.astype(np.float64) for array in (x, weight, values)]
        self.exact = wide[0] @ wide[1].T + (wide[2] if bias else 0)
        single = [array.astype(np.float32) for array in (x, weight, values)]
        self.plain = (single[0] @ single[1].T + (single[2] if bias else 0)).astype(DTYPES[dtype])
        self.device, self.dtype = device, dtype
        self.x, self.weight = copy_to(device, x), copy_to(device, weight)
        self.bias = copy_to(device, values) if bias else None
        self.out = copy_to(device, np.full((ROWS, OUT), np.nan, DTYPES[dtype]))
        self.workspace = device.allocate_bytes(32 << 20)

    @property
    def bias_ptr(self):
        return 0 if self.bias is None else int(self.bias.data.ptr)

    def launch(self, lt, plan):
        arrays = (self.out, self.x, self.weight, self.workspace)
        lt.launch(plan, *(int(a.data.ptr) for a in arrays), int(self.device.stream.ptr))

    def check(self):
        found = self.device.read(self.out)
        check_close(found, self.exact, self.plain, DTYPES[self.dtype])
        self.device.write(self.out, np.full((ROWS, OUT), np.nan, DTYPES[self.dtype]))
        return found


def shape_of(dtype, bias):
    from cugraphs.cublaslt import MatrixShape

    return MatrixShape(ROWS, OUT, IN, dtype, has_bias=bias)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_algorithm_that_may_be_chosen_is_right_from_its_bytes_eager_and_captured(
    device, dtype, bias
):
    import cupy

    lt = device.cublaslt
    operands, shape = Operands(device, dtype, bias=bias), shape_of(dtype, bias)
    proposed = lt.heuristics(shape, operands.bias_ptr, count=16)
    assert proposed
    varied = [
        lt.varied(plan, shape, operands.bias_ptr, tile=tile, cluster=cluster, splits=splits)
        for plan in {lt.kind(plan): plan for plan in proposed}.values()
        for (features, rows), tile in lt.tiles(plan).items()
        if (features, rows) in ((64, 128), (128, 64))
        for cluster, splits in (((1, 1), 1), ((2, 1), 1), ((1, 2), 3))
    ]
    assert dtype == "float32" or any(varied)
    for plan in proposed + [plan for plan in varied if plan is not None]:
        restored = lt.restore(shape, operands.bias_ptr, plan.algorithm.tobytes())
        assert restored is not None and restored.workspace_bytes <= 32 << 20
        operands.launch(lt, restored)
        eager = operands.check()
        with device.stream:
            device.stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
            operands.launch(lt, restored)
            graph = device.stream.end_capture()
        graph.launch(device.stream)
        np.testing.assert_array_equal(operands.check(), eager)


def test_a_plan_takes_the_tables_algorithm(device, monkeypatch):
    lt = device.cublaslt
    shape = shape_of("bfloat16", False)
    second = lt.heuristics(shape, count=2)[1].algorithm.tobytes()
    product = Product("bfloat16", OUT, IN)
    choices = {(product, row_class(ROWS)): Choice(second, 0, 1.0, 2.0)}
    monkeypatch.setattr(lt, "tuning", TuningTable(device.gpu_name, lt.version, choices))
    monkeypatch.setattr(lt, "_plans", {})
    plan = lt.plan(shape, stream=int(device.stream.ptr))
    assert plan.algorithm.tobytes() == second


def test_an_algorithm_of_another_product_leaves_the_choice_to_the_library(
    device, monkeypatch, caplog
):
    lt = device.cublaslt
    shape = shape_of("float32", False)
    choice = Choice(b"\xff" * 64, 0, 1.0, 2.0)
    product = Product("float32", OUT, IN)
    table = TuningTable(device.gpu_name, lt.version, {(product, row_class(ROWS)): choice})
    monkeypatch.setattr(lt, "tuning", table)
    monkeypatch.setattr(lt, "_plans", {})
    with caplog.at_level("INFO", logger="cugraphs"):
        plan = lt.plan(shape, stream=int(device.stream.ptr))
    assert "the tuned algorithm cannot run" in caplog.text
    assert plan.algorithm.tobytes() == lt.heuristics(shape)[0].algorithm.tobytes()


def test_planning_in_a_capture_is_refused(device):
    import cupy

    shape = dataclasses.replace(shape_of("bfloat16", False), tokens=39)
    with device.stream:
        device.stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        try:
            with pytest.raises(RuntimeError, match="is planned while its stream is capturing"):
                device.cublaslt.plan(shape, stream=int(device.stream.ptr))
        finally:
            device.stream.end_capture()


def test_tf32_rounds_its_operands_and_full_precision_does_not(device):
    from cugraphs.cublaslt import CublasLt

    operands, shape = Operands(device, "float32", bias=False), shape_of("float32", False)
    errors = {}
    for allowed in (False, True):
        lt = CublasLt(allow_tf32=allowed)
        operands.launch(lt, lt.plan(shape, stream=int(device.stream.ptr)))
        found = device.read(operands.out)
        errors[allowed] = float(np.abs(found - operands.exact).max())
        lt.close()
    # Sums of 1,024 products of standard normals, whose rounding errors grow as sqrt(1024):
    # 2^-24 of float32 gives some 1e-5, 2^-11 of TF32 some 1e-2.
    assert errors[False] < 1e-4 < 1e-3 < errors[True] < 0.2


def test_the_command_tunes_and_its_table_is_used(device, tmp_path, capsys):
    from cugraphs.cuda_device import CudaDevice

    table = tmp_path / "table.json"
    options = ["--rows", "8", "--rows", "300", "--output", str(table)]
    assert main(["tune", "--shape", "smollm2-135m", *options]) == 0
    out = capsys.readouterr().out
    assert "gate_up_proj" in out and f"10 of 10 written to {table}" in out
    found = read_table(table)
    assert found.fits(device.gpu_name, device.cublaslt.version)
    assert {rows for _, rows in found.choices} == {8, 384}
    for choice in found.choices.values():
        assert choice.us <= choice.first_us
    used = CudaDevice(tuning_table=table).cublaslt.tuning
    assert used == found
