"""Run a kernel's launches on the CPU, from its declaration: the unchanged ``.cu`` text.

It proves indexing, masking, barriers and rounding; not inline assembly, the memory model or speed.
Knows declarations and guarded arrays; how a source is built and run is `library`'s and `build`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.emulation.library import ORDERS, Buffer, Library
from cugraphs.guarded_array import GuardedArray
from cugraphs.kernel import (
    DTYPES,
    NOTHING,
    WORKSPACE,
    Access,
    Array,
    ArrayType,
    Kernel,
    Launch,
    MatrixProduct,
    Operand,
    offset_in_workspace,
    running_on,
    stack_words,
)
from cugraphs.tensor_map import MAP_WORDS, TensorMap

_LOCK = threading.RLock()  # the runtime serves one caller at a time
_SCRATCH = Operand(WORKSPACE, ("bytes",), "uint8", Access.WRITE)


def emulate(
    kernel: Kernel,
    arrays: Sequence[Array],
    attrs: Mapping[str, Any],
    *,
    checked: bool = False,
    order: str = "forward",
    seed: int = 0,
    arch: str = "",
    multiprocessors: int | None = None,
    late: Mapping[str, Sequence[range]] | None = None,
    stacked: Sequence[Mapping[str, Array]] = (),
) -> tuple[Array, ...]:
    """What ``kernel.reference(*arrays, **attrs)`` returns, computed by the kernel's CUDA source.

    Args:
        kernel: a declaration with ``source`` and ``launches``.
        arrays: the UPDATE operands, which are modified in place, then the READ ones; an optional
            one that is left out is a null pointer.
        attrs: the scalars.
        checked: report races, accesses out of bounds or misaligned, and uninitialised reads.
        order: in which warps, lanes and blocks take turns: forward, reverse or random.
        seed: of the random order.
        arch: whose form of the kernel runs (``"sm_90"``); empty: the one that every GPU has.
        multiprocessors: of the card; None: as many as any launch wants.
        late: by operand, the elements that the launch before appends, counted from its first one: a
            checked programmatic launch may not read them before its wait.
        stacked: of each further op that is one launch with this one, the operands of the launch's
            stack, by name; those that are UPDATE are modified in place.

    Returns:
        The WRITE operands, of the last op where there are several.

    Raises:
        AssertionError: the kernel does what it must not; the message begins with file and line
            where they are known.
        ValueError: the source does not compile, or there is none.
        RuntimeError: g++ or CUDA's headers are not installed.
    """
    if order not in ORDERS:
        raise ValueError(f"emulate: order is {order!r}, expected one of {', '.join(ORDERS)}")
    produced, launches = bind_launches(kernel, arrays, attrs)
    running = running_on(arch, launches, multiprocessors)
    scratch = GuardedArray(
        _SCRATCH, np.empty(_scratch_bytes(kernel, arrays, attrs, running), np.uint8)
    )
    outputs = [np.empty(type_.shape, DTYPES[type_.dtype]) for type_ in produced]
    pairs = list(zip(kernel.operands, [*outputs, *arrays], strict=False))
    memory = {operand.name: GuardedArray(operand, array) for operand, array in pairs}
    operands = {operand.name: operand for operand in kernel.operands}
    copies = {id(array): memory[operand.name] for operand, array in pairs}
    for name, array in [item for each in stacked for item in each.items()]:
        if id(array) not in copies:  # else several ops have it in common
            copies[id(array)] = GuardedArray(operands[name], array)
    buffers = {
        o.name: _buffer(o, memory.get(o.name), (late or {}).get(o.name, ()))
        for o in kernel.operands
    }
    elements = [buffers] + [
        {name: _buffer(operands[name], copies[id(array)]) for name, array in each.items()}
        for each in stacked
    ]
    registered = {b.address: b for each in reversed(elements) for b in each.values() if b.address}
    holds_product = any(isinstance(part, MatrixProduct) and part.to_workspace for part in running)
    buffers[WORKSPACE] = replace(
        _buffer(_SCRATCH, scratch), itemsize=0, uninitialised=not holds_product
    )
    buffers[NOTHING] = Buffer(NOTHING, 0, 0, 0, False, False)
    own_launches = [part for part in running if isinstance(part, Launch)]
    library = _library_for(kernel, own_launches, checked)
    with _LOCK:
        if library is not None:
            library.register([*registered.values(), buffers[WORKSPACE]])
        for part in running:
            if isinstance(part, MatrixProduct):
                found = {name: copy.array for name, copy in memory.items()}
                _matrix_product(part, found, scratch.array)
                continue
            assert library is not None
            names = part.operands
            if names is None:
                names = tuple(operand.name for operand in kernel.operands)
            library.launch(
                part.function,
                part.grid,
                part.block,
                [
                    *_packed_stack(part.stack, elements),
                    *(_passed(buffers, name) for name in names),
                    *part.scalars,
                    *(packed_map(each, buffers[each.operand]) for each in part.tensor_maps),
                ],
                shared_bytes=part.shared_bytes,
                order=order,
                seed=seed,
                programmatic=part.programmatic,
                settles=part.settles,
                cluster=part.cluster,
                meets=part.meets,
                phases=len(part.phases) * len(elements),
            )
    scratch.check(kernel.name)
    written = [(memory[operand.name], array) for operand, array in pairs]
    written += [(copies[id(array)], array) for each in stacked for array in each.values()]
    for copy, array in written:
        copy.check(kernel.name)
        if copy.operand.access is not Access.READ:
            array[...] = copy.array
    return tuple(outputs)


def _scratch_bytes(
    kernel: Kernel,
    arrays: Sequence[Array],
    attrs: Mapping[str, Any],
    launches: Iterable[Launch | MatrixProduct],
) -> int:
    """What launches of our own may use; a matrix product alone is emulated without any."""
    if not any(isinstance(part, Launch) for part in launches):
        return 0
    types = list(map(ArrayType.of, arrays))
    produced, axes = kernel.infer(types, attrs)
    return kernel.workspace_bytes(axes, kernel.dtype_of([*produced, *types]), attrs)


def bind_launches(
    kernel: Kernel, arrays: Sequence[Array], attrs: Mapping[str, Any]
) -> tuple[list[ArrayType], tuple[Launch | MatrixProduct, ...]]:
    """The types of the WRITE operands, and what runs for these arrays; nothing where one is empty.

    Raises:
        ValueError: the kernel has no CUDA source, or shapes disagree.
    """
    if kernel.source is None or kernel.launches is None:
        raise ValueError(
            f"{kernel.name}: source or launches is None, expected both; this kernel runs through "
            "its reference only"
        )
    types = list(map(ArrayType.of, arrays))
    produced, axes = kernel.infer(types, attrs)
    if not kernel.has_work(axes):
        return produced, ()
    return produced, kernel.launches(axes, kernel.dtype_of([*produced, *types]), **attrs)


@cache
def functions_of_cases(kernel: Kernel) -> tuple[str, ...]:
    """Every function that the kernel's cases launch in the emulation, in any dtype, each once."""
    found: dict[str, None] = {}
    for case in kernel.cases:
        for dtype in kernel.cuda_dtypes:
            arrays = case.make(np.random.default_rng(0), DTYPES[dtype])
            _, launches = bind_launches(kernel, arrays, case.attrs)
            found.update((launch.function, None) for launch in emulated(launches))
    return tuple(found)


