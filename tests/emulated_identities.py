"""Identities between runs of the kernels' sources on the CPU, bit for bit.

Tolerances cannot see what these see: an order of additions that depends on the batch or on which
thread comes first, and a rounding that two kernels promise to share. Every identity takes the
kernels by name, so that it can also be asked of kernels with a bug planted in them.
"""

from __future__ import annotations

import itertools
import math
import mmap
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from cugraphs.emulation import emulate
from cugraphs.emulation.emulate import bind_launches, emulated, packed_map
from cugraphs.emulation.library import Buffer, Library
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernel import (
    CUDA_TYPES,
    DTYPES,
    WORKSPACE,
    Access,
    Array,
    ArrayType,
    Axes,
    Case,
    Cost,
    Kernel,
    Launch,
    Operand,
    running_on,
)
from cugraphs.kernels import attention_parts
from cugraphs.kernels.adjust_logits import adjust_logits
from cugraphs.kernels.paged_cases import BLOCK_SIZE, Heads, decode_case, with_parts
from cugraphs.testing import ORDERS, case_arrays

Kernels = Mapping[str, Kernel]
Identity = Callable[[Kernels], None]

# Larger inputs than this take seconds a run, and reach no code that smaller ones do not.
MAX_ELEMENTS = 500_000
MAX_SHARE_NEXT_TO_TIE = 0.03
# Where the weights of attention are rounded too, each relative to a largest one that is not the
# reference's: as large an error as the rounding of the result, but averaged over the tokens.
MAX_SHARE_ROUNDED_WEIGHTS = 0.2
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

# Of a cache with 2 KV heads of size 64 and 16-byte loads: its first vector is the 2^31st.
FAR_BLOCK = 1 << 23
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's; older Pythons do not name it


def run(
    kernel: Kernel, arrays: Sequence[Array], attrs: Mapping[str, Any], **how: Any
) -> list[Array]:
    """All that the kernel writes: WRITE operands, then the UPDATE ones."""
    given = [array.copy() for array in arrays]
    written = emulate(kernel, given, attrs, **how)
    num_updated = sum(operand.access is Access.UPDATE for operand in kernel.operands)
    return [*written, *given[:num_updated]]


def assert_same_bits(what: str, actual: Sequence[Array], expected: Sequence[Array]) -> None:
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape, f"{what}: other shapes or dtypes"
        a_bits, e_bits = np.ascontiguousarray(a).view(np.uint8), np.ascontiguousarray(e)
        differ = np.count_nonzero(a_bits != e_bits.view(np.uint8))
        assert not differ, f"{what}: {differ} bytes differ, expected the same bits"


def small_cases(kernel: Kernel) -> list[Case]:
    return [
        case
        for case in kernel.cases
        if sum(array.size for array in case_arrays(kernel, case, "float32")) <= MAX_ELEMENTS
    ]


def _case(kernel: Kernel, name: str) -> Case:
    return next(case for case in kernel.cases if case.name == name)


def orders_agree(name: str, dtypes: Sequence[str] = ("float32",)) -> Identity:
    """A kernel's bits do not depend on which thread comes first.

    ``dtypes``: one for each form that the kernel has.
    """

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        for case, dtype in itertools.product(small_cases(kernel), dtypes):
            arrays = case_arrays(kernel, case, dtype)
            first, *others = (run(kernel, arrays, case.attrs, order=order) for order in ORDERS)
            for order, other in zip(ORDERS[1:], others, strict=True):
                assert_same_bits(f"{name} {case.name} {dtype} in {order} order", other, first)

    check.__name__ = "orders_agree"
    return check


def reference_bits(name: str) -> Identity:
    """A kernel whose every operation is rounded on its own has the bits of its reference.

    But for the sign of a zero, which NumPy's subtraction and ours may give differently.
    """

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        for case in small_cases(kernel):
            for dtype in CUDA_TYPES:
                arrays = case_arrays(kernel, case, dtype)
                found = run(kernel, arrays, case.attrs)
                given = [array.copy() for array in arrays]
                expected = [*kernel.reference(*given, **case.attrs)]
                expected += [
                    array
                    for operand, array in zip(kernel.supplied, given, strict=False)
                    if operand.access is Access.UPDATE
                ]
                for a, e in zip(found, expected, strict=True):
                    same = (a == e) | (np.isnan(a) & np.isnan(e))
                    assert same.all(), f"{name} {case.name} {dtype}: not its reference's bits"

    check.__name__ = "reference_bits"
    return check


def rounded_once(name: str, max_share: float = MAX_SHARE_NEXT_TO_TIE) -> Identity:
    """Half-precision results are the reference's, but for the few that lie next to a tie.

    The reference rounds once, at the store. Sums in another order move a float32 by some 2^-22,
    which changes the rounding of about one result in a hundred; a second rounding to the operands'
    dtype changes a quarter of them and more, and is within the tolerance where it is averaged.
    """

    def check(kernels: Kernels) -> None:
        _assert_rounded_once(kernels[name], small_cases(kernels[name]), max_share)

    check.__name__ = "rounded_once"
    return check


