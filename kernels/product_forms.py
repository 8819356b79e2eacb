"""Which of sm_90a's own forms a product takes, and its launch: decided here for every kernel.

Knows sizes and dtypes. 3 to 8 rows are held in registers where the weight is large
(``held_rows.cuh``), 9 to 64 read each weight once (``wgmma_linear.cuh``), and so do 65 to 256 where
gates are wide (``wgmma_rows.cuh``). Elsewhere, and for other sizes, a kernel has what every GPU
runs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cugraphs.kernel import Launch

from .held_rows import HeldShape, held_shape
from .product_kernel import ProductKernel
from .wgmma_linear import MAX_COLUMNS, MAX_PARTS, WgmmaShape, takes_wgmma, wgmma_shape
from .wgmma_rows import RowsShape, rows_shape

OwnForm = HeldShape | WgmmaShape | RowsShape


def own_form(
    tokens: int,
    in_features: int,
    columns: int,
    dtype: str,
    *,
    adds_parts: bool = False,
    boxes: int = 1,
) -> OwnForm | None:
    """The form that a product of these sizes has on sm_90a, or None where it has none.

    Args:
        tokens: rows of x.
        in_features: of the weight.
        columns: rows of the weight.
        dtype: of both.
        adds_parts: another launch adds the sums of parts of in_features.
        boxes: of so many times as many rows is the weight: gates, and what they scale.
    """
    max_parts = MAX_PARTS if adds_parts else 1
    held = held_shape(tokens, in_features, columns, dtype, max_parts=max_parts)
    if held is not None:
        return held
    alone = boxes == 1 and not adds_parts
    if takes_wgmma(tokens, in_features, columns // boxes, dtype) and not (
        alone and columns > MAX_COLUMNS
    ):
        return wgmma_shape(tokens, in_features, columns, max_parts=max_parts, boxes=boxes)
    # Without gates the widest tiles gain nothing over cuBLASLt's.
    gated = boxes > 1
    return rows_shape(tokens, in_features, columns, dtype, boxes=boxes) if gated else None


def own_launch(form: OwnForm, kernel: ProductKernel) -> Launch:
    """The launch of a kernel whose product has a form: that of its sizes."""
    if not isinstance(form, HeldShape):
        return form.launch(kernel)
    launch = kernel.elsewhere[0]
    assert isinstance(launch, Launch), "few rows have a launch everywhere"
    sizes = (kernel.axes["tokens"], kernel.axes["in_features"], kernel.out_features)
    return replace(
        form.launch(f"{kernel.name}_stream", kernel.dtype, launch),
        scalars=tuple(map(np.int32, sizes)),
        operands=kernel.operands,
        elsewhere=kernel.elsewhere,
    )
