"""The table of a layer's launches in docs/architecture.md is what is planned at real sizes."""

import re
from functools import cache
from typing import NamedTuple

import pytest
from conftest import ROOT

from cugraphs.joined_ops import queued_runs
from cugraphs.kernels.linear_residual import MIN_ROWS
from cugraphs.kv_cache import KVCacheShape
from cugraphs.ladder import Ladder
from cugraphs.model_shapes import model_shape
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.step_plan import StepPlan

MODELS = {"1B": "llama-3.2-1b", "8B": "llama-3.1-8b", "70B": "llama-3.1-70b"}
H200 = ("sm_90", 132)  # architecture and multiprocessors
ELSEWHERE = (("sm_80", 108), ("sm_86", 84), ("sm_89", 142), ("sm_100", 148), ("sm_120", 188))
LAYERS = 5
MOST = 512  # rows of the steps that may not have MIN_ROWS
# Each number to where rules and forms no longer change from one to the next, and both sides of
# what the table names above that.
ROWS = (*range(1, 80), 128, 200, 255, 256, 257, 300, MOST)
OP = re.compile(r"(?:`(\w+)`|(attention))(?: \((\d)\))?")


class TableRow(NamedTuple):
    """Of the table: rows of a step, sizes, and two cells."""

    rows: range
    max_rows: int
    models: tuple[str, ...]
    here: str
    elsewhere: str

    @classmethod
    def read(cls, line):
        rows, models, here, elsewhere = (cell.strip() for cell in line.strip("|\n ").split("|"))
        max_rows = MIN_ROWS if rows.endswith(f"in steps that may have {MIN_ROWS:,}") else MOST
        if rows.startswith("more"):
            numbers = range(257, max_rows + 1)
        else:
            first, _, last = rows.partition(" to ")
            numbers = range(int(first), int(last or first) + 1)
        names = tuple(MODELS) if models == "all" else tuple(models.split(", "))
        return cls(numbers, max_rows, names, here, elsewhere)


def table():
    text = (ROOT / "docs" / "architecture.md").read_text()
    _, lines = text.split("| rows | of | launches on sm_90a | elsewhere |\n|---|---|---|---|\n")
    return [TableRow.read(line) for line in lines.split("\n\n")[0].splitlines()]


@cache
def plan_of(model, max_rows):
    config = LlamaConfig.from_hf({**model_shape(MODELS[model]), "num_hidden_layers": LAYERS}, "")
    cache_sizes = (LAYERS, 40, config.num_key_value_heads, 16, config.head_dim)
    return StepPlan(
        Llama(config, "bfloat16"),
        KVCacheShape(*cache_sizes, "bfloat16", 64),
        vocab_size=config.vocab_size,
        max_num_seqs=max_rows,
        max_num_batched_tokens=max_rows,
        ladder=Ladder(max_rows, [*ROWS, max_rows] if max_rows == MOST else [257, max_rows]),
    )


def layer_launches(model, rows, max_rows, card):
    """[(kernel, launches)] from one layer's attention to the next's, and how many layers they are.

    All layers but the first and the last are alike.
    """
    plan = plan_of(model, max_rows)
    program = plan.decode[plan.ladder.class_for(rows)].program
    ops = [
        (program.ops[run.start].kernel.name, len(parts), len(run))
        for run, parts in queued_runs(program, {"rows": rows}, *card)
    ]
    attends = [
        i for i, (name, *_) in enumerate(ops) if re.search("_attention$|^decode_layer", name)
    ]
    if len(attends) == 1:
        (name, launches, layers) = ops[attends[0]]
        return [(name, launches)], layers
    assert len(attends) == LAYERS
    found = [(name, launches) for name, launches, _ in ops[attends[2] : attends[3]]]
    return found, 1


def written(cell):
    """[(kernel, launches)] that a cell names."""
    return [(name or "paged_decode_attention", int(n or 1)) for name, _, n in OP.findall(cell)]


def rotations(ops):
    return [ops[i:] + ops[:i] for i in range(len(ops))]


def bound_at(row):
    """The numbers of rows at which a line of the table is looked at."""
    rungs = ROWS if row.max_rows == MOST else (257, row.max_rows)
    return [rows for rows in rungs if rows in row.rows]


def number(cell):
    return int(re.match(r"\d+", cell).group())


@pytest.mark.parametrize("model", MODELS)
def test_every_number_of_rows_has_one_line(model):
    lines = [row for row in table() if model in row.models]
    assert [n for row in lines if row.max_rows == MOST for n in row.rows] == [*range(1, MOST + 1)]
    assert [row.rows for row in lines if row.max_rows == MIN_ROWS] == [range(257, MIN_ROWS + 1)]


@pytest.mark.parametrize(
    "row",
    table(),
    ids=lambda row: f"{row.rows[0]}_to_{row.rows[-1]}_rows_of_{'_'.join(row.models)}",
)
def test_the_table_counts_and_names_what_is_launched(row):
    assert bound_at(row)
    for model in row.models:
        for rows in bound_at(row):
            here, layers = layer_launches(model, rows, row.max_rows, H200)
            assert number(row.here) == sum(launches for _, launches in here), (model, rows)
            assert ("for all layers" in row.here) == (layers == LAYERS) == (layers > 1)
            assert not written(row.here) or written(row.here) in rotations(here), (model, rows)
            for card in ELSEWHERE:
                found, layers = layer_launches(model, rows, row.max_rows, card)
                assert number(row.elsewhere) == sum(n for _, n in found), (model, rows, card)
                assert layers == 1
                differ = [op for op in found if op not in here]
                assert written(row.elsewhere) == differ, (model, rows, card)


def test_a_line_that_names_no_kernels_has_those_of_a_line_before():
    before = []
    for row in table():
        found = [
            layer_launches(model, bound_at(row)[0], row.max_rows, H200)[0] for model in row.models
        ]
        if "the same" in row.here:
            assert all(ops == before for ops in found)
        elif "as 2 rows" in row.here:
            assert found == [layer_launches("70B", 2, MOST, H200)[0]]
        else:
            assert written(row.here), row
        before = found[0]