def _assert_rounded_once(
    kernel: Kernel, cases: Sequence[Case], max_share: float, arch: str = ""
) -> None:
    for dtype in ("float16", "bfloat16"):
        num_different, num_elements = 0, 0
        for case in cases:
            arrays = case_arrays(kernel, case, dtype)
            given = [array.copy() for array in arrays]
            expected = [*kernel.reference(*given, **case.attrs), *given]
            found = run(kernel, arrays, case.attrs, arch=arch)
            updated = [None] * len(kernel.produced) + [*arrays]
            for a, e, before in zip(found, expected, updated, strict=False):
                if a.dtype != DTYPES[dtype]:
                    continue
                touched = np.ones(e.shape, bool) if before is None else e != before
                num_different += np.count_nonzero(touched & (a != e))
                num_elements += np.count_nonzero(touched)
        share = num_different / num_elements
        assert share <= max_share, (
            f"{kernel.name} {cases[0].name} {dtype}: {share:.1%} of the results differ from the "
            f"reference's, expected at most {max_share:.0%}: something is rounded more than once"
        )


def _not_cut(case: Case) -> Case:
    """The same, but no row is cut into parts, as otherwise a hundred such rows would not be."""

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        with mock.patch.object(attention_parts, "WHOLE_SHARES", 1):
            return case.make(rng, dtype)

    return replace(case, name=f"{case.name}, not cut", make=make)


def fused_norm_is_add_then_norm(kernels: Kernels) -> None:
    """ADD_RMS_NORM gives the bits of ADD followed by RMS_NORM."""
    add, norm, fused = (kernels[name] for name in ("add", "rms_norm", "add_rms_norm"))
    for case in fused.cases:
        for dtype in CUDA_TYPES:
            a, b, weight = case_arrays(fused, case, dtype)
            (total,) = run(add, [a, b], {})
            (out,) = run(norm, [total, weight], case.attrs)
            what = f"add_rms_norm {case.name} {dtype}"
            assert_same_bits(what, run(fused, [a, b, weight], case.attrs), [total, out])


def rows_stand_alone(name: str) -> Identity:
    """A row has the same bits alone and among others."""

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        for case in (_case(kernel, "odd"), _case(kernel, "smollm2")):
            for dtype in CUDA_TYPES:
                arrays = case_arrays(kernel, case, dtype)
                whole = run(kernel, arrays, case.attrs)
                for rows in (slice(0, 1), slice(2, 5)):
                    part = [array[rows] if array.ndim == 2 else array for array in arrays]
                    what = f"{name} {case.name} rows {rows} {dtype}"
                    found = run(kernel, part, case.attrs)
                    assert_same_bits(what, found, [out[rows] for out in whole])

    check.__name__ = "rows_stand_alone"
    return check


def linear_rows_stand_alone(kernels: Kernels) -> None:
    """With batch_invariant, a row's bits do not depend on how many rows are beside it.

    With parts and without, with rows of 16-byte vectors and of single elements.
    """
    linear, rng = kernels["linear"], np.random.default_rng(0)
    for in_features, out_features in ((1304, 65), (136, 129), (77, 40), (40, 8200)):
        x = rng.standard_normal((300, in_features), np.float32)
        weight = rng.standard_normal((out_features, in_features), np.float32)
        for dtype in ("bfloat16", "float32"):
            wide = [array.astype(DTYPES[dtype]) for array in (x, weight, weight[:, 0])]
            (whole,) = run(linear, wide, {"batch_invariant": True})
            for first, count in ((5, 1), (99, 3), (7, 16), (64, 17), (1, 32), (65, 64), (150, 130)):
                rows = slice(first, first + count)
                (part,) = run(linear, [wide[0][rows], *wide[1:]], {"batch_invariant": True})
                what = f"linear {in_features} x {out_features} {dtype} rows {first} + {count}"
                assert_same_bits(what, [part], [whole[rows]])


def few_rows_of_linear_have_the_bits_of_one(kernels: Kernels) -> None:
    """Up to 4 rows one order of additions serves any number of them."""
    linear, rng = kernels["linear"], np.random.default_rng(0)
    x, weight = (rng.standard_normal((rows, 2600), np.float32) for rows in (4, 9))
    (whole,) = run(linear, [x, weight], {})
    for rows in (slice(0, 1), slice(1, 3), slice(1, 4)):
        assert_same_bits(f"linear rows {rows}", run(linear, [x[rows], weight], {}), [whole[rows]])


