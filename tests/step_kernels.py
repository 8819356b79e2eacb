"""Kernels with a CUDA form that a user of ``cugraphs.compile`` might bring: one with state."""

from pathlib import Path

import numpy as np

from cugraphs.kernel import (
    CUDA_TYPES,
    DTYPES,
    Access,
    Case,
    Cost,
    Kernel,
    Launch,
    Operand,
    compute_dtype,
)

ROWS = ("rows", "width")
SOURCE = Path(__file__).with_name("step_kernels.cu")


def cost(axes, dtype):
    count = axes["rows"] * axes["width"]
    return Cost(4 * count * DTYPES[dtype].itemsize, count)


def _slot_totals(total, x, row_ids):
    wide = compute_dtype(x.dtype)
    out = np.zeros(x.shape, x.dtype)
    live = row_ids >= 0
    slots = row_ids[live]
    total[slots] = (total[slots].astype(wide) + x[live].astype(wide)).astype(x.dtype)
    out[live] = total[slots]
    return (out,)


def _slot_totals_launches(axes, dtype):
    function = f"slot_totals<{CUDA_TYPES[dtype]}>"
    return (Launch(function, (axes["rows"], 1, 1), 256, scalars=(np.int32(axes["width"]),)),)


def _slot_totals_inputs(rng, dtype):
    total, x = (rng.standard_normal(shape).astype(dtype) for shape in ((4, 300), (3, 300)))
    return total, x, np.array([2, -1, 0], np.int32)


# ``total`` at the slot that a row names grows by the row; the result is the new total.
SLOT_TOTALS = Kernel(
    name="slot_totals",
    operands=(
        Operand("out", ROWS, "T", Access.WRITE),
        Operand("total", ("slots", "width"), "T", Access.UPDATE),
        Operand("x", ROWS, "T"),
        Operand("row_ids", ("rows",), "int32"),
    ),
    reference=_slot_totals,
    cost=cost,
    cases=(Case("one_dead_row", _slot_totals_inputs),),
    source=SOURCE,
    launches=_slot_totals_launches,
)


def _doubled_launches(axes, dtype):
    function = f"doubled_by_rows<{CUDA_TYPES[dtype]}, {axes['rows']}>"
    return (Launch(function, (1, 1, 1), 256, scalars=(np.int32(axes["width"]),)),)


# Twice the rows, by another function at every row count.
DOUBLED_BY_ROWS = Kernel(
    name="doubled_by_rows",
    operands=(Operand("out", ROWS, "T", Access.WRITE), Operand("x", ROWS, "T")),
    reference=lambda x: (x + x,),
    cost=cost,
    cases=(Case("three", lambda rng, dtype: (rng.standard_normal((3, 5)).astype(dtype),)),),
    source=SOURCE,
    launches=_doubled_launches,
)
