"""The bugs that `scripts/mutate_kernels.py` plants still fit the kernels, and some are noticed."""

from pathlib import Path

import pytest
from conftest import needs_compiler
from mutations import MUTATIONS

from cugraphs.kernels import ALL

ROOT = Path(__file__).resolve().parent.parent
QUICK = {  # the kernel's bug, and what must be said of it
    ("add", "one vector too many"): "read of 16 bytes out of bounds",
    ("rms_norm", "no barrier before the partial sums are read"): "uninitialised",
    ("embedding", "token 0 is taken for a dead row"): "error is",
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.kernel}: {m.bug}")
def test_its_text_is_in_the_kernel_once(mutation):
    text = (ROOT / "kernels" / mutation.file).read_text("utf-8")
    assert mutation.apply(text) != text


def test_no_bug_is_listed_twice_and_every_kernel_with_a_source_has_some():
    assert len({(m.kernel, m.bug) for m in MUTATIONS}) == len(MUTATIONS)
    assert {m.kernel for m in MUTATIONS} == {k.name for k in ALL if k.source is not None}


def test_a_text_that_has_changed_is_refused():
    with pytest.raises(ValueError, match=r"stands 0 times in kernels/.*expected once"):
        MUTATIONS[0].apply("another text")


@needs_compiler
@pytest.mark.parametrize("key", QUICK, ids=lambda key: key[0])
def test_a_planted_bug_turns_the_kernel_red(key, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import mutate_kernels

    (mutation,) = (m for m in MUTATIONS if (m.kernel, m.bug) == key)
    assert QUICK[key] in mutate_kernels.prove(mutation.kernel, mutation, 100).red


@needs_compiler
def test_a_kernel_without_a_bug_is_green(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import mutate_kernels

    assert mutate_kernels.prove("add", None).red == ""
