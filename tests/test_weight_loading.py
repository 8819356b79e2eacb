"""Weights on their way: what arrives, how much host memory it takes, and what ends it early.

The device is a stand-in whose copies happen as late as they may: a buffer that is filled again
before it was copied shows as wrong weights.
"""

import ctypes
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import types
import weakref

import numpy as np
import pytest
from model_folders import tensors_bytes, write_folder
from model_runs import load_weights
from tiny_model import write_tiny_model

from cugraphs import cuda_upload
from cugraphs.checkpoint import Checkpoint
from cugraphs.cli import main
from cugraphs.cpu_device import CpuDevice
from cugraphs.kernel import DTYPES
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.rope import cos_sin_table
from cugraphs.models.weights import ROPE_COS_SIN, begin_loading, weight_table
from cugraphs.safetensors_file import TensorView
from cugraphs.weight_loading import Part, WeightLoading

STORED = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class LateLane:
    """Two buffers; what was sent is copied when its buffer is wanted again, or at the end."""

    def __init__(self, chunk_bytes):
        self.chunk_bytes = chunk_bytes
        self.buffers = [np.full(chunk_bytes, 0xFF, np.uint8) for _ in range(2)]
        self.sent = [None, None]
        self.current = 0
        self.finished = False

    def fill(self, address, nbytes):
        assert not self.finished
        self._copy(self.current)
        self.target = (address, nbytes)
        return self.buffers[self.current][:nbytes]

    def send(self):
        self.sent[self.current] = self.target
        self.current = 1 - self.current

    def finish(self):
        for index in (0, 1):
            self._copy(index)
        self.finished = True

    def _copy(self, index):
        target, self.sent[index] = self.sent[index], None
        if target is not None:
            ctypes.memmove(target[0], self.buffers[index].ctypes.data, target[1])
            self.buffers[index][:] = 0xFF


class LateDevice(CpuDevice):
    """A device with memory of its own; knows which of it is still held."""

    shares_host_memory = False

    def __init__(self):
        self.lanes = []
        self.held = []

    def allocate_bytes(self, nbytes):
        memory = super().allocate_bytes(nbytes)
        token = memory.base  # what every view of it keeps
        while isinstance(token.base, np.ndarray):
            token = token.base
        self.held.append(weakref.ref(token))
        return memory

    @property
    def holds(self):
        return any(ref() is not None for ref in self.held)

    def upload_lanes(self, count, chunk_bytes):
        def make():
            self.lanes.append(LateLane(chunk_bytes))
            return self.lanes[-1]

        self.lanes = []
        return make


class Given:
    """A tensor in memory; `before` is called before each read."""

    def __init__(self, values, before=lambda: None):
        self.values, self.before = values, before
        self.shape, self.dtype = values.shape, str(values.dtype)
        self.largest_bytes = 0

    def read(self, begin, buffer):
        self.before()
        self.largest_bytes = max(self.largest_bytes, buffer.nbytes)
        buffer[:] = self.values.reshape(-1).view(np.uint8)[begin : begin + buffer.nbytes]

    def check_unchanged(self):
        pass


def load(parts, device, **options):
    with WeightLoading(parts, device, **options):
        pass


def readers():
    return [t for t in threading.enumerate() if t.name.startswith("cugraphs reader")]


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No reader outlives its loading, and Python's lock goes round as before."""
    before = sys.getswitchinterval()
    yield
    for thread in readers():
        thread.join(1)  # it has left its last line already
    assert not readers() and sys.getswitchinterval() == before


@pytest.fixture
def tiny(tmp_path):
    folder = write_tiny_model(tmp_path / "tiny")
    with Checkpoint.open(folder) as checkpoint:
        yield checkpoint


def begin(checkpoint, device, **options):
    config = LlamaConfig.from_hf(checkpoint.config, "tiny")
    return begin_loading(checkpoint.tensors, config, "float32", 64, device, **options)


# ------------------------------------------------------------------------------------ what arrives


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("chunk_bytes", [1000, 4096, 1 << 20])
@pytest.mark.parametrize("kind", [CpuDevice, LateDevice])
def test_every_byte_arrives_whatever_the_chunks(kind, chunk_bytes, readers):
    rng = np.random.default_rng(0)
    device = kind()
    values = [rng.normal(size=size).astype(np.float32) for size in (1, 250, 251, 5000, 3)]
    targets = [np.full(v.shape, np.nan, np.float32) for v in values]
    parts = [Part(Given(v), t) for v, t in zip(values, targets, strict=True)]
    load(parts, device, readers=readers, chunk_bytes=chunk_bytes)
    for value, target in zip(values, targets, strict=True):
        assert target.tobytes() == value.tobytes()


