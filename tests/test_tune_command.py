"""`cugraphs tune` with a GPU that is played: what is timed, kept, written and shown."""

import types

import numpy as np
import pytest
from tiny_model import write_tiny_model

from cugraphs.cli import main, tune
from cugraphs.kernel import DTYPES
from cugraphs.model_shapes import model_shape
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.product_timing import agree, fastest, probe_rows
from cugraphs.tuning_table import (
    ROW_CLASSES,
    Choice,
    Product,
    TuningTable,
    read_table,
    write_table,
)

CARD, VERSION = "NVIDIA Toy", 130100


class Timer:
    """Finds something 25% faster at 16 rows only, in no time."""

    interrupt_after = None
    timed: list = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self, device, product, max_rows):
        self.product, self.max_rows = product, max_rows

    def tune(self, rows):
        assert rows <= self.max_rows
        if len(self.timed) == self.interrupt_after:
            raise KeyboardInterrupt
        self.timed.append((self.product, rows))
        return Choice(b"\1" * 64, 0, 8.0, 10.0) if rows == 16 else Choice(None, 0, 10.0, 10.0)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """The file that the table goes to."""
    cublaslt = types.SimpleNamespace(version=VERSION)
    device = types.SimpleNamespace(gpu_name=CARD, cublaslt=cublaslt)
    monkeypatch.setattr(tune, "CudaDevice", lambda allow_tf32: device)
    monkeypatch.setattr(tune, "ProductTimer", Timer)
    monkeypatch.setattr(tune, "own_table_path", lambda card: tmp_path / "own.json")
    monkeypatch.setattr(Timer, "timed", [])
    monkeypatch.setattr(Timer, "interrupt_after", None)
    return tmp_path / "own.json"


def test_products_are_those_that_a_decoder_of_these_sizes_has():
    config = LlamaConfig.from_hf(model_shape("llama-3.1-8b"))
    assert tune.products_of(config, "bfloat16") == {
        "qkv_proj": Product("bfloat16", 6144, 4096),
        "o_proj": Product("bfloat16", 4096, 4096),
        "gate_up_proj": Product("bfloat16", 28672, 4096),
        "down_proj": Product("bfloat16", 4096, 14336),
        "lm_head": Product("bfloat16", 128256, 4096),
    }


def test_a_tied_head_and_biases_are_products_of_their_own():
    shape = {**model_shape("llama-3.2-1b"), "attention_bias": True}
    products = tune.products_of(LlamaConfig.from_hf(shape), "float16")
    assert products["lm_head"] == Product("float16", 128256, 2048)
    assert products["qkv_proj"].has_bias and not products["gate_up_proj"].has_bias


def test_the_rows_that_are_asked_for_are_timed_as_their_classes_and_written(gpu, capsys):
    rows = ["--rows", "16", "--rows", "10", "--rows", "200"]
    assert main(["tune", "--shape", "llama-3.1-8b", *rows]) == 0
    table = read_table(gpu)
    assert table.fits(CARD, VERSION)
    assert {rows for _, rows in table.choices} == {16, 224} and len(table.choices) == 10
    assert table.choices[Product("bfloat16", 6144, 4096), 16].algorithm == b"\1" * 64
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("TFLOP/s") and "first us" in lines[0] and "gain" in lines[0]
    # 6144 x 4096 bfloat16 are 50.3 MB, with 16 rows of x and out 50.7: in 8 us 6.33 TB/s. And
    # 2 x 16 x 6144 x 4096 flops in 8 us are 101 TFLOP/s.
    words = " ".join(lines[1].split())
    assert words == "qkv_proj 6144 x 4096 bfloat16 16 10 8 25.0% 6.33 101"
    assert lines[-1] == f"10 of 10 written to {gpu}: NVIDIA Toy, cuBLASLt 13.1.0"


def test_by_default_every_class_that_cublaslt_computes_is_timed(gpu):
    assert main(["tune", "--shape", "llama-3.2-1b"]) == 0
    by_product = {}
    for product, rows in Timer.timed:
        by_product.setdefault(product.out_features, []).append(rows)
    # Our own kernel multiplies up to 16 rows; no step has the logits of a whole long prompt.
    assert by_product[16384] == [rows for rows in ROW_CLASSES if rows > 16]
    assert by_product[128256] == [rows for rows in ROW_CLASSES if 16 < rows <= 1024]


def test_a_product_that_two_models_share_is_timed_once(gpu, capsys):
    shapes = ["--shape", "llama-3.1-8b", "--shape", "mistral-7b-v0.3"]
    assert main(["tune", *shapes, "--rows", "8"]) == 0
    assert len(Timer.timed) == 6  # four of a layer in common, and two heads


def test_a_checkpoint_says_its_own_dtype_unless_another_is_asked_for(gpu, tmp_path):
    folder = str(write_tiny_model(tmp_path / "tiny"))
    assert main(["tune", folder, "--rows", "8"]) == 0
    assert {product.dtype for product, _ in Timer.timed} == {"float32"}
    assert main(["tune", folder, "--rows", "8", "--dtype", "float16"]) == 0
    assert main(["tune", folder, "--rows", "8", "--allow-tf32"]) == 0
    assert {product.dtype for product, _ in read_table(gpu).choices} == {
        "float32",
        "float16",
        "tf32",
    }


def test_a_table_that_cannot_be_written_is_refused_before_anything_is_timed(gpu, tmp_path, capsys):
    (tmp_path / "a_file").touch()
    output = str(tmp_path / "a_file" / "table.json")
    assert main(["tune", "--shape", "llama-3.1-8b", "--rows", "8", "--output", output]) == 2
    assert "table.json: cannot be written (" in capsys.readouterr().err
    assert not Timer.timed


