"""``cugraphs.compile`` on devices that capture, or have a memory of their own, as a GPU does."""

import dataclasses
import logging

import numpy as np
import pytest
from compiled_steps import (
    WIDTH,
    CapturingDevice,
    RecordingGraph,
    doubled,
    floats,
)
from hypothesis import given
from hypothesis import strategies as st
from random_programs import assert_same_bits
from step_kernels import SLOT_TOTALS
from tiny_kernels import DOUBLE

import cugraphs

# --- captures, on a device that replays by calling again


def test_every_bucket_is_captured_once_the_largest_first():
    step = cugraphs.compile(doubled, buckets=[1, 2, 4, 8], device=CapturingDevice())
    assert step.captured == (1, 2, 4, 8) and step.counts.captures == 4
    assert not step.counts.eager_steps  # the warm-up is not a step
    for rows in (3, 8, 1, 3):
        assert (step(x=floats(rows))["y"] == 2 * floats(rows)).all()
    assert step.counts.replays == {4: 2, 8: 1, 1: 1} and step.counts.captures == 4
    report = step.capture_report
    assert [rung.rows for rung in report] == [8, 4, 2, 1] and len(report) == 4
    assert all(rung.num_nodes == 3 and rung.capture_ms > 0 for rung in report)
    assert [rung.warm_up_ms > 0 for rung in report] == [True, True, True, True]
    assert str(report).splitlines()[-1].startswith("4 graphs, ") and not report.stopped
    assert isinstance(step.graph(8), RecordingGraph)
    assert "graphs" in {part.name for part in step.memory_map().parts}


def test_each_program_runs_on_dead_rows_before_its_first_capture():
    events = []

    def spy(x):
        events.append(x.copy())
        return (x + x,)

    def spied(t, rows):
        x = t.input("x", (rows, 1), "float32")
        t.output(t.call(dataclasses.replace(DOUBLE, reference=spy), x), "y")

    class Spying(CapturingDevice):
        def capture(self, run):
            events.append("capture")
            return super().capture(run)

    cugraphs.compile(spied, buckets=[1, 2, 4, 8], device=Spying(), dead={"x": 7})
    seen = [e if isinstance(e, str) else e.tolist() for e in events]
    assert seen == [[[7]] * 8, *["capture"] * 2, [[7]] * 2, "capture", [[7]], "capture"]


def test_a_capture_that_fails_leaves_the_step_working(caplog):
    with caplog.at_level(logging.WARNING, "cugraphs"):
        step = cugraphs.compile(doubled, buckets=[1, 2, 4, 8], device=CapturingDevice(fails_at=2))
    assert "2 rows: capture fails in op 0 double: it is planted; they and sma" in caplog.text
    assert step.captured == (4, 8) and step.capture_report.stopped in caplog.text
    for rows in (1, 3, 2):
        assert (step(x=floats(rows))["y"] == 2 * floats(rows)).all()
    reason = "not captured: capture fails in op 0 double: it is planted"
    assert step.counts.replays == {4: 1} and step.counts.eager_steps == {reason: 2}


def test_more_buckets_than_bindings_are_kept():
    """All rungs of a large ladder stay captured, whatever runs in between."""
    rungs = range(65, 165)
    step = cugraphs.compile(doubled, buckets=rungs, device=CapturingDevice())
    for rows in (*rungs, 65):
        assert (step(x=floats(rows))["y"] == 2 * floats(rows)).all()
        assert isinstance(step.graph(rows), RecordingGraph)
    assert step.counts.replays.total() == 101 and not step.counts.eager_steps


def test_without_graphs():
    device = CapturingDevice()
    step = cugraphs.compile(doubled, buckets=[2], device=device, graphs=False)
    assert device.num_captures == 0 and (step(x=floats(1))["y"] == 2 * floats(1)).all()


# --- a device with memory of its own, as a GPU has


class DeviceArray(np.ndarray):
    """An array that the host must not touch."""


class Twins:
    """Two host buffers in turn; a step that reads before they are sent finds NaN."""

    def __init__(self, inputs):
        self.inputs, self.current, self.num_sent = inputs, 0, 0
        self.twins = tuple(np.full(inputs.nbytes, 0xFF, np.uint8) for _ in range(2))

    def next(self):
        return self.current

    def send(self, nbytes):
        self.inputs[:nbytes] = self.twins[self.current][:nbytes]
        self.twins[self.current][...] = 0xFF
        self.current, self.num_sent = 1 - self.current, self.num_sent + 1

    def sent(self, nbytes):
        return None

    def overwritten(self):
        pass


