"""Layers of blocks that meet in memory, as a kernel: see planted_meetings.cu."""

from pathlib import Path

import numpy as np

from cugraphs.kernel import CUDA_TYPES, DTYPES, Access, Case, Cost, Kernel, Launch, Operand

SOURCE = Path(__file__).with_name("planted_meetings.cu")
BLOCKS, THREADS = 4, 32
N = BLOCKS * THREADS
WORDS = 16 + 2 * N  # of a place: counts and two rows of float32
LAYERS = 7

# What a layer does wrong; kNone nothing.
MISTAKES = (
    *("kNone", "kNoClear", "kClearsBehind", "kDoesNotRelease", "kDoesNotAcquire"),
    *("kNoBarrierBefore", "kNoBarrierAfter", "kLooksOnce", "kOtherSize", "kPlainLoad"),
    *("kPlainStore", "kOneShort", "kOneMore", "kCountStays", "kAllOnes", "kReturnsEarly"),
)


def launches(axes, dtype, *, mistake):
    function = f"planted_meetings<{CUDA_TYPES[dtype]}, {mistake}>"
    elsewhere = Launch(function, (1, 1, 1), THREADS)  # which no test runs
    return (
        Launch(
            function,
            (axes["n"] // THREADS, 1, 1),
            THREADS,
            (np.int32(axes["n"]),),
            operands=("out", "x"),
            programmatic=True,
            arch="sm_90a",
            elsewhere=(elsewhere,),
            meets=True,
            stack=("gain", "here", "next_place"),
        ),
    )


def means(x):
    """Of the four values behind the four that each belongs to, in float32."""
    return np.roll(x.astype(np.float32).reshape(-1, 4).sum(1) * np.float32(0.25), -1).repeat(4)


def reference(here, next_place, x, gain, *, mistake):
    """One layer."""
    middle = means(x).astype(x.dtype)
    return ((means(middle) + gain.astype(np.float32)).astype(x.dtype),)


def case(dtype):
    x, gains = inputs(dtype.name)
    return *clear_places(2), x, gains[0]


PLANTED = Kernel(
    "planted_meetings",
    (
        Operand("out", ("n",), "T", Access.WRITE),
        Operand("here", ("words",), "int32", Access.UPDATE, scratch=True),
        Operand("next_place", ("words",), "int32", Access.UPDATE, scratch=True),
        Operand("x", ("n",), "T"),
        Operand("gain", ("n",), "T"),
    ),
    reference=reference,
    cost=lambda axes, dtype, **_: Cost(0, 0),
    # One library for all of them.
    cases=tuple(Case(name, lambda rng, dtype: case(dtype), {"mistake": name}) for name in MISTAKES),
    source=SOURCE,
    launches=launches,
    cuda_dtypes=("bfloat16", "float32"),
)


def clear_places(count=3):
    return [np.full(WORDS, -1, np.int32) for _ in range(count)]


def inputs(dtype="bfloat16", n=N):
    """The row, and a gain for each layer."""
    rng = np.random.default_rng(3)
    return tuple(rng.standard_normal(s).astype(DTYPES[dtype]) for s in ((n,), (LAYERS, n)))


def expected(dtype="bfloat16", layers=LAYERS, n=N):
    x, gains = inputs(dtype, n)
    for gain in gains[:layers]:
        (x,) = reference(None, None, x, gain, mistake="")
    return x
