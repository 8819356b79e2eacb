"""`cugraphs check --bench` with a GPU that is played: what is timed, and how it is shown."""

import dataclasses
import json

import pytest

from cugraphs.cli import check, kernel_bench, main
from cugraphs.cuda_availability import CudaUnavailable
from cugraphs.kernel import Case, Cost
from cugraphs.kernel_speed import Ceilings, NotTimed, Speed
from cugraphs.kernels import ADD, ALL, SAMPLE

# 1 MB in 1 us is 1,000 GB/s: a quarter of what the card reads.
CEILINGS = Ceilings(4e12, 3.8e12, 800e12, 1.25e-6)
SMALL = tuple(Case(name, lambda rng, dtype: ()) for name in ("one", "two"))


@pytest.fixture
def timed(monkeypatch):
    """The (kernel, size, dtype) of every timing; kernels have two sizes that hold nothing."""
    calls = []

    def time_case(timer, kernel, case, dtype, arrays):
        calls.append((kernel.name, case.name, dtype))
        return Speed(kernel.name, case.name, dtype, 1e-6, Cost(10**6, 10**5), 2)

    monkeypatch.setattr(check, "ALL", [dataclasses.replace(k, benchmarks=SMALL) for k in ALL])
    monkeypatch.setattr(kernel_bench, "check_cuda", lambda: "a card")
    device = type("Device", (), {"gpu_name": "a card"})
    monkeypatch.setattr(kernel_bench, "CudaDevice", device)
    monkeypatch.setattr(kernel_bench, "LaunchTimer", lambda device: None)
    monkeypatch.setattr(kernel_bench, "measure_ceilings", lambda timer: CEILINGS)
    monkeypatch.setattr(kernel_bench, "time_case", time_case)
    return calls


def lines_of(capsys):
    return capsys.readouterr().out.splitlines()


def test_each_benchmark_is_timed_in_bfloat16_and_shown(timed, capsys):
    assert main(["check", "--bench", "add", "advance"]) == 0
    assert timed == [
        ("add", "one", "bfloat16"),
        ("add", "two", "bfloat16"),
        ("advance", "one", "float32"),  # none of its operands takes the models' dtype
        ("advance", "two", "float32"),
    ]
    header, *rows = lines_of(capsys)
    columns = "kernel size dtype us early us empty us MiB GB/s Gflop TFLOP/s share early"
    assert " ".join(header.split()) == columns
    figures = "1.00 - 2.50 0.954 1,000 0.0001 0.1 25.0% r -"
    assert " ".join(rows[0].split()) == f"add one bfloat16 {figures}"
    assert " ".join(rows[3].split()) == f"advance two float32 {figures}"
    told = " ".join(rows[4:])
    for part in ("a card", "reads 4.00 TB/s", "copies 3.80 TB/s", "800 TFLOP/s", "1.25 us"):
        assert part in told
    assert "about 95%" in told


def test_dtypes_are_those_that_are_asked_for(timed):
    assert main(["check", "--bench", "add", "--dtype", "float16", "--dtype", "float32"]) == 0
    assert [dtype for _, _, dtype in timed] == ["float16", "float32"] * 2


def test_an_empty_kernel_is_shown_beside_small_sizes_only(timed, capsys, monkeypatch):
    def time_case(timer, kernel, case, dtype, arrays):
        return Speed(kernel.name, case.name, dtype, 1e-5, Cost(1 << 25, 0), 1, 8e-6)

    monkeypatch.setattr(kernel_bench, "time_case", time_case)
    assert main(["check", "--bench", "add"]) == 0
    assert lines_of(capsys)[1].split() == [
        *("add", "one", "bfloat16", "10.00", "8.00", "32", "3,355", "0", "0", "83.9%", "r"),
        "104.9%",
    ]


def test_json_has_ceilings_and_speeds(timed, capsys):
    assert main(["check", "--bench", "add", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["gpu"] == "a card"
    assert record["ceilings"]["read_bytes_per_s"] == 4e12
    assert [speed["size"] for speed in record["speeds"]] == ["one", "two"]
    for speed in record["speeds"]:
        assert speed["us"] == pytest.approx(1) and speed["share"] == pytest.approx(0.25)


def test_a_size_without_a_time_says_why_and_the_rest_goes_on(timed, capsys, monkeypatch):
    def time_case(timer, kernel, case, dtype, arrays):
        if case.name == "one":
            return NotTimed(kernel.name, case.name, dtype, "does not fit: it is huge")
        return Speed(kernel.name, case.name, dtype, 1e-6, Cost(10**6, 10**5), 1)

    monkeypatch.setattr(kernel_bench, "time_case", time_case)
    assert main(["check", "--bench", "add"]) == 0
    lines = lines_of(capsys)
    assert lines[1].split() == ["add", "one", "bfloat16", "-"] and "25.0%" in lines[2]
    assert "add one bfloat16: not timed: does not fit: it is huge" in lines


@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError, MemoryError])
def test_a_kernel_that_does_not_run_is_a_failure(timed, capsys, monkeypatch, error):
    def time_case(timer, kernel, case, dtype, arrays):
        raise error("add.cu:3: it\nis broken")

    monkeypatch.setattr(kernel_bench, "time_case", time_case)
    assert main(["check", "--bench", "add"]) == 1
    assert "add one bfloat16: not timed: add.cu:3: it is broken" in lines_of(capsys)


def test_an_interrupt_is_one_line(timed, capsys, monkeypatch):
    def time_case(timer, kernel, case, dtype, arrays):
        raise KeyboardInterrupt

    monkeypatch.setattr(kernel_bench, "time_case", time_case)
    assert main(["check", "--bench", "add"]) == 130
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.strip() == "cugraphs: interrupted"


def test_without_a_gpu_it_says_what_is_needed(capsys, monkeypatch):
    def check_cuda():
        raise CudaUnavailable("cuda: libcuda.so.1 is not found, expected NVIDIA's driver")

    monkeypatch.setattr(kernel_bench, "check_cuda", check_cuda)
    assert main(["check", "--bench"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "cugraphs: error: check: --bench needs a GPU, and none can be used: cuda: libcuda.so.1 is "
        "not found, expected NVIDIA's driver\n"
    )


def test_kernels_without_benchmarks_are_named(timed, capsys, monkeypatch):
    own = [dataclasses.replace(ADD, benchmarks=SMALL), dataclasses.replace(SAMPLE, benchmarks=())]
    monkeypatch.setattr(check, "ALL", own)
    assert main(["check", "--bench"]) == 0
    assert lines_of(capsys)[-1] == "without benchmarks: sample"
    assert main(["check", "--bench", "sample"]) == 2
    assert "no benchmarks are declared by sample" in capsys.readouterr().err


def test_bench_and_stage_exclude_each_other(timed, capsys):
    assert main(["check", "--bench", "--stage", "emulate"]) == 2
    assert "--bench and --stage are both given" in capsys.readouterr().err
    assert timed == []


def test_a_users_file_is_timed(timed, tmp_path):
    file = tmp_path / "own_kernels.py"
    file.write_text(
        "import dataclasses\n"
        "from cugraphs.kernel import Case\n"
        "from cugraphs.kernels import ADD\n"
        "small = Case('small', lambda rng, dtype: ())\n"
        "MINE = dataclasses.replace(ADD, name='mine', benchmarks=(small,))\n"
        "del ADD\n"
    )
    assert main(["check", f"{file}:MINE", "--bench"]) == 0
    assert timed == [("mine", "small", "bfloat16")]