def fused_products_are_one_after_the_other(kernels: Kernels) -> None:
    """The fused kernels of few rows give the bits of the products that they stand for."""
    linear_add, swiglu = kernels["linear_add"], kernels["norm_swiglu"]
    for case in linear_add.cases:
        residual, *product = case_arrays(linear_add, case, "bfloat16")
        (sums,) = run(kernels["linear"], product, {})
        expected = run(kernels["add"], [residual, sums], {})
        found = run(linear_add, [residual, *product], {})
        assert_same_bits(f"linear_add {case.name}", found, expected)
    for case in swiglu.cases:
        arrays = case_arrays(swiglu, case, "bfloat16")
        (sums,) = run(kernels["norm_linear"], arrays, case.attrs)
        expected = run(kernels["silu_and_mul"], [sums], {})
        assert_same_bits(f"norm_swiglu {case.name}", run(swiglu, arrays, case.attrs), expected)
    rope = kernels["norm_rope_append"]
    for case in rope.cases:
        arrays = case_arrays(rope, case, "bfloat16")
        k_cache, v_cache, x, positions, slots, gain, weight, cos_sin, *bias = arrays
        eps, q_size = ({key: case.attrs[key]} for key in ("eps", "q_size"))
        (qkv,) = run(kernels["norm_linear"], [x, gain, weight, *bias], eps)
        appended = [k_cache, v_cache, qkv, cos_sin, positions, slots]
        expected = run(kernels["rope_append"], appended, q_size)
        assert_same_bits(f"norm_rope_append {case.name}", run(rope, arrays, case.attrs), expected)
    rope = kernels["linear_rope_append"]
    for case in rope.cases:
        arrays = case_arrays(rope, case, "bfloat16")
        k_cache, v_cache, x, positions, slots, weight, cos_sin, *bias = arrays
        (qkv,) = run(kernels["linear"], [x, weight, *bias], {})
        appended = [k_cache, v_cache, qkv, cos_sin, positions, slots]
        expected = run(kernels["rope_append"], appended, case.attrs)
        assert_same_bits(f"linear_rope_append {case.name}", run(rope, arrays, case.attrs), expected)
    swiglu = kernels["linear_swiglu"]
    for case in swiglu.cases:
        arrays = case_arrays(swiglu, case, "bfloat16")
        (sums,) = run(kernels["linear"], arrays, {})
        expected = run(kernels["silu_and_mul"], [sums], {})
        assert_same_bits(f"linear_swiglu {case.name}", run(swiglu, arrays, {}), expected)


def tiles_of_few_rows_stand_alone(kernels: Kernels) -> None:
    """A row of LINEAR_ADD_RMS_NORM has the same bits whatever rows are beside it."""
    kernel = kernels["linear_add_rms_norm"]
    case = _case(kernel, "sixteen_rows")
    residual, x, *constants = case_arrays(kernel, case, "bfloat16")
    whole = run(kernel, [residual, x, *constants], case.attrs)
    for rows in (slice(0, 1), slice(5, 14)):
        part = run(kernel, [residual[rows], x[rows], *constants], case.attrs)
        assert_same_bits(f"linear_add_rms_norm rows {rows}", part, [out[rows] for out in whole])


def few_streamed_rows_stand_alone(kernels: Kernels) -> None:
    """A row has the same bits whatever rows are beside it, where as many share a fragment."""
    for name in ("linear_add", "norm_linear", "norm_swiglu", "linear_swiglu"):
        kernel = kernels[name]
        for case_name, rows in (
            ("two_rows", slice(1, 2)),
            ("eight_rows", slice(2, 7)),
            ("sixteen_rows", slice(3, 13)),
        ):
            if case_name not in [case.name for case in kernel.cases]:
                continue
            case = _case(kernel, case_name)
            arrays = case_arrays(kernel, case, "float16")
            of_rows = [operand.shape[0] == "tokens" for operand in kernel.supplied]
            part = [a[rows] if cut else a for a, cut in zip(arrays, of_rows, strict=False)]
            (whole,) = run(kernel, arrays, case.attrs)
            what = f"{name} {case_name} rows {rows}"
            assert_same_bits(what, run(kernel, part, case.attrs), [whole[rows]])


def decode_rows_stand_alone(kernels: Kernels) -> None:
    """With batch_invariant, a row of decode attention has the same bits alone and in a batch."""
    decode = kernels["paged_decode_attention"]
    for name in ("batch_invariant", "batch_invariant_128", "block_edges", "part_edges"):
        for dtype in ("bfloat16", "float32"):
            case = _case(decode, name)
            attrs = {**case.attrs, "batch_invariant": True}
            _, q, k_cache, v_cache, tables, row_ids, seq_lens, _ = case_arrays(decode, case, dtype)
            arrays = [q, k_cache, v_cache, tables, row_ids, seq_lens]
            whole = run(decode, with_parts(arrays, batch_invariant=True), attrs)[0]
            for row in range(len(q)):
                one = slice(row, row + 1)
                given = [q[one], k_cache, v_cache, tables, row_ids[one], seq_lens[one]]
                what = f"paged_decode_attention {name} {dtype} row {row}"
                found = run(decode, with_parts(given, batch_invariant=True), attrs)[:1]
                assert_same_bits(what, found, [whole[one]])


def blocks_may_lie_anywhere(name: str) -> Identity:
    """Attention has the same bits when the blocks of the cache are moved."""

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        for case in (_case(kernel, "block_edges"), _case(kernel, "long")):
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
        for case, dtype, arch in runs:
            _assert_far_blocks_are_found(kernels[name], _case(kernels[name], case), dtype, arch)

    check.__name__ = "far_blocks"
    return check