@pytest.mark.parametrize("kind", [CpuDevice, LateDevice])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("stored", STORED)
def test_dtypes_are_converted_as_numpy_converts_them(tmp_path, stored, dtype, kind):
    values = np.random.default_rng(1).normal(size=(37, 11)).astype(DTYPES[stored])
    raw = tensors_bytes(
        {"odd": ("U8", (3,), b"abc"), "x": (STORED[stored], (37, 11), values.tobytes())}
    )
    target = np.zeros((37, 11), DTYPES[dtype])
    with Checkpoint.open(write_folder(tmp_path, {"model.safetensors": raw})) as checkpoint:
        load([Part(checkpoint.tensors["x"], target)], kind(), readers=2, chunk_bytes=512)
    assert target.tobytes() == values.astype(DTYPES[dtype]).tobytes()


@pytest.mark.parametrize("kind", [CpuDevice, LateDevice])
def test_projections_are_joined_where_they_lie(tiny, kind):
    config = LlamaConfig.from_hf(tiny.config, "tiny")
    weights = load_weights(tiny.tensors, config, "float32", 1100, kind())
    assert weights.keys() == {*weight_table(config), ROPE_COS_SIN}
    for name, weight in weight_table(config).items():
        joined = np.concatenate([tiny.tensors[part].array() for part, _ in weight.parts])
        assert np.array_equal(weights[name], joined), name
    table = cos_sin_table(config.rope, config.head_dim, 1100)
    assert weights[ROPE_COS_SIN].tobytes() == table.tobytes()


def test_progress_is_told_of_every_byte_of_the_checkpoint(tiny):
    told = []
    _, loading = begin(tiny, LateDevice(), progress=told.append)
    with loading:
        pass
    assert sum(told) == tiny.nbytes


def test_the_caller_goes_on_while_weights_load():
    go = threading.Event()
    target = np.zeros(4, np.float32)
    with WeightLoading([Part(Given(np.ones(4, np.float32), go.wait), target)], LateDevice()):
        assert not target.any()  # here a runner is made
        go.set()
    assert target.all()


# -------------------------------------------------------------------------------------- host memory


def test_host_memory_is_bounded_whatever_the_tensor():
    """Two buffers for each reader, and no read is larger than one: also where dtypes differ."""
    device = LateDevice()
    wide = Given(np.zeros(100_000, np.float64))
    narrow = Given(np.zeros(100_000, DTYPES["bfloat16"]))
    parts = [Part(tensor, np.ones(100_000, np.float32)) for tensor in (wide, narrow)]
    load(parts, device, readers=3, chunk_bytes=4096)
    assert len(device.lanes) == 3 and all(lane.finished for lane in device.lanes)
    assert wide.largest_bytes <= 4096 and narrow.largest_bytes <= 4096
    assert not any(part.target.any() for part in parts)


class Cupy:
    """CuPy, as far as lanes go, on a machine that pins so many bytes; a copy takes until waited."""

    def __init__(self, limit_bytes=1 << 30):
        self.free_bytes = limit_bytes
        self.log = []

        class CUDARuntimeError(RuntimeError):
            pass

        class PinnedMemory:
            def __init__(memory, nbytes):
                if nbytes > self.free_bytes:
                    raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
                self.free_bytes -= nbytes
                memory.bytes = bytearray(nbytes)

        class Event:
            def __init__(event, **flags):
                event.ptr, event.pending = len(self.events), None
                self.events.append(event)

            def synchronize(event):
                self.cuEventWait(event.ptr)

        self.events, self.copies = [], threading.local()
        self.cuda = types.SimpleNamespace(
            PinnedMemory=PinnedMemory,
            PinnedMemoryPointer=lambda memory, offset: memory.bytes,
            Stream=lambda **flags: types.SimpleNamespace(ptr=7),
            Event=Event,
            Device=lambda id_: types.SimpleNamespace(use=lambda: self.log.append(f"use {id_}")),
            runtime=types.SimpleNamespace(CUDARuntimeError=CUDARuntimeError),
            memory=types.SimpleNamespace(OutOfMemoryError=MemoryError),
        )

    def cuMemcpyHtoDAsync_v2(self, target, source, nbytes, stream):
        assert stream == 7
        self.copies.last = (target, source, nbytes)
        return 0

    def cuEventRecord(self, event, stream):
        self.events[event].pending = self.copies.last
        return 0

    def cuEventQuery(self, event):
        return 600 if self.events[event].pending else 0

    def cuEventWait(self, event):
        if self.events[event].pending:
            ctypes.memmove(*self.events[event].pending)
            self.events[event].pending = None