def emulated(launches: Iterable[Launch | MatrixProduct], arch: str = "") -> list[Launch]:
    """The launches that run functions of the kernel's source on the CPU, those of ``arch``."""
    return [part for part in running_on(arch, launches) if isinstance(part, Launch)]


def packed_map(tensor_map: TensorMap, buffer: Buffer) -> np.generic:
    """A tensor map as the emulated kernel takes it."""
    sizes = (*tensor_map.shape, *tensor_map.strides_bytes, *tensor_map.box)
    words = np.zeros(MAP_WORDS, np.uint64)
    words[: 1 + len(sizes)] = (buffer.address, *sizes)
    packed: np.generic = np.void(words.tobytes())
    return packed


def _passed(buffers: Mapping[str, Buffer], operand: str) -> Buffer:
    """What a launch is given for an operand: an array, or a place in the scratch memory."""
    offset = offset_in_workspace(operand)
    if offset is None:
        return buffers[operand]
    scratch = buffers[WORKSPACE]
    return replace(scratch, address=scratch.address + offset, nbytes=scratch.nbytes - offset)


def _packed_stack(
    names: Sequence[str], elements: Sequence[Mapping[str, Buffer]]
) -> tuple[np.generic, ...]:
    """The first parameter of a launch that has a stack, as the emulated kernel takes it."""
    if not names:
        return ()
    return (np.void(stack_words([[e[n].address for n in names] for e in elements]).tobytes()),)


def _library_for(kernel: Kernel, launches: Sequence[Launch], checked: bool) -> Library | None:
    """The library of all the kernel's cases, or one of its own for a shape that is no case."""
    if not launches:
        return None
    assert kernel.source is not None
    functions, wanted = functions_of_cases(kernel), {launch.function for launch in launches}
    if not wanted <= set(functions):
        functions = tuple(sorted(wanted))
    return _library(kernel.source, functions, checked)


@cache
def _library(source: Path, functions: tuple[str, ...], checked: bool) -> Library:
    return Library(source, functions, checked=checked)


def _buffer(operand: Operand, guarded: GuardedArray | None, late: Iterable[range] = ()) -> Buffer:
    """The operand as a launch sees it; a null pointer where it was left out."""
    writable, fresh = operand.access is not Access.READ, operand.access is Access.WRITE
    if guarded is None:
        return Buffer(operand.name, 0, 0, 0, writable, fresh)
    array = guarded.array
    where = (array.ctypes.data, array.nbytes, array.itemsize)
    early = operand.constant or operand.settled
    return Buffer(operand.name, *where, writable, fresh, early, tuple(late))


def _matrix_product(product: MatrixProduct, arrays: Mapping[str, Array], scratch: Array) -> None:
    """``out = x @ weight.T (+ bias) (+ residual)``, which cuBLASLt computes on the GPU."""
    result = arrays["x"].astype(np.float32) @ arrays["weight"].astype(np.float32).T
    if "bias" in arrays:
        result += arrays["bias"].astype(np.float32)
    if product.adds_residual:
        result += arrays["residual"].astype(np.float32)
    rounded = result.astype(arrays["x"].dtype)
    if product.to_workspace:
        scratch[: rounded.nbytes] = rounded.reshape(-1).view(np.uint8)
    else:
        arrays["out"][...] = rounded
