"""The memory map: every part counted once, what is held when, and its picture."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import recipes
from tiny_model import write_tiny_model

from cugraphs.buffer_assignment import assign_buffers
from cugraphs.cli import main
from cugraphs.compiler import plan_arena
from cugraphs.executable import PlannedProgram
from cugraphs.interpreter import TEMPORARIES
from cugraphs.kernels import ADD, LINEAR
from cugraphs.kv_cache import KVCacheShape
from cugraphs.memory_map import MemoryPart, arena_boxes, map_fitted_memory, map_memory
from cugraphs.memory_plot import Panel, draw_memory
from cugraphs.trace import Tracer

CACHE = KVCacheShape(2, 5, 1, 4, 8, "float32", 16)  # 2 layers x K and V x 4 tokens x 8 x 4 bytes
BLOCK_BYTES = 2 * 2 * 4 * 8 * 4


def planned(rows):
    """Two matrices and an addition over ``rows`` rows, one KV cache and one array of state."""
    t = Tracer(f"rows_{rows}")
    axis = t.dim("rows", rows)
    x = t.input("x", (axis, 64), "float32")
    CACHE.declare(t, 0)
    t.state("seeds", (7,), "float32")
    y = t.call(LINEAR, x, t.weight("layers.0.up_proj.weight", (64, 64), "float32"))
    y = t.call(LINEAR, y, t.weight("layers.0.down_proj.weight", (64, 64), "float32"))
    t.output(t.call(ADD, x, y), "sum")
    return PlannedProgram(t.program, assign_buffers(t.program))


def test_each_part_counts_once_whatever_the_programs():
    programs = [planned(4), planned(16)]
    arena = plan_arena(programs)
    memory = map_memory(programs, CACHE, arena, graphs=MemoryPart("graphs", None, "not captured"))
    parts = {part.name: part.nbytes for part in memory.parts}
    assert parts == {
        "weights": 2 * 64 * 64 * 4,
        "KV pool": 5 * BLOCK_BYTES,
        "sequence state": 7 * 4,
        "arena": arena.nbytes,
        "graphs": None,
    }
    assert memory.used_bytes == 32768 + 5 * BLOCK_BYTES + 28 + arena.nbytes
    assert memory.free_bytes is None
    text = str(memory)
    assert "graphs: unknown not captured" in text
    assert "free" not in text
    assert "temporaries" in text


def test_what_else_is_in_use_makes_the_free_bytes_true():
    total_bytes = 1 << 20
    memory = map_memory([planned(4)], CACHE, plan_arena([planned(4)]), total_bytes=total_bytes)
    whole = memory.with_rest(300_000, "other programs")
    assert whole.free_bytes == 300_000
    (other,) = (part for part in whole.parts if part.name == "other")
    assert other.nbytes == total_bytes - 300_000 - memory.used_bytes
    assert str(whole).count(f"other: {other.nbytes:,} bytes other programs\n") == 1


def test_the_pool_takes_what_is_left_of_a_device():
    programs = [planned(16)]
    arena = plan_arena(programs)
    graphs = MemoryPart("graphs", 1000)
    fixed = 32768 + 28 + arena.nbytes + 1000
    # One scratch block, and three blocks for sequences; one byte less, and it is two.
    total = 2 * (fixed + 4 * BLOCK_BYTES)
    for spare, num_blocks in ((0, 3), (-2, 2)):
        memory, found = map_fitted_memory(
            programs, CACHE, arena, graphs=graphs, total_bytes=total + spare, utilization=0.5
        )
        assert found == num_blocks
        assert memory.used_bytes == fixed + (1 + num_blocks) * BLOCK_BYTES
        assert memory.free_bytes == total + spare - memory.used_bytes
    memory, found = map_fitted_memory(
        programs, CACHE, arena, graphs=graphs, total_bytes=100, utilization=0.9
    )
    assert found == 0
    assert memory.free_bytes < 0


def test_boxes_say_what_is_held_from_when_to_when():
    program = planned(16)
    arena = plan_arena([program])
    boxes = {box.label: box for box in arena_boxes(program, arena, {"rows": 10})}
    spans = {label: (box.kind, box.first_op, box.last_op) for label, box in boxes.items()}
    assert spans == {
        "x": ("input", 0, 2),
        "up_proj": ("linear", 0, 1),
        "down_proj": ("linear", 1, 2),
        "add": ("output", 2, 2),
    }
    assert all(box.nbytes == 10 * 64 * 4 for box in boxes.values())


def test_scratch_memory_is_held_by_its_op_alone():
    program = planned(16)
    arena = plan_arena([program], workspace=True)
    boxes = [b for b in arena_boxes(program, arena, {"rows": 16}) if b.kind == "workspace"]
    assert [(box.first_op, box.last_op) for box in boxes] == [(0, 0), (1, 1)]
    assert {box.offset for box in boxes} == {arena.regions["workspace"].offset}


@settings(max_examples=60)
@given(recipe=recipes(), rows=st.integers(1, 16))
def test_no_two_boxes_meet(recipe, rows):
    """At no op do two of them hold the same byte, and each lies within its region."""
    program = recipe.trace(16, 3)
    planned_program = PlannedProgram(program, assign_buffers(program))
    arena = plan_arena([planned_program])
    sizes = {name: min(rows, int(dim)) for name, dim in program.dims.items()}
    boxes = arena_boxes(planned_program, arena, sizes)
    temporaries = arena.regions[TEMPORARIES]
    for box in boxes:
        assert box.first_op <= box.last_op < max(len(program.ops), 1)
        if box.kind not in ("input", "output"):
            assert box.offset >= temporaries.offset
            assert box.offset + box.nbytes <= temporaries.offset + temporaries.nbytes
    for a, b in itertools.combinations(boxes, 2):
        apart_in_time = a.last_op < b.first_op or b.last_op < a.first_op
        apart_in_memory = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
        assert apart_in_time or apart_in_memory


def test_the_picture_of_a_program_without_attention(tmp_path):
    program = planned(16)
    arena = plan_arena([program], workspace=True)
    file = tmp_path / "map.svg"
    panel = Panel("tiny", "a note", arena_boxes(program, arena, {"rows": 16}))
    draw_memory([panel], arena, "a title", file)
    assert "<svg" in file.read_text()


# cugraphs inspect


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_tiny_model(tmp_path_factory.mktemp("inspect") / "tiny"))


def test_inspect_maps_the_memory_of_a_gpu_that_is_not_there(folder, capsys):
    assert main(["inspect", folder, "--gpu", "l4", "--batch", "4", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    parts = {part["name"]: part["nbytes"] for part in record["memory"]["parts"]}
    assert record["memory"]["total_bytes"] == 24e9
    assert record["memory"]["used_bytes"] == sum(parts.values())
    assert record["memory"]["free_bytes"] == 24e9 - sum(parts.values())
    # float32 as the file has it; 4 sequences of 256 tokens, and the scratch block.
    assert parts["weights"] == 4 * record["parameters"] + 256 * 8 * 4
    assert record["kv_pool"]["num_blocks"] == 1 + 4 * 256 // 16
    assert parts["KV pool"] == record["kv_pool"]["bytes"] == 65 * 2 * 2 * (2 * 16 * 8) * 4
    assert "workspace" in {region["name"] for region in record["arena"]}


def test_inspect_says_what_it_does_for_one_row(folder, capsys):
    options = ["--gpu", "l4", "--context", "1", "--summary"]
    assert main(["inspect", folder, *options]) == 0
    out = capsys.readouterr().out
    assert out.startswith("config ")
    assert "\ndecode step of 1 row: " in out
    assert "\ndecode step: 1 row, 1 token in each sequence" in out
    assert "expected for 1 graph\n" in out


def test_inspect_of_a_named_shape_needs_no_folder(capsys):
    options = ["--shape", "llama-3.1-8b", "--max-model-len", "1024", "--gpu", "h100"]
    assert main(["inspect", *options, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["parameters"] == 8_030_261_248
    assert record["stored_bytes"] is None
    assert record["memory"]["parts"][0]["nbytes"] > 2 * record["parameters"]
    assert main(["inspect", *options, "--summary"]) == 0
    assert "nothing, computed in bfloat16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "gpt-5"], "'gpt-5' is not known, expected one of"),
        (["--shape", "llama-3.1-8b", "--graph-dot", "x"], "expected MODEL for --graph-dot"),
        (["demo", "--shape", "llama-3.1-8b"], "not allowed with argument MODEL"),
    ],
)
def test_inspect_refuses_a_shape_in_one_line(capsys, options, message):
    try:
        code = main(["inspect", *options])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_inspect_draws_the_arena(folder, capsys, tmp_path):
    file = tmp_path / "map.png"
    assert main(["inspect", folder, "--batch", "3", "--summary", "--plot", str(file)]) == 0
    out = capsys.readouterr().out
    assert "together: " in out and "free: " not in out
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu", "h300"], "gpu: 'h300' is not known, expected one of a100"),
        (["--plot", "map.bmp"], "map.bmp ends in '.bmp', expected .png, .svg, .pdf"),
    ],
)
def test_inspect_refuses_in_one_line(folder, capsys, options, message):
    assert main(["inspect", folder, *options]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "--bandwidth" not in err  # which `plan` has