class PinnedDevice(CpuDevice):
    """Uploads through pinned lanes."""

    def __init__(self, count_of_gpu=3):
        self.gpu = count_of_gpu

    def upload_lanes(self, count, chunk_bytes):
        return cuda_upload.PinnedLanes(count, chunk_bytes, self.gpu)


@pytest.fixture
def cupy(monkeypatch):
    def install(limit_bytes=1 << 30):
        fake = Cupy(limit_bytes)
        monkeypatch.setitem(sys.modules, "cupy", fake)
        monkeypatch.setattr(cuda_upload, "_locking_driver", lambda: fake)
        return fake

    return install


@pytest.mark.parametrize("limit_bytes", [1 << 30, 50_000, 3 << 18, 0])
def test_pinned_lanes_copy_what_was_filled_though_late(cupy, monkeypatch, limit_bytes):
    """With enough pinned memory, with some, and with none."""
    monkeypatch.setattr(cuda_upload, "LEAST_BYTES", 4096)
    fake = cupy(limit_bytes)
    values = np.random.default_rng(0).normal(size=(300, 700)).astype(np.float32)
    target = np.zeros((300, 700), np.float32)
    load([Part(Given(values), target)], PinnedDevice(), readers=3, chunk_bytes=1 << 14)
    assert target.tobytes() == values.tobytes()
    assert set(fake.log) == {"use 3"}  # every thread takes the device's GPU
    assert not any(event.pending for event in fake.events)


def test_a_copy_that_fails_is_an_error(cupy):
    fake = cupy()
    fake.cuMemcpyHtoDAsync_v2 = lambda *arguments: 700
    target = np.zeros(8, np.float32)
    with pytest.raises(RuntimeError, match=r"copy of 32 bytes to the GPU fails with error 700"):
        load([Part(Given(np.ones(8, np.float32)), target)], PinnedDevice())


@pytest.mark.parametrize(
    ("limit_mib", "buffers_mib"),
    [
        (100, [8, 8, 8]),
        (47, [8, 8, 4]),  # 16, 16, and of the 15 that are left 8
        (20, [8, 2, 0.25]),  # the last one's are pageable
        (0, [0.25, 0.25, 0.25]),
    ],
)
def test_less_pinned_memory_is_one_line_and_smaller_buffers(cupy, caplog, limit_mib, buffers_mib):
    cupy(limit_mib << 20)
    make = cuda_upload.PinnedLanes(3, 8 << 20, 0)
    with caplog.at_level(logging.WARNING, "cugraphs"):
        sizes = [make().chunk_bytes for _ in range(3)]
    assert sizes == [mib * 2**20 for mib in buffers_mib]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (limit_mib < 100)
    assert not lines or lines[0].startswith("48 MiB of pinned memory cannot be had (is `ulimit")


# ------------------------------------------------------------------------------ what ends it early


