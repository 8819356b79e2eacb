"""Whatever goes into a message, one printable line of bounded length comes out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.one_line import one_line, quoted, reason, several

LONGEST = len("\\U0010ffff")  # how repr writes one character at most


@given(text=st.text(max_size=30), limit=st.integers(1, 20))
def test_one_line_is_printable_and_short(text, limit):
    shown = one_line(text, limit)
    assert shown.isprintable() and len(shown) <= limit * LONGEST + 1
    if text.isprintable() and len(text) <= limit:
        assert shown == text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("model.norm", "model.norm"),
        ("你好 a  b", "你好 a  b"),
        ("a\nb\0\x1b[31m", "a\\nb\\x00\\x1b[31m"),
        ("\ud800", "\\ud800"),
        ([1, 2], "[1, 2]"),
        ("x" * 301, "x" * 300 + "…"),
    ],
)
def test_names(value, shown):
    assert one_line(value) == shown
    assert quoted(value) == f"'{shown}'"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("first\n  second\t"), "first second"),
        (OSError(13, "Permission denied", "/some/file"), "Permission denied"),
        (OSError("timed out"), "timed out"),
        (RecursionError(), "RecursionError"),
        (ValueError(" \n"), "ValueError"),
    ],
)
def test_reasons(error, text):
    assert reason(error) == text


def test_several_names_are_the_first_and_a_count():
    assert several(["a"]) == "a"
    assert several(["a", "b"]) == "a and 1 more"
    assert several(["a\n", "b", "c"]) == "a\\n and 2 more"
