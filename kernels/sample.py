"""Sampling: the token where the kept tokens' cumulative probability first exceeds a random number.

With ``l`` a row of logits after biases, bans and penalties (``adjust_logits.py``), ``T`` its
temperature and ``m = max(l)``:

    w[i] = exp((l[i] - m) / T)              weight; over a sum of weights, a probability
    min_p: keep l[i] >= m + T * log(min_p)  that is w[i] >= min_p: relative to the likeliest
    top_k: keep the first k                 in the order (logit descending, id ascending)
    top_p: keep the shortest prefix of that order with sum(w) >= top_p * sum(w of what is left)
    token = the lowest kept id with (sum of kept w up to and with it) > u * (sum of all kept w)
    u = 24 high bits of the first Philox word of counter (position, sample_index, 0, 0), key = seed

The filters act in vLLM's order: min_p, top_k, then top_p on the softmax over what those two kept.
Each of them keeps a prefix of the same order, at least one token; the order is on the logits before
the temperature, so that it is exact and ties are resolved alike on every device: `top_k` keeps
exactly k. 0 turns `top_k` and `min_p` off, 1 turns `top_p` off. `T < 1e-5` or `top_k = 1` takes the
likeliest token, the lowest id among ties, and no random number.

A row that holds a NaN or +inf, or nothing above -inf, gives -1: its model is broken, and nothing is
counted. A token with a logit of -inf is never sampled. A dead row (row id -1) gives 0 and counts
nothing; its logits may hold anything.

Rounding: the threshold of min_p in float64, compared exactly; weights in float32, summed in float32
in blocks of 256 tokens, and the sums of blocks in float64. The GPU rounds each weight to a multiple
of 2^-38 and adds without error, so it gives a row the same token in any batch. Both are within some
1e-7 of the exact sums, relative to the total (one long float32 chain is not: over a large
vocabulary it drifts by up to 1e-3). So two devices can choose different tokens only where u or
top_p is within 1e-6 of a cumulative probability.

Sources: Holtzman et al., The Curious Case of Neural Text Degeneration, 2020 (top_p); Fan et al.,
Hierarchical Neural Story Generation, 2018 (top_k); Nguyen et al., Turning Up the Heat: Min-p
Sampling, 2024; the order of the filters is that of vLLM's sampler.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np

from cugraphs.kernel import (
    CUDA_TYPES,
    DTYPES,
    WORKSPACE,
    Access,
    Array,
    Axes,
    Cost,
    Kernel,
    Launch,
    Operand,
)

from .adjust_logits import adjust_logits
from .philox import USE_SAMPLE, philox4x32_10, uniform
from .precision import quiet
from .row_order import (
    RANKS,
    SCRATCH_BYTES,
    THREADS,
    blocks_per_row,
    check_vocab,
    part_bytes,
    row_width,
    run_bits,
)
from .sampling_cases import SAMPLE_BENCHMARKS, SAMPLE_CASES

GREEDY_BELOW_TEMPERATURE = 1e-5
BROKEN_ROW = -1  # token id of a row whose logits are no distribution
_BLOCK = 256  # tokens whose weights are added in float32
_WORK_BYTES = 47 * 1024  # of a row: sizeof(RowWork), rounded up
MAX_FEW_ROWS = 12  # that are sampled by a cluster each
_RANK_WORK_BYTES = 51 * 1024  # of shared memory: sizeof(RankWork), rounded up

Side = Literal["left", "right"]


@quiet
def reference(
    token_counts: Array,
    logits: Array,
    row_ids: Array,
    sample_positions: Array,
    repetition_penalty: Array,
    presence_penalty: Array,
    frequency_penalty: Array,
    bias_ids: Array,
    bias_values: Array,
    stop_ids: Array,
    min_position: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    min_p: Array,
    seeds: Array,
    sample_index: Array,
    count_tokens: Array,
) -> tuple[Array]:
    """Choose a token for each live row, and count it where the row's sequence counts tokens.

    Args:
        token_counts: int32 [slots, vocab], modified: one is added at [slot, token]. Bits 0 to 29:
            times the token was generated; bit 30: it is in the prompt. Bit 31 is 0.
        logits: T [rows, vocab].
        row_ids: int32 [rows]; the sequence's slot, -1 in dead rows. No slot that counts its tokens
            is there twice.
        sample_positions: int32 [rows]; position of the sampled token in its sequence.
        repetition_penalty: float32 [slots], above 0; 1 is neutral.
        presence_penalty: float32 [slots]; 0 is neutral.
        frequency_penalty: float32 [slots]; 0 is neutral.
        bias_ids: int32 [slots, max_bias]; distinct ids, packed at the front, then -1.
        bias_values: float32 [slots, max_bias].
        stop_ids: int32 [slots, max_stop_ids]; packed at the front, then -1.
        min_position: int32 [slots]; first position at which a stop id may stand.
        temperature: float32 [slots]; below 1e-5 is greedy.
        top_k: int32 [slots]; 0 is off.
        top_p: float32 [slots], in (0, 1]; 1 is off.
        min_p: float32 [slots], in [0, 1]; 0 is off.
        seeds: uint32 [slots, 2]; low word first.
        sample_index: int32 [slots]; number of the completion among those of one request.
        count_tokens: int32 [slots]; 1 where token_counts is kept.

    Returns:
        token_ids, int32 [rows]; 0 in dead rows, -1 in broken ones.
    """
    token_ids = np.zeros(len(row_ids), np.int32)
    rows = np.flatnonzero(row_ids >= 0)
    if not rows.size:
        return (token_ids,)
    adjusted = adjust_logits(
        logits,
        row_ids,
        sample_positions,
        token_counts,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        bias_ids,
        bias_values,
        stop_ids,
        min_position,
    )
    slots = row_ids[rows]
    temperatures, ks = temperature[slots], top_k[slots]
    is_drawn = (temperatures >= GREEDY_BELOW_TEMPERATURE) & (ks != 1)
    if not is_drawn.any():
        for row in rows.tolist():
            token_ids[row] = _likeliest(adjusted[row])[0]
    else:
        draws = uniforms(seeds[slots], sample_positions[rows], sample_index[slots])
        parameters = (rows, is_drawn, temperatures, ks, top_p[slots], min_p[slots], draws)
        lists = (parameter.tolist() for parameter in parameters)
        for row, drawn, t, k, p, relative_p, u in zip(*lists, strict=True):
            token_id, peak = _likeliest(adjusted[row])
            if drawn and token_id >= 0:
                token_id = _draw(adjusted[row], peak, t, k, p, relative_p, u)
            token_ids[row] = token_id

    chosen = token_ids[rows]
    counted = (count_tokens[slots] != 0) & (chosen >= 0)
    if counted.any():
        np.add.at(token_counts, (slots[counted], chosen[counted]), 1)
    return (token_ids,)


def uniforms(seeds: Array, positions: Array, sample_index: Array) -> Array:
    """Return the random number that chooses the token at each position.

    Args:
        seeds: uint32 [n, 2]; low word first.
        positions: int32 [n].
        sample_index: int32 [n].

    Returns:
        float32 [n], in [0, 1).
    """
    counter = np.zeros((len(positions), 4), np.uint32)
    counter[:, 0] = positions
    counter[:, 1] = sample_index
    counter[:, 2] = USE_SAMPLE
    return uniform(philox4x32_10(counter, seeds)[:, 0])


def largest(values: Array, count: int, smallest_kept: np.generic) -> Array:
    """Return the indices of the ``count`` largest values, ascending; of ties the lowest indices.

    Args:
        values: [n], without NaN.
        count: 1 to n.
        smallest_kept: the value with ``count - 1`` values before it in descending order.

    Returns:
        int64 [count].
    """
    kept = np.flatnonzero(values >= smallest_kept)
    surplus = len(kept) - count
    if surplus:
        ties = np.flatnonzero(values[kept] == smallest_kept)
        kept = np.delete(kept, ties[-surplus:])
    return kept


def _likeliest(logits: Array) -> tuple[int, float]:
    """Return the likeliest token and its logit, or ``BROKEN_ROW`` for no distribution."""
    token_id = int(logits.argmax())  # NumPy takes the first NaN for the largest value
    peak = float(logits[token_id])
    return (token_id if math.isfinite(peak) else BROKEN_ROW), peak


def _draw(
    logits: Array, peak: float, temperature: float, top_k: int, top_p: float, min_p: float, u: float
) -> int:
    """Return the token that the filters keep and ``u`` falls on."""
    kept: Array | None = None  # ids, ascending; None is the whole vocabulary
    if min_p > 0.0:
        kept = np.flatnonzero(logits >= _at_least(peak + temperature * math.log(min_p)))
        logits = logits[kept]
    if 0 < top_k < len(logits):
        smallest = np.partition(logits, -top_k)[-top_k]
        kept, logits = _narrow(kept, logits, largest(logits, top_k, smallest))
    weights = _weights(logits, peak, temperature)
    if top_p < 1.0:
        nucleus = _nucleus(logits, weights, peak, temperature, top_p)
        kept, weights = _narrow(kept, weights, nucleus)
    cumulative = _block_sums(weights)
    index = _first(weights, cumulative, u * float(cumulative[-1]), side="right")
    return index if kept is None else int(kept[index])


def _at_least(threshold: float) -> np.float32:
    """Return the lowest float32 that is not below ``threshold``: to compare with it is exact."""
    rounded = np.float32(threshold)
    return rounded if float(rounded) >= threshold else np.nextafter(rounded, np.float32(np.inf))


def _narrow(kept: Array | None, values: Array, indices: Array) -> tuple[Array, Array]:
    """Return the ids and the values at ``indices`` of what was kept before."""
    return (indices if kept is None else kept[indices]), values[indices]


def _weights(logits: Array, peak: float, temperature: float) -> Array:
    """Return ``exp((logits - peak) / temperature)``, float32."""
    weights: Array = logits - np.float32(peak)
    weights /= np.float32(temperature)
    return np.exp(weights, out=weights)


def _nucleus(logits: Array, weights: Array, peak: float, temperature: float, top_p: float) -> Array:
    """Return the indices, ascending, of the shortest prefix whose weight reaches ``top_p``."""
    total = float(_block_sums(weights)[-1])
    # n tokens that each weigh less than (1 - top_p) / n of the total cannot fill the part that is
    # cut off, so the prefix ends before them and they need no sorting.
    negligible = np.float32(0.999 * (1.0 - top_p) * total / len(weights))
    candidates = logits[np.flatnonzero(weights >= negligible)]
    candidates.sort()
    descending = candidates[::-1].copy()
    sorted_weights = _weights(descending, peak, temperature)
    cumulative = _block_sums(sorted_weights)
    target = min(top_p * total, float(cumulative[-1]))
    count = _first(sorted_weights, cumulative, target, side="left") + 1
    return largest(logits, count, descending[count - 1])


def _block_sums(weights: Array) -> Array:
    """Return the cumulative weight at the end of each block, float64 [blocks]."""
    sums = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK))
    return sums.astype(np.float64).cumsum()


def _first(weights: Array, cumulative: Array, target: float, *, side: Side) -> int:
    """Return the first index whose cumulative weight exceeds ("right") or reaches ("left") target.

    The weight there is above 0, for "right" with ``0 <= target < cumulative[-1]``, for "left" with
    ``0 < target <= cumulative[-1]``.
    """
    block = int(cumulative.searchsorted(target, side))
    before = cumulative[block - 1] if block else 0.0
    inner = weights[block * _BLOCK : (block + 1) * _BLOCK]
    index = int((before + inner.cumsum(dtype=np.float64)).searchsorted(target, side))
    if index == len(inner):  # a sum rounded down to or below the target that its block exceeds
        index = int(np.flatnonzero(inner)[-1])
    return block * _BLOCK + index


def check(axes: Axes) -> None:
    """There is a token to sample, the lists have room for an entry, and a seed has 64 bits.

    Raises:
        ValueError: vocab is out of range, max_bias or max_stop_ids is 0, or a seed has another
            number of words than 2.
    """
    check_vocab("sample", axes["vocab"])
    for axis in ("max_bias", "max_stop_ids"):
        if axes[axis] < 1:
            raise ValueError(
                f"sample: axis {axis!r} is {axes[axis]}, expected at least 1; "
                "fill unused entries with -1"
            )
    if axes["words"] != 2:
        raise ValueError(
            f"sample: axis 'words' of seeds is {axes['words']}, expected 2: the low word of a "
            "64-bit seed, then the high one"
        )


def cost(axes: Axes, dtype: str) -> Cost:
    """Rows without penalties: every logit is read once; subtract, divide, exp and add, 4 flops."""
    rows, vocab = axes["rows"], axes["vocab"]
    # Row inputs and token; penalties, first bias id and min_position; filters; seed, index, count.
    row_bytes = 3 * 4 + 5 * 4 + 4 * 4 + 8 + 2 * 4
    return Cost(rows * (DTYPES[dtype].itemsize * vocab + row_bytes), 4 * rows * vocab)


def workspace(axes: Axes, dtype: str) -> int:
    """What the launches hand on of each row."""
    return axes["rows"] * _WORK_BYTES


def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
    """Of few rows on sm_90a one launch, of a cluster for each row; else four."""
    anywhere = _launches_of_many(axes, dtype)
    rows, vocab = axes["rows"], axes["vocab"]
    if rows > MAX_FEW_ROWS:
        return anywhere
    sizes = (vocab, axes["max_bias"], axes["max_stop_ids"], run_bits(vocab))
    return (
        Launch(
            f"sample_few_rows<{CUDA_TYPES[dtype]}, {row_width(dtype, vocab)}>",
            (RANKS, rows, 1),
            THREADS,
            tuple(np.int32(size) for size in sizes),
            ("token_ids", *_ROW_OPERANDS),
            shared_bytes=_RANK_WORK_BYTES + max(part_bytes(vocab), SCRATCH_BYTES),
            programmatic=True,
            arch="sm_90a",
            elsewhere=anywhere,
            cluster=RANKS,
        ),
    )


def _launches_of_many(axes: Axes, dtype: str) -> tuple[Launch, ...]:
    """Three launches in which blocks share the chunks of a row; in the last a block has a row."""
    rows, vocab = axes["rows"], axes["vocab"]
    template = f"<{CUDA_TYPES[dtype]}, {row_width(dtype, vocab)}>"
    grid = (blocks_per_row(rows, vocab), rows, 1)
    sizes = tuple(np.int32(axes[axis]) for axis in ("vocab", "max_bias", "max_stop_ids"))
    given = (*_ROW_OPERANDS, WORKSPACE)
    return (
        Launch(f"sample_extents{template}", grid, THREADS, sizes, given, programmatic=True),
        Launch(f"sample_bins{template}", grid, THREADS, (), (WORKSPACE,), programmatic=True),
        Launch(
            f"sample_candidates{template}",
            grid,
            THREADS,
            (),
            (WORKSPACE,),
            programmatic=True,
        ),
        Launch(
            f"sample_draw{template}",
            (rows, 1, 1),
            THREADS,
            (),
            ("token_ids", WORKSPACE),
            shared_bytes=SCRATCH_BYTES,
            programmatic=True,
        ),
    )


_ROW_OPERANDS = (
    "logits",
    "row_ids",
    "sample_positions",
    "token_counts",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "bias_ids",
    "bias_values",
    "stop_ids",
    "min_position",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seeds",
    "sample_index",
    "count_tokens",
)

SAMPLE = Kernel(
    name="sample",
    operands=(
        Operand("token_ids", ("rows",), "int32", Access.WRITE),
        Operand("token_counts", ("slots", "vocab"), "int32", Access.UPDATE),
        Operand("logits", ("rows", "vocab"), "T"),
        Operand("row_ids", ("rows",), "int32"),
        Operand("sample_positions", ("rows",), "int32"),
        Operand("repetition_penalty", ("slots",), "float32"),
        Operand("presence_penalty", ("slots",), "float32"),
        Operand("frequency_penalty", ("slots",), "float32"),
        Operand("bias_ids", ("slots", "max_bias"), "int32"),
        Operand("bias_values", ("slots", "max_bias"), "float32"),
        Operand("stop_ids", ("slots", "max_stop_ids"), "int32"),
        Operand("min_position", ("slots",), "int32"),
        Operand("temperature", ("slots",), "float32"),
        Operand("top_k", ("slots",), "int32"),
        Operand("top_p", ("slots",), "float32"),
        Operand("min_p", ("slots",), "float32"),
        Operand("seeds", ("slots", "words"), "uint32"),
        Operand("sample_index", ("slots",), "int32"),
        Operand("count_tokens", ("slots",), "int32"),
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    workspace=workspace,
    cases=SAMPLE_CASES,
    benchmarks=SAMPLE_BENCHMARKS,
)
