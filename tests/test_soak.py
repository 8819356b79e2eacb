"""scripts/soak.py on the CPU for some seconds: it passes, and it notices what it is there for."""

from pathlib import Path

import pytest

from cugraphs.block_manager import BlockManager
from cugraphs.engine import Engine

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def soak(monkeypatch, capsys):
    """Runs the script for some seconds; its exit code and what it printed."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import soak as script

    def run(seconds, *options):
        arguments = ["demo", "--device", "cpu", "--requests", "30", "--minutes", str(seconds / 60)]
        code = script.main([*arguments, *options])
        return code, capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    "ways", [[], ["--async-scheduling", "--num-scheduler-steps", "4", "--step-loops"]]
)
def test_random_traffic_for_some_seconds(soak, ways):
    code, out = soak(3, *ways)
    assert code == 0, out
    assert out.splitlines()[-1] == "soak: passed"


def test_a_wrong_answer_is_noticed(soak, monkeypatch):
    """Blocks of a prefix in the wrong order: each holds tokens of another place."""
    cached_prefix = BlockManager.cached_prefix
    monkeypatch.setattr(
        BlockManager, "cached_prefix", lambda self, tokens: cached_prefix(self, tokens)[::-1]
    )
    code, out = soak(20)  # it ends at the tenth problem
    assert code == 1 and ", alone length [" in out
    assert out.splitlines()[-1] == "soak: FAILED"


def test_growing_memory_is_noticed(soak, monkeypatch):
    import soak as script

    held = iter(range(0, 1 << 40, 80 << 20))
    monkeypatch.setattr(script, "resident_bytes", lambda: next(held))
    code, out = soak(2, "--no-async-scheduling")
    assert code == 1 and ": the process grew by " in out


def test_a_request_that_never_ends_is_noticed(soak, monkeypatch):
    import soak as script

    monkeypatch.setattr(script, "PATIENCE_S", 0.2)
    step = Engine.step
    counts = iter(range(1 << 40))

    def stops(engine):
        """Except the engine that answers one request alone, for comparison."""
        is_alone = engine.scheduler.max_num_seqs == 1
        return step(engine) if is_alone or next(counts) < 300 else []

    monkeypatch.setattr(Engine, "step", stops)
    code, out = soak(0.5)
    assert code == 1 and "requests have not ended" in out


def test_tame_traffic_is_no_proof(soak, monkeypatch):
    import soak as script

    monkeypatch.setattr(script, "LONGEST_PROMPT", 2)
    code, out = soak(0.5)
    assert code == 1 and "PROBLEM: there were no preemptions" in out
