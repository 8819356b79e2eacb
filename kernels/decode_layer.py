"""A layer of a decode step of one row, in one launch; several layers in a row are one launch too.

RMS_NORM, LINEAR, ROPE_APPEND, PAGED_DECODE_ATTENTION, LINEAR, ADD, RMS_NORM, LINEAR, SILU_AND_MUL,
LINEAR and ADD, one after the other. Rounding: where each of these stores, so the results are those
of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import (
    CUDA_TYPES,
    DTYPES,
    WORKSPACE,
    Access,
    Array,
    Axes,
    Case,
    Cost,
    Kernel,
    Launch,
    Operand,
    in_workspace,
)

from .add import ADD
from .benchmark_sizes import MODELS
from .case_arrays import normal
from .launch_shapes import MULTIPROCESSORS
from .linear import LINEAR
from .linear_add import LINEAR_ADD
from .norm_rope_append import NORM_ROPE_APPEND
from .norm_swiglu import NORM_SWIGLU
from .paged_cases import NAN, NOISE, Heads, decode_case, slots_of
from .paged_decode_attention import PAGED_DECODE_ATTENTION
from .rms_norm import RMS_NORM
from .rope_append import CACHE_AXES, ROPE_APPEND, rope_table
from .silu_and_mul import SILU_AND_MUL
from .stream_linear import STREAM_DTYPES

PIECE_TOKENS = 16
HEAD_DIMS = (64, 128)
MAX_GROUP = 8  # query heads of a KV head
WARPS = 8  # of a block, that multiply; one more copies

_STEP = 32 * 8  # elements of a row that a warp loads at a time
_WORTH_PIECE, _WORTH_HIDDEN = 1536, 4096  # smaller pieces, and wider rows, lose
_MAX_PIECE = 2048  # elements of a row of a weight that one copy brings
_MAX_PIECES, _MIN_PIECES = 6, 3  # of a warp's ring
_SHARED_BYTES = (227 << 10) - 1536  # of a block, but for what it has beside rows and rings
_BLOCK_ELEMENTS = 1 << 16  # of a layer's weights, at least, of a block
_COUNT_WORDS = 64  # counts lie in lines of their own

# What each of a launch's layers has of its own: DecodeLayer in layer_ring.cuh.
STACK = (
    *("k_cache", "v_cache", "gain", "qkv", "o", "gain2", "gate_up", "down"),
    *("here", "next_place"),
)
PHASES = ("qkv", "attention", "o", "gate_up", "down")  # as in layer_ring.cuh
OPERANDS = ("out", "x", "cos_sin", "block_tables", "row_ids", "seq_lens")


def reference(
    k_cache: Array,
    v_cache: Array,
    arrivals: Array,
    here: Array,
    next_place: Array,
    x: Array,
    gain: Array,
    qkv: Array,
    o: Array,
    gain2: Array,
    gate_up: Array,
    down: Array,
    cos_sin: Array,
    positions: Array,
    slot_mapping: Array,
    block_tables: Array,
    row_ids: Array,
    seq_lens: Array,
    parts: Array,
    *,
    eps: float,
    q_size: int,
    scale: float,
) -> tuple[Array]:
    """One layer: attention and its residual, then the gated products and theirs.

    Args:
        k_cache: T [num_blocks, kv_heads, block_size, head_dim], modified.
        v_cache: T [num_blocks, kv_heads, block_size, head_dim], modified.
        arrivals: int32 [rows, heads]; as of PAGED_DECODE_ATTENTION.
        here: int32 [meeting_words]; all -1 before, anything afterwards.
        next_place: int32 [meeting_words]; that of the layer after it: all -1 afterwards.
        x: T [rows, hidden]; one row.
        gain: the first norm's weight, T [hidden].
        qkv: T [q_size + 2*kv_heads*head_dim, hidden].
        o: T [hidden, q_size].
        gain2: the second norm's weight, T [hidden].
        gate_up: T [2*inter, hidden].
        down: T [hidden, inter].
        cos_sin: float32 [max_position, head_dim], as of ROPE_APPEND.
        positions: int32 [rows].
        slot_mapping: int32 [rows]; where the token at seq_lens - 1 is; -1 in dead rows.
        block_tables: int32 [slots, max_blocks]; read up to the last block that holds a token.
        row_ids: int32 [rows]; the slot of the row's sequence; -1 in dead rows.
        seq_lens: int32 [rows]; tokens in the cache, the current one included; 0 in dead rows.
        parts: int32 [rows+256, 8]; of these rows, from ATTENTION_PARTS.
        eps: added to the mean squares.
        q_size: columns of q, heads*head_dim.
        scale: what the scores are multiplied by, usually head_dim**-0.5.

    Returns:
        T [rows, hidden].
    """
    (normalised,) = RMS_NORM.reference(x, gain, eps=eps)
    (product,) = LINEAR.reference(normalised, qkv)
    where = (cos_sin, positions, slot_mapping)
    (q,) = ROPE_APPEND.reference(k_cache, v_cache, product, *where, q_size=q_size)
    given = (arrivals, q, k_cache, v_cache, block_tables, row_ids, seq_lens, parts)
    (attended,) = PAGED_DECODE_ATTENTION.reference(*given, scale=scale)
    (product,) = LINEAR.reference(attended, o)
    (mid,) = ADD.reference(x, product)
    (normalised,) = RMS_NORM.reference(mid, gain2, eps=eps)
    (product,) = LINEAR.reference(normalised, gate_up)
    (act,) = SILU_AND_MUL.reference(product)
    (product,) = LINEAR.reference(act, down)
    (out,) = ADD.reference(mid, product)
    return (out,)


def cost(axes: Axes, dtype: str, *, eps: float, q_size: int, scale: float) -> Cost:
    """The weights, the row's K and V, and x and out move once; the flops of all of them."""
    return sum(phases(axes, dtype, eps=eps, q_size=q_size, scale=scale).values(), Cost(0, 0))


