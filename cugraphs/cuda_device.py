"""The GPU as a device: CuPy memory, pinned staging, and programs as lists of launches.

Imported only where a GPU is wanted. One stream; only ``read`` and ``wait`` synchronise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.arena import POISON
from cugraphs.buffer_assignment import live_ranges
from cugraphs.cublaslt import CublasLt
from cugraphs.cuda_availability import check_cuda
from cugraphs.cuda_graph import CudaGraph, capture
from cugraphs.cuda_kv_pool import CudaKVPool
from cugraphs.cuda_loop import CudaLoop, capture_loop
from cugraphs.cuda_upload import PinnedLanes
from cugraphs.device import InputStaging, KVPool, QueueOp, Run, UploadLane, converted
from cugraphs.held_collection import held_collection
from cugraphs.joined_ops import joined_ops
from cugraphs.kernel import Access, Array, Launch
from cugraphs.kernel_loading import load_kernels
from cugraphs.kv_cache import KVCacheShape
from cugraphs.launch import (
    Prepared,
    PreparedLaunch,
    device_arch,
    device_multiprocessors,
    load_function,
    prepare,
    queue,
)
from cugraphs.program import Buffer, Op, Program
from cugraphs.start_times import span


class _PinnedStaging:
    """Two pinned twins of the arena's inputs; an event after each copy says when it was taken."""

    def __init__(self, cupy: Any, inputs: Any, stream: Any) -> None:  # noqa: ANN401
        nbytes = int(inputs.nbytes)
        self._stream = stream
        self._runtime = cupy.cuda.runtime
        self._inputs = inputs  # keeps the memory
        memory = [cupy.cuda.alloc_pinned_memory(max(nbytes, 1)) for _ in range(2)]
        self.twins: tuple[Array, ...] = tuple(np.frombuffer(m, np.uint8, nbytes) for m in memory)
        self._taken = [cupy.cuda.Event(disable_timing=True) for _ in memory]
        self._current = 0
        self._sent_bytes = 0  # of the other twin, that the arena holds

    def next(self) -> int:
        self._taken[self._current].synchronize()
        return self._current

    def send(self, nbytes: int) -> None:
        source = self.twins[self._current].ctypes.data
        target, stream = int(self._inputs.data.ptr), int(self._stream.ptr)
        kind = self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(target, source, nbytes, kind, stream)
        self._taken[self._current].record(self._stream)
        self._current = 1 - self._current
        self._sent_bytes = nbytes

    def sent(self, nbytes: int) -> int | None:
        return 1 - self._current if 0 < nbytes <= self._sent_bytes else None

    def overwritten(self) -> None:
        self._sent_bytes = 0


