"""Random programs out of the real kernels, for property tests of the compiler core.

A recipe is a list of numbers that hypothesis draws and shrinks. The same recipe can be traced at
any largest row count, so a program that is bound to fewer rows can be held against one that was
traced at that count.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from tiny_kernels import LIKELIEST

from cugraphs.kernel import DTYPES, Array, Dim
from cugraphs.kernels import (
    ADD,
    ATTENTION_PARTS,
    EMBEDDING,
    LINEAR,
    PAGED_DECODE_ATTENTION,
    PAGED_PREFILL_ATTENTION,
    RMS_NORM,
    ROPE_APPEND,
    SILU_AND_MUL,
)
from cugraphs.kernels.attention_parts import PART_WORDS
from cugraphs.program import Buffer, Kind, Program
from cugraphs.trace import Tracer

HEADS, KV_HEADS, HEAD_DIM = 2, 1, 4
Q_SIZE = HEADS * HEAD_DIM
NARROW, WIDE = Q_SIZE, Q_SIZE + 2 * KV_HEADS * HEAD_DIM  # widths of activations: q, and qkv
BLOCK_SIZE, BLOCKS_PER_SEQ = 4, 4
MAX_LEN = BLOCK_SIZE * BLOCKS_PER_SEQ
MAX_ROWS = MAX_LEN  # so that one sequence can own all rows of a step
NUM_BLOCKS = 9
VOCAB = WIDE  # so that a sampled token of any activation is an id

STEPS = (
    *("add", "rms_norm", "linear", "silu", "embedding", "norm_linear", "add_norm"),
    *("rope_append", "decode", "prefill", "gather", "sample", "output"),
)
# Every element that these read reaches what they write.
LOSSLESS_STEPS = tuple(s for s in STEPS if s not in ("gather", "sample", "embedding"))


@dataclass(frozen=True)
class Recipe:
    """What to record: (step, first pick, second pick) each; a pick counts among what fits."""

    steps: tuple[tuple[str, int, int], ...]
    dtype: str

    def trace(self, max_rows: int, max_seqs: int) -> Program:
        """The program, traced at these largest counts; every result that no op reads is output."""
        t = Tracer("random")
        return self.record(t, t.dim("rows", max_rows), t.dim("seqs", max_seqs))

    def record(self, t: Tracer, rows: Dim, seqs: int) -> Program:
        """As :meth:`trace`, on axes that are declared already; ``seqs`` may be a fixed size."""
        return _Recorder(self, t, rows, seqs).program()


def recipes(
    steps: tuple[str, ...] = STEPS,
    dtypes: tuple[str, ...] = ("float32",),
    min_steps: int = 1,
    max_steps: int = 14,
) -> st.SearchStrategy[Recipe]:
    """Recipes out of ``steps``."""
    pick = st.integers(0, 11)
    step = st.tuples(st.sampled_from(steps), pick, pick)
    return st.builds(
        Recipe,
        st.lists(step, min_size=min_steps, max_size=max_steps).map(tuple),
        st.sampled_from(dtypes),
    )


class _Recorder:
    def __init__(self, recipe: Recipe, t: Tracer, rows: Dim, seqs: int) -> None:
        self.recipe = recipe
        self.t = t
        self.dtype = recipe.dtype
        self.rows, self.seqs = rows, seqs
        self.count = 0
        int32 = "int32"
        self.token_ids = [t.input("token_ids", (rows,), int32)]
        self.positions = t.input("positions", (rows,), int32)
        self.slots = t.input("slot_mapping", (rows,), int32)
        self.tables = t.input("block_tables", (MAX_ROWS, BLOCKS_PER_SEQ), int32)
        self.row_ids = t.input("row_ids", (rows,), int32)
        self.decode_lens = t.input("seq_lens", (rows,), int32)
        self.slot_ids = t.input("slot_ids", (seqs,), int32)
        self.seq_lens = t.input("chunk_seq_lens", (seqs,), int32)
        self.starts = t.input("query_start_loc", (seqs + 1,), int32)
        self.indices = t.input("indices", (seqs,), int32)
        cache = (NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        self.caches = [
            tuple(t.state(f"{kind}{layer}", cache, self.dtype) for kind in ("k", "v"))
            for layer in range(2)
        ]
        self.rope = t.weight("rope", (MAX_LEN, HEAD_DIM), "float32")
        self.table = t.weight("table", (VOCAB, WIDE), self.dtype)
        self.acts = [
            t.input("x_narrow", (rows, NARROW), self.dtype),
            t.input("x_wide", (rows, WIDE), self.dtype),
        ]

    def program(self) -> Program:
        for step, first, second in self.recipe.steps:
            getattr(self, step)(first, second)
        program = self.t.program
        read = {buffer for op in program.ops for buffer in op.read}
        for buffer in program.of_kind(Kind.TEMP):
            if buffer not in read:
                self.t.output(buffer, f"sink{buffer.id}")
        return program

    def pick(self, first: int, width: int | None = None, axis: Dim | None = None) -> Buffer:
        fitting = [
            act
            for act in self.acts
            if (width is None or act.type.shape[1] == width)
            and (axis is None or str(act.type.shape[0]) == str(axis))
        ]
        return fitting[-1 - first % len(fitting)]  # the latest is picked most often

    def weight(self, *shape: int) -> Buffer:
        self.count += 1
        return self.t.weight(f"w{self.count}", shape, self.dtype)

    def keep(self, act: Buffer) -> None:
        self.acts.append(act)

    def add(self, first: int, second: int) -> None:
        a = self.pick(first)
        b = self.pick(second, a.type.shape[1], a.type.shape[0])
        self.keep(self.t.call(ADD, a, b))

    def rms_norm(self, first: int, second: int) -> None:
        x = self.pick(first)
        self.keep(self.t.call(RMS_NORM, x, self.weight(x.type.shape[1]), eps=1e-5))

    def add_norm(self, first: int, second: int) -> None:
        """The pair that the fusion rule wants, or nearly: the norm may read another buffer."""
        self.add(first, second)
        self.rms_norm(second % 3, 0)

    def linear(self, first: int, second: int) -> None:
        x = self.pick(first)
        out = (NARROW, WIDE)[second % 2]
        bias = [self.weight(out)] if second % 3 == 0 else []
        self.keep(self.t.call(LINEAR, x, self.weight(out, x.type.shape[1]), *bias))

    def norm_linear(self, first: int, second: int) -> None:
        self.rms_norm(first, 0)
        self.linear(second % 2, second)

    def silu(self, first: int, second: int) -> None:
        self.keep(self.t.call(SILU_AND_MUL, self.pick(first, WIDE)))

    def embedding(self, first: int, second: int) -> None:
        ids = self.token_ids[-1 - first % len(self.token_ids)]
        self.keep(self.t.call(EMBEDDING, ids, self.table))

    def rope_append(self, first: int, second: int) -> None:
        qkv = self.pick(first, WIDE, self.rows)
        where = (self.rope, self.positions, self.slots)
        caches = self.caches[second % 2]
        self.keep(self.t.call(ROPE_APPEND, *caches, qkv, *where, q_size=Q_SIZE))

    def decode(self, first: int, second: int) -> None:
        q = self.pick(first, NARROW, self.rows)
        tables = (self.tables, self.row_ids, self.decode_lens)
        caches = self.caches[second % 2]
        sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "part_words": PART_WORDS}
        parts, arrivals = self.t.call_tuple(ATTENTION_PARTS, *tables[1:], **sizes)
        arrays = (arrivals, q, *caches, *tables, parts)
        self.keep(self.t.call(PAGED_DECODE_ATTENTION, *arrays, scale=0.5))

    def prefill(self, first: int, second: int) -> None:
        q = self.pick(first, NARROW, self.rows)
        tables = (self.tables, self.slot_ids, self.seq_lens, self.starts)
        caches = self.caches[second % 2]
        self.keep(self.t.call(PAGED_PREFILL_ATTENTION, q, *caches, *tables, scale=0.5))

    def gather(self, first: int, second: int) -> None:
        self.keep(self.t.call(EMBEDDING, self.indices, self.pick(first, axis=self.rows)))

    def sample(self, first: int, second: int) -> None:
        self.token_ids.append(self.t.call(LIKELIEST, self.pick(first)))

    def output(self, first: int, second: int) -> None:
        """Mark a result as an output; later steps may read it all the same."""
        act = self.pick(first)
        if act.kind is Kind.TEMP:
            self.t.output(act, f"out{act.id}")


def make_arrays(program: Program, rows: int, seqs: int, seed: int) -> dict[Buffer, Array]:
    """Arrays for every weight, state and input of a traced recipe, all rows live."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, rows + 1, seqs - 1))
    starts = np.array([0, *cuts, rows])
    inputs = {
        "token_ids": rng.integers(0, VOCAB, rows),
        "positions": rng.integers(0, MAX_LEN, rows),
        "slot_mapping": BLOCK_SIZE + rng.permutation((NUM_BLOCKS - 1) * BLOCK_SIZE)[:rows],
        "block_tables": rng.integers(1, NUM_BLOCKS, (MAX_ROWS, BLOCKS_PER_SEQ)),
        "row_ids": rng.permutation(MAX_ROWS)[:rows],
        "seq_lens": rng.integers(1, MAX_LEN + 1, rows),
        "slot_ids": rng.permutation(MAX_ROWS)[:seqs],
        "chunk_seq_lens": rng.integers(np.maximum(np.diff(starts), 1), MAX_LEN + 1),
        "query_start_loc": starts,
        "indices": rng.integers(0, rows, seqs),
    }
    arrays = {}
    sizes = {"rows": rows, "seqs": seqs}
    for buffer in program.of_kind(Kind.WEIGHT, Kind.STATE, Kind.INPUT):
        type_ = buffer.type.bind(sizes)
        values = inputs.get(buffer.name)
        if values is None:
            values = rng.standard_normal(type_.shape) * 0.5
        arrays[buffer] = values.astype(DTYPES[type_.dtype])
    return arrays


def copies(arrays: Mapping[Buffer, Array]) -> dict[Buffer, Array]:
    """The same arrays in other memory, so that one run's state does not reach the next."""
    return {buffer: array.copy() for buffer, array in arrays.items()}


def plain_run(program: Program, bound: Mapping[Buffer, Array]) -> dict[Buffer, Array]:
    """What the program computes, without the interpreter: each result in an array of its own.

    Returns:
        The array of every buffer after the last op.
    """
    values = copies(bound)
    for op in program.ops:
        results = op.kernel.reference(*[values[buffer] for buffer in op.read], **op.attrs)
        values.update(zip(op.written, (result.copy() for result in results), strict=True))
    return values


def assert_same_bits(actual: Array, expected: Array, what: object) -> None:
    """Equal shape, dtype and bytes; NaN equals NaN."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, what
    assert actual.tobytes() == expected.tobytes(), what