def phases(axes: Axes, dtype: str, *, eps: float, q_size: int, scale: float) -> dict[str, Cost]:
    """The same by phase: a product with the norm before it, the rotation, the gates or the sum."""
    hidden, inter, itemsize = axes["hidden"], axes["inter"], DTYPES[dtype].itemsize

    def product(columns: int, of: int, elements: int = 0) -> Cost:
        return Cost((columns * of + elements) * itemsize, 2 * columns * of)

    attention = PAGED_DECODE_ATTENTION.cost(axes, dtype, scale=scale)
    found = {
        "qkv": product(axes["qkv_size"], hidden, 2 * hidden) + Cost(4 * axes["head_dim"], 0),
        # But for q and what is attended, which stay in the launch.
        "attention": attention + Cost(-2 * q_size * itemsize, 0),
        "o": product(hidden, q_size),
        "gate_up": product(2 * inter, hidden, hidden),
        "down": product(hidden, inter, hidden),
    }
    assert tuple(found) == PHASES
    return found


@dataclass(frozen=True)
class LayerSizes:
    """How a launch shares a layer out: ``LayerSizes`` in layer_ring.cuh, whose order this is.

    Args:
        hidden: of the row.
        inter: gates.
        kv_heads: KV heads.
        group: query heads of each.
        head_dim: of a head.
        blocks: of the launch, one on a multiprocessor.
        head_blocks: of them, that make q, k and v of a KV head and may attend to its cache.
        piece: elements of a row of a weight that one copy brings.
        pieces: of a warp's ring.
    """

    hidden: int
    inter: int
    kv_heads: int
    group: int
    head_dim: int
    blocks: int
    head_blocks: int
    piece: int
    pieces: int

    @staticmethod
    def of(axes: Axes) -> LayerSizes:
        """What follows from the sizes of a model."""
        hidden, inter, q_size = axes["hidden"], axes["inter"], axes["q_size"]
        kv_heads, head_dim = axes["kv_heads"], axes["head_dim"]
        group = q_size // (kv_heads * head_dim)
        elements = (axes["qkv_size"] + q_size + 3 * inter) * hidden
        blocks = max(kv_heads, min(MULTIPROCESSORS, elements // _BLOCK_ELEMENTS))
        head_rows = (group + 2) * head_dim
        most = blocks // kv_heads
        even = [n for n in range(1, most + 1) if head_rows % (n * WARPS) == 0]
        head_blocks = max(even, default=1)
        whole = math.gcd(hidden, inter, q_size)
        fitting = [n for n in range(_STEP, _MAX_PIECE + 1, _STEP) if whole % n == 0]
        piece = max(fitting, default=_STEP)
        one = LayerSizes(hidden, inter, kv_heads, group, head_dim, blocks, head_blocks, piece, 1)
        room = _SHARED_BYTES - one._rows_bytes
        return replace(one, pieces=min(_MAX_PIECES, room // one._bytes_of_pieces))

    @property
    def text(self) -> str:
        """The C++ type."""
        numbers = (
            *(self.hidden, self.inter, self.kv_heads, self.group, self.head_dim),
            *(self.blocks, self.head_blocks, self.piece, self.pieces),
        )
        return f"LayerSizes<{', '.join(map(str, numbers))}>"

    @property
    def q_size(self) -> int:
        """Columns of q."""
        return self.kv_heads * self.group * self.head_dim

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: rows, then the rings."""
        return self._rows_bytes + self.pieces * self._bytes_of_pieces

    @property
    def _rows_bytes(self) -> int:
        """What is multiplied, or what warps find in attention; the row in two places."""
        found = WARPS * self.group * (self.head_dim + 4) * 4
        bytes_of_rows = max(2 * max(self.hidden, self.inter, self.q_size), found) + 4 * self.hidden
        return -(-bytes_of_rows // 128) * 128

    @property
    def _bytes_of_pieces(self) -> int:
        """A piece of each warp's ring, of a weight or of K or V, with its two barriers."""
        return WARPS * (2 * max(self.piece, PIECE_TOKENS * self.head_dim) + 16)

    @property
    def meeting_words(self) -> int:
        """Of a layer's place: rows, parts of attention, counts; see layer_place.cuh."""
        heads = self.kv_heads * self.group
        qkv_size = self.q_size + 2 * self.kv_heads * self.head_dim
        rows = 2 * (2 * self.hidden + self.inter + qkv_size + self.q_size) // 4
        parts = self.head_blocks * heads * (self.head_dim + 4)
        return rows + parts + (2 * self.kv_heads + 4) * _COUNT_WORDS


def is_worth_one_launch(axes: Axes) -> bool:
    """Whether a layer as one launch is faster than as the launches that it stands for.

    A warp begins only so many copies in a microsecond, so these must be large enough to keep memory
    busy; and warps must have registers for the row. K and V of head_dim 128 come slower than in
    attention's own launch: a row beyond some 10,000 tokens is slower so, all others are faster.
    """
    return LayerSizes.of(axes).piece >= _WORTH_PIECE and axes["hidden"] <= _WORTH_HIDDEN


def check(axes: Axes, *, eps: float, q_size: int, scale: float) -> None:
    """Refuse more than one row, and sizes that blocks do not share evenly.

    Raises:
        ValueError: there are more rows; a row is of no whole steps of a warp; head_dim is neither
            64 nor 128, a KV head has more than 8 query heads, or a cache block is no multiple of 16
            tokens by a power of two; rows leave no room for rings; or places are of another size.
    """
    if axes["rows"] > 1:
        raise ValueError(
            f"decode_layer: axis 'rows' is {axes['rows']}, expected 1; use the kernels that it "
            "stands for"
        )
    if axes["q_size"] != q_size:
        raise ValueError(
            f"decode_layer: axis 'q_size' is {axes['q_size']} in o, expected the attribute q_size, "
            f"{q_size}"
        )
    hidden, inter = axes["hidden"], axes["inter"]
    if math.gcd(hidden, inter, q_size) % _STEP:
        raise ValueError(
            f"decode_layer: hidden, inter and q_size are {hidden}, {inter} and {q_size}, expected "
            f"multiples of {_STEP}"
        )
    kv_heads, head_dim = axes["kv_heads"], axes["head_dim"]
    group, rest = divmod(q_size, kv_heads * head_dim)
    pieces, part = divmod(axes["block_size"], PIECE_TOKENS)
    is_taken = rest == 0 and head_dim in HEAD_DIMS and 1 <= group <= MAX_GROUP
    if not is_taken or part or pieces.bit_count() != 1:
        raise ValueError(
            f"decode_layer: head_dim is {head_dim}, query heads of a KV head "
            f"{q_size}/({kv_heads}*{head_dim}), block_size {axes['block_size']}, expected 64 or "
            f"128, 1 to {MAX_GROUP}, and {PIECE_TOKENS} times a power of two"
        )
    if axes["qkv_size"] != q_size + 2 * kv_heads * head_dim:
        raise ValueError(
            f"decode_layer: axis 'qkv_size' is {axes['qkv_size']} in qkv, expected "
            f"q_size + 2*kv_heads*head_dim = {q_size + 2 * kv_heads * head_dim}"
        )
    sizes = LayerSizes.of(axes)
    if sizes.pieces < _MIN_PIECES:
        raise ValueError(
            f"decode_layer: hidden and inter are {hidden} and {inter}, expected rows that leave "
            f"room for {_MIN_PIECES} pieces of a ring in shared memory"
        )
    if axes["meeting_words"] != sizes.meeting_words:
        raise ValueError(
            f"decode_layer: axis 'meeting_words' is {axes['meeting_words']} in here, expected "
            f"{sizes.meeting_words}"
        )


def launches(
    axes: Axes, dtype: str, *, eps: float, q_size: int, scale: float
) -> tuple[Launch, ...]:
    """One launch, a block on each multiprocessor; elsewhere those that it stands for."""
    sizes = LayerSizes.of(axes)
    block_shift = (axes["block_size"] // PIECE_TOKENS).bit_length() - 1
    return (
        Launch(
            function=f"decode_layer<{CUDA_TYPES[dtype]}, {sizes.text}>",
            grid=(sizes.blocks, 1, 1),
            block=32 * (WARPS + 1),
            scalars=(
                *(np.int32(axes["max_blocks"]), np.int32(block_shift)),
                *(np.float32(eps), np.float32(scale * math.log2(math.e))),
            ),
            operands=OPERANDS,
            shared_bytes=sizes.shared_bytes,
            programmatic=True,
            settles=True,
            arch="sm_90a",
            elsewhere=tuple(_elsewhere(axes, dtype, eps, scale)),
            meets=True,
            stack=STACK,
            phases=PHASES,
        ),
    )


def _temporaries(axes: Axes) -> tuple[dict[str, str], int]:
    """What the launches elsewhere hand to each other, in the workspace, and where that ends."""
    sizes = {"q": "q_size", "attended": "q_size", "mid": "hidden", "act": "inter"}
    places, offset = {}, 0
    for name, axis in sizes.items():
        places[name] = in_workspace(offset)
        offset += -(-2 * axes[axis] // 256) * 256
    return places, offset


def _elsewhere(axes: Axes, dtype: str, eps: float, scale: float) -> Iterator[Launch]:
    """Launches of the kernels that it stands for."""
    temporaries, offset = _temporaries(axes)
    hidden, q_size, inter = axes["hidden"], axes["q_size"], axes["inter"]

    def launches_of(
        kernel: Kernel, own: Mapping[str, int], names: Mapping[str, str], **attrs: float
    ) -> Iterator[Launch]:
        assert kernel.launches is not None, f"{kernel.name} has no launches"
        known = {o.name: o.name for o in DECODE_LAYER.operands} | temporaries
        given = {name: known[other] for name, other in names.items()}
        for launch in kernel.launches({**axes, **own}, dtype, **attrs):
            assert isinstance(launch, Launch), f"{kernel.name} is a matrix product"
            given[WORKSPACE] = in_workspace(offset)
            yield launch.renamed([o.name for o in kernel.operands], given)

    row = {"tokens": 1}
    yield from launches_of(
        NORM_ROPE_APPEND,
        {**row, "in_features": hidden},
        {"weight": "qkv", **_same("q", "k_cache", "v_cache", "x", "positions", "slot_mapping")}
        | _same("gain", "cos_sin"),
        eps=eps,
        q_size=q_size,
    )
    yield from launches_of(
        PAGED_DECODE_ATTENTION,
        {},
        {"out": "attended", **_same("arrivals", "q", "k_cache", "v_cache", "block_tables")}
        | _same("row_ids", "seq_lens", "parts"),
        scale=scale,
    )
    yield from launches_of(
        LINEAR_ADD,
        {**row, "in_features": q_size, "out_features": hidden},
        {"out": "mid", "residual": "x", "x": "attended", "weight": "o"},
    )
    yield from launches_of(
        NORM_SWIGLU,
        {**row, "in_features": hidden},
        {"out": "act", "x": "mid", "gain": "gain2", "weight": "gate_up"},
        eps=eps,
    )
    yield from launches_of(
        LINEAR_ADD,
        {**row, "in_features": inter, "out_features": hidden},
        {"out": "out", "residual": "mid", "x": "act", "weight": "down"},
    )


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def workspace(axes: Axes, dtype: str, *, eps: float, q_size: int, scale: float) -> int:
    """Elsewhere: what launches hand to each other, and what attention needs."""
    attention = PAGED_DECODE_ATTENTION.workspace_bytes(axes, dtype, {"scale": scale})
    return _temporaries(axes)[1] + attention


def layer_case(
    name: str,
    shape: Heads,
    length: int,
    hidden: int = 256,
    inter: int = 512,
    *,
    unread: float = NAN,
    block_size: int = 16,
    scale: float = 1.0,
) -> Case:
    """One row with ``length`` tokens in the cache, the newest of which is not there yet."""
    attention = decode_case(name, shape, [length], unread=unread, block_size=block_size)

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        arrivals, _, k_cache, v_cache, tables, row_ids, lengths, parts = attention.make(rng, dtype)
        positions, slots = lengths - 1, np.full(1, -1, np.int32)
        if length > 0:
            slots[0] = slots_of(tables[row_ids[0]], positions[0], block_size)
            block, offset = divmod(int(slots[0]), block_size)
            k_cache[block, :, offset] = v_cache[block, :, offset] = unread
        else:
            positions[0] = 10**6
        qkv_size = shape.q_size + 2 * shape.kv_size
        axes = {"hidden": hidden, "inter": inter, "q_size": shape.q_size, "qkv_size": qkv_size}
        axes |= {"kv_heads": shape.kv_heads, "head_dim": shape.head_dim}
        words = LayerSizes.of(axes).meeting_words

        def weight(rows: int, columns: int) -> Array:
            return normal(rng, dtype, (rows, columns), columns**-0.5)

        def gain() -> Array:
            return 1 + normal(rng, dtype, (hidden,), 0.25)

        places = [np.full(words, -1, np.int32) for _ in range(2)]
        x = normal(rng, dtype, (1, hidden), scale)
        weights = [gain(), weight(qkv_size, hidden), weight(hidden, shape.q_size)]
        weights += [gain(), weight(2 * inter, hidden), weight(hidden, inter)]
        cos_sin = rope_table(length + 2, shape.head_dim)
        where = (positions, slots, tables, row_ids, lengths, parts)
        return (k_cache, v_cache, arrivals, *places, x, *weights, cos_sin, *where)

    attrs = {"eps": 1e-5, "q_size": shape.q_size, "scale": attention.attrs["scale"]}
    return Case(name, make, attrs, attention.context)


DECODE_LAYER = Kernel(
    name="decode_layer",
    operands=(
        Operand("out", ("rows", "hidden"), "T", Access.WRITE),
        Operand("k_cache", CACHE_AXES, "T", Access.UPDATE, appends=True),
        Operand("v_cache", CACHE_AXES, "T", Access.UPDATE, appends=True),
        Operand("arrivals", ("rows", "heads"), "int32", Access.UPDATE),
        Operand("here", ("meeting_words",), "int32", Access.UPDATE, scratch=True),
        Operand("next_place", ("meeting_words",), "int32", Access.UPDATE, scratch=True),
        Operand("x", ("rows", "hidden"), "T"),
        Operand("gain", ("hidden",), "T", constant=True),
        Operand("qkv", ("qkv_size", "hidden"), "T", constant=True),
        Operand("o", ("hidden", "q_size"), "T", constant=True),
        Operand("gain2", ("hidden",), "T", constant=True),
        Operand("gate_up", ("2*inter", "hidden"), "T", constant=True),
        Operand("down", ("hidden", "inter"), "T", constant=True),
        Operand("cos_sin", ("max_position", "head_dim"), "float32", constant=True, gathered=True),
        Operand("positions", ("rows",), "int32"),
        Operand("slot_mapping", ("rows",), "int32"),
        Operand("block_tables", ("slots", "max_blocks"), "int32"),
        Operand("row_ids", ("rows",), "int32"),
        Operand("seq_lens", ("rows",), "int32"),
        Operand("parts", ("rows+256", "part_words"), "int32"),
    ),
    reference=reference,
    cost=cost,
    check=check,
    cuda_dtypes=STREAM_DTYPES,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    workspace=workspace,
    phases=phases,
    is_attention=True,
    cases=(
        layer_case("one_row", Heads(4, 2, 64), 37),
        layer_case("one_token", Heads(4, 2, 64), 1),
        layer_case("block_edge", Heads(4, 2, 64), 16),
        layer_case("new_block", Heads(4, 2, 64), 17),
        layer_case("dead_row", Heads(4, 2, 64), 0),
        layer_case("two_parts", Heads(4, 2, 64), 129),
        layer_case("three_parts", Heads(4, 2, 64), 300, unread=NOISE),
        layer_case("several_pieces_a_warp", Heads(4, 2, 64), 1100),
        layer_case("block_size_32", Heads(4, 2, 64), 209, block_size=32),
        layer_case("head_dim_128", Heads(2, 2, 128), 40),
        layer_case("head_dim_128_long", Heads(2, 2, 128), 700),
        layer_case("group_of_3", Heads(12, 4, 64), 70, 768, 768),  # pieces of 3 loads of a warp
        layer_case("group_of_8", Heads(8, 1, 64), 200),
        layer_case("small_scale", Heads(4, 2, 64), 20, scale=1e-3),  # shows a wrong eps
    ),
    benchmarks=(
        layer_case("1b_1024", MODELS["1b"].heads, 1024, MODELS["1b"].hidden, MODELS["1b"].inter),
        layer_case("3b_1024", MODELS["3b"].heads, 1024, MODELS["3b"].hidden, MODELS["3b"].inter),
        layer_case("8b_1024", MODELS["8b"].heads, 1024, MODELS["8b"].hidden, MODELS["8b"].inter),
    ),
)
