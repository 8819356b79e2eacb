"""How fast kernels run on the GPU, against what the card can do, measured in the same run.

Knows declarations and the GPU; not how results are shown. CuPy is imported only when called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cugraphs.buffer_assignment import ALIGNMENT_BYTES
from cugraphs.card_kernels import COPY_BANDWIDTH, EMPTY, MATRIX_PRODUCT, READ_BANDWIDTH
from cugraphs.kernel import DTYPES, Array, ArrayType, Case, Cost, Kernel, MatrixProduct
from cugraphs.launch import Prepared, prepare
from cugraphs.launch_timing import LaunchTimer, Run
from cugraphs.meeting_places import LEAST_LAYERS

MATRIX_SIZE = 8192
SMALL_BYTES = 32 << 20  # below, launches weigh more than memory: times are told beside an empty one
_READ_BYTES = 4 << 30  # many times any card's L2 cache
_READ_BLOCKS = (8, 16, 32)  # of a multiprocessor; the fastest counts
_MATRIX_DTYPE = "bfloat16"
_PATTERN = 1 << 21  # random numbers, repeated over the memory


@dataclass(frozen=True)
class Ceilings:
    """What the card can do.

    Args:
        read_bytes_per_s: of a kernel that only reads.
        copy_bytes_per_s: of a copy, bytes read and bytes written; what a kernel that writes as much
            as it reads can reach.
        flops_per_s: of a large bfloat16 matrix product.
        empty_s: of an empty kernel in a chain of launches.
    """

    read_bytes_per_s: float
    copy_bytes_per_s: float
    flops_per_s: float
    empty_s: float


@dataclass(frozen=True)
class Speed:
    """One kernel at one size: its time, and the work that the kernel's cost declares for it.

    Args:
        kernel: its name.
        size: the benchmark's name.
        dtype: of the "T" operands.
        seconds: of one call.
        cost: bytes and flops of one call.
        launches: of one call.
        early_seconds: of one call where its first launch begins before the call before it has
            ended, as a step launches it; None where it does not.
    """

    kernel: str
    size: str
    dtype: str
    seconds: float
    cost: Cost
    launches: int
    early_seconds: float | None = None

    @property
    def bytes_per_s(self) -> float:
        """Bytes that must move, a second."""
        return self.cost.bytes_accessed / self.seconds

    @property
    def flops_per_s(self) -> float:
        """Flops a second."""
        return self.cost.flops / self.seconds

    @property
    def is_small(self) -> bool:
        """Whether so little moves that the time should be compared with an empty kernel's."""
        return self.cost.bytes_accessed < SMALL_BYTES

    def share(self, ceilings: Ceilings) -> tuple[float, str]:
        """The larger of the shares of the two ceilings, and which it is: "read" or "matrix"."""
        read = self.bytes_per_s / ceilings.read_bytes_per_s
        matrix = self.flops_per_s / ceilings.flops_per_s
        return (matrix, "matrix") if matrix > read else (read, "read")

    def early_share(self, ceilings: Ceilings) -> float | None:
        """The same share by ``early_seconds``; None where there are none."""
        if self.early_seconds is None:
            return None
        return self.share(ceilings)[0] * self.seconds / self.early_seconds


@dataclass(frozen=True)
class NotTimed:
    """One kernel at one size that has no time, and why; ``failed`` where the kernel is at fault."""

    kernel: str
    size: str
    dtype: str
    why: str
    failed: bool = False


