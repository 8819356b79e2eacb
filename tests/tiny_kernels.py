"""Kernels so small that a test's reader knows their result: what the compiler's tests trace."""

import numpy as np

from cugraphs.kernel import Access, Array, Cost, Kernel, Operand


def free(axes, dtype: str, **scalars: object) -> Cost:
    """No work: these kernels are never priced."""
    return Cost(0, 0)


def _make(x: Array, *, n: int) -> tuple[Array]:
    return (np.resize(x, n),)


# ``out``, of any length ``n``, repeats ``x``: gives a temporary any size.
MAKE = Kernel(
    name="make",
    operands=(Operand("out", ("n",), "T", Access.WRITE), Operand("x", ("m",), "T")),
    reference=_make,
    cost=free,
)


def _double(x: Array) -> tuple[Array]:
    return (x + x,)


DOUBLE = Kernel(
    name="double",
    operands=(
        Operand("out", ("rows", "width"), "T", Access.WRITE),
        Operand("x", ("rows", "width"), "T"),
    ),
    reference=_double,
    cost=free,
)


def _split(x: Array) -> tuple[Array, Array]:
    half = x.shape[1] // 2
    return x[:, :half].copy(), x[:, half:].copy()


# Two results: the left and the right half of each row.
SPLIT = Kernel(
    name="split",
    operands=(
        Operand("left", ("rows", "width"), "T", Access.WRITE),
        Operand("right", ("rows", "width"), "T", Access.WRITE),
        Operand("x", ("rows", "2*width"), "T"),
    ),
    reference=_split,
    cost=free,
)


def _accumulate(total: Array, x: Array) -> tuple[Array]:
    total += x.sum(axis=0)
    return (total[None] + x,)


# ``total`` is updated in place; ``out`` adds the new total to each row.
ACCUMULATE = Kernel(
    name="accumulate",
    operands=(
        Operand("out", ("rows", "width"), "T", Access.WRITE),
        Operand("total", ("width",), "T", Access.UPDATE),
        Operand("x", ("rows", "width"), "T"),
    ),
    reference=_accumulate,
    cost=free,
)


def _likeliest(x: Array) -> tuple[Array]:
    return (x.argmax(axis=1).astype(np.int32),)


# The index of the largest value of each row: ids out of any activation.
LIKELIEST = Kernel(
    name="likeliest",
    operands=(
        Operand("token_ids", ("rows",), "int32", Access.WRITE),
        Operand("x", ("rows", "width"), "T"),
    ),
    reference=_likeliest,
    cost=free,
)