def _assert_far_blocks_are_found(kernel: Kernel, case: Case, dtype: str, arch: str) -> None:
    arrays = case_arrays(kernel, case, dtype)
    expected = run(kernel, arrays, case.attrs, arch=arch)
    given = []
    for operand, array in zip(kernel.supplied, arrays, strict=False):
        if operand.name in ("k_cache", "v_cache"):
            given.append(_far_cache(array))
        elif operand.name == "block_tables":
            given.append(array + np.int32(FAR_BLOCK))
        elif operand.name == "slot_mapping":
            far = array + np.int32(FAR_BLOCK * BLOCK_SIZE)
            given.append(np.where(array >= 0, far, array))
        else:
            given.append(array)
    produced, launches = bind_launches(kernel, given, case.attrs)
    far = [*(np.zeros(type_.shape, DTYPES[type_.dtype]) for type_ in produced), *given]
    buffers = {
        o.name: Buffer(
            o.name, a.ctypes.data, a.nbytes, a.itemsize, o.access is not Access.READ, False
        )
        for o, a in zip(kernel.operands, far, strict=False)
    }
    scratch = np.zeros(1 << 20, np.uint8)
    buffers[WORKSPACE] = Buffer(
        WORKSPACE, scratch.ctypes.data, scratch.nbytes, 0, writable=True, uninitialised=True
    )
    _, axes = kernel.infer([ArrayType(a.shape, _NAMES[a.dtype]) for a in arrays], case.attrs)
    assert kernel.workspace_bytes(axes, dtype, case.attrs) <= scratch.nbytes
    assert kernel.source is not None
    for launch in emulated(launches, arch):
        library = Library(kernel.source, [launch.function], checked=False)
        names = launch.operands or tuple(operand.name for operand in kernel.operands)
        library.launch(
            launch.function,
            launch.grid,
            launch.block,
            [
                *(buffers[name] for name in names),
                *launch.scalars,
                *(packed_map(each, buffers[each.operand]) for each in launch.tensor_maps),
            ],
            shared_bytes=launch.shared_bytes,
            cluster=launch.cluster,
        )
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


def prefill_rows_are_decode_rows(kernels: Kernels) -> None:
    """With batch_invariant, each row of a chunk has the bits that decode gives that token."""
    prefill, decode = kernels["paged_prefill_attention"], kernels["paged_decode_attention"]
    for name in ("batch_invariant", "batch_invariant_128", "batch_invariant_group_of_9"):
        for dtype in ("bfloat16", "float32"):
            case = _case(prefill, name)
            q, *cache, slot_ids, seq_lens, starts = case_arrays(prefill, case, dtype)
            (chunks,) = run(prefill, [q, *cache, slot_ids, seq_lens, starts], case.attrs)
            rows, row_ids, lengths = [], [], []
            for seq, (start, end) in enumerate(itertools.pairwise(starts)):
                rows += range(start, end)
                row_ids += [slot_ids[seq]] * (end - start)
                lengths += range(seq_lens[seq] - (end - start) + 1, seq_lens[seq] + 1)
            given = [q[rows], *cache, np.array(row_ids, np.int32), np.array(lengths, np.int32)]
            decoded = run(decode, with_parts(given, batch_invariant=True), case.attrs)[:1]
            assert_same_bits(f"paged_prefill_attention {name} {dtype}", [chunks[rows]], decoded)


# What common.cuh promises to any kernel, asked of it alone; {folder} holds that file.
COMMON_PROBES = """
#include "{folder}/common.cuh"
__global__ void exp2_probe(float* out, const float* x, int n) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = exp2_for<float>(x[i]);
}}
__global__ void sums_probe(float* out, const float* x, int n) {{
  out[threadIdx.x] = block_sum<128>(x[threadIdx.x]);
  out[threadIdx.x] += block_sum<128>(2.0f * x[threadIdx.x]);
}}
"""


