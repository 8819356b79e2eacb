"""Run a kernel's launches on the GPU from host arrays: eager, captured, replayed.

The GPU's counterpart of ``emulation.emulate``, for proving kernels: every call copies its operands
there and back. CuPy is imported only when a run is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from cugraphs.arena import POISON
from cugraphs.cuda_availability import check_cuda
from cugraphs.cuda_device import CudaDevice
from cugraphs.guarded_array import GUARD_BYTES, GuardedArray
from cugraphs.kernel import DTYPES, Access, Array, ArrayType, Kernel
from cugraphs.launch import Prepared, prepare, queue

HOW = ("eager", "captured")


def gpu_runs() -> list[tuple[str, Callable[..., tuple[Array, ...]]]]:
    """Each way of running a kernel on this machine's GPU: its name, and the call.

    Raises:
        RuntimeError: there is no GPU that can be used; one line that says why.
    """
    check_cuda()
    return [(how, partial(run_on_gpu, how=how)) for how in HOW]


def run_on_gpu(
    kernel: Kernel, arrays: Sequence[Array], attrs: Mapping[str, Any], *, how: str = "eager"
) -> tuple[Array, ...]:
    """What ``kernel.reference(*arrays, **attrs)`` returns, computed on the GPU.

    Args:
        kernel: a declaration with ``source`` and ``launches``.
        arrays: the UPDATE operands, which are modified in place, then the READ ones.
        attrs: the scalars.
        how: ``"captured"`` records a graph while the operands hold NaN bytes, then replays it
            twice on the real ones; the second replay must give the same bits.

    Returns:
        The WRITE operands.

    Raises:
        AssertionError: memory around an operand or the workspace, or a READ operand was written,
            or two replays differ.
    """
    device = _device()
    types = list(map(ArrayType.of, arrays))
    produced, axes = kernel.infer(types, attrs)
    dtype = kernel.dtype_of([*produced, *types])
    workspace = _Workspace(device, kernel.workspace_bytes(axes, dtype, attrs))
    outputs = [np.empty(type_.shape, DTYPES[type_.dtype]) for type_ in produced]
    pairs = list(zip(kernel.operands, [*outputs, *arrays], strict=False))
    memory = [_DeviceCopy(device, GuardedArray(operand, array)) for operand, array in pairs]
    launches = prepare(
        kernel,
        [copy.array for copy in memory],
        attrs,
        stream=int(device.stream.ptr),
        cublaslt=device.cublaslt,
        workspace=workspace.array,
    )
    if how == "eager":
        results = _run(kernel, memory, partial(queue, launches))
    else:
        graph = _capture(device, launches)
        replay = partial(graph.launch, stream=device.stream) if graph else partial(queue, [])
        results = _run(kernel, memory, replay)
        again = _run(kernel, memory, replay)
        for copy, first, second in zip(memory, results, again, strict=True):
            if first.tobytes() != second.tobytes():
                name = copy.guarded.operand.name
                raise AssertionError(f"{kernel.name}: two replays give different bits of {name}")
    workspace.check(kernel.name)
    for (operand, array), result in zip(pairs, results, strict=True):
        if operand.access is not Access.READ:
            array[...] = result
    return tuple(outputs)


class _DeviceCopy:
    """An operand with its guard zones in device memory."""

    def __init__(self, device: CudaDevice, guarded: GuardedArray) -> None:
        self._device = device
        self.guarded = guarded
        self._original = guarded.bytes.copy()
        self._bytes = device.allocate_bytes(guarded.bytes.nbytes)
        device.write(self._bytes, np.full(guarded.bytes.nbytes, 0xFF, np.uint8))
        inside = self._bytes[GUARD_BYTES:-GUARD_BYTES]
        self.array = inside.view(guarded.array.dtype).reshape(guarded.array.shape)

    def fill(self) -> None:
        """The operand as it was given, outputs NaN."""
        self._device.write(self._bytes, self._original)

    def fetch(self) -> None:
        """Bring what the device holds into ``guarded``."""
        self.guarded.bytes[...] = self._device.read(self._bytes)


class _Workspace:
    """Scratch memory full of NaN bytes between guard zones, on the device."""

    def __init__(self, device: CudaDevice, nbytes: int) -> None:
        self._device = device
        self._bytes = device.allocate_bytes(nbytes + 2 * GUARD_BYTES)
        self.array = self._bytes[GUARD_BYTES : GUARD_BYTES + nbytes]
        self._guards = (self._bytes[:GUARD_BYTES], self._bytes[GUARD_BYTES + nbytes :])
        device.poison({"all": self._bytes})

    def check(self, who: str) -> None:
        """Refuse writes around it."""
        for guard, where in zip(self._guards, ("before", "after"), strict=True):
            wrong = np.count_nonzero(self._device.read(guard) != POISON)
            if wrong:
                raise AssertionError(f"{who}: {wrong} bytes {where} the workspace were overwritten")


def _run(kernel: Kernel, memory: Sequence[_DeviceCopy], work: Callable[[], object]) -> list[Array]:
    """The operands after ``work``, checked for what it must not have written."""
    for copy in memory:
        copy.fill()
    work()
    for copy in memory:
        copy.fetch()
        copy.guarded.check(kernel.name)
    return [copy.guarded.array.copy() for copy in memory]


def _capture(device: CudaDevice, launches: Sequence[Prepared]) -> Any:  # noqa: ANN401 - CuPy's
    """A graph of the launches; None where there are none."""
    import cupy

    if not launches:
        return None
    with device.stream:
        device.stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        try:
            queue(launches)
        finally:
            graph = device.stream.end_capture()
    return graph


@cache
def _device() -> CudaDevice:
    return CudaDevice()
