"""``cugraphs.compile`` on the GPU: replays have the bits of eager steps, and captures are clean."""

import logging
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from step_kernels import DOUBLED_BY_ROWS, SLOT_TOTALS
from tiny_kernels import DOUBLE

import cugraphs
from cugraphs.cuda_graph import CudaGraph
from cugraphs.kernel import DTYPES
from cugraphs.kernels import ADD, LINEAR, RMS_NORM

pytestmark = pytest.mark.gpu

WIDTH, SLOTS = 256, 32
BUCKETS = (1, 2, 4, 8, 16)
OPS = ["rms_norm", "linear", "slot_totals", "add", "doubled_by_rows"]


@pytest.fixture(scope="module")
def cupy():
    import cupy

    return cupy


def step_in(dtype):
    """Five launches: our own, cuBLASLt's from some rows on, one with state, one per row count."""

    def step(t, rows):
        x = t.input("x", (rows, WIDTH), dtype)
        row_ids = t.input("row_ids", (rows,), "int32")
        hidden = t.call(RMS_NORM, x, t.weight("norm", (WIDTH,), dtype), eps=1e-5)
        hidden = t.call(LINEAR, hidden, t.weight("w", (WIDTH, WIDTH), dtype))
        total = t.state("total", (SLOTS, WIDTH), dtype)
        sums = t.output(t.call(SLOT_TOTALS, total, hidden, row_ids), "sums")
        t.output(t.call(DOUBLED_BY_ROWS, t.call(ADD, sums, x)), "y")

    return step


def arrays_in(dtype, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"norm": (WIDTH,), "w": (WIDTH, WIDTH), "total": (SLOTS, WIDTH)}
    arrays = {n: rng.standard_normal(s).astype(DTYPES[dtype]) / 8 for n, s in shapes.items()}
    return {n: a.astype(DTYPES[dtype]) for n, a in arrays.items()}


def compiled(device, dtype="float32", buckets=BUCKETS, **options):
    arrays = arrays_in(dtype)
    state = {"total": arrays.pop("total")}
    return cugraphs.compile(
        step_in(dtype),
        buckets=buckets,
        device=device,
        weights=arrays,
        state=state,
        dead={"row_ids": -1},
        **options,
    )


def batch(rows, dtype="float32", seed=0):
    rng = np.random.default_rng(1000 * rows + seed)
    x = rng.standard_normal((rows, WIDTH), np.float32).astype(DTYPES[dtype])
    return {"x": x, "row_ids": rng.permutation(SLOTS)[:rows].astype(np.int32)}


def bytes_of(step, inputs):
    return {name: step.read(array).tobytes() for name, array in step(**inputs).items()}


# --- replays


