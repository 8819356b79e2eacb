"""The phases of a launch, from made-up stamps: their times, the picture and the table."""

import json
import types
from dataclasses import replace

import numpy as np
import pytest
from decode_layers import layers_of, plain_layers
from emulated_identities.identity import case_named
from test_bench_command import H200, MACHINE
from tiny_model import write_tiny_model

from cugraphs.cli import bench_session, main, profile
from cugraphs.clock_stamps import PHASE_STAMP, STAMP, StampedLaunch
from cugraphs.emulation.emulate import bind_launches
from cugraphs.fusion import fuse
from cugraphs.fusion_rules import RULES
from cugraphs.kernel import Cost, running_on
from cugraphs.kernels import ALL
from cugraphs.kernels.decode_layer import DECODE_LAYER, PHASES
from cugraphs.launch import STAMPED
from cugraphs.nvrtc import compile_cubin
from cugraphs.program import Kind
from cugraphs.step_profile import OpTime
from cugraphs.step_timeline import (
    PhaseTime,
    Span,
    launches_of,
    phase_times,
    phases_of,
    spans_of,
    timeline_of,
)
from cugraphs.testing import case_arrays, check_plan
from cugraphs.timeline_plot import draw_timeline, middle_layer

SIZES = {"rows": 1}
LAYERS = 3


def stamped(blocks, phases=None):
    """A launch from each block's (waits, goes on, ends) and, in order, its phases: (begin, end)."""
    stamps = np.zeros(len(blocks), STAMP)
    for number, times in enumerate(blocks):
        stamps[number]["block"] = stamps[number]["multiprocessor"] = number
        stamps[number]["waits_ns"], stamps[number]["goes_on_ns"] = times[:2]
        stamps[number]["ends_ns"] = times[2]
    noted = None if phases is None else np.array(phases, np.uint64).view(PHASE_STAMP)[..., 0]
    return StampedLaunch("f", stamps, noted)


def one_launch():
    """Two blocks, two ops of two phases; the second block has no part in the first op's second."""
    return stamped(
        [(900, 1000, 9000), (950, 1100, 9100)],
        [
            [(1500, 3000), (3200, 5000), (5500, 6000), (6500, 9000)],
            [(1600, 3500), (0, 0), (5600, 7000), (7200, 8000)],
        ],
    )


# ------------------------------------------------------------------------------------- declarations


@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_phases_are_priced_and_their_sum_is_the_cost(kernel):
    named = set()
    for case, dtype in check_plan(kernel):
        arrays = case_arrays(kernel, case, dtype)
        if kernel.launches is not None:
            _, launches = bind_launches(kernel, arrays, case.attrs)
            for arch in ("", "sm_90"):
                named |= {getattr(part, "phases", ()) for part in running_on(arch, launches)}
    named -= {()}
    assert bool(named) == (kernel.phases is not None)
    if kernel.phases is not None:
        supplied, attrs = _types(kernel, arrays), case.attrs
        _, axes = kernel.infer(supplied, attrs)
        found = kernel.phases({**axes, "context": 40}, dtype, **attrs)
        assert named == {tuple(found)}
        total = sum(found.values(), Cost(0, 0))
        assert total == kernel.cost({**axes, "context": 40}, dtype, **attrs)
        assert all(cost.bytes_accessed > 0 and cost.flops > 0 for cost in found.values())


def _types(kernel, arrays):
    from cugraphs.array_type import DTYPES, ArrayType

    names = {dtype: name for name, dtype in DTYPES.items()}
    return [ArrayType(array.shape, names[array.dtype]) for array in arrays]


def test_a_1b_layer_by_hand():
    axes = {"rows": 1, "hidden": 2048, "inter": 8192, "q_size": 2048, "qkv_size": 3072}
    axes |= {"kv_heads": 8, "heads": 32, "head_dim": 64, "context": 1000}
    axes |= {"max_blocks": 100, "block_size": 16, "slots": 4, "num_blocks": 100, "part_words": 8}
    attrs = {"eps": 1e-5, "q_size": 2048, "scale": 0.125}
    found = DECODE_LAYER.phases(axes, "bfloat16", **attrs)
    assert found["o"] == Cost(2048 * 2048 * 2, 2 * 2048 * 2048)
    assert found["gate_up"] == Cost((2 * 8192 * 2048 + 2048) * 2, 4 * 8192 * 2048)
    assert found["down"] == Cost((2048 * 8192 + 2048) * 2, 2 * 2048 * 8192)
    assert found["qkv"] == Cost((3072 * 2048 + 2 * 2048) * 2 + 4 * 64, 2 * 3072 * 2048)
    kv = 2 * 1000 * 8 * 64 * 2
    assert kv <= found["attention"].bytes_accessed < 1.05 * kv  # lengths and tables beside it


