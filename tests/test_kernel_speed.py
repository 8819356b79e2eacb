"""Shares of hand-computed work, the kernels that show what a card can do, and what is timed how.

The GPU is stood in for by NumPy arrays and a clock that launches move on.
"""

import dataclasses
import types

import numpy as np
import pytest
from conftest import needs_compiler
from planted_meetings import PLANTED, clear_places, inputs

from cugraphs import kernel_speed, launch_timing
from cugraphs.card_kernels import COPY_BANDWIDTH, EMPTY, READ_BANDWIDTH
from cugraphs.kernel import ArrayType, Case, Cost
from cugraphs.kernel_speed import (
    Ceilings,
    NotTimed,
    Speed,
    measure_ceilings,
    speeds_as_json,
    three_digits,
    time_case,
)
from cugraphs.kernels import ADD, ALL, PAGED_DECODE_ATTENTION
from cugraphs.launch_timing import LaunchTimer
from cugraphs.testing import assert_kernel, case_arrays

CEILINGS = Ceilings(4e12, 3.8e12, 800e12, 1e-6)


@needs_compiler
@pytest.mark.parametrize(
    "kernel", [READ_BANDWIDTH, COPY_BANDWIDTH, EMPTY], ids=lambda kernel: kernel.name
)
def test_the_kernels_of_the_ceilings_are_proven(kernel):
    assert_kernel(kernel, stages=["compile", "emulate"])


def test_the_larger_share_is_told_with_its_ceiling():
    streaming = Speed("add", "large", "bfloat16", 1e-3, Cost(2 * 10**9, 10**9), 1)
    assert streaming.share(CEILINGS) == (pytest.approx(0.5), "read")
    computing = Speed("linear", "large", "bfloat16", 1e-3, Cost(10**6, 4 * 10**11), 1)
    assert computing.share(CEILINGS) == (pytest.approx(0.5), "matrix")


def test_small_is_what_moves_less_than_32_mib():
    assert Speed("k", "s", "float32", 1e-3, Cost(2**25 - 1, 0), 1).is_small
    assert not Speed("k", "s", "float32", 1e-9, Cost(2**25, 0), 1).is_small


def test_json_has_the_numbers():
    speed = Speed("add", "large", "bfloat16", 1e-3, Cost(10**9, 10**6), 2)
    missing = NotTimed("add", "huge", "bfloat16", "does not fit")
    timed, not_timed = speeds_as_json([speed, missing], CEILINGS)
    assert (timed["kernel"], timed["size"], timed["dtype"]) == ("add", "large", "bfloat16")
    assert timed["us"] == pytest.approx(1000) and timed["launches"] == 2
    assert timed["bytes"] == 10**9 and timed["bytes_per_s"] == pytest.approx(1e12)
    assert timed["flops"] == 10**6 and timed["flops_per_s"] == pytest.approx(1e9)
    assert timed["share"] == pytest.approx(0.25) and timed["ceiling"] == "read"
    assert not_timed["not_timed"] == "does not fit" and "us" not in not_timed


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.0123"), (12.345, "12.3"), (999.4, "999"), (999.6, "1,000"), (4012.3, "4,012")],
)
def test_figures_have_three_digits_and_no_exponent(value, text):
    assert three_digits(value) == text


@pytest.mark.parametrize(
    "kernel", [kernel for kernel in ALL if kernel.benchmarks], ids=lambda kernel: kernel.name
)
def test_benchmarks_fit_the_declaration(kernel):
    names = [case.name for case in kernel.benchmarks]
    assert len(set(names)) == len(names)
    case = kernel.benchmarks[0]
    types_ = list(map(ArrayType.of, case_arrays(kernel, case, "bfloat16")))
    produced, axes = kernel.infer(types_, case.attrs)
    dtype = kernel.dtype_of([*produced, *types_])
    assert kernel.launches(axes, dtype, **case.attrs)
    for other in kernel.benchmarks:
        assert other.attrs.keys() == case.attrs.keys()


# ------------------------------------------------------------------------------ timing, on no GPU


class DeviceArray(np.ndarray):
    """As much of a CuPy array as is asked for."""

    @property
    def data(self):
        def copy_from_device_async(source, nbytes, stream):
            assert self.nbytes == nbytes == source.array.nbytes
            self[...] = source.array
            stream.device.now_s += nbytes / 1e12

        return types.SimpleNamespace(
            ptr=self.ctypes.data, array=self, copy_from_device_async=copy_from_device_async
        )