def measure_ceilings(timer: LaunchTimer) -> Ceilings:
    """Read and copy up to 4 GiB, multiply two bf16 matrices of 8192 x 8192, and launch nothing.

    Raises:
        MemoryError: less than 1 GiB is free.
    """
    device = timer.device
    nbytes = min(_READ_BYTES, device.free_bytes // 2 // (1 << 20) * (1 << 20))
    matrix_bytes = MATRIX_SIZE**2 * DTYPES[_MATRIX_DTYPE].itemsize
    if nbytes < 3 * matrix_bytes:
        raise MemoryError(
            f"ceilings: {device.free_bytes / 2**30:.2f} GiB of device memory are free, expected "
            f"{6 * matrix_bytes / 2**30:.2f}"
        )
    memory = device.allocate_bytes(nbytes)
    # Random: zeros would take less power, and so run faster.
    numbers = np.random.default_rng(0).standard_normal(_PATTERN, np.float32)
    _fill(timer, memory, numbers.astype(DTYPES[_MATRIX_DTYPE]).view(np.uint8))

    matrices = [
        memory[first : first + matrix_bytes]
        .view(DTYPES[_MATRIX_DTYPE])
        .reshape(MATRIX_SIZE, MATRIX_SIZE)
        for first in range(0, 3 * matrix_bytes, matrix_bytes)
    ]
    # It overwrites the first matrix. Two in a row: after some milliseconds of them an H200 draws
    # all the power that it may, and slows down by 13 %.
    workspace = device.allocate_bytes(MatrixProduct.workspace_bytes)
    product = _prepare(timer, MATRIX_PRODUCT, matrices, {}, workspace)
    timer.chain_runs(product)  # brings the clocks up
    matrix_s = timer.seconds([product], 2)
    sums = device.allocate_bytes(4 * max(_READ_BLOCKS) * device.multiprocessors).view(np.float32)
    read_s = []
    for blocks in (count * device.multiprocessors for count in _READ_BLOCKS):
        operands, attrs = [sums[:blocks], memory.view(np.float32)], {"blocks": blocks}
        read_s.append(_seconds(timer, _prepare(timer, READ_BANDWIDTH, operands, attrs, None)))
    half = nbytes // 32 * 16
    halves = [memory[:half].view(np.float32), memory[half : 2 * half].view(np.float32)]
    copy_s = _seconds(timer, _prepare(timer, COPY_BANDWIDTH, halves, {}, None))
    nothing = device.zero_bytes(4 * device.multiprocessors).view(np.int32)
    empty_s = _seconds(timer, _prepare(timer, EMPTY, [nothing], {}, None))
    return Ceilings(
        read_bytes_per_s=nbytes / min(read_s),
        copy_bytes_per_s=2 * half / copy_s,
        flops_per_s=2 * MATRIX_SIZE**3 / matrix_s,
        empty_s=empty_s,
    )


def time_case(
    timer: LaunchTimer, kernel: Kernel, case: Case, dtype: str, arrays: Sequence[Array]
) -> Speed | NotTimed:
    """Time a kernel at one size.

    Args:
        timer: of the device.
        kernel: has a CUDA form.
        case: the size.
        dtype: of the "T" operands.
        arrays: what ``case`` makes.

    Raises:
        RuntimeError, ValueError, TypeError: it does not compile, launch or fit its declaration.
    """
    device = timer.device
    types = list(map(ArrayType.of, arrays))
    produced, axes = kernel.infer(types, case.attrs)
    if case.context is not None:
        axes["context"] = case.context
    t_dtype = kernel.dtype_of([*produced, *types])
    cost = kernel.cost(axes, t_dtype, **case.attrs)
    layout = _Layout([*produced, *types])
    spare_bytes = kernel.workspace_bytes(axes, t_dtype, case.attrs) + (64 << 20)
    room = (device.free_bytes - spare_bytes) // layout.nbytes
    least = LEAST_LAYERS if any(operand.scratch for operand in kernel.operands) else 2
    if room < least:
        needed = least * layout.nbytes + spare_bytes
        return NotTimed(
            kernel.name,
            case.name,
            dtype,
            f"does not fit: {'two' if least == 2 else least} sets of operands need "
            f"{needed / 2**30:.2f} GiB of device memory, {device.free_bytes / 2**30:.2f} are free",
        )
    workspace = device.allocate_bytes(kernel.workspace_bytes(axes, t_dtype, case.attrs))

    memory = [device.zero_bytes(layout.nbytes)]
    for view, array in zip(layout.views(memory[0])[len(produced) :], arrays, strict=True):
        device.write(view, array)
    # Scratch operands are places that calls use by turns, as layers do: what one clears is the next
    # one's own.
    scratch = [index for index, operand in enumerate(kernel.operands) if operand.scratch]
    places = [
        device.allocate_bytes(layout.types[scratch[0]].nbytes).view(np.int32)
        for _ in range(LEAST_LAYERS * bool(scratch))
    ]

    def clear_places() -> None:
        device.poison({str(number): place for number, place in enumerate(places)})

    def prepared(memory: Any, number: int) -> list[Prepared]:  # noqa: ANN401 - CuPy's
        operands = layout.views(memory)
        for place, index in enumerate(scratch):
            operands[index] = places[(number + place) % len(places)]
        return _prepare(timer, kernel, operands, case.attrs, workspace)

    clear_places()
    runs = [prepared(memory[0], 0)]
    if not runs[0]:
        return NotTimed(kernel.name, case.name, dtype, "launches nothing at this size")
    chain_runs = timer.chain_runs(runs[0])
    copies = min(timer.cold_copies(cost.bytes_accessed, chain_runs), room)
    if places:  # whole turns, so that the next replay finds them as this one does
        copies = max(copies // len(places), 1) * len(places)
        chain_runs = -(-chain_runs // copies) * copies
        clear_places()
    for number in range(1, copies):
        copy = device.allocate_bytes(layout.nbytes)
        copy.data.copy_from_device_async(memory[0].data, layout.nbytes, device.stream)
        memory.append(copy)
        runs.append(prepared(copy, number))
    seconds = timer.seconds(runs, chain_runs)
    early_seconds = None
    if _begins_early(kernel, runs[0]):
        early_seconds = timer.seconds(runs, chain_runs, early=True)
    return Speed(kernel.name, case.name, dtype, seconds, cost, len(runs[0]), early_seconds)


def _begins_early(kernel: Kernel, run: Run) -> bool:
    """Whether a step would let a call begin before the same call on other memory has ended.

    As ``CudaDevice.bind`` decides it: both launches are ours, the later one is declared so, and
    what it reads early is settled by the one before. No call writes what another one reads.
    """
    reads_settled = any(operand.settled for operand in kernel.operands)
    first, last = run[0], run[-1]
    return first.begins_early and last.is_ours and (last.settles or not reads_settled)


class _Layout:
    """Where the operands of one run lie in one piece of memory."""

    def __init__(self, types: Sequence[ArrayType]) -> None:
        self.types = list(types)
        self._places = []
        self.nbytes = 0
        for type_ in types:
            self._places.append((self.nbytes, type_))
            self.nbytes += max(-(-type_.nbytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES

    def views(self, memory: Any) -> list[Any]:  # noqa: ANN401
        """The operands as arrays."""
        return [
            memory[start : start + type_.nbytes].view(DTYPES[type_.dtype]).reshape(type_.shape)
            for start, type_ in self._places
        ]


def _prepare(
    timer: LaunchTimer,
    kernel: Kernel,
    operands: list[Any],
    attrs: Mapping[str, Any],
    workspace: Any,  # noqa: ANN401 - CuPy's
) -> list[Prepared]:
    return prepare(
        kernel,
        operands,
        attrs,
        stream=int(timer.device.stream.ptr),
        cublaslt=timer.device.cublaslt,
        workspace=workspace,
    )


def _seconds(timer: LaunchTimer, run: Sequence[Prepared]) -> float:
    return timer.seconds([run], timer.chain_runs(run))


def _fill(timer: LaunchTimer, memory: Any, pattern: Array) -> None:  # noqa: ANN401
    """Repeat ``pattern`` over ``memory``."""
    stream = timer.device.stream
    filled = pattern.nbytes
    timer.device.write(memory[:filled], pattern)
    while filled < memory.nbytes:
        count = min(filled, memory.nbytes - filled)
        memory[filled : filled + count].data.copy_from_device_async(
            memory[:count].data, count, stream
        )
        filled += count


def three_digits(value: float) -> str:
    """Three significant digits, all digits of the whole part from 1,000: ``0.123``, ``4,012``."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def speeds_as_json(
    timings: Sequence[Speed | NotTimed], ceilings: Ceilings
) -> list[Mapping[str, Any]]:
    """Plain numbers for a script."""
    records: list[Mapping[str, Any]] = []
    for timing in timings:
        record: dict[str, Any] = {
            "kernel": timing.kernel,
            "size": timing.size,
            "dtype": timing.dtype,
        }
        if isinstance(timing, NotTimed):
            record["not_timed"] = timing.why
        else:
            share, ceiling = timing.share(ceilings)
            early = timing.early_seconds
            record |= {
                "us": timing.seconds * 1e6,
                "early_us": early if early is None else early * 1e6,
                "launches": timing.launches,
                "bytes": timing.cost.bytes_accessed,
                "bytes_per_s": timing.bytes_per_s,
                "flops": timing.cost.flops,
                "flops_per_s": timing.flops_per_s,
                "share": share,
                "early_share": timing.early_share(ceilings),
                "ceiling": ceiling,
            }
        records.append(record)
    return records
