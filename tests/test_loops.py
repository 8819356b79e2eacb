"""Steps that are launched together on the CPU, and the ring that tells their tokens."""

import threading
import time

import numpy as np
import pytest
from compiled_steps import CapturingDevice, RecordingGraph
from loop_runs import CHECKS, MOST, SLOTS, LoopRun

from cugraphs.cpu_device import CpuDevice
from cugraphs.device import CaptureError
from cugraphs.ladder import Ladder
from cugraphs.program import Kind
from cugraphs.step_state import MAX_CHANGES
from cugraphs.token_ring import DEAD, MAX_STEPS, RING_STEPS, TokenRing


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_on_the_cpu(check):
    check(CpuDevice(), "none")


def test_a_loop_that_is_stopped_on_the_way_ends_after_the_step_it_is_in():
    run = LoopRun(CpuDevice(), "none")
    run.begin()
    ring, looks = run.runner.ring, []

    def until():
        looks.append(len(looks))
        if len(looks) == 4:  # the first look is before the first step
            ring.stop()
        return ring.has_ended(ring.next_step - MOST)

    first = run.launch(num_steps=MOST, until=until)
    assert ring.steps_made(first) == 4 and len(looks) == 5
    assert len(run.tokens(first, MOST, loop=first)) == 4


class SlowDevice(CpuDevice):
    """Whose memory is not the host's, so that the host waits."""

    shares_host_memory = False

    def __init__(self):
        self.idle = False
        self.problem = ""

    def check(self):
        if self.problem:
            raise RuntimeError(self.problem)
        return self.idle


def write(ring, step, tokens):
    words = ring.arrays["token_ring"][step % RING_STEPS]
    words[: len(tokens), 0] = tokens
    words[: len(tokens), 1] = np.array([step], np.int64).astype(np.int32)


@pytest.fixture
def ring():
    return TokenRing(SlowDevice(), 4, time_limit_s=30)


def test_a_token_is_there_once_its_word_has_the_number_of_the_step(ring):
    assert ring.poll(1, 3) is None and ring.poll(RING_STEPS, 3) is None
    write(ring, 1, [7, DEAD])
    assert ring.poll(1, 2).tolist() == [7, DEAD]
    assert ring.poll(1, 3) is None
    assert ring.poll(1 + RING_STEPS, 2) is None  # the same place
    assert ring.poll(1 + 2**32 - RING_STEPS, 2) is None
    write(ring, 1 + RING_STEPS, [9, 9])
    assert ring.poll(1, 2) is None  # a later step has taken it


def test_what_is_handed_out_is_not_changed_by_later_steps(ring):
    write(ring, 1, [7, 8])
    tokens = ring.poll(1, 2)
    write(ring, 1 + RING_STEPS, [1, 1])
    assert tokens.tolist() == [7, 8]


def test_waiting_ends_when_the_words_come(ring):
    def later():
        time.sleep(0.02)
        write(ring, 3, [4, 5, 6])

    thread = threading.Thread(target=later)
    thread.start()
    assert ring.wait(3, 3).tolist() == [4, 5, 6]
    thread.join()


def test_a_device_that_failed_is_told_while_waiting(ring):
    ring._device.problem = "cuda: a launch failed with CUDA_ERROR_ILLEGAL_ADDRESS"
    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        ring.wait(1, 2)


def test_a_step_that_nobody_launched_is_not_waited_for(ring):
    ring._device.idle = True
    with pytest.raises(RuntimeError, match="the words of step 9 are not there and nothing runs"):
        ring.wait(9, 2)
    with pytest.raises(RuntimeError, match="the words of step 9 are not there and nothing runs"):
        TokenRing(CpuDevice(), 4).wait(9, 2)


def test_a_device_that_hangs_is_told_with_step_and_rows():
    ring = TokenRing(SlowDevice(), 4, time_limit_s=0.02)
    write(ring, 2, [5])
    with pytest.raises(
        TimeoutError, match=r"step 2 .* words of 2 of 3 rows \(1, 2\) within 0.02 s"
    ):
        ring.wait(2, 3)