class Device:
    """A GPU of 2 multiprocessors that keeps time: a launch takes 10 us, a replay 1 us more."""

    multiprocessors = 2
    l2_cache_bytes = 100_000
    free_bytes = 1 << 30
    cublaslt = None
    launch_s = 10e-6

    def __init__(self):
        self.now_s = 0.0
        self.launched = []  # (kernel, first pointer)
        self.after_ours = []  # of each launch, those of captures too
        self.clear = []  # whether a launch found its place clear
        self.early = (False, False)  # whether launches begin early, and whether they settle
        self.stream = types.SimpleNamespace(ptr=0, device=self)

    def allocate_bytes(self, nbytes):
        return np.zeros(nbytes, np.uint8).view(DeviceArray)

    zero_bytes = allocate_bytes

    def write(self, target, values):
        assert target.shape == values.shape and target.dtype == values.dtype
        target[...] = values

    def poison(self, arrays):
        for array in arrays.values():
            array.view(np.uint8)[...] = 0xFF

    def capture(self, run):
        start = self.now_s
        first = len(self.launched)
        run()
        recorded, self.now_s = self.launched[first:], start
        del self.launched[first:]

        def launch():
            self.launched += recorded
            self.now_s += 1e-6 + self.launch_s * len(recorded)

        return types.SimpleNamespace(launch=launch)


@pytest.fixture
def device(monkeypatch):
    toy = Device()

    def prepare(kernel, arrays, attrs, *, stream, cublaslt, workspace):
        def launch(after_ours=False):
            if kernel is PLANTED:  # uses one place and clears the next
                here, next_place = arrays[1:3]
                toy.clear.append(bool((here == -1).all()))
                here[...], next_place[...] = 0, -1
            toy.launched.append((kernel.name, arrays[0].ctypes.data))
            toy.after_ours.append(after_ours)
            toy.now_s += toy.launch_s

        launch.is_ours, launch.begins_early, launch.settles = True, *toy.early
        return [launch]

    class Event:
        def record(self, stream):
            self.at = toy.now_s

        def synchronize(self):
            pass

    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(
        Event=Event, get_elapsed_time=lambda start, end: (end.at - start.at) * 1e3
    )
    monkeypatch.setitem(__import__("sys").modules, "cupy", cupy)
    monkeypatch.setattr(kernel_speed, "prepare", prepare)
    monkeypatch.setattr(launch_timing, "prepare", prepare)
    return toy


def rows_of(tokens, hidden):
    return lambda rng, dtype: tuple(
        rng.standard_normal((tokens, hidden)).astype(dtype) for _ in range(2)
    )


def test_a_case_is_timed_on_cold_copies_in_turn(device):
    case = Case("rows", rows_of(10, 512))
    arrays = case_arrays(ADD, case, "float32")
    speed = time_case(LaunchTimer(device), ADD, case, "float32", arrays)
    assert (speed.kernel, speed.size, speed.dtype) == ("add", "rows", "float32")
    assert speed.cost == ADD.cost({"tokens": 10, "hidden": 512}, "float32")
    # 2 ms of 10 us runs are 200, over 8 caches of 100,000 bytes and 2 more sets of 61,440.
    chains = " ".join(name for name, _ in device.launched).split("read_bandwidth")
    assert [len(chain.split()) for chain in chains] == [2, *[200] * 9]  # two runs to see how long
    pointers = [pointer for name, pointer in device.launched if name == "add"][2:]
    assert len(set(pointers)) == 8 * 100_000 // 61_440 + 2
    assert pointers[:15] == [*dict.fromkeys(pointers)]
    assert speed.seconds == pytest.approx((1e-6 + 200 * 10e-6) / 200)


@pytest.mark.parametrize(
    ("kernel", "begins_early", "settles", "is_timed_early"),
    [
        (ADD, False, False, False),
        (ADD, True, False, True),
        (PAGED_DECODE_ATTENTION, True, False, False),  # it reads early what must be settled
        (PAGED_DECODE_ATTENTION, True, True, True),
    ],
)
def test_runs_begin_early_where_a_step_would_let_them(
    device, kernel, begins_early, settles, is_timed_early
):
    device.early = (begins_early, settles)
    case = kernel.cases[0]
    arrays = case_arrays(kernel, case, "float32")
    speed = time_case(LaunchTimer(device), kernel, case, "float32", arrays)
    assert (speed.early_seconds is not None) == is_timed_early
    # Two chains are captured at most; of the second one every launch but the first is early.
    runs = [early for early in device.after_ours if early]
    assert len(runs) == (199 if is_timed_early else 0)
    (record,) = speeds_as_json([speed], CEILINGS)
    assert (record["early_us"] is not None) == is_timed_early
    if is_timed_early:  # in no time here: nothing overlaps
        assert record["early_share"] == pytest.approx(record["share"])