def test_only_a_build_with_clock_stamps_notes_phases():
    arrays = case_arrays(DECODE_LAYER, case_named(DECODE_LAYER, "one_row"), "bfloat16")
    _, (launch,) = bind_launches(DECODE_LAYER, arrays, case_named(DECODE_LAYER, "one_row").attrs)
    one = (DECODE_LAYER.source, launch.function, launch.arch)
    assert b"phase_place" not in compile_cubin(*one).data
    noting = compile_cubin(*one, options=(STAMPED,))
    assert b"phase_place" in noting.data and b"stamp_place" in noting.data
    assert noting.spill_bytes == 0


# -------------------------------------------------------------------------------------------- times


def test_a_phase_lasts_from_the_last_end_of_the_one_before_to_its_own():
    spans = phases_of(Span(4, "k", one_launch(), 0.1, 8.2), ["a", "b"])
    found = [(span.op, span.label, span.begin_us, span.end_us) for span in spans]
    assert found == [
        (4, "k: a", 0.1, pytest.approx(2.6)),
        (4, "k: b", pytest.approx(2.6), pytest.approx(4.1)),
        (5, "k: a", pytest.approx(4.1), pytest.approx(6.1)),
        (5, "k: b", pytest.approx(6.1), pytest.approx(8.1)),
    ]
    # Of both blocks, whether they have a part or not.
    assert [span.busy_us for span in spans] == [1.7, 0.9, 0.95, 1.65]


def test_a_block_waits_from_the_end_of_the_phase_that_it_was_in():
    spans = phases_of(Span(4, "k", one_launch(), 0.1, 8.2), ["a", "b"])
    waits = [span.launch.stamps["waits_ns"].tolist() for span in spans]
    assert waits == [[900, 950], [3000], [5000, 3500], [6000, 7000]]
    goes = [span.launch.stamps["goes_on_ns"].tolist() for span in spans]
    assert goes == [[1500, 1600], [3200], [5500, 5600], [6500, 7200]]
    assert spans[1].launch.stamps["multiprocessor"].tolist() == [0]


def test_stamps_are_told_apart_to_the_nanosecond():
    """A GPU's clock counts from 1970: a float64 of it knows quarters of a microsecond."""
    since_1970 = 1_796_079_003_035_619_871
    launch = one_launch()
    for name in ("waits_ns", "goes_on_ns", "ends_ns"):
        launch.stamps[name] += since_1970
    for name in ("begins_ns", "ends_ns"):
        launch.phases[name][launch.phases[name] > 0] += since_1970
    (span,) = spans_of([(4, "k", launch)])
    assert (span.begin_us, span.end_us) == (0.1, 8.2)
    found = [(part.end_us, part.busy_us) for part in phases_of(span, ["a", "b"])]
    expected = [(2.6, 1.7), (4.1, 0.9), (6.1, 0.95), (8.1, 1.65)]
    assert np.allclose(found, expected, rtol=0, atol=1e-4)


def test_a_phase_that_no_block_ends_is_said():
    launch = one_launch()
    launch.phases["ends_ns"][:, 2] = 0
    with pytest.raises(RuntimeError, match="clock stamps: f has no block that ends phase 2, a,"):
        phases_of(Span(4, "k", launch, 0.0, 8.0), ["a", "b"])


def decode_program():
    """Layers of a step of one row that are one launch, after the launch that deals out parts."""
    layers, _ = layers_of(case_named(DECODE_LAYER, "one_row"), LAYERS)
    one_row = next(rule for rule in RULES if rule.fused is DECODE_LAYER)  # whatever the sizes
    program, _ = plain_layers(layers, case_named(DECODE_LAYER, "one_row").attrs)
    return fuse(program, [replace(one_row, worth=None)])


def decode_stamps(program):
    """Of its launches: 4 blocks, of which 2 attend; phase p of a layer takes p + 1 us."""
    queued = launches_of(program, SIZES, "sm_90", 132)
    found = [stamped([(0, 100, 500)])]
    now, noted = 1000, np.zeros((4, LAYERS * len(PHASES), 2), np.uint64)
    for number in range(noted.shape[1]):
        which = number % len(PHASES)
        blocks = 2 if PHASES[which] == "attention" else 4
        end = now + 1000 * (which + 1)
        for block in range(blocks):
            noted[block, number] = (now + 200 + 10 * block, end - 50 * block)
        now = end
    found.append(stamped([(600, 1000, now)] * 4, noted.tolist()))
    for number in range(4):
        found[1].stamps[number]["block"] = found[1].stamps[number]["multiprocessor"] = number
    return queued, found