def test_a_loop_that_ended_before_a_step_has_no_tokens_of_it(ring):
    first = ring.begin(8)
    write(ring, first, [1])
    ring.arrays["loop_ends"][first % RING_STEPS] = (1, first)
    assert ring.wait(first, 1, loop=first).tolist() == [1]
    write(ring, first + 1 - 2**32, [9])  # of a step long ago, whose number was the same
    assert ring.wait(first + 1, 1, loop=first) is None
    assert ring.steps_made(first) == 1 and ring.steps_made(first + RING_STEPS) is None


@pytest.mark.parametrize("count", [0, -1, MAX_STEPS + 1])
def test_a_number_of_steps_that_cannot_be_launched_is_refused(ring, count):
    with pytest.raises(ValueError, match=f"num_steps is {count}, expected 1 to 64"):
        ring.begin(count)


def test_steps_are_numbered_one_after_the_other(ring):
    assert [ring.begin(count) for count in (1, 5, 64, 1)] == [1, 2, 7, 71]
    assert ring.next_step == 72


def test_a_request_to_stop_is_for_the_loops_before_it(ring):
    def stopped(first):
        return int(ring.arrays["stop_at"][0]) - np.int32(first) >= 0

    ring.begin(10)
    ring.stop()
    assert stopped(1) and stopped(10) and not stopped(11)
    ring.stop(3)  # an earlier one takes nothing back
    assert stopped(10)
    ring.next_step = 2**31 + 100  # far from the last request, which must not seem to lie ahead
    first = ring.begin()
    behind = int(ring.arrays["stop_at"].view(np.uint32)[0])
    assert 0 < first - behind < 2**31


class LoopingDevice(CapturingDevice):
    """Whose loops are so many steps; ``refuses`` cannot make one."""

    def __init__(self, times=3, refuses=False):
        super().__init__()
        self.times, self.refuses, self.loops = times, refuses, 0

    def capture_loop(self, begin, repeat):
        if self.refuses:
            raise CaptureError("a loop cannot be captured: cuGraphAddNode is planted")
        self.loops += 1
        before, step = begin(77), repeat(77)
        return RecordingGraph(lambda: (before(), [step() for _ in range(self.times)]))


def test_a_captured_loop_is_one_launch():
    run = LoopRun(LoopingDevice(), "full", ladder=Ladder(8, [2, 8]))
    decode = run.runner.decode
    assert decode.loops == decode.captured == (2, 8) and run.runner.device.loops == 2
    run.begin()
    first = run.launch(num_steps=3, loop=True)
    assert (decode.counts.loops, decode.counts.replays) == ({8: 1}, {})
    assert run.runner.ring.steps_made(first) == 3
    run.launch(num_steps=3)
    run.launch(SLOTS[:2])
    assert (decode.counts.loops, decode.counts.replays) == ({8: 1}, {8: 3, 2: 1})
    assert decode.counts.padding_rows == 3 * 2


def test_the_loop_program_has_the_condition_and_the_steps_own_inputs():
    run = LoopRun(CpuDevice(), "none")
    for begins, names in ((True, ["apply_changes", "loop_control"]), (False, ["loop_control"])):
        program = run.runner.plan.loop_control(8, begins, 77)
        assert [op.kernel.name for op in program.ops] == names
        attrs = program.ops[-1].attrs
        assert (attrs["condition"], attrs["begins"]) == (77, begins)
        inputs = {b.name: b.type.shape for b in program.of_kind(Kind.INPUT)}
        assert inputs.pop("changes", (MAX_CHANGES, 2)) == (MAX_CHANGES, 2)
        assert inputs == {"launch": (2,), "row_ids": (8,)}


def test_where_a_loop_cannot_be_captured_its_steps_are_replayed_and_that_is_said_once(caplog):
    run = LoopRun(LoopingDevice(refuses=True), "full", ladder=Ladder(8, [2, 8]))
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert record.getMessage() == (
        "8 rows: a loop cannot be captured: cuGraphAddNode is planted; their steps are replayed "
        "one by one"
    )
    decode = run.runner.decode
    assert decode.loops == () and decode.captured == (2, 8)
    run.begin()
    run.launch(num_steps=4, loop=True)
    assert decode.counts.replays == {8: 4} and not decode.counts.loops
