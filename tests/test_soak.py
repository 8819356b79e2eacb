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


def test_random_traffic_for_some_seconds(soak):
    code, out = soak(4)
    assert code == 0, out
    assert out.splitlines()[-1] == "soak: passed"


def test_a_wrong_answer_is_noticed(soak, monkeypatch):
    """A prefix that is looked up one block too far: its last block holds other tokens."""
    cached_prefix = BlockManager.cached_prefix

    def too_long(self, token_ids):
        found = cached_prefix(self, token_ids)
        others = [block for block in self._prefixes if block not in found]
        fits = (len(found) + 1) * self.block_size < len(token_ids)
        return [*found, others[0]] if found and others and fits else found

    monkeypatch.setattr(BlockManager, "cached_prefix", too_long)
    code, out = soak(20)  # it ends at the tenth problem
    assert code == 1 and "alone (CompletionOutput(" in out
    assert out.splitlines()[-1] == "soak: FAILED"


def test_a_lost_block_is_noticed(soak, monkeypatch):
    def forgetful(self, seq_id):
        owned = self._owned.pop(seq_id, None)
        for block in owned.table if owned else ():
            self._users[block] -= 1

    monkeypatch.setattr(BlockManager, "free", forgetful)
    with pytest.raises(AssertionError, match="blocks are lost or shared"):
        soak(20)


def test_tame_traffic_is_no_proof(soak, monkeypatch):
    monkeypatch.setattr(Engine, "abort", lambda self, request: None)
    code, out = soak(0.3)
    assert code == 1 and "PROBLEM: " in out
