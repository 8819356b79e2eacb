"""`cugraphs check` on a GPU measures the card and every case."""

import json

import pytest

from cugraphs.cli import main
from cugraphs.kernels import RMS_NORM

pytestmark = pytest.mark.gpu


def test_check_prints_a_share_for_each_case(capsys):
    assert main(["check", "rms_norm", "--stage", "gpu", "--dtype", "bfloat16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in lines[1 : 1 + len(RMS_NORM.cases)]:
        assert line.split()[-2].endswith("%") and line.endswith("passed")
    assert any(line.startswith("this card reads") for line in lines)


def test_the_ceilings_are_those_of_a_card_that_runs_this(capsys):
    options = ["--stage", "gpu", "--dtype", "bfloat16", "--json"]
    assert main(["check", "linear", *options]) == 0
    record = json.loads(capsys.readouterr().out)
    # From the slowest card of sm_80 or newer to several times the fastest: a wrong unit shows.
    assert 50e9 < record["ceilings"]["read_bytes_per_s"] < 50e12
    assert 1e12 < record["ceilings"]["flops_per_s"] < 20e15
    assert record["speeds"] and all(speed["us"] > 0 for speed in record["speeds"])
