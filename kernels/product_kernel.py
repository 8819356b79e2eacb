"""What the launch of a kernel around a matrix product needs, whatever form the product has.

Knows sizes, dtypes and operands; no form.
"""

from __future__ import annotations

from dataclasses import dataclass

from cugraphs.kernel import Axes, Launch, MatrixProduct


@dataclass(frozen=True)
class ProductKernel:
    """A kernel around ``x @ weight.T``, x [tokens, in_features] and a weight of 16-bit types.

    Args:
        name: of its functions, without what a form adds to it.
        axes: ``tokens`` and ``in_features`` among them.
        dtype: of x and the weight.
        out_features: of a row, as the kernel stores it.
        operands: that it takes, ``x`` and ``weight`` among them.
        elsewhere: what runs on architectures that have no form of their own.
        boxes: of so many times as many rows is the weight: gates, and what they scale. Each is
            copied for itself. A kernel of several takes no parts of in_features.
    """

    name: str
    axes: Axes
    dtype: str
    out_features: int
    operands: tuple[str, ...]
    elsewhere: tuple[Launch | MatrixProduct, ...]
    boxes: int = 1
