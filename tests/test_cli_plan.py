"""`cugraphs plan`: the figures of a published back-of-envelope for Llama-3.1-8B, and its endings.

The figures of the first part come from outside: parameters, heads and layers of Llama-3.1-8B, and
the data sheet of the H100 SXM (3.35 TB/s, 989 TFLOP/s), with every parameter counted as read.
"""

import contextlib
import io
import json
import re

import pytest

from cugraphs.cli import main

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "torch_dtype": "bfloat16",
}
OPTIONS = ["--gpu", "h100", "--batch", "257", "--context", "1024", "--profile", "vllm"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A config.json alone: nothing else of a model is needed."""
    folder = tmp_path_factory.mktemp("plan") / "llama-8b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return str(folder)


def plan(capsys, *arguments):
    assert main(["plan", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def cells(text, label):
    """The figures in the table row that begins with ``label``."""
    for line in text.splitlines():
        parts = [part.strip() for part in line.strip("│┃").split("│")]
        if parts[0] == label:
            return parts[1:]
    raise AssertionError(f"no row {label!r} in\n{text}")


@pytest.fixture(scope="module")
def text(folder):
    """What the table form prints, once for all figures."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["plan", folder, *OPTIONS]) == 0
    return out.getvalue()


@pytest.mark.parametrize(
    ("label", "counted"),
    [
        ("weights", "16.06 GB"),
        ("weight read", "4.794 ms"),
        ("linear compute, 257 rows", "4.173 ms"),
        ("linear compute, 272 rows", "4.417 ms"),
        ("KV read", "10.297 ms"),
        ("in sequence", "15.091 ms"),
        ("bound by linear compute", "0.244 ms"),
        ("launches", "394 at 4 us = 1.6 ms"),
        ("prefill of 8,192 tokens", "133 ms"),
        ("launches of it", "1%"),
    ],
)
def test_llama_3_1_8b_on_an_h100(text, label, counted):
    assert cells(text, label)[0] == counted


def test_padding_and_ladder_of_llama_3_1_8b(text):
    assert "padding: 15 dead rows, 5.5% of 272" in text
    sizes, worst = cells(text, "vllm *")[:2]
    assert sizes == "51"
    assert worst == "9 -> 16, 44%"


def test_beside_it_the_embedding_left_out(text):
    """15.01 GB: 8,030,261,248 parameters without the 128,256 x 4,096 of the input embedding."""
    streamed_bytes = 2 * (8_030_261_248 - 128_256 * 4096)
    assert cells(text, "weights")[1] == "15.01 GB" == f"{streamed_bytes / 1e9:.2f} GB"
    assert cells(text, "weight read")[1] == f"{streamed_bytes / 3.35e12 * 1e3:.3f} ms"
    assert cells(text, "KV read")[1] == "10.297 ms"
    # Without K and V the bound is that of the weights, at 257 rows as at 272.
    assert cells(text, "this step's bound") == ["0.000 ms", "0.000 ms"]


def test_json_holds_the_same(folder, capsys):
    record = json.loads(plan(capsys, folder, *OPTIONS, "--json"))
    assert record["rung"] == 272
    assert record["num_parameters"] == 8_030_261_248
    counted, streamed = record["counted"], record["streamed"]
    assert counted["padded"]["total_ms"] == pytest.approx(15.091, abs=5e-4)
    assert counted["work"]["launches"] == 394
    assert streamed["work"]["weight_bytes"] == 2 * (8_030_261_248 - 128_256 * 4096)
    assert streamed["work"]["kv_bytes_per_token"] == 131_072
    profiles = {profile["profile"]: profile for profile in record["profiles"]}
    assert profiles["vllm"]["worst_padding"] == [9, 16]
    assert profiles["vllm"]["num_rungs"] == 51
    # Its own attention is counted too: 4 flops a query element and visible token, half of 8192^2.
    attention_ms = 32 * 4 * 4096 * 8192 * 8193 / 2 / 989e12 * 1e3
    # After the last layer's attention only the sampled token goes on.
    weights = 32 * 4096 * 6144 + 31 * (4096**2 + 3 * 4096 * 14336)
    linear_ms = 2 * weights * 8192 / 989e12 * 1e3
    expected = pytest.approx(attention_ms + linear_ms, rel=2e-3)
    assert streamed["prefill"]["total_ms"] == expected


def test_the_memory_adds_up(folder, capsys):
    record = json.loads(plan(capsys, folder, *OPTIONS, "--json"))
    parts = {part["name"]: part["nbytes"] for part in record["memory"]["parts"]}
    capacity = record["capacity"]
    assert set(parts) == {"weights", "KV pool", "sequence state", "arena", "graphs"}
    assert sum(parts.values()) == record["memory"]["used_bytes"] <= 0.9 * 80e9
    assert record["memory"]["free_bytes"] == 80e9 - record["memory"]["used_bytes"]
    # One more block would not have fitted.
    assert record["memory"]["used_bytes"] + 16 * 131_072 > 0.9 * 80e9
    assert capacity["num_tokens"] == 16 * capacity["num_blocks"]
    assert capacity["num_seqs"] == capacity["num_tokens"] // 1024
    assert parts["KV pool"] == 131_072 * (capacity["num_tokens"] + 16)
    assert capacity["margin_bytes"] == 8e9
    # Parameters, and a float32 table of cosines and sines.
    assert parts["weights"] == 2 * 8_030_261_248 + 131_072 * 128 * 4


def test_a_rung_has_room_for_k_and_v_or_says_so(folder, capsys):
    record = json.loads(plan(capsys, folder, *OPTIONS, "--json"))
    contexts, tokens = record["target"]["contexts"], record["capacity"]["num_tokens"]
    assert contexts == [128, 1024, 8192, 32768]
    for rung in record["rungs"]:
        for context, ms in zip(contexts, rung["total_ms"], strict=True):
            assert (ms is None) == (rung["rung"] * context > tokens)


def test_measured_ceilings_and_options_override_the_data_sheet(folder, capsys, tmp_path):
    measured = tmp_path / "check.json"
    ceilings = {"read_bytes_per_s": 3.0e12, "flops_per_s": 7e14}
    measured.write_text(json.dumps({"ceilings": ceilings, "results": []}))
    options = [*OPTIONS, "--measured", str(measured), "--tflops", "800", "--memory", "40"]
    text = plan(capsys, folder, *options, "--launch-us", "7.5")
    assert cells(text, "weight read")[0] == f"{16.060522496 / 3.0:.3f} ms"
    assert cells(text, "linear compute, 257 rows")[0] == f"{16.060522496 * 257 / 800:.3f} ms"
    assert cells(text, "launches")[0] == "394 at 7.5 us = 3.0 ms"
    line = text.splitlines()[1]
    assert f"3 TB/s (measured, {measured})" in line
    assert "800 TFLOP/s (given), 40 GB (given)" in line


def test_a_model_that_does_not_fit_is_priced_and_said_to_be_too_large(folder, capsys):
    text = plan(capsys, folder, "--gpu", "h100", "--memory", "10")
    assert text.splitlines()[-1].endswith("the model does not fit")
    assert cells(text, "weight read")[0] == "4.794 ms"
    assert re.search(r"free: -\d", text)


def test_a_named_shape_needs_no_folder(folder, capsys):
    shape = json.loads(plan(capsys, "--shape", "llama-3.1-8b", *OPTIONS, "--json"))
    config = json.loads(plan(capsys, folder, *OPTIONS, "--json"))
    assert {**shape, "model": ""} == {**config, "model": ""}


def test_what_a_ladder_takes_does_not_hang_on_the_batch(capsys):
    """On an H200 all layers of a step of one row are one launch, those of larger steps are not."""
    taken, launches = set(), set()
    for batch in ("1", "2", "100", "512"):
        options = ["--gpu", "h200", "--batch", batch, "--json"]
        record = json.loads(plan(capsys, "--shape", "llama-3.1-8b", *options))
        profiles = {p["profile"]: (p["capture_s"], p["graph_bytes"]) for p in record["profiles"]}
        parts = {part["name"]: part["nbytes"] for part in record["memory"]["parts"]}
        assert parts["graphs"] == profiles["default"][1]
        taken.add((*profiles.items(), parts["KV pool"]))
        launches.add(record["streamed"]["work"]["launches"])
    assert len(taken) == 1
    assert min(launches) * 10 < max(launches)


@pytest.mark.parametrize(
    ("batch", "parts"),
    [
        ("1", ["decode: 1 row at rung 1 of", "linear compute, 1 row ", "┃ 1 row at ┃"]),
        ("3", ["decode: 3 rows at rung 4 of", "┃ 3 rows at ┃", "padding: 1 dead row, 25.0% of 4"]),
    ],
)
def test_one_row_is_no_rows(folder, capsys, batch, parts):
    text = plan(capsys, folder, "--gpu", "h100", "--batch", batch)
    assert all(part in text for part in parts)
    assert not re.search(r"\b1 (dead )?rows", text)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_plot(folder, capsys, tmp_path, suffix):
    file = tmp_path / f"plan{suffix}"
    text = plan(capsys, folder, *OPTIONS, "--plot", str(file))
    assert "in sequence" in text
    start = file.read_bytes()[:100]
    assert start.startswith(b"\x89PNG\r\n") if suffix == ".png" else b"<?xml" in start


def test_plot_of_a_model_that_does_not_fit(capsys, tmp_path):
    file = tmp_path / "plan.png"
    plan(capsys, "--shape", "llama-3.1-70b", "--gpu", "rtx3090", "--plot", str(file))
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["plan", "--gpu", "l4"],
            "one of the arguments MODEL --shape is required; see cugraphs",
        ),
        (["plan", "FOLDER"], "the following arguments are required: --gpu"),
        (["plan", "FOLDER", "--gpu", "h300"], "gpu: 'h300' is not known, expected one of a100"),
        (["plan", "--shape", "gpt-5", "--gpu", "l4"], "'gpt-5' is not known, expected one of"),
        (["plan", "FOLDER", "--shape", "x", "--gpu", "l4"], "not allowed with argument MODEL"),
        (["plan", "no/such", "--gpu", "l4"], "'no/such' is neither a folder nor in the Hugging"),
        (["plan", "FOLDER", "--gpu", "l4", "--batch", "0"], "--batch is 0, expected 1 to 4096"),
        (["plan", "FOLDER", "--gpu", "l4", "--batch", "5000"], "--batch is 5000, expected 1 to 40"),
        (
            ["plan", "FOLDER", "--gpu", "l4", "--batch", "9", "--max-num-seqs", "8"],
            "--batch is 9, expected 1 to 8",
        ),
        (["plan", "FOLDER", "--gpu", "l4", "--context", "0"], "--context is 0, expected 1 to 131"),
        (
            ["plan", "FOLDER", "--gpu", "l4", "--max-num-batched-tokens", "100"],
            "--max-num-batched-tokens is 100, expected 512 to",
        ),
        (
            ["plan", "FOLDER", "--gpu", "l4", "--gpu-memory-utilization", "1.1"],
            "--gpu-memory-utilization is 1.1, expected above 0, at most 1",
        ),
        (["plan", "FOLDER", "--gpu", "l4", "--launch-us", "nan"], "--launch-us is nan, expected"),
        (["plan", "FOLDER", "--gpu", "l4", "--bandwidth", "0"], "--bandwidth is 0.0, expected"),
        (["plan", "FOLDER", "--gpu", "l4", "--tflops", "inf"], "--tflops is inf, expected"),
        (["plan", "FOLDER", "--gpu", "l4", "--memory", "-1"], "--memory is -1.0, expected"),
        (
            ["plan", "FOLDER", "--gpu", "h300"],
            "nearest one and its own --bandwidth, --tflops and --m",
        ),
        (["plan", "FOLDER", "--gpu", "l4", "--measured", "CONFIG"], "has no ceilings.read_bytes"),
        (["plan", "FOLDER", "--gpu", "l4", "--measured", "CONFIG"], "`cugraphs check --bench --j"),
        (["plan", "FOLDER", "--gpu", "l4", "--measured", "/no/file"], "/no/file is missing"),
        (["plan", "FOLDER", "--gpu", "l4", "--plot", "/x.gif"], "ends in '.gif', expected .png"),
        (["plan", "FOLDER", "--gpu", "l4", "--plot", "/no/x.png"], "/no is no folder, expected"),
        (["plan", "FOLDER", "--gpu", "l4", "--profile", "x"], "invalid choice: 'x'"),
    ],
)
def test_a_mistake_is_one_line(folder, capsys, arguments, message):
    names = {"FOLDER": folder, "CONFIG": f"{folder}/config.json"}
    try:
        code = main([names.get(argument, argument) for argument in arguments])
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