@pytest.mark.parametrize(
    ("launch_s", "runs"), [(1e-6, 200), (20e-6, 100), (1e-3, 20), (10e-3, 5), (1.0, 2)]
)
def test_a_chain_has_fewer_runs_the_longer_one_takes(device, launch_s, runs):
    device.launch_s = launch_s
    timer = LaunchTimer(device)

    def launch(after_ours):
        device.now_s += launch_s

    launch.is_ours = True
    assert timer.chain_runs([launch]) == runs


def test_a_size_that_does_not_fit_is_said_not_tried(device):
    device.free_bytes = (64 << 20) + 2 * 61_439
    case = Case("rows", rows_of(10, 512))
    arrays = case_arrays(ADD, case, "float32")
    found = time_case(LaunchTimer(device), ADD, case, "float32", arrays)
    assert isinstance(found, NotTimed) and not found.failed
    assert found.why.startswith("does not fit: two sets of operands need 0.06 GiB")


@pytest.mark.parametrize("launch_s", [10e-6, 10e-3])
def test_blocks_that_meet_find_their_place_clear_in_each_call(device, launch_s):
    device.launch_s = launch_s
    x, gains = inputs("float32")
    case = Case("layer", lambda rng, dtype: None, {"mistake": "kNone"})
    arrays = (*clear_places(2), x, gains[0])
    device.capture = lambda run: types.SimpleNamespace(launch=run)
    time_case(LaunchTimer(device), PLANTED, case, "float32", arrays)
    first, again, *others = device.clear  # how long one takes is seen by running one twice
    assert first and not again and len(others) >= 9 * 3 and all(others)


def test_attention_is_priced_at_its_context(device):
    case = next(c for c in PAGED_DECODE_ATTENTION.cases if c.name == "block_edges")
    lengths = case_arrays(PAGED_DECODE_ATTENTION, case, "float32")[-2]
    assert case.context == round(lengths.mean()) < 33
    arrays = case_arrays(PAGED_DECODE_ATTENTION, case, "float32")
    speed = time_case(LaunchTimer(device), PAGED_DECODE_ATTENTION, case, "float32", arrays)
    rows, q_size = arrays[1].shape
    assert speed.cost.flops == 4 * rows * q_size * case.context


def test_ceilings_follow_from_the_times(device, monkeypatch):
    matrix, nbytes = 64, 1 << 16
    monkeypatch.setattr(kernel_speed, "MATRIX_SIZE", matrix)
    monkeypatch.setattr(kernel_speed, "_READ_BYTES", nbytes)
    monkeypatch.setattr(kernel_speed, "_PATTERN", 1000)
    ceilings = measure_ceilings(LaunchTimer(device))
    per_run_s = (1e-6 + 200 * 10e-6) / 200
    assert ceilings.empty_s == pytest.approx(per_run_s)
    assert ceilings.read_bytes_per_s == pytest.approx(nbytes / per_run_s, rel=1e-4)
    assert ceilings.copy_bytes_per_s == pytest.approx(nbytes / per_run_s, rel=1e-4)
    assert ceilings.flops_per_s == pytest.approx(2 * matrix**3 / ((1e-6 + 2 * 10e-6) / 2), rel=1e-4)
    names = {name for name, _ in device.launched}
    assert names == {"read_bandwidth", "copy_bandwidth", "empty", "matrix_product"}


def test_too_little_memory_for_ceilings_is_one_line(device):
    device.free_bytes = 1 << 20
    with pytest.raises(MemoryError, match=r"^ceilings: 0\.00 GiB .* are free, expected 0\.75$"):
        measure_ceilings(LaunchTimer(device))


def test_a_kernel_of_somebody_else_needs_only_a_declaration(device):
    own = dataclasses.replace(ADD, name="own", benchmarks=(Case("small", rows_of(2, 8)),))
    (case,) = own.benchmarks
    timer = LaunchTimer(device)
    speed = time_case(timer, own, case, "float16", case_arrays(own, case, "float16"))
    assert speed.cost.bytes_accessed == 3 * 16 * 2
