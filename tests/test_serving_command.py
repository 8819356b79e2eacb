"""cugraphs bench throughput and latency on the CPU: tables, records, pictures, mistakes, ends."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tiny_model import write_tiny_model

from cugraphs.cli import main

SMALL = ["--device", "cpu", "--prompt", "10", "--output", "6", "--max-num-seqs", "4"]
COMMAND = [sys.executable, "-m", "cugraphs", "bench"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_tiny_model(tmp_path_factory.mktemp("serving") / "tiny"))


@pytest.fixture
def bench(tmp_path, capsys):
    """Runs a benchmark; what it prints, and its record."""

    def run(*arguments, code=0):
        file = tmp_path / "record.json"
        assert main(["bench", *arguments, "--json", str(file)]) == code
        return capsys.readouterr().out, json.loads(file.read_text())

    return run


def test_throughput_prints_and_records(folder, bench):
    out, record = bench("throughput", folder, *SMALL, "--requests", "9")
    lines = out.splitlines()
    assert lines[0] == (
        f"bench throughput: {folder}, float32, weights: its own; "
        "mode none (the CPU captures nothing)"
    )
    assert lines[2] == (
        "workload fixed: 9 requests, prompts of 10 tokens, answers of 6 tokens; seed 0"
    )
    flat = " ".join(out.split())
    assert "│ all at once │ 9 of 9 │" in flat and "all at once: time per output token" in flat
    assert "no share of a bound" in flat
    (result,) = record["results"]
    assert (result["finished"], result["prompt_tokens"], result["generated_tokens"]) == (9, 90, 54)
    seconds = result["seconds"]
    assert result["requests_per_s"] == pytest.approx(9 / seconds)
    assert result["total_tokens_per_s"] == pytest.approx(144 / seconds)
    assert len(result["answers"]) == 9


RESULT_KEYS = {
    *("requests", "finished", "seconds", "requests_per_s", "prompt_tokens", "generated_tokens"),
    *("prompt_tokens_per_s", "generated_tokens_per_s", "total_tokens_per_s"),
    *("busy_seconds", "bound_seconds", "bound_share", "latency", "counters", "answers"),
}


def test_the_record_has_all_that_is_needed_to_run_it_again(folder, bench):
    arguments = ["--requests", "5", "--workload", "shared-prefix", "--prefix", "32"]
    options = ["--prefixes", "2", "--seed", "3", "--rate", "500", "900", "--burst", "2"]
    _, record = bench("latency", folder, *SMALL, *arguments, *options, "--batch-invariant")
    assert record.keys() == {
        *("benchmark", "mode", "model", "dtype", "weights", "machine", "ceilings"),
        *("engine", "workload", "interrupted", "results"),
    }
    assert record["benchmark"] == "latency" and record["interrupted"] is False
    assert record["engine"] == {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 2048,
        "max_model_len": 48,
        "num_kv_blocks": 13,
        "block_size": 16,
        "rungs": [1, 2, 4],
        "prefix_caching": True,
        "batch_invariant": True,
        "num_scheduler_steps": 1,
        "step_loops": False,
        "steps_ahead": 0,
    }
    assert record["workload"] == {
        "workload": "shared-prefix",
        "requests": 5,
        "seed": 3,
        "prefixes": 2,
        "prefix_tokens": 32,
        "prompt_tokens": {"least": 42, "mean": 42.0, "most": 42},
        "output_tokens": {"least": 6, "mean": 6.0, "most": 6},
    }
    assert [result["rate_per_s"] for result in record["results"]] == [500.0, 900.0]
    for result in record["results"]:
        assert result.keys() == RESULT_KEYS | {"rate_per_s", "burst"}
        for spread in result["latency"].values():
            assert spread.keys() == {"mean_ms", "p50_ms", "p90_ms", "p99_ms"}
            assert 0 < spread["p50_ms"] <= spread["p90_ms"] <= spread["p99_ms"]
        assert result["answers"][0].keys() == {
            *("prompt_tokens", "arrival_s", "output_tokens", "first_token_s", "end_s"),
        }
        # Five requests with two beginnings of two blocks: at least one finds 32 tokens there.
        assert result["counters"]["cached_tokens"] >= 32


def test_runs_of_several_rates_do_not_share_prompts(folder, bench):
    _, record = bench("latency", folder, *SMALL, "--requests", "4", "--rate", "900", "900")
    assert [r["counters"]["cached_tokens"] for r in record["results"]] == [0, 0]
    without = bench("throughput", folder, *SMALL, "--workload", "shared-prefix", "--prefix", "32")
    with_ = bench(
        *("throughput", folder, *SMALL, "--workload", "shared-prefix", "--prefix", "32"),
        "--no-prefix-caching",
    )
    assert without[1]["results"][0]["counters"]["cached_tokens"] > 0
    assert with_[1]["results"][0]["counters"]["cached_tokens"] == 0


def test_steps_in_flight_and_several_at_once_give_every_token(folder, bench):
    ways = ["--num-scheduler-steps", "4", "--step-loops", "--async-scheduling"]
    for arguments in ([folder], [folder, "--random-weights"]):
        _, record = bench("throughput", *arguments, *SMALL, "--requests", "7", *ways)
        assert (record["engine"]["num_scheduler_steps"], record["engine"]["steps_ahead"]) == (4, 1)
        (result,) = record["results"]
        assert (result["finished"], result["generated_tokens"]) == (7, 42)


def test_random_weights_of_a_folder_and_of_a_shape(folder, bench, monkeypatch, tmp_path):
    options = [*SMALL, "--requests", "3"]
    out, record = bench("throughput", folder, "--random-weights", *options)
    assert record["weights"] == "random" and "weights: random" in out
    assert record["results"][0]["generated_tokens"] == 18
    config = json.loads((tmp_path.parent / folder / "config.json").read_text())
    monkeypatch.setattr("cugraphs.cli.bench_session.model_shape", lambda name: config)
    _, record = bench("throughput", "--shape", "tiny", *options)
    assert (record["model"], record["weights"]) == ("tiny", "random")
    assert record["results"][0]["finished"] == 3


def test_default_lengths_and_sharegpt_keep_to_a_small_models_limit(folder, bench):
    common = ["--device", "cpu", "--max-num-seqs", "4", "--requests", "4"]
    _, record = bench("throughput", folder, *common)
    assert record["workload"]["prompt_tokens"]["most"] == 128  # half of 256
    assert record["workload"]["output_tokens"]["most"] == 64
    _, record = bench("throughput", folder, *common, "--workload", "sharegpt")
    assert record["workload"]["prompt_tokens"]["most"] <= 128
    assert record["engine"]["max_model_len"] == 256


def test_a_picture_is_drawn(folder, bench, tmp_path):
    picture = tmp_path / "run.svg"
    bench("latency", folder, *SMALL, "--requests", "4", "--rate", "900", "--plot", str(picture))
    text = picture.read_text()
    assert text.startswith("<?xml") and len(text) > 10_000


@pytest.mark.parametrize("benchmark", ["throughput", "latency"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--requests", "0"], "--requests is 0, expected 1 to"),
        (["--prompt", "-1"], "--prompt is -1, expected 1 to"),
        (["--output", "0"], "--output is 0, expected 1 to"),
        (["--prefixes", "0"], "--prefixes is 0, expected 1 to"),
        (["--seed", "-1"], "--seed is -1, expected 0 to"),
        (["--max-num-seqs", "0"], "--max-num-seqs is 0, expected 1 to"),
        (
            ["--max-num-batched-tokens", "8", "--max-num-seqs", "16"],
            "--max-num-batched-tokens is 8, expected at least --max-num-seqs, 16",
        ),
        (["--prompt", "250", "--output", "7"], "257 tokens long, expected at most 256; lower"),
        (["--max-model-len", "300"], "--max-model-len is 300, expected 1 to 256"),
        (["--max-model-len", "20", "--prompt", "18"], "23 tokens long, expected at most 20"),
        (["--max-model-len", "32", "--workload", "sharegpt"], "at most 32 tokens, expected at le"),
        (["--graph-mode", "fast"], "graph_mode is 'fast', expected one of none"),
        (["--device", "tpu"], "device is 'tpu', expected"),
        (["--num-kv-blocks", "2"], "num_kv_blocks is 2, expected at least"),
        (["--json", "/no/such/folder/a.json"], "/no/such/folder/a.json is in no folder that exi"),
        (["--plot", "a.jpg"], "a.jpg ends in '.jpg', expected .png, .svg, .pdf"),
        (["--plot", "/no/such/folder/a.png"], "/no/such/folder is no folder, expected one"),
    ],
)
def test_a_mistake_is_one_line(folder, capsys, benchmark, options, message):
    assert main(["bench", benchmark, folder, "--device", "cpu", *options]) == 2
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if line.startswith("cugraphs: error: ")]
    assert len(errors) == 1 and message in errors[0] and out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rate", "0"], "--rate is 0.0, expected a positive number"),
        (["--rate", "1", "nan"], "--rate is nan, expected a positive number"),
        (["--burst", "0"], "--burst is 0, expected 1 to"),
    ],
)
def test_a_mistake_about_arrivals(folder, capsys, options, message):
    assert main(["bench", "latency", folder, *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("benchmark", ["throughput", "latency"])
def test_no_model_and_a_wrong_path(capsys, benchmark):
    with pytest.raises(SystemExit) as exit_:
        main(["bench", benchmark])
    assert exit_.value.code == 2
    assert "one of the arguments MODEL --shape is required" in capsys.readouterr().err
    assert main(["bench", benchmark, "/no/such/model"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "'/no/such/model' does not exist" in err
    assert main(["bench", benchmark, "--shape", "llama"]) == 2
    assert "shape: 'llama' is not known" in capsys.readouterr().err


@pytest.mark.parametrize("benchmark", ["throughput", "latency"])
def test_help_has_examples(capsys, benchmark):
    with pytest.raises(SystemExit) as exit_:
        main(["bench", benchmark, "--help"])
    assert exit_.value.code == 0
    out = capsys.readouterr().out
    assert (
        f"cugraphs bench {benchmark} --shape llama-3.1-8b" in out and "--workload sharegpt" in out
    )


def start(*arguments):
    return subprocess.Popen(
        [*COMMAND, *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
    )


def test_ctrl_c_prints_what_is_done(folder, tmp_path):
    file = tmp_path / "record.json"
    options = ["--requests", "3000", "--rate", "40", "--json", str(file)]
    with start("latency", folder, *SMALL, *options) as process:
        for _ in range(3):  # up to the workload's line: from then on it serves
            process.stdout.readline()
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "INTERRUPTED: the figures are of what was done until then" in out
    assert "Traceback" not in err
    record = json.loads(file.read_text())
    assert record["interrupted"] is True
    (result,) = record["results"]
    assert 0 < result["finished"] < 3000 and result["requests"] == 3000
    assert result["latency"]["ttft"]["p50_ms"] > 0


def test_a_pipe_that_closes_ends_it_quietly(folder):
    with start("throughput", folder, *SMALL, "--requests", "3") as process:
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=60)
    assert process.returncode == 141
    assert "Traceback" not in err and "error" not in err and "\r" not in err