class CudaDevice:
    """The current CUDA device."""

    name = "cuda"
    shares_host_memory = False
    uses_workspace = True
    has_graphs = True
    other_memory = "CUDA's own, modules, other arrays, other programs"

    def __init__(
        self,
        *,
        allow_tf32: bool = False,
        tuning_table: Path | None = None,
        build: tuple[str, ...] = (),
    ) -> None:
        """Take the current device.

        Args:
            allow_tf32: let float32 matrix products round their operands to TF32.
            tuning_table: a file of ``cugraphs tune``; None takes what there is for this GPU.
            build: of the kernels that it runs, ``launch.DELAYED`` or ``STAMPED``; empty: the
                ordinary one.

        Raises:
            CudaUnavailable: as :func:`check_cuda`.
            RuntimeError: cuBLASLt is not installed.
            ValueError: a tuning table cannot be read.
        """
        with span("find the GPU"):
            self.gpu_name = check_cuda()
        import cupy

        self._cupy: Any = cupy
        self._build = build
        self._id = int(cupy.cuda.Device().id)
        with span("CUDA context"):
            self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        with span("cuBLASLt, its tuning table"):
            self.cublaslt = CublasLt(
                allow_tf32=allow_tf32, card=self.gpu_name, tuning_table=tuning_table
            )
        self._reached: Any = cupy.cuda.Event(disable_timing=True)  # a point in a stream

    @property
    def free_bytes(self) -> int:
        """Device memory that is free now."""
        return int(self._cupy.cuda.runtime.memGetInfo()[0])

    @property
    def total_bytes(self) -> int:
        """All of the device's memory."""
        return int(self._cupy.cuda.runtime.memGetInfo()[1])

    @property
    def multiprocessors(self) -> int:
        """Streaming multiprocessors of the GPU."""
        return device_multiprocessors()

    @property
    def l2_cache_bytes(self) -> int:
        """Size of the GPU's L2 cache."""
        properties = self._cupy.cuda.runtime.getDeviceProperties(self._cupy.cuda.Device().id)
        return int(properties["l2CacheSize"])

    def allocate_bytes(self, nbytes: int) -> Any:  # noqa: ANN401 - CuPy has no types
        """A uint8 array straight from the driver, without CuPy's pool. Raises MemoryError."""
        cupy = self._cupy
        try:
            memory = cupy.cuda.Memory(max(nbytes, 1))
        except (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError):
            raise MemoryError(
                f"cuda: {nbytes:,} bytes cannot be allocated, {self.free_bytes:,} are free; lower "
                "num_kv_blocks, max_num_seqs or max_model_len"
            ) from None
        return cupy.ndarray((nbytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))

    def zero_bytes(self, nbytes: int) -> Any:  # noqa: ANN401
        """All zero."""
        array = self.allocate_bytes(nbytes)
        array.data.memset_async(0, nbytes, self.stream)
        return array

    def map_bytes(self, nbytes: int) -> tuple[Any, Array]:
        """Pinned host memory, mapped into the device's addresses."""
        cuda = self._cupy.cuda
        memory = cuda.PinnedMemory(max(nbytes, 1), cuda.runtime.hostAllocMapped)
        host = np.frombuffer(cuda.PinnedMemoryPointer(memory, 0), np.uint8, nbytes)
        host[:] = 0
        # With unified addresses, which every 64-bit system has, both sides use the same one.
        there = cuda.UnownedMemory(memory.ptr, max(nbytes, 1), memory, cuda.Device().id)
        return self._cupy.ndarray((nbytes,), np.uint8, cuda.MemoryPointer(there, 0)), host

    def check(self) -> bool:
        """Ask the stream for errors.

        Raises:
            RuntimeError: a launch failed; this process cannot use the device any more.
        """
        from cuda.bindings import driver

        (error,) = driver.cuStreamQuery(driver.CUstream(int(self.stream.ptr)))
        if error and error != driver.CUresult.CUDA_ERROR_NOT_READY:
            raise RuntimeError(
                f"cuda: a launch failed with {error.name}; this process cannot use the GPU any "
                "more, start another"
            )
        return not error

    def wait(self) -> None:
        """Synchronise the stream."""
        self.stream.synchronize()

    def write(self, target: Any, values: Array) -> None:  # noqa: ANN401
        """Copy host values, converting the dtype on the host."""
        host = np.ascontiguousarray(converted(values, target.dtype)).reshape(target.shape)
        target.set(host, stream=self.stream)

    def upload_lanes(self, count: int, chunk_bytes: int) -> Callable[[], UploadLane]:
        """Lanes over pinned buffers, in a stream of their own."""
        return PinnedLanes(count, chunk_bytes, self._id)

    def read(self, array: Any) -> Array:  # noqa: ANN401
        """A host copy; waits for the stream."""
        with self.stream:  # where an array that is not contiguous is packed
            host: Array = array.get(stream=self.stream)
        self.stream.synchronize()
        return host

    def copy(self, target: Any, source: Any) -> None:  # noqa: ANN401
        """Queue a copy within the device's memory; both are contiguous."""
        target.data.copy_from_device_async(source.data, source.nbytes, self.stream)

    def owns(self, array: object) -> bool:
        """Every CuPy array."""
        return isinstance(array, self._cupy.ndarray)

    def wait_for_caller(self) -> None:
        """This stream waits for CuPy's current one."""
        self._reached.record(self._cupy.cuda.get_current_stream())
        self.stream.wait_event(self._reached)

    def let_caller_wait(self) -> None:
        """CuPy's current stream waits for this one."""
        self._reached.record(self.stream)
        self._cupy.cuda.get_current_stream().wait_event(self._reached)

    def stage(self, inputs: Any) -> InputStaging:  # noqa: ANN401
        """Two pinned twins."""
        return _PinnedStaging(self._cupy, inputs, self.stream)

    @held_collection()  # thousands of objects come, none goes
    def bind(
        self,
        program: Program,
        arrays: Mapping[Buffer, Any],
        *,
        workspace: Any,  # noqa: ANN401
        poison: bool,
    ) -> list[QueueOp]:
        """Prepare every launch; a call queues those of its op and returns before they have run.

        Neighbours that are one launch run with the first of them.
        """
        prepared = [
            prepare(
                op.kernel,
                [arrays[buffer] for buffer in op.operands],
                op.attrs,
                stream=int(self.stream.ptr),
                cublaslt=self.cublaslt,
                workspace=workspace,
                build=self._build,
            )
            for op in program.ops
        ]
        ranges = live_ranges(program) if poison else {}
        changed = _changed_by(program)
        before: Op | None = None  # whose launch is directly before, if that settles
        ops: list[QueueOp] = []
        for run in joined_ops(program, list(map(_only_launch, prepared))):
            last = program.ops[run[-1]]
            launches = prepared[run.start]
            label = f"op {run.start} {last.kernel.name}"
            if len(run) > 1:
                each = [one for index in run for one in prepared[index]]
                launches = [PreparedLaunch.join([p for p in each if isinstance(p, PreparedLaunch)])]
                label = f"ops {run.start} to {run[-1]} {last.kernel.name}"
            ruined: list[Any] = []
            if poison:  # what is dead within a run may have the place of its result
                dead = {b: arrays[b] for b in last.operands if b in ranges}
                dead = {b: array for b, array in dead.items() if ranges[b].end == run[-1]}
                ruined = [*dead.values(), *([] if workspace is None else [workspace])]
            reads_early = not any(
                (operand.constant and buffer in changed)
                or (operand.settled and not is_settled(buffer, before))
                for op in program.ops[run.start : run.stop]
                for operand, buffer in zip(op.kernel.operands, op.operands, strict=False)
            )
            if launches:
                before = last if launches[-1].settles else None
            ops.append(partial(self._run_op, label, launches, ruined, reads_early))
            ops += [_ran_before] * (len(run) - 1)
        return ops

    def _run_op(
        self,
        label: str,
        launches: Sequence[Prepared],
        ruined: Sequence[Any],
        reads_early: bool,
        after_ours: bool,
    ) -> bool:
        try:
            leaves_ours = queue(launches, after_ours and reads_early)
        except Exception as error:
            error.add_note(f"in {label}")
            raise
        self._poison(ruined)
        return leaves_ours and not ruined

    def load_kernels(self, programs: Sequence[tuple[Program, Mapping[str, int]]]) -> None:
        """New ones in processes, all at once."""
        with span("kernels"):
            load = partial(load_function, build=self._build)
            load_kernels(
                programs,
                device_arch(),
                load,
                self._build,
                multiprocessors=self.multiprocessors,
            )

    def capture(self, run: Run) -> CudaGraph:
        """Record what ``run`` queues; it has run before, so that nothing is loaded in it."""
        return capture(self.stream, run)

    def capture_loop(self, begin: Callable[[int], Run], repeat: Callable[[int], Run]) -> CudaLoop:
        """A conditional WHILE node."""
        return capture_loop(self.stream, begin, repeat)

    def address(self, array: Any) -> int:  # noqa: ANN401
        """CuPy's."""
        return int(array.data.ptr)

    def kv_pool(self, cache: KVCacheShape) -> KVPool:
        """Reserved addresses, backed once it is known what is left."""
        return CudaKVPool(cache, self.stream)

    def poison(self, arrays: Mapping[str, Any]) -> None:
        """Fill arrays with NaN bytes."""
        self._poison(list(arrays.values()))

    def _poison(self, arrays: Sequence[Any]) -> None:
        for array in arrays:
            array.data.memset_async(POISON, array.nbytes, self.stream)


def _only_launch(prepared: Sequence[Prepared]) -> Launch | None:
    """What an op launches, where that is one launch of ours."""
    if len(prepared) == 1 and isinstance(prepared[0], PreparedLaunch):
        return prepared[0].declared
    return None


def _ran_before(after_ours: bool) -> bool:
    """The call of an op whose launch is that of one before it."""
    return after_ours


def is_settled(buffer: Buffer, before: Op | None) -> bool:
    """Whether an op directly before writes nothing of a buffer, or only appends to it.

    Args:
        buffer: of its program.
        before: the op, if it settles what is before it.
    """
    return before is not None and all(
        operand.access is Access.READ or operand.appends
        for operand, other in zip(before.kernel.operands, before.operands, strict=False)
        if other is buffer
    )


def _changed_by(program: Program) -> set[Buffer]:
    """What the program's ops write: a launch must not read it ahead of its wait."""
    return {
        buffer
        for op in program.ops
        for operand, buffer in zip(op.kernel.operands, op.operands, strict=False)
        if operand.access is not Access.READ
    }
