"""Identities of every attention over a paged cache: where its blocks lie, and how far."""

from __future__ import annotations

import math
import mmap

import numpy as np

from cugraphs.emulation.emulate import bind_launches
from cugraphs.emulation.library import Buffer
from cugraphs.kernel import DTYPES, WORKSPACE, Array, ArrayType, Case, Kernel
from cugraphs.kernels.paged_cases import BLOCK_SIZE
from cugraphs.testing import case_arrays
from emulated_identities.identity import Identity, Kernels, assert_same_bits, case_named, run
from emulated_identities.in_place import buffers_of, launch_in_place

# Of a cache with 2 KV heads of size 64 and 16-byte loads: its first vector is the 2^31st.
FAR_BLOCK = 1 << 23
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's; older Pythons do not name it


def blocks_may_lie_anywhere(name: str) -> Identity:
    """Attention has the same bits when the blocks of the cache are moved."""

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        for case in (case_named(kernel, "block_edges"), case_named(kernel, "long")):
            names = [operand.name for operand in kernel.supplied]
            arrays = dict(zip(names, case_arrays(kernel, case, "float32"), strict=True))
            moved_to = np.random.default_rng(1).permutation(len(arrays["k_cache"]))
            came_from = np.argsort(moved_to)
            moved = {cache: arrays[cache][came_from] for cache in ("k_cache", "v_cache")}
            tables = {"block_tables": moved_to[arrays["block_tables"]].astype(np.int32)}
            expected = run(kernel, [*arrays.values()], case.attrs)
            found = run(kernel, [*{**arrays, **moved, **tables}.values()], case.attrs)
            assert_same_bits(f"{name} {case.name} with its blocks moved", found, expected)

    check.__name__ = "blocks_may_lie_anywhere"
    return check


def far_blocks(name: str, *runs: tuple[str, str, str]) -> Identity:
    """Blocks more than 2^31 vectors into a cache are found, and read or written, like others.

    ``runs``: a case, whose caches have 2 KV heads of size 64; a dtype; whose form runs, by arch.
    """

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        for case, dtype, arch in runs:
            assert_far_blocks_are_found(kernel, case_named(kernel, case), dtype, arch)

    check.__name__ = "far_blocks"
    return check


def assert_far_blocks_are_found(kernel: Kernel, case: Case, dtype: str, arch: str) -> None:
    arrays = case_arrays(kernel, case, dtype)
    expected = run(kernel, arrays, case.attrs, arch=arch)
    given = []
    for operand, array in zip(kernel.supplied, arrays, strict=True):
        if operand.name in ("k_cache", "v_cache"):
            given.append(_far_cache(array))
        elif operand.name == "block_tables":
            given.append(array + np.int32(FAR_BLOCK))
        elif operand.name == "slot_mapping":
            far_slots = array + np.int32(FAR_BLOCK * BLOCK_SIZE)
            given.append(np.where(array >= 0, far_slots, array))
        else:
            given.append(array)
    produced, launches = bind_launches(kernel, given, case.attrs)
    far = [*(np.zeros(type_.shape, DTYPES[type_.dtype]) for type_ in produced), *given]
    buffers = buffers_of(kernel, far)
    scratch = np.zeros(1 << 20, np.uint8)
    buffers[WORKSPACE] = Buffer(
        WORKSPACE, scratch.ctypes.data, scratch.nbytes, 0, writable=True, uninitialised=True
    )
    _, axes = kernel.infer(list(map(ArrayType.of, arrays)), case.attrs)
    assert kernel.workspace_bytes(axes, dtype, case.attrs) <= scratch.nbytes
    launch_in_place(kernel, launches, buffers, arch=arch)
    found = [a[FAR_BLOCK:] if len(a) > FAR_BLOCK else a for a in far[: len(expected)]]
    what = f"{kernel.name} {case.name} {dtype} {arch} with blocks from {FAR_BLOCK} on"
    assert_same_bits(what, found, expected)


def _far_cache(near: Array) -> Array:
    """A cache whose last blocks are those of ``near``; the rest is address space, not memory.

    Raises:
        OSError: the machine does not lend so much address space.
    """
    shape = (FAR_BLOCK + len(near), *near.shape[1:])
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    space = mmap.mmap(-1, math.prod(shape) * near.itemsize, flags=flags)
    cache: Array = np.ndarray(shape, near.dtype, buffer=space)
    cache[FAR_BLOCK:] = near
    return cache


def newest_tokens(k_cache: Array, tables: Array, row_ids: Array, seq_lens: Array) -> list[range]:
    """Elements of K, and of V, that the rows' last tokens have: those that a step appends."""
    _, kv_heads, block_size, head_dim = k_cache.shape
    found = []
    for row_id, length in zip(row_ids.tolist(), seq_lens.tolist(), strict=True):
        if length > 0:
            block, offset = divmod(length - 1, block_size)
            first = int(tables[row_id, block]) * kv_heads * block_size + offset
            slots = range(first, first + kv_heads * block_size, block_size)
            found += [range(slot * head_dim, (slot + 1) * head_dim) for slot in slots]
    return found
