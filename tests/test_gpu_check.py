"""`cugraphs check --bench` on a GPU measures the card and every benchmark."""

import json

import pytest

from cugraphs.cli import main
from cugraphs.kernels import ADD, RMS_NORM, SAMPLE

pytestmark = pytest.mark.gpu


def test_the_table_has_a_share_for_each_size(capsys):
    assert main(["check", "--bench", "rms_norm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for case, line in zip(RMS_NORM.benchmarks, lines[1:], strict=False):
        assert line.split()[:3] == ["rms_norm", case.name, "bfloat16"]
        assert "% r" in line


def test_no_rate_is_far_above_the_ceilings_of_a_card_that_runs_this(capsys):
    assert main(["check", "--bench", "add", "sample", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    # From the slowest card of sm_80 on to several times the fastest: a wrong unit shows. Where
    # others use the GPU too, now more and now less, a share may be above 1.
    assert 50e9 < record["ceilings"]["read_bytes_per_s"] < 50e12
    assert 50e9 < record["ceilings"]["copy_bytes_per_s"] < 50e12
    assert 1e12 < record["ceilings"]["flops_per_s"] < 20e15
    assert 1e-8 < record["ceilings"]["empty_s"] < 1e-4
    timed = [speed for speed in record["speeds"] if "us" in speed]
    assert len(timed) == len(ADD.benchmarks) + len(SAMPLE.benchmarks)
    assert all(0 < speed["share"] < 20 for speed in timed)