@pytest.mark.parametrize("kind", [CpuDevice, LateDevice])
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_file_that_is_cut_short_is_an_error_and_not_the_end_of_the_process(tiny, kind, when):
    path = tiny.files[0]
    size = path.stat().st_size
    device = kind()

    def cut(nbytes=0):
        os.truncate(path, size // 2)

    if when == "before":
        cut()
    with pytest.raises(ValueError, match=rf"changed from {size} to {size // 2} bytes") as caught:
        _, loading = begin(tiny, device, progress=cut)
        with loading:
            pass
    assert str(path) in str(caught.value) and "expected a file at rest" in str(caught.value)


def test_a_file_that_is_written_to_while_it_is_read_is_an_error(tiny):
    path = tiny.files[0]

    def touch(nbytes):
        with open(path, "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"\0\0\0\0")
        os.utime(path, ns=(1, 1))

    with pytest.raises(ValueError, match="was written to while being read"):
        _, loading = begin(tiny, LateDevice(), progress=touch)
        with loading:
            pass


def test_a_readers_error_is_the_callers_and_nothing_stays_allocated(tiny):
    device = LateDevice()

    def fail(nbytes):
        raise RuntimeError("the bar broke")

    def attempt():
        weights, loading = begin(tiny, device, progress=fail)
        with loading:
            assert weights and device.holds

    with pytest.raises(RuntimeError, match="the bar broke"):
        attempt()
    assert device.lanes and all(lane.finished for lane in device.lanes)
    assert not device.holds  # without a collection: no cycle holds it


def test_an_error_of_the_caller_stops_the_readers(tiny):
    """The readers end after the chunk that they are at."""
    device, reads = LateDevice(), []
    slow = Given(
        np.zeros(1 << 20, np.float32), lambda: reads.append(1) or threading.Event().wait(0.01)
    )
    with (
        pytest.raises(ValueError, match="no such mode"),
        WeightLoading(
            [Part(slow, np.empty(1 << 20, np.float32))], device, readers=2, chunk_bytes=4096
        ),
    ):
        raise ValueError("no such mode")
    assert len(reads) < 20  # of 1024


@pytest.mark.parametrize("where", ["in the body", "while waiting"])
def test_an_interrupt_ends_the_loading_and_frees_everything(where):
    device = LateDevice()
    weights = device.allocate_bytes(4 << 20).view(np.float32)
    slow = Given(np.zeros(1 << 20, np.float32), lambda: threading.Event().wait(0.005))

    def attempt(weights):
        with WeightLoading([Part(slow, weights)], device, readers=2, chunk_bytes=4096):
            if where == "in the body":
                raise KeyboardInterrupt
            threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()

    with pytest.raises(KeyboardInterrupt):
        attempt(weights)
    assert device.lanes and all(lane.finished for lane in device.lanes)
    del weights
    gc.collect()
    assert not device.holds


def test_a_second_interrupt_does_not_wait_for_a_reader_that_does_not_stop():
    go = threading.Event()
    stuck = Given(np.zeros(4, np.float32), go.wait)
    main_thread = threading.main_thread().ident

    def interrupt_twice():
        for _ in range(2):
            go.wait(0.1)
            signal.pthread_kill(main_thread, signal.SIGINT)

    loading = WeightLoading([Part(stuck, np.empty(4, np.float32))], LateDevice(), readers=1)
    presses = threading.Thread(target=interrupt_twice)
    try:
        with pytest.raises(KeyboardInterrupt), loading:
            presses.start()
        assert [reader.daemon for reader in readers()] == [True]
    finally:
        go.set()
        presses.join()


READERS_IMPORTS = """
import builtins, sys, threading
from cugraphs import LLM

LLM  # all is imported that the main thread imports
imports = []
ordinary = builtins.__import__

def spy(name, *arguments, **options):
    if threading.current_thread().name.startswith("cugraphs reader"):
        imports.append(name)
    return ordinary(name, *arguments, **options)

builtins.__import__ = spy
LLM(sys.argv[1], device="cpu", num_kv_blocks=9, max_model_len=64)
print(imports)
"""


def test_readers_import_nothing(tmp_path):
    """An import waits for whoever imports the same: for ever, if that was interrupted."""
    folder = write_tiny_model(tmp_path / "tiny")
    command = [sys.executable, "-c", READERS_IMPORTS, str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "[]\n"


def test_an_interrupt_on_the_command_line_is_one_line(tmp_path, monkeypatch, capsys):
    folder = write_tiny_model(tmp_path / "tiny")
    reads = []

    def read(view, begin, buffer):
        if not reads:
            os.kill(os.getpid(), signal.SIGINT)
        reads.append(view.name)
        threading.Event().wait(0.02)  # 22 tensors: the loading is not done before the signal

    monkeypatch.setattr(TensorView, "read", read)
    assert main(["generate", str(folder), "Once", "--device", "cpu"]) == 130
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines()[-1] == "cugraphs: interrupted"
    assert "Traceback" not in err and len(reads) < 22


def test_a_machine_without_threads_is_an_error_that_ends_cleanly(monkeypatch, tiny):
    start = threading.Thread.start
    count = iter(range(100))

    def refuse(self):
        if self.name.startswith("cugraphs reader") and next(count) >= 1:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    target = np.zeros(8, np.float32)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        WeightLoading([Part(Given(np.ones(8, np.float32)), target)], LateDevice(), readers=3)