@pytest.mark.parametrize("poison", [True, False], ids=["poisoned", "plain"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_replay_of_every_bucket_has_the_bits_of_the_eager_step(device, dtype, poison):
    replayed = compiled(device, dtype, poison=poison, debug=True)
    eager = compiled(device, dtype, graphs=False, poison=not poison)
    assert replayed.captured == BUCKETS and eager.captured == ()
    for rows in (*BUCKETS, 3, 16, 1, 13, 5):  # the last ones after larger and smaller ones
        inputs = batch(rows, dtype)
        assert bytes_of(replayed, inputs) == bytes_of(eager, inputs), f"{rows} rows"
        assert replayed.read("total").tobytes() == eager.read("total").tobytes(), f"{rows} rows"
    assert replayed.counts.captures == len(BUCKETS) and not replayed.counts.eager_steps
    assert replayed.counts.replays == {1: 2, 2: 1, 4: 2, 8: 2, 16: 3}
    assert eager.counts.eager_steps == {"graphs are off": 10}


def test_the_cpu_gives_the_same_up_to_rounding_and_the_same_counts(device):
    calls = (3, 16, 1, 20, 8)
    options = {"max_rows": 20, "off_ladder": "split"}
    gpu, cpu = compiled(device, **options), compiled("cpu", **options)
    for rows in calls:
        inputs = batch(rows)
        found, expected = gpu(**inputs), cpu(**inputs)
        for name, array in expected.items():
            np.testing.assert_allclose(gpu.read(found[name]), array, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(gpu.read("total"), cpu.read("total"), rtol=2e-4, atol=2e-4)
    assert gpu.counts.padding_rows == cpu.counts.padding_rows == 1
    assert gpu.counts.off_ladder_steps == cpu.counts.off_ladder_steps == 1
    assert gpu.counts.replays.total() == cpu.counts.eager_steps.total() == 6
    assert gpu.counts.captures == len(BUCKETS) and not gpu.counts.eager_steps
    regions = [{n: r.nbytes for n, r in c.arena.regions.items()} for c in (gpu, cpu)]
    assert {n: b for n, b in regions[0].items() if n != "workspace"} == regions[1]


def test_what_the_arena_holds_between_calls_does_not_matter(device):
    used, fresh = compiled(device), compiled(device)
    for rows in (16, 3, 1, 8):
        used.arena.poison()
        assert bytes_of(used, batch(rows)) == bytes_of(fresh, batch(rows)), f"{rows} rows"


def test_large_small_large_batches_equal_a_fresh_object(device):
    used = compiled(device)
    for rows in (16, 1, 13, 2, 16):
        fresh = compiled(device)
        fresh.write("total", used.read("total"))
        assert bytes_of(used, batch(rows)) == bytes_of(fresh, batch(rows)), f"{rows} rows"


def test_a_batch_above_the_buckets_runs_eagerly_where_that_is_asked_for(device, caplog):
    step = compiled(device, max_rows=20, off_ladder="eager")
    exact = compiled(device, buckets=[20])
    with caplog.at_level(logging.WARNING, "cugraphs"):
        assert bytes_of(step, batch(20)) == bytes_of(exact, batch(20))
    assert step.counts.eager_steps == {"above the ladder": 1} and len(caplog.records) == 1


def test_nothing_is_allocated_or_captured_in_steady_state(device, cupy, held):
    step = compiled(device, max_rows=SLOTS)
    for rows in (16, 3, SLOTS):
        step(**batch(rows))
    pool = cupy.get_default_memory_pool()
    before = set(held), pool.total_bytes(), step.counts.captures
    assert before[0]
    for seed in range(30):
        step(**batch(1 + seed, seed=seed))
    step.read("total")
    assert (set(held), pool.total_bytes(), step.counts.captures) == before


# --- arrays that are on the device, and the caller's stream


def test_cupy_arrays_are_inputs_weights_and_state(device, cupy):
    arrays = {name: cupy.asarray(array) for name, array in arrays_in("float32").items()}
    state = {"total": arrays.pop("total")}
    step = cugraphs.compile(
        step_in("float32"),
        buckets=BUCKETS,
        device=device,
        weights=arrays,
        state=state,
        dead={"row_ids": -1},
    )
    other = compiled(device)
    for rows in (3, 16, 1):
        host = batch(rows)
        given = {"x": cupy.asarray(host["x"]), "row_ids": host["row_ids"]}
        assert bytes_of(step, given) == bytes_of(other, host)
        given["row_ids"] = cupy.asarray(host["row_ids"])
        assert bytes_of(step, given) == bytes_of(other, host)
    out = step(**given)
    assert isinstance(out["y"], cupy.ndarray) and out["y"].shape == (1, WIDTH)
    with pytest.raises(
        TypeError, match=r": input 'x' is float64 .* on the device, expected contig"
    ):
        step(x=cupy.zeros((3, WIDTH)), row_ids=[0, 1, 2])
    step.write("total", cupy.ones((SLOTS, WIDTH), cupy.float32))
    assert (step.read("total") == 1).all()
    step.arrays["total"][...] = 2  # in the caller's stream: the next call comes after it
    assert (step.read("total") == 2).all()


@pytest.mark.parametrize("null", [True, False], ids=["null_stream", "own_stream"])
def test_calls_are_ordered_with_the_caller_s_stream(device, cupy, null):
    """Inputs are written late and overwritten at once; results are used without waiting."""
    step = compiled(device, buckets=[8])
    expected = compiled(device, buckets=[8], graphs=False)
    stream = cupy.cuda.Stream.null if null else cupy.cuda.Stream(non_blocking=True)
    with stream:
        slow = cupy.ones((2048, 2048), cupy.float32)
        x = cupy.empty((8, WIDTH), cupy.float32)
        kept = []
        sources = [cupy.asarray(batch(8, seed=seed)["x"]) for seed in range(8)]
        row_ids = cupy.arange(8, dtype=cupy.int32)
        for source in sources:
            for _ in range(4):
                slow = slow @ slow * 1e-4
            x[...] = source
            out = step(x=x, row_ids=row_ids)
            x[...] = cupy.nan
            kept.append(out["y"] + 0)
    for seed, found in enumerate(kept):
        x = batch(8, seed=seed)["x"]
        y = expected.read(expected(x=x, row_ids=np.arange(8))["y"])
        assert cupy.asnumpy(found).tobytes() == y.tobytes(), f"call {seed}"


def test_a_split_batch_of_cupy_arrays_may_be_its_own_results(device, cupy):
    step, other = (compiled(device, buckets=[8], max_rows=20) for _ in range(2))
    host = batch(20)
    given = {name: cupy.asarray(array) for name, array in host.items()}
    for _ in range(3):
        out, expected = step(**given), other(**host)
        assert cupy.asnumpy(out["y"]).tobytes() == other.read(expected["y"]).tobytes()
        given["x"] = cupy.ascontiguousarray(out["y"])
        host["x"] = other.read(expected["y"])
    assert step.counts.off_ladder_steps == 3 and step.counts.replays == {8: 9}


def test_read_packs_what_is_not_contiguous(device):
    step = compiled(device)
    out = step(**batch(8))["y"]
    assert (step.read(out[:, ::2]) == step.read(out)[:, ::2]).all()


# --- captures


def test_another_thread_may_use_cupy_during_a_capture(device, cupy):
    expected = compiled(device)
    done, problems, rounds = threading.Event(), [], []

    def work():
        try:
            while not done.is_set():
                host = np.arange(1000, dtype=np.float32) + len(rounds)
                assert (cupy.asnumpy(cupy.asarray(host) + 1) == host + 1).all()
                cupy.get_default_memory_pool().free_all_blocks()
                cupy.cuda.Stream.null.synchronize()
                rounds.append(1)
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        steps = [compiled(device, buckets=range(1, 17)) for _ in range(3)]
    finally:
        done.set()
        thread.join()
    assert not problems and len(rounds) > 1
    for step in steps:
        assert step.captured == tuple(range(1, 17))
    for rows in (16, 3, 1):
        rung = {16: 16, 3: 4, 1: 1}[rows]
        if rung == rows:  # the same program; another row count may choose other kernels
            assert bytes_of(steps[0], batch(rows)) == bytes_of(expected, batch(rows))
        assert bytes_of(steps[1], batch(rows)) == bytes_of(steps[2], batch(rows))


@pytest.mark.parametrize("what", ["allocates", "mallocs", "synchronises", "waits for the device"])
def test_a_capture_that_is_broken_names_the_op_and_leaves_everything_working(
    device, cupy, monkeypatch, caplog, what
):
    from cugraphs import cuda_device

    planted = {
        "allocates": lambda: cupy.empty(1000),
        "mallocs": lambda: cupy.cuda.runtime.free(cupy.cuda.runtime.malloc(1 << 20)),
        "synchronises": device.stream.synchronize,
        "waits for the device": cupy.cuda.runtime.deviceSynchronize,
    }[what]
    prepare = cuda_device.prepare

    def mistake(after_ours):
        planted()

    mistake.is_ours = mistake.settles = False

    def prepare_with_a_mistake(kernel, *arguments, **options):
        launches = prepare(kernel, *arguments, **options)
        return [*launches, mistake] if kernel is SLOT_TOTALS else launches

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "cugraphs"):
        patch.setattr(cuda_device, "prepare", prepare_with_a_mistake)
        broken = compiled(device)
        (record,) = caplog.records
        message = record.getMessage()
        assert message.startswith("16 rows: capture fails in op 2 slot_totals: "), message
        assert "they and smaller batches run eagerly" in message and "\n" not in message
        assert broken.captured == () and broken.capture_report.stopped == message
        eager = compiled(device, graphs=False)
        for rows in (16, 3):
            assert bytes_of(broken, batch(rows)) == bytes_of(eager, batch(rows))
        assert broken.counts.captures == 0
        ((why, count),) = broken.counts.eager_steps.items()
        assert why.startswith("not captured: capture fails in op 2 slot_totals") and count == 2
    again = compiled(device)  # on the same stream
    assert again.captured == BUCKETS
    assert bytes_of(again, batch(16)) == bytes_of(compiled(device, graphs=False), batch(16))


def test_graphs_hold_launches_and_nothing_else(device):
    step = compiled(device)
    for rung in step.capture_report:
        graph = step.graph(rung.rows)
        kinds = graph.node_kinds()
        assert set(kinds) <= {"kernel", "memset"}, kinds
        assert rung.num_nodes == graph.num_nodes == kinds.total() >= len(OPS)
        assert graph.pageable_copies() == 0
        assert rung.capture_ms > 0 and rung.driver_bytes >= 0
    assert [rung.rows for rung in step.capture_report] == sorted(BUCKETS, reverse=True)
    dot = step.graph(1).dot()
    assert "digraph" in dot and "slot_totals" in dot
    memory = step.memory_map()
    assert memory.total_bytes == device.total_bytes and "graphs" in str(memory)
    assert 0 < memory.free_bytes < memory.total_bytes  # others may use the GPU too


def test_allocations_in_a_graph_are_found(device, cupy):
    """A planted one: what node_kinds must be able to see."""
    runtime, stream = cupy.cuda.runtime, device.stream
    with stream:
        stream.begin_capture(runtime.streamCaptureModeThreadLocal)
        pointer = runtime.mallocAsync(1 << 12, stream.ptr)
        runtime.memsetAsync(pointer, 0, 1 << 12, stream.ptr)
        runtime.freeAsync(pointer, stream.ptr)
        graph = CudaGraph(stream.end_capture(), stream)
    assert graph.node_kinds() == {"mem_alloc": 1, "memset": 1, "mem_free": 1}
    assert graph.num_nodes == 3 and graph.pageable_copies() == 0


@pytest.mark.parametrize("direction", ["to_device", "to_host"])
def test_copies_of_pageable_memory_in_a_graph_are_found(device, cupy, direction):
    """Two planted copies, of which one is pinned."""
    from cuda.bindings import driver

    target = cupy.zeros(64, cupy.uint8)
    pinned = cupy.cuda.alloc_pinned_memory(64)
    pageable = np.zeros(64, np.uint8)
    _, graph = driver.cuGraphCreate(0)
    _, context = driver.cuCtxGetCurrent()
    kinds = driver.CUmemorytype
    for host in (pinned.ptr, pageable.ctypes.data):
        copy = driver.CUDA_MEMCPY3D()
        copy.WidthInBytes, copy.Height, copy.Depth = 64, 1, 1
        if direction == "to_device":
            copy.srcMemoryType, copy.srcHost = kinds.CU_MEMORYTYPE_HOST, host
            copy.dstMemoryType = kinds.CU_MEMORYTYPE_DEVICE
            copy.dstDevice = driver.CUdeviceptr(target.data.ptr)
        else:
            copy.dstMemoryType, copy.dstHost = kinds.CU_MEMORYTYPE_HOST, host
            copy.srcMemoryType = kinds.CU_MEMORYTYPE_DEVICE
            copy.srcDevice = driver.CUdeviceptr(target.data.ptr)
        error, _ = driver.cuGraphAddMemcpyNode(graph, None, 0, copy, context)
        assert not error, error
    inspected = CudaGraph(SimpleNamespace(graph=int(graph)), device.stream)
    assert inspected.node_kinds() == {"memcpy": 2} and inspected.pageable_copies() == 1


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
def test_captured_copies_are_told_apart(device, cupy, pinned):
    """As a capture records them, where the driver takes a pageable copy at all."""
    runtime, stream = cupy.cuda.runtime, device.stream
    target, memory = cupy.zeros(64, cupy.uint8), cupy.cuda.alloc_pinned_memory(64)
    pageable = np.zeros(64, np.uint8)
    source = memory.ptr if pinned else pageable.ctypes.data
    with stream:
        stream.begin_capture(runtime.streamCaptureModeThreadLocal)
        try:
            kind = runtime.memcpyHostToDevice
            runtime.memcpyAsync(target.data.ptr, source, 64, kind, stream.ptr)
            graph = stream.end_capture()
        except runtime.CUDARuntimeError:
            assert not pinned
            with pytest.raises(runtime.CUDARuntimeError):
                stream.end_capture()
            return
    assert CudaGraph(graph, stream).pageable_copies() == (0 if pinned else 1)


# --- what is refused


def test_a_replaced_array_is_found(device, cupy):
    step = compiled(device, debug=True)
    step(**batch(3))
    step.arrays["total"] = cupy.zeros((SLOTS, WIDTH), cupy.float32)
    with pytest.raises(RuntimeError, match=r"^step_16: state 'total' was replaced after it was bo"):
        step(**batch(16))


def test_a_kernel_without_a_cuda_form(device):
    def step(t, rows):
        t.output(t.call(DOUBLE, t.input("x", (rows, 4), "float32")))

    with pytest.raises(ValueError, match=r"^double: has no CUDA form"):
        cugraphs.compile(step, buckets=[1], device=device)