class KeptTwins(Twins):
    """Host buffers that hold what was sent, so that it need not be sent again."""

    sent_bytes = 0

    def send(self, nbytes):
        self.inputs[:nbytes] = self.twins[self.current][:nbytes]
        self.current, self.num_sent, self.sent_bytes = 1 - self.current, self.num_sent + 1, nbytes

    def sent(self, nbytes):
        return 1 - self.current if nbytes <= self.sent_bytes else None

    def overwritten(self):
        self.sent_bytes = 0


class SeparateDevice(CapturingDevice):
    shares_host_memory = False

    def allocate_bytes(self, nbytes):
        return super().allocate_bytes(nbytes).view(DeviceArray)

    def read(self, array):
        assert isinstance(array, DeviceArray)
        return np.array(array)

    def owns(self, array):
        return isinstance(array, DeviceArray)

    def stage(self, inputs):
        self.staging = Twins(inputs)
        return self.staging


def on_device(array):
    return np.array(array).view(DeviceArray)


def totals(t, rows):
    x = t.input("x", (rows, WIDTH), "float32")
    ids = t.input("ids", (rows,), "int32")
    total = t.state("total", (6, WIDTH), "float32")
    t.output(t.call(SLOT_TOTALS, total, x, ids), "out")


@given(
    st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), min_size=1, max_size=6),
    st.sampled_from(["split", "eager"]),
)
def test_arrays_of_the_device_are_as_good_as_host_arrays(calls, off_ladder):
    options = {"buckets": [1, 4], "max_rows": 6, "off_ladder": off_ladder, "dead": {"ids": -1}}
    state = {"total": np.zeros((6, WIDTH), np.float32)}
    plain = cugraphs.compile(totals, device="cpu", state=state, **options)
    own = {"total": on_device(state["total"])}
    step = cugraphs.compile(totals, device=SeparateDevice(), state=own, poison=True, **options)
    for seed, (rows, x_there, ids_there) in enumerate(calls):
        x = floats(rows, seed)
        ids = np.random.default_rng(seed).permutation(6)[:rows].astype(np.int32)
        expected = plain(x=x, ids=ids)["out"]
        out = step(x=on_device(x) if x_there else x, ids=on_device(ids) if ids_there else ids)
        assert isinstance(out["out"], DeviceArray)
        assert_same_bits(step.read(out["out"]), expected, "out")
    assert_same_bits(step.read("total"), plain.read("total"), "total")


def test_nothing_is_sent_where_all_of_a_bucket_is_on_the_device():
    device = SeparateDevice()
    step = cugraphs.compile(doubled, buckets=[2, 4], device=device)
    sent = device.staging.num_sent
    for rows, more in ((4, 0), (2, 0), (3, 1)):
        before = device.staging.num_sent
        out = step(x=on_device(floats(rows)))["y"]
        assert (step.read(out) == 2 * floats(rows)).all()
        assert device.staging.num_sent - before == more  # the dead row of the last batch
    assert device.staging.num_sent == sent + 1


class KeepingDevice(SeparateDevice):
    def stage(self, inputs):
        self.staging = KeptTwins(inputs)
        return self.staging


def test_inputs_that_the_device_holds_are_not_sent_again():
    device = KeepingDevice()
    step = cugraphs.compile(doubled, buckets=[2, 4], device=device)
    zero, one = np.zeros((2, WIDTH), np.float32), np.ones((2, WIDTH), np.float32)
    four = np.concatenate([one, zero])

    def sends(x, given=None):
        before = device.staging.num_sent
        out = step.read(step(x=x if given is None else given)["y"])
        assert_same_bits(out, 2 * x, "y")
        return device.staging.num_sent - before

    sends(four)
    assert sends(one) == 0 and sends(one) == 0  # the first rows of what is there
    assert sends(zero) == 1 and sends(zero) == 0
    assert sends(-zero) == 1  # equal as numbers, other bits
    assert sends(four) == 1 and sends(one) == 0
    assert sends(zero, on_device(zero)) == 0
    assert sends(one) == 1  # the device's own array has taken the place of what was sent


def test_a_split_batch_on_the_device_may_be_its_own_results():
    step = cugraphs.compile(doubled, buckets=[2], device=SeparateDevice(), max_rows=6)
    x = floats(6)
    y = step(x=on_device(x))["y"]
    for _ in range(2):
        y = step(x=np.ascontiguousarray(y[::-1]).view(DeviceArray))["y"]
        y = step(x=y)["y"]
    assert (step.read(y) == 32 * x).all()


def test_arrays_of_the_device_are_taken_as_they_stand():
    step = cugraphs.compile(doubled, buckets=[4], device=SeparateDevice())
    for array in (on_device(np.ones((3, WIDTH))), on_device(floats(6))[::2]):
        with pytest.raises(TypeError, match=r"^doubled: input 'x' is float.* on the device, expec"):
            step(x=array)
