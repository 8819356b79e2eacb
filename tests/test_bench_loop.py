"""`cugraphs bench loop`: what it drives, on the CPU, and what it prints. No times are judged."""

import json

import numpy as np
import pytest
from test_bench_command import tiny

from cugraphs.cli import main
from cugraphs.cli.bench_loop import _print, _record
from cugraphs.decode_bench import RandomCacheRunner
from cugraphs.ladder import Ladder
from cugraphs.loop_bench import Drive, LoopTimes, _Driver, loop_length
from cugraphs.step_stamps import STAMP, StampedPlan


@pytest.fixture(scope="module")
def runner():
    length = loop_length(20, 16)
    bench = tiny(length)
    found = RandomCacheRunner(bench, bench.plan(Ladder(3, [3]), length=length), "none")
    found.decode.add_loops(found.plan.loop_control)
    return found


@pytest.mark.parametrize("drive", Drive)
def test_every_step_is_made_once_and_its_tokens_are_read(runner, drive):
    driver = _Driver(runner, drive, 3)
    driver.settle(20)
    before = runner.state["num_computed"][:3].copy()
    made = driver.run(16)
    assert made == 16
    np.testing.assert_array_equal(runner.state["num_computed"][:3], before + made)
    assert driver.newcomer(1e-4) > -1
    assert int(runner.state["step"][0]) < runner.ring.next_step


def test_there_is_room_for_every_sequence(runner):
    driver = _Driver(runner, Drive.REPLAYS, 3)
    driver.settle(20)
    for _ in range(17):
        driver.newcomer(1e-5)
    assert not runner.state["done"][:3].any()
    last = runner.ring.next_step - 1
    assert (runner.ring.wait(last, 3) >= 0).all()


def test_a_stamped_step_is_the_step_between_two_stamps():
    bench = tiny(64)
    plain, stamped = (
        bench.plan(Ladder(3, [3]), length=64, **kind) for kind in ({}, {"kind": StampedPlan})
    )
    (before,), (after,) = plain.decode.values(), stamped.decode.values()
    names = [op.kernel.name for op in after.program.ops]
    assert names == ["stamp", *(op.kernel.name for op in before.program.ops), "stamp"]
    assert [op.attrs["which"] for op in after.program.ops if op.kernel is STAMP] == [0, 1]
    assert stamped.state.allocate(lambda n: np.zeros(n, np.uint8)).keys() >= {
        buffer.name for buffer in after.program.buffers if buffer.name.startswith("stamp")
    }


def test_the_table_says_each_way_and_the_record_is_json(capsys):
    times = [LoopTimes(16, drive, 128, 1234.5, 0.0123, 6.5, 48.0, 1.05) for drive in Drive]
    _print(times)
    out = capsys.readouterr().out
    for text in ("16, host, step by step", "16, 8 replays at a time", "16, loop on the GPU"):
        assert text in out
    for text in ("1.23", "1.23%", "6.5 us", "48 us", "3.0 us", "1.05 steps"):
        assert text in out
    record = json.loads(json.dumps(_record(times[2])))
    assert record["drive"] == "loop" and record["host_us_per_token"] == 3.0


def test_without_a_gpu_it_says_so_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr("cugraphs.cuda_availability.has_driver", lambda: False)
    assert main(["bench", "loop", "--shape", "llama-3.1-8b"]) == 2
    assert capsys.readouterr().err.startswith("cugraphs: error: cuda: ")


def test_a_stamp_on_the_cpu_says_what_to_use():
    with pytest.raises(ValueError, match=r"^stamp: the device is the CPU, .* use StepPlan"):
        STAMP.reference(np.zeros((4, 2, 2), np.uint32), np.zeros(1, np.uint32), which=0)