def test_phases_of_all_layers_of_a_launch_are_averaged_and_priced():
    program = decode_program()
    queued, stamps = decode_stamps(program)
    assert [(launch.ops, launch.phases) for launch in queued] == [(1, ()), (LAYERS, PHASES)]
    spans = timeline_of(program, queued, stamps)
    assert [span.phase for span in spans] == ["", *PHASES * LAYERS]
    assert [span.op for span in spans[1:]] == [1 + i // 5 for i in range(5 * LAYERS)]
    times = phase_times(spans, program, SIZES, context=37)
    assert [time.phase for time in times] == [*PHASES]
    assert [time.us for time in times] == pytest.approx([1, 2, 3, 4, 5])
    assert all(time.ops == LAYERS and time.kernel == "decode_layer" for time in times)
    assert times[1].busy_us == pytest.approx((1.8 + 1.74) / 4)
    assert sum(time.us for time in times) * LAYERS == pytest.approx(spans[-1].end_us - 1)
    layer = program.ops[1]
    assert sum((t.cost for t in times), Cost(0, 0)) == layer.cost(SIZES, context=37)
    weights = {b.name.split(".")[0]: b.type.nbytes for b in program.of_kind(Kind.WEIGHT)}
    for time, name in zip(times, ("qkv", None, "o", "gate_up", "down"), strict=True):
        if name is not None:
            assert weights[name] <= time.cost.bytes_accessed < 1.02 * weights[name]


# ------------------------------------------------------------------------------ picture and command


def test_the_picture_has_the_phases_of_each_layer(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    program = decode_program()
    spans = timeline_of(program, *decode_stamps(program))
    assert [span.phase for span in middle_layer(spans)] == [*PHASES]
    assert {span.op for span in middle_layer(spans)} == {2 - (LAYERS - 1) % 2}
    file = tmp_path / "step.svg"
    draw_timeline(spans, "a step", file)
    text = file.read_text()
    assert all(f"decode_layer: {phase}" in text for phase in PHASES)
    assert "decode_layer: down  15 us" in text  # 3 layers, 5 us each


def test_the_table_of_phases_and_the_record_hold_the_same_figures(tmp_path, capsys, monkeypatch):
    device = types.SimpleNamespace(stream=types.SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(bench_session, "CudaDevice", lambda: device)
    monkeypatch.setattr(bench_session, "describe_machine", lambda device: MACHINE)
    monkeypatch.setattr(bench_session, "measure_gpu", lambda device: H200)
    monkeypatch.setattr(bench_session, "random_weights", lambda *arguments: {})
    builds = []
    monkeypatch.setattr(profile, "CudaDevice", lambda build: builds.append(build) or device)
    program = decode_program()
    queued, stamps = decode_stamps(program)
    ops = (OpTime("decode_layer", "", LAYERS, 1, 14.0, Cost(40_000_000, 1)),)
    step = types.SimpleNamespace(
        ops_us=lambda advance, context: ops, launches=queued, program=program, sizes=SIZES
    )
    monkeypatch.setattr(profile, "_prepare", lambda model, args: (step, 45.0))
    monkeypatch.setattr(
        profile, "timeline", lambda step: (timeline_of(program, queued, stamps), 50.0)
    )
    file = tmp_path / "record.json"
    folder = str(write_tiny_model(tmp_path / "tiny"))
    assert main(["profile", folder, "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert builds == [(STAMPED,)]
    assert "decode_layer: its phases, by clock stamps, mean of 3" in printed
    assert "15.0 us of an op." in printed and "the replay with clock stamps: 50 us" in printed
    row = next(line for line in printed.splitlines() if "gate_up" in line)
    assert row.split()[3:8:2] == ["4", "12.0", "26.7%"]  # of 15 us
    record = json.loads(file.read_text())
    phases = record["profile"]["phases"]
    assert [phase["phase"] for phase in phases] == [*PHASES]
    assert [phase["us"] for phase in phases] == pytest.approx([1, 2, 3, 4, 5])
    assert record["profile"]["stamped_us"] == 50


def test_rates_of_a_phase_by_hand():
    phase = PhaseTime("k", "a", 16, us=2.0, busy_us=1.0, cost=Cost(4_000_000, 1_000_000))
    assert phase.bytes_per_s == 2e12 and phase.flops_per_s == 5e11
    assert phase.share(4e12, 1e15) == 0.5
