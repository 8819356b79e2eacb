"""Counts in messages: a number and its noun agree, because one function puts them together."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from cugraphs.counted import counted

NOUNS = (
    "answers|arguments|arrays|batches|beginnings|blocks|buffers|checks|copies|elements|entries|"
    "files|forks|functions|graphs|heads|ids|iterations|kernels|launches|layers|nodes|numbers|"
    "operands|ops|outputs|parameters|parts|pieces|preemptions|processes|programs|prompts|registers|"
    "replays|requests|rows|runs|rungs|samples|sequences|shards|sizes|slots|stamps|starts|steps|"
    "strings|temporaries|tensors|threads|tokens|values|warps|weights|words"
)
# Behind a number; up to two words may stand between, as in "3 dead rows", but no "of".
PLURAL = re.compile(rf" (?:(?!of |and |with |bytes |owns )[a-z-]+ ){{0,2}}?({NOUNS})\b(?!/)")
FRACTION = re.compile(r"\.\d*[a-z%]*$")  # of a measured number: "1.00 steps" is right

# What the search finds and is right: (file, number, noun), and why. Units (bytes, ms, us) are not
# looked for: sizes and times are told as measured.
RIGHT = {
    ("cli/bench_loop.py", "REPLAYS_TOGETHER", "replays"): "a constant above 1",
    ("cli/bench_prefill.py", "MAX_PIECE_TOKENS", "tokens"): "a constant above 1",
    ("cli/workload_options.py", "extent['most']", "tokens"): "more than the least",
    ("emulation/library.py", "MAX_GRID_YZ", "blocks"): "a constant above 1",
}


def test_a_number_and_its_noun():
    assert counted(1, "row") == "1 row"
    assert counted(0, "row") == "0 rows"
    assert counted(1024, "dead row") == "1,024 dead rows"
    assert counted(1, "batch", "batches") == "1 batch"
    assert counted(2, "batch", "batches") == "2 batches"


def counts_in(source: str) -> Iterator[tuple[int, str, str]]:
    """(line, number, noun) of each number that a text puts before a noun in the plural."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for place in re.finditer("%d(?= )", node.value):
                if found := PLURAL.match(node.value, place.end()):
                    yield node.lineno, "%d", found[1]
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            found = PLURAL.match(text.value)
            form = ast.unparse(value.format_spec)[2:-1] if value.format_spec else ""
            if found and not FRACTION.search(form):
                yield value.lineno, ast.unparse(value.value), found[1]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('f"{n} rows"', [(1, "n", "rows")]),
        ('f"of {len(x):,} live rows: {y}"', [(1, "len(x)", "rows")]),
        ('f"{n} " + "rows"', []),  # not seen
        ("f\"{counted(n, 'row')} of {name} tokens\"", [(1, "name", "tokens")]),
        ('_log.warning("%d rows of %d, %s tokens", 1, 2, 3)', [(1, "%d", "rows")]),
        ('f"{mean:.2f} steps, {rate:,.1f} tokens"', []),
        ('f"{name} with values, {n} bytes of weights, {n} tokens/s"', []),
    ],
)
def test_what_the_search_finds(source, found):
    assert list(counts_in(source)) == found


def sources() -> list[Path]:
    """All of the package's but kernels/, whose messages are of operands' sizes."""
    package = ROOT / "cugraphs"
    folders = (package, package / "cli", package / "emulation", ROOT / "models")
    return sorted(file for folder in folders for file in folder.glob("*.py"))


def test_messages_count_with_counted():
    used = set()
    wrong = []
    for file in sources():
        name = file.relative_to(ROOT / "cugraphs" if "cugraphs" in file.parts else ROOT)
        for line, number, noun in counts_in(file.read_text("utf-8")):
            key = (str(name), number, noun)
            used.add(key)
            if key not in RIGHT:
                wrong.append(f"{name}:{line}: {{{number}}} {noun}")
    assert not wrong, "use counted(), or say in RIGHT why the number cannot be 1:\n" + "\n".join(
        wrong
    )
    assert used == RIGHT.keys()
