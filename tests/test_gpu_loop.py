"""Steps launched together on the GPU, as replays and as one loop: bit for bit single steps."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from loop_runs import CHECKS, LoopRun

from cugraphs.device import CaptureError
from cugraphs.token_ring import MAX_STEPS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_on_the_gpu(check, device):
    check(device, "full")


def test_every_rung_loops(device):
    run = LoopRun(device, "full", ladder=None, max_num_seqs=20)
    assert run.runner.decode.loops == run.runner.decode.captured != ()


def test_a_loop_that_is_stopped_on_the_way_ends_after_the_step_it_is_in(device):
    run = LoopRun(device, "full", max_model_len=1024)
    run.begin(limits=[900] * 6)
    ring = run.runner.ring
    ended = []
    for _ in range(10):
        first = run.launch(num_steps=MAX_STEPS, loop=True)
        ring.wait(first + 1, 6, loop=first)
        ring.stop()
        deadline = time.perf_counter() + 30
        while not ring.has_ended(first):
            assert time.perf_counter() < deadline
        made = ring.steps_made(first)
        ended.append(made)
        tokens = run.tokens(first, MAX_STEPS, loop=first)
        assert len(tokens) == made and (tokens >= 0).all()
    assert min(ended) >= 2 and min(ended) < MAX_STEPS, ended
    device.wait()
    counts = device.read(run.runner.state["num_computed"])
    prompts = [3, 1, 5, 2, 3, 4]
    assert counts[[4, 0, 2, 5, 1, 3]].tolist() == [n + sum(ended) for n in prompts]


def test_launches_under_way_all_end_when_they_are_stopped(device):
    run = LoopRun(device, "full", max_model_len=1024)
    run.begin(limits=[900] * 6)
    ring = run.runner.ring
    for _ in range(10):  # a host that others keep busy may be too late to stop the first
        firsts = [run.launch(num_steps=MAX_STEPS, loop=True) for _ in range(3)]
        ring.stop()
        device.wait()
        made = [ring.steps_made(first) for first in firsts]
        tokens = [run.tokens(first, MAX_STEPS, loop=first) for first in firsts]
        assert [len(part) for part in tokens] == made
        if made[0] < MAX_STEPS:
            break
    assert made[1:] == [0, 0] and made[0] < MAX_STEPS, made


def test_tokens_are_read_while_the_loop_runs(device):
    run = LoopRun(device, "full", max_model_len=1024)
    run.begin(limits=[900] * 6)
    ring = run.runner.ring
    ended = []
    for _ in range(10):  # 63 more steps take milliseconds, which a busy host may miss
        first = run.launch(num_steps=MAX_STEPS, loop=True)
        ring.wait(first, 6, loop=first)
        ended.append(ring.has_ended(first))
        assert len(run.tokens(first, MAX_STEPS, loop=first)) == MAX_STEPS
    assert not all(ended)


def test_without_conditional_nodes_the_steps_are_replayed(device, monkeypatch, caplog):
    def refuse(begin, repeat):
        raise CaptureError("a loop cannot be captured: cuGraphAddNode fails")

    monkeypatch.setattr(device, "capture_loop", refuse)
    run = LoopRun(device, "full")
    told = [r.message for r in caplog.records if "replayed one by one" in r.message]
    assert len(told) == 1 and run.runner.decode.loops == ()
    begun = run.begin()
    tokens = run.tokens(run.launch(num_steps=12, loop=True), 12)
    monkeypatch.undo()
    other = LoopRun(device, "full")
    assert other.begin() == begun
    np.testing.assert_array_equal(tokens, other.one_by_one())


BROKEN_STEP = """
import numpy as np
from loop_runs import LoopRun
from cugraphs.cuda_device import CudaDevice

run = LoopRun(CudaDevice(), "full")
run.begin()
run.runner.mirror.set("block_tables", 0, np.full(16, 1 << 28, np.int32))  # far outside of the cache
first = run.launch(num_steps=12, loop=True)
try:
    print(run.tokens(first, 12, loop=first))
except RuntimeError as error:
    print("told:", error)
"""


def test_a_launch_that_fails_is_told_to_who_waits_for_tokens():
    tests = Path(__file__).parent
    done = subprocess.run(  # the error ends a process's use of the GPU
        [sys.executable, "-c", BROKEN_STEP],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "told: cuda: a launch failed with CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout, done


def test_a_loop_may_hold_fills_and_copies(device):
    import cupy

    from cugraphs.kernels import LOOP_CONTROL
    from cugraphs.launch import prepare

    source, target, filled = cupy.arange(64), cupy.zeros(64, int), cupy.zeros(64, cupy.uint8)
    words = {
        name: cupy.array(values, cupy.int32)
        for name, values in (
            ("loop_ends", np.full((4, 2), -1)),
            ("row_ids", [0]),
            ("num_computed", [0]),
            ("done", [0]),
            ("block_tables", [[1]]),
            ("launch", [7, 1]),
            ("step", [7]),
            ("stop_at", [0]),
        )
    }
    cupy.cuda.runtime.deviceSynchronize()

    def control(condition, begins):
        (launch,) = prepare(
            LOOP_CONTROL,
            list(words.values()),
            {"block_size": 4, "begins": begins, "condition": condition},
            stream=int(device.stream.ptr),
            cublaslt=device.cublaslt,
            workspace=None,
        )
        return launch

    def repeat(condition):
        decide = control(condition, False)

        def step():
            device.copy(target, source)
            filled.data.memset_async(5, 64, device.stream)
            decide()

        return step

    loop = device.capture_loop(lambda condition: control(condition, True), repeat)
    loop.launch()
    device.wait()
    assert (target == source).all() and (filled == 5).all()
    assert words["loop_ends"].get()[3].tolist() == [1, 7]