def _probe(kernels: Kernels, function: str, x: Array, **how: Any) -> Array:
    def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
        return (Launch(function, (-(-axes["n"] // 128), 1, 1), 128, (np.int32(axes["n"]),)),)

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "common_probes.cu"
        common = kernels["rms_norm"].source
        assert common is not None
        source.write_text(COMMON_PROBES.format(folder=common.parent), "utf-8")
        operands = (Operand("out", ("n",), "T", Access.WRITE), Operand("x", ("n",), "T"))
        probe = Kernel(
            function,
            operands,
            lambda x: (x,),
            lambda axes, dtype: Cost(0, 0),
            source=source,
            launches=launches,
        )
        return emulate(probe, [x], {}, **how)[0]


def exp2_is_right(kernels: Kernels) -> None:
    """exp2_for<float> is off by less than a unit of the last place, and 0 below 2^-126."""
    x = np.concatenate([np.linspace(-126, 0, 20_000), [-127.0, -1e4, -3e38]]).astype(np.float32)
    found, exact = _probe(kernels, "exp2_probe", x), np.exp2(x.astype(np.float64))
    assert not found[-3:].any(), "exp2_for: not 0 far below 0"
    units = np.abs(found - exact)[:-3] / np.spacing(exact.astype(np.float32))[:-3]
    assert units.max() < 1, f"exp2_for: off by {units.max():.2f} units of the last place"


def block_sums_may_follow_each_other(kernels: Kernels) -> None:
    """block_sum can be called again at once, without a race and in every thread."""
    x = np.arange(128, dtype=np.float32)
    found = _probe(kernels, "sums_probe", x, checked=True)
    assert (found == 3 * x.sum()).all(), "block_sum: called twice, the sums are wrong"


def listed_target_agrees(kernels: Kernels) -> None:
    """A target that is among the listed tokens stands at its rank, with the same logprob."""
    kernel, found = kernels["logprobs"], 0
    for case in small_cases(kernel):
        arrays = case_arrays(kernel, case, "float32")
        target_logprobs, ranks, top_ids, top_logprobs = run(kernel, arrays, case.attrs)
        _, token_ids, target_ids, num_logprobs = arrays
        targets = np.where(target_ids >= 0, target_ids, token_ids)
        for row in np.flatnonzero((ranks > 0) & (ranks <= num_logprobs)):
            found += 1
            at = ranks[row] - 1
            assert top_ids[row, at] == targets[row], f"logprobs {case.name}: rank of row {row}"
            pair = [top_logprobs[row, at : at + 1]], [target_logprobs[row : row + 1]]
            assert_same_bits(f"logprobs {case.name} row {row}", *pair)
    assert found, "logprobs: no case has a target that is listed"


# The logits that the launches of SAMPLE see: written out, row by row.
ADJUSTED_PROBE = """
#include "{source}"
template <typename T, int kWidth>
__global__ void adjusted_probe(float* out, unsigned char* workspace) {{
  RowWork<T>& work = work_of<T>(workspace, blockIdx.y);
  if (!work.request.is_live) return;
  float* row = out + static_cast<long long>(blockIdx.y) * work.row.vocab;
  for_each_chunk<T, kWidth>(work.row, [&](const Chunk<T, kWidth>& chunk) {{
    chunk.visit([&](float logit, int id, int) {{ row[id] = logit; }});
  }});
}}
"""


def adjusted_bits(kernels: Kernels) -> None:
    """Biases, bans and penalties have the bits of their reference, which rounds each operation."""
    sample = kernels["sample"]
    assert sample.source is not None and sample.launches is not None

    def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
        assert sample.launches is not None
        first = running_on("", sample.launches(axes, dtype))[0]
        assert isinstance(first, Launch)
        probe = first.function.replace("sample_extents", "adjusted_probe")
        return (first, Launch(probe, first.grid, first.block, (), ("adjusted", WORKSPACE)))

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "adjusted_probe.cu"
        source.write_text(ADJUSTED_PROBE.format(source=sample.source), "utf-8")
        adjusted = Operand("adjusted", ("rows", "vocab"), "float32", Access.WRITE)
        probe = replace(
            sample,
            name="adjusted_probe",
            operands=(adjusted, *sample.supplied),
            source=source,
            launches=launches,
            cases=(),
        )
        for name in ("everything", "several_chunks", "odd_vocab_penalised", "stops", "frequency"):
            for dtype in CUDA_TYPES:
                arrays = case_arrays(sample, _case(sample, name), dtype)
                counts, logits, row_ids, positions, *asked = (array.copy() for array in arrays)
                expected = adjust_logits(logits, row_ids, positions, counts, *asked[:7])
                for checked in (False, True):
                    (found,) = emulate(probe, [a.copy() for a in arrays], {}, checked=checked)
                    live = row_ids >= 0
                    same = found[live] == expected[live]
                    assert same.all(), f"sample {name} {dtype}: not the bits of adjust_logits"


def blocks_share_rows(name: str) -> Identity:
    """A row has the same bits whether one block takes all of its chunks or each has its own."""

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        assert kernel.launches is not None

        def launches(axes: Axes, dtype: str, **scalars: Any) -> tuple[Launch, ...]:
            assert kernel.launches is not None
            found = kernel.launches(axes, dtype, **scalars)
            return tuple(
                replace(launch, grid=(1, *launch.grid[1:])) if launch.grid[1] > 1 else launch
                for launch in running_on("", found)
                if isinstance(launch, Launch)
            )

        alone = replace(kernel, launches=launches)
        shared = 0
        for case in kernel.cases:
            arrays = case_arrays(kernel, case, "bfloat16")
            _, bound = bind_launches(kernel, arrays, case.attrs)
            first = running_on("", bound)[0]
            assert isinstance(first, Launch)
            shared += first.grid[0] > 1
            if 1 < first.grid[0] < 4:
                both = [run(which, arrays, case.attrs) for which in (kernel, alone)]
                assert_same_bits(f"{name} {case.name} with a block a row", both[1], both[0])
        assert shared, f"{name}: no case has rows of several chunks"

    check.__name__ = "blocks_share_rows"
    return check


def few_rows_are_right(name: str, *cases: str) -> Identity:
    """Few rows that have a cluster each are within the tolerance of the reference."""

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        assert kernel.launches is not None
        module: Any = sys.modules[kernel.launches.__module__]
        with mock.patch.object(module, "MAX_FEW_ROWS", 1 << 20):
            for case in (_case(kernel, case) for case in cases):
                for dtype in ("float32", "bfloat16"):
                    arrays = case_arrays(kernel, case, dtype)
                    _assert_right_on_sm_90(kernel, case, arrays)

    check.__name__ = "few_rows_are_right"
    return check


SAMPLE_CASES_OF_RANKS = (
    *("greedy_ties", "no_filter", "top_k_ties", "top_p", "all_filters", "odd_vocab_penalised"),
    *("several_chunks", "top_k_of_many", "few_rows_everything", "few_rows_ties", "broken_rows"),
    *("far_peak", "min_p", "top_p_ties", "block_edge", "few_rows_broken", "one_row"),
    *("all_that_are_likely", "filters_end_apart", "neighbours_tie", "draw_of_half"),
)
LOGPROBS_CASES_OF_RANKS = (
    *("random", "ties", "banned", "broken_rows", "two_tokens", "few_rows", "few_rows_ties"),
    *("many_ties", "odd_vocab", "one_row"),
)

WGMMA_CASES = ("several_chunks", "many_tokens_128", "peaks_late", "dead_sequences", "key_edges")


def _assert_right_on_sm_90(
    kernel: Kernel, case: Case, arrays: Sequence[Array], **options: Any
) -> None:
    """What runs on sm_90 is within the tolerance of the reference, checked and in reverse order."""
    expected = ExpectedResults(kernel, arrays, case.attrs)
    for how in ({"checked": True}, {"order": "reverse"}):
        given = [array.copy() for array in arrays]
        found = emulate(kernel, given, case.attrs, arch="sm_90", **options, **how)
        problem = expected.judge(found, given).problem
        assert not problem, f"{kernel.name} {case.name} {how}: {problem}"


def form_for_sm_90a_is_right(kernels: Kernels) -> None:
    """Prefill attention on wgmma, over two blocks, is within the tolerance of the reference."""
    kernel = kernels["paged_prefill_attention"]
    with _wgmma_of_few_tokens(kernel):
        for case in (_case(kernel, name) for name in WGMMA_CASES):
            arrays = case_arrays(kernel, case, "bfloat16")
            _assert_right_on_sm_90(kernel, case, arrays)


def far_boxes(kernels: Kernels) -> None:
    """Prefill attention on wgmma finds blocks more than 2^31 vectors into a cache."""
    kernel = kernels["paged_prefill_attention"]
    with _wgmma_of_few_tokens(kernel):
        _assert_far_blocks_are_found(kernel, _case(kernel, "block_edges"), "bfloat16", "sm_90")


@contextmanager
def _wgmma_of_few_tokens(kernel: Kernel) -> Iterator[None]:
    """Prefill attention takes its form for sm_90a, over two blocks, for any number of tokens."""
    assert kernel.launches is not None
    module = sys.modules[kernel.launches.__module__]
    with mock.patch.multiple(module, WGMMA_MIN_TOKENS=0, WGMMA_BLOCKS=2):
        yield


def held_form_is_right(name: str) -> Identity:
    """The form for sm_90a of products of few rows is within the tolerance of the reference.

    On a card of three multiprocessors, so that a block has many units, and its ring goes round.
    """

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        package = package_of(kernel)
        module: Any = sys.modules[f"{package}.held_rows"]
        before = module._MULTIPROCESSORS, module._LARGE
        module._MULTIPROCESSORS, module._LARGE = 3, 1
        try:
            seen = 0
            for case, dtype in itertools.product(small_cases(kernel), ("bfloat16",)):
                arrays = case_arrays(kernel, case, dtype)
                _, launches = bind_launches(kernel, arrays, case.attrs)
                if not any(
                    isinstance(one, Launch) and "_held<" in one.function for one in launches
                ):
                    continue
                seen += 1
                _assert_right_on_sm_90(kernel, case, arrays)
            assert seen >= 3, f"{name}: {seen} cases reach its form for sm_90a"
        finally:
            module._MULTIPROCESSORS, module._LARGE = before

    check.__name__ = "held_form_is_right"
    return check


FEW_ROWS_CASES = (
    *("one_row", "one_token", "dead_row_128", "one_long_row", "two_rows_128", "peaked"),
    "two_rows_block_size_64",
)


def forms_of_few_rows_are_right(kernels: Kernels) -> None:
    """Both forms of decode attention for few rows, of few warps, are within the tolerance."""
    kernel = kernels["paged_decode_attention"]
    module: Any = sys.modules[f"{package_of(kernel)}.few_rows_attention"]
    few_warps = {"MAX_ROWS": 1 << 20, "WARPS": 2, "WARPS_IN_CLUSTER": 2, "CLUSTER": 2}
    few_warps |= {"BLOCKS": 24, "RING_BYTES": 1 << 14}
    always, never = ({64: rows, 128: rows} for rows in (1 << 20, 0))
    # Scores fall by hundreds from piece to piece.
    falling = decode_case("falling", Heads(2, 1, 64), [2500], q_scale=100.0)
    long = _case(kernel, "one_long_row")
    cases = [*(_case(kernel, name) for name in FEW_ROWS_CASES), falling]
    for settings, chosen in (
        ({}, [long]),  # as on a GPU
        ({"WARPS_IN_CLUSTER": 8}, [long]),  # more parts than a warp folds at a time
        ({**few_warps, "CLUSTERED_ROWS": always}, cases),
        ({**few_warps, "CLUSTERED_ROWS": never}, cases),
    ):
        with mock.patch.dict(vars(module), settings):
            for case in chosen:
                arrays = case_arrays(kernel, case, "bfloat16")
                newest = newest_tokens(*(arrays[i] for i in (2, 4, 5, 6)))
                late = {"k_cache": newest, "v_cache": newest}
                _assert_right_on_sm_90(kernel, case, arrays, late=late)


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


def appended_attention_is_one_after_the_other(kernels: Kernels) -> None:
    """ROPE_APPEND_ATTENTION, in both forms, gives the bits of the kernels that it stands for.

    The newest tokens are read from nowhere in the cache.
    """
    kernel = kernels["rope_append_attention"]
    rope, decode = kernels["rope_append"], kernels["paged_decode_attention"]
    # The last one: a warp has more tiles than it looks up at a time.
    cases = (*small_cases(kernel), _not_cut(_case(kernel, "cut_finely")))
    few_rows = sys.modules[f"{package_of(decode)}.few_rows_attention"]
    for case in cases:
        arrays = case_arrays(kernel, case, "bfloat16")
        *caches, arrivals, qkv, positions, slots, tables, row_ids, lengths, parts, cos_sin = arrays
        attrs = dict(case.attrs)
        where = (qkv, cos_sin, positions, slots)
        q, *appended = run(rope, [*caches, *where], {"q_size": attrs.pop("q_size")})
        given = [arrivals, q, *appended, tables, row_ids, lengths, parts]
        newest = newest_tokens(caches[0], tables, row_ids, lengths)
        late = {"k_cache": newest, "v_cache": newest}
        for arch in ("", "sm_90"):
            with mock.patch.object(few_rows, "MAX_ROWS", 0):
                out, counts = run(decode, given, attrs, arch=arch)
            for how in ({"checked": True, "late": late}, {"order": "reverse"}):
                found = run(kernel, arrays, case.attrs, arch=arch, **how)
                what = f"rope_append_attention {case.name} {arch} {', '.join(how)}"
                assert_same_bits(what, found, (out, *appended, counts))


def package_of(kernel: Kernel) -> str:
    """Where the modules are that the kernel's module imports."""
    assert kernel.launches is not None
    return kernel.launches.__module__.rpartition(".")[0]


def products_for_sm_90a_are_right(name: str, *cases: str) -> Identity:
    """A product on wgmma, over two blocks, is within the tolerance of the reference."""

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        package = package_of(kernel)
        shapes: Any = sys.modules[f"{package}.wgmma_linear"]
        before, shapes.MULTIPROCESSORS = shapes.MULTIPROCESSORS, 2
        try:
            for case in (_case(kernel, case_name) for case_name in cases):
                arrays = case_arrays(kernel, case, "bfloat16")
                _assert_right_on_sm_90(kernel, case, arrays)
        finally:
            shapes.MULTIPROCESSORS = before

    check.__name__ = "products_for_sm_90a_are_right"
    return check


MANY_ROWS_CASES = ("seventy_rows", "rows_of_three_groups", "rows_of_four_groups")


def product_of_many_rows_is_right(kernels: Kernels) -> None:
    """SwiGLU's product of 65 rows and more, in narrow tiles, is within the tolerance."""
    kernel = kernels["linear_swiglu"]
    package = package_of(kernel)
    shapes: Any = sys.modules[f"{package}.wgmma_rows"]
    before = shapes.COLUMNS, shapes.LEAST_SHARE
    shapes.COLUMNS, shapes.LEAST_SHARE = 32, 0
    try:
        for case in (_case(kernel, name) for name in MANY_ROWS_CASES):
            arrays = case_arrays(kernel, case, "bfloat16")
            _assert_right_on_sm_90(kernel, case, arrays)
    finally:
        shapes.COLUMNS, shapes.LEAST_SHARE = before


PIECE_CASES = ("ten_rows", "ten_rows_of_block_size_32", "block_edges", "cut_finely", "peaked")


def pieces_are_right(kernels: Kernels) -> None:
    """Decode attention's form for sm_90a is within the tolerance of the reference."""
    kernel = kernels["paged_decode_attention"]
    # A warp has more tiles than it looks up at a time; scores fall by hundreds from tile to tile.
    # Dead rows, so that the form of few rows does not take them.
    long = decode_case("long", Heads(2, 1, 64), [9000, 300, 0, 0, 0])
    falling = decode_case("falling", Heads(4, 2, 64), [900, 300, 0, 0, 0], q_scale=100.0)
    for case in (*(_case(kernel, name) for name in PIECE_CASES), _not_cut(long), _not_cut(falling)):
        _assert_right_on_sm_90(kernel, case, case_arrays(kernel, case, "bfloat16"))


def weights_are_not_rounded(kernels: Kernels) -> None:
    """Every form of decode attention multiplies values by weights as exact as its sums.

    A weight that is rounded to 16 bits is within the tolerance, and most small cases have as many
    threads as tokens, each of which then weighs 1.
    """
    kernel = kernels["paged_decode_attention"]
    for arch, case in (
        ("", decode_case("vectors", Heads(4, 2, 8), [3000, 1000, 2000])),
        ("", decode_case("tiles", Heads(4, 2, 32), [1000, 700])),
        ("sm_90", decode_case("pieces", Heads(4, 2, 64), [900, 300, 0, 0, 0])),
        ("sm_90", decode_case("few rows", Heads(4, 2, 64), [4000])),
        ("sm_90", decode_case("few rows", Heads(4, 2, 128), [4000])),
    ):
        _assert_rounded_once(kernel, [_not_cut(case)], MAX_SHARE_NEXT_TO_TIE, arch)


IDENTITIES: Mapping[str, tuple[Identity, ...]] = {
    **{
        name: (orders_agree(name), reference_bits(name))
        for name in (
            *("apply_changes", "attention_parts", "copy_blocks", "decode_rows", "mixed_rows"),
            *("advance", "begin_rows", "loop_control"),
        )
    },
    "embedding": (orders_agree("embedding"), reference_bits("embedding")),
    "add": (orders_agree("add"), reference_bits("add")),
    "rms_norm": (
        orders_agree("rms_norm"),
        rounded_once("rms_norm"),
        rows_stand_alone("rms_norm"),
        block_sums_may_follow_each_other,
        fused_norm_is_add_then_norm,
    ),
    "add_rms_norm": (
        orders_agree("add_rms_norm"),
        rounded_once("add_rms_norm"),
        rows_stand_alone("add_rms_norm"),
        fused_norm_is_add_then_norm,
    ),
    "linear": (
        orders_agree("linear"),
        rounded_once("linear"),
        linear_rows_stand_alone,
        few_rows_of_linear_have_the_bits_of_one,
        products_for_sm_90a_are_right("linear", "wgmma_bias", "wgmma_many_steps"),
        held_form_is_right("linear"),
    ),
    "linear_residual": (orders_agree("linear_residual"), rounded_once("linear_residual")),
    **{
        name: (
            orders_agree(name, ("bfloat16",)),
            fused_products_are_one_after_the_other,
            few_streamed_rows_stand_alone,
        )
        for name in ("linear_add", "norm_linear", "norm_swiglu")
    },
    "linear_swiglu": (
        orders_agree("linear_swiglu", ("bfloat16",)),
        fused_products_are_one_after_the_other,
        few_streamed_rows_stand_alone,
        products_for_sm_90a_are_right(
            "linear_swiglu", "seventeen_rows", "many_steps", "sixty_four_rows"
        ),
        held_form_is_right("linear_swiglu"),
        product_of_many_rows_is_right,
    ),
    "linear_rope_append": (
        orders_agree("linear_rope_append", ("bfloat16",)),
        fused_products_are_one_after_the_other,
        held_form_is_right("linear_rope_append"),
    ),
    "norm_rope_append": (
        orders_agree("norm_rope_append", ("bfloat16",)),
        fused_products_are_one_after_the_other,
    ),
    "linear_add_rms_norm": (
        orders_agree("linear_add_rms_norm", ("bfloat16",)),
        rounded_once("linear_add_rms_norm"),
        tiles_of_few_rows_stand_alone,
        products_for_sm_90a_are_right(
            "linear_add_rms_norm", "seventeen_rows", "many_steps_bias", "sixty_four_rows"
        ),
        held_form_is_right("linear_add_rms_norm"),
    ),
    "rope_append": (
        orders_agree("rope_append"),
        rounded_once("rope_append"),
        far_blocks("rope_append", ("one_row", "bfloat16", "")),
    ),
    "paged_decode_attention": (
        orders_agree("paged_decode_attention", ("float32", "bfloat16")),
        rounded_once("paged_decode_attention"),
        exp2_is_right,
        decode_rows_stand_alone,
        blocks_may_lie_anywhere("paged_decode_attention"),
        far_blocks(
            "paged_decode_attention",
            ("one_row", "float32", ""),
            ("one_row", "bfloat16", ""),
            ("one_row", "bfloat16", "sm_90"),
            ("block_edges", "bfloat16", "sm_90"),
        ),
        prefill_rows_are_decode_rows,
        forms_of_few_rows_are_right,
        pieces_are_right,
        weights_are_not_rounded,
    ),
    "rope_append_attention": (
        orders_agree("rope_append_attention", ("bfloat16",)),
        appended_attention_is_one_after_the_other,
        far_blocks(
            "rope_append_attention", ("one_row", "bfloat16", ""), ("one_row", "bfloat16", "sm_90")
        ),
    ),
    "paged_prefill_attention": (
        orders_agree("paged_prefill_attention", ("float32", "bfloat16")),
        rounded_once("paged_prefill_attention", MAX_SHARE_ROUNDED_WEIGHTS),
        blocks_may_lie_anywhere("paged_prefill_attention"),
        far_blocks(
            "paged_prefill_attention", ("one_row", "float32", ""), ("one_row", "bfloat16", "")
        ),
        far_boxes,
        prefill_rows_are_decode_rows,
        form_for_sm_90a_is_right,
    ),
    "silu_and_mul": (
        orders_agree("silu_and_mul"),
        rounded_once("silu_and_mul"),
    ),
    "sample": (
        orders_agree("sample"),
        adjusted_bits,
        blocks_share_rows("sample"),
        few_rows_are_right("sample", *SAMPLE_CASES_OF_RANKS),
    ),
    "logprobs": (
        orders_agree("logprobs"),
        listed_target_agrees,
        blocks_share_rows("logprobs"),
        few_rows_are_right("logprobs", *LOGPROBS_CASES_OF_RANKS),
    ),
}
"""What is asked of each kernel, by its name."""
