"""cugraphs bench host: real steps without a device, and figures that add up."""

import json

import pytest

from cugraphs.cli import main
from cugraphs.statistics import PHASES


def test_both_loads_run_and_are_told(capsys, tmp_path):
    file = tmp_path / "host.json"
    arguments = ["--rows", "3", "--steps", "60", "--answer", "7", "--json", str(file)]
    assert main(["bench", "host", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "no end" in shown and "7 tokens" in shown and "vocabulary of demo" in shown
    results = json.loads(file.read_text())["results"]
    assert [(r["rows"], r["answer_tokens"]) for r in results] == [(3, 0), (3, 7)]
    for result in results:
        assert set(result["phase_us"]) == set(PHASES)
        assert all(microseconds > 0 for microseconds in result["phase_us"].values())
        assert result["cpu_us"] > 0 and result["text_us"] > 0 and 0 < len(result["profile"]) <= 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "0"], "--rows is 0, expected 1 to"),
        (["--steps", "0"], "--steps is 0, expected 1 to"),
        (["--json", "/no/such/folder/x.json"], "is in no folder that exists"),
        (["no/such/model"], "no/such/model"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    assert main(["bench", "host", *arguments]) != 0
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