def test_an_interrupt_keeps_what_was_measured(gpu, monkeypatch, capsys):
    monkeypatch.setattr(Timer, "interrupt_after", 3)
    assert main(["tune", "--shape", "llama-3.1-8b", "--rows", "8"]) == 130
    assert len(read_table(gpu).choices) == 3
    out, err = capsys.readouterr()
    assert "3 of 5 written to" in out and err.splitlines()[-1] == "cugraphs: interrupted"


def test_after_an_interrupt_it_goes_on_with_what_is_missing(gpu, monkeypatch, capsys):
    command = ["tune", "--shape", "llama-3.1-8b", "--rows", "8", "--rows", "16", "--missing"]
    monkeypatch.setattr(Timer, "interrupt_after", 3)
    assert main(command) == 130
    monkeypatch.setattr(Timer, "interrupt_after", None)
    assert main(command) == 0
    assert len(Timer.timed) == len(set(Timer.timed)) == len(read_table(gpu).choices) == 10
    before = gpu.read_bytes()
    capsys.readouterr()
    assert main(command) == 0 and len(Timer.timed) == 10
    assert gpu.read_bytes() == before
    assert "0 of 0 written to" in capsys.readouterr().out


def test_an_interrupt_before_the_first_leaves_no_file(gpu, monkeypatch):
    monkeypatch.setattr(Timer, "interrupt_after", 0)
    assert main(["tune", "--shape", "llama-3.1-8b", "--rows", "8"]) == 130
    assert not gpu.exists()


def test_a_table_that_is_there_is_added_to(gpu):
    other = Product("float16", 7, 7)
    write_table(gpu, TuningTable(CARD, VERSION, {(other, 8): Choice(None, 0, 1.0, 1.0)}))
    assert main(["tune", "--shape", "llama-3.1-8b", "--rows", "8"]) == 0
    assert len(read_table(gpu).choices) == 6


def test_a_table_of_another_version_is_replaced_and_that_is_said(gpu, capsys):
    other = Product("float16", 7, 7)
    write_table(gpu, TuningTable(CARD, 120900, {(other, 8): Choice(None, 0, 1.0, 1.0)}))
    assert main(["tune", "--shape", "llama-3.1-8b", "--rows", "8"]) == 0
    assert len(read_table(gpu).choices) == 5
    assert "is for NVIDIA Toy, cuBLASLt 12.9.0, and will be replaced" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "tune: neither MODEL nor --shape is given, expected one of them"),
        (["--shape", "llama"], "shape: 'llama' is not known, expected one of llama-3.1-8b, "),
        (["--shape", "llama-2-7b", "--rows", "0"], "tune: --rows is 0, expected 1 to 8192"),
        (["--shape", "llama-2-7b", "--rows", "9000"], "tune: --rows is 9000, expected 1 to 8192"),
        (
            ["--shape", "llama-2-7b", "--allow-tf32"],
            "tune: --allow-tf32 is given and the dtype is float16, expected float32; give --dtype",
        ),
        (["no/such/folder/here"], "no/such/folder/here"),
    ],
)
def test_a_mistake_is_one_line(gpu, capsys, arguments, message):
    assert main(["tune", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and not gpu.exists()
    assert err.startswith("cugraphs: error: ") and message in err


# --------------------------------------------------------------------------- what counts as faster


def test_the_fastest_by_more_than_the_noise_is_chosen():
    first = {16: [10.0, 10.1, 9.9, 10.0, 10.0, 10.1, 10.0]}
    assert fastest(first, {b"a": {16: [9.5] * 7}, b"b": {16: [9.0] * 7}}) == b"b"
    assert fastest(first, {b"a": {16: [9.95] * 7}}) is None  # 0.5%
    assert fastest(first, {b"a": {16: [10.5] * 7}}) is None
    assert fastest(first, {}) is None


def test_a_gain_within_the_spread_of_the_first_is_noise():
    first = {16: [8.0, 9.0, 10.0, 10.0, 10.0, 11.0, 12.0]}
    assert fastest(first, {b"a": {16: [9.0] * 7}}) is None
    assert fastest(first, {b"a": {16: [7.0] * 7}}) == b"a"


def test_one_spike_decides_nothing():
    first = {16: [10.0] * 7}
    assert fastest(first, {b"a": {16: [9.0] * 6 + [90.0]}}) == b"a"
    assert fastest(first, {b"a": {16: [10.0] * 6 + [1.0]}}) is None


def test_above_the_rungs_a_choice_may_lose_nowhere_in_its_class():
    first = {512: [10.0] * 7, 448: [10.0] * 7}
    better_and_worse = {512: [7.0] * 7, 448: [10.5] * 7}
    good = {512: [9.0] * 7, 448: [9.5] * 7}
    assert fastest(first, {b"a": better_and_worse}) is None
    assert fastest(first, {b"a": better_and_worse, b"b": good}) == b"b"


def test_results_agree_within_rounding_and_not_beyond():
    rng = np.random.default_rng(0)
    exact = 64 * rng.standard_normal((8, 100))
    expected = exact.astype(DTYPES["bfloat16"])
    assert agree((exact + 0.01).astype(DTYPES["bfloat16"]), expected)
    for wrong in (exact[::-1], np.where(exact > 150, np.nan, exact), exact * 1.1, exact + 16):
        assert not agree(np.array(wrong).astype(DTYPES["bfloat16"]), expected)


def test_a_class_of_prompts_is_timed_in_its_middle_too():
    assert [probe_rows(rows) for rows in (8, 256, 512, 8192)] == [
        (8,),
        (256,),
        (512, 448),
        (8192, 6144),
    ]
