"""What it adds to a kernel of few rows that each block normalises them for itself.

Knows the norm's launch and cost, not what becomes of the product; see ``stream_linear.cuh``.
"""

from __future__ import annotations

import numpy as np

from cugraphs.kernel import DTYPES, Axes, Cost, Launch

from .rms_norm import RMS_NORM
from .stream_linear import MAX_NORM_ROWS, check_streams, normalised_bytes, stream_shape


def check_normalised(name: str, axes: Axes) -> None:
    """Refuse sizes that streaming does not take, and rows that a block does not hold."""
    check_streams(name, axes, max_rows=MAX_NORM_ROWS, normalised=True)


def normalised_cost(product: Cost, axes: Axes, dtype: str, eps: float) -> Cost:
    """The cost of what follows on the norm, its weight, and its flops."""
    in_features = axes["in_features"]
    norm = RMS_NORM.cost({"tokens": axes["tokens"], "hidden": in_features}, dtype, eps=eps)
    return product + Cost(in_features * DTYPES[dtype].itemsize, norm.flops)


def normalised_launch(
    name: str,
    axes: Axes,
    dtype: str,
    eps: float,
    *,
    columns: int,
    sizes: tuple[int, ...],
    settles: bool = False,
) -> Launch:
    """A launch of teams of warps that share the weight; each block normalises the rows.

    Args:
        name: of the kernel.
        axes: its sizes.
        dtype: of its arrays.
        eps: the last scalar.
        columns: rows of the weight.
        sizes: the scalars between in_features and eps.
        settles: as of :class:`Launch`.
    """
    tokens, in_features = axes["tokens"], axes["in_features"]
    shape = stream_shape(tokens, in_features, columns)
    return Launch(
        function=shape.function(name, dtype, normalised=True),
        grid=(shape.blocks, 1, 1),
        block=shape.threads,
        scalars=(*map(np.int32, (tokens, in_features, *sizes)), np.float32(eps)),
        shared_bytes=normalised_bytes(tokens, in_features),
        programmatic=True,
        settles=settles,
    )
