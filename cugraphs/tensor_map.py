"""How the copy engine of sm_90 sees an array: a parameter of a launch that the driver encodes.

Knows dims and boxes; not what a kernel does with a map, and no driver.
"""

from __future__ import annotations

from dataclasses import dataclass

MAP_WORDS = 16  # of 8 bytes, that a map has as a parameter
ROW_BYTES = 128  # of a box: what its innermost dim has, since rows are swizzled in shared memory


@dataclass(frozen=True)
class TensorMap:
    """One operand of 16-bit elements in four dims, and the box that a copy takes.

    In shared memory the rows of a box lie one after the other, and place ``v ^ row % 8`` of the
    eight 16-byte places of a row holds its vector v. Elements beyond the array's end are zeros.

    Args:
        operand: its name.
        dtype: of its elements: bfloat16 or float16.
        shape: elements of each dim, the innermost first.
        strides_bytes: from one element to the next, of every dim but the innermost.
        box: elements of a copy along each dim.
    """

    operand: str
    dtype: str
    shape: tuple[int, int, int, int]
    strides_bytes: tuple[int, int, int]
    box: tuple[int, int, int, int]

    def __post_init__(self) -> None:
        """Refuse what the driver would refuse at the first launch."""
        if self.dtype not in ("bfloat16", "float16"):
            raise ValueError(f"TensorMap: dtype is {self.dtype}, expected bfloat16 or float16")
        if 2 * self.box[0] != ROW_BYTES:
            raise ValueError(
                f"TensorMap: a row of the box has {2 * self.box[0]} bytes, expected {ROW_BYTES}"
            )
        if min(self.shape) < 1 or min(self.box) < 1 or max(self.box) > 256:
            raise ValueError(
                f"TensorMap: shape is {self.shape}, box {self.box}, expected sizes from 1 on, of "
                "the box up to 256"
            )
        if any(stride % 16 for stride in self.strides_bytes):
            raise ValueError(
                f"TensorMap: strides are {self.strides_bytes} bytes, expected multiples of 16"
            )
