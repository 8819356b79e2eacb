"""An operand's own memory while a kernel is tried: a copy between guard zones, outputs poisoned.

Knows NumPy only: the bytes may be copied to a device, changed there and copied back.
"""

from __future__ import annotations

import numpy as np

from cugraphs.kernel import Access, Array, Operand

GUARD_BYTES = 4096  # before and after the operand; also keeps it aligned as in the arena

_ALIGNMENT_BYTES = 256
_GUARD = 0xA5
_POISON = 0xFF  # a NaN in every floating dtype, -1 in int32


class GuardedArray:
    """A copy of one operand; ``bytes`` is all of its memory, ``array`` the operand inside it."""

    def __init__(self, operand: Operand, array: Array) -> None:
        """Copy ``array``; a WRITE operand gets only its shape, and holds NaN bytes."""
        self.operand = operand
        self._original = array.tobytes() if operand.access is Access.READ else None
        size = 2 * GUARD_BYTES + array.nbytes
        raw = np.empty(size + _ALIGNMENT_BYTES, np.uint8)
        skip = -raw.ctypes.data % _ALIGNMENT_BYTES
        self.bytes: Array = raw[skip : skip + size]
        self.bytes[...] = _GUARD
        inside = self.bytes[GUARD_BYTES:-GUARD_BYTES]
        self.array: Array = inside.view(array.dtype).reshape(array.shape)
        if operand.access is Access.WRITE:
            inside[...] = _POISON
        else:
            self.array[...] = array

    def check(self, who: str) -> None:
        """Refuse writes around the operand, and to it where it is READ.

        Raises:
            AssertionError: there were some; the message says where.
        """
        name = self.operand.name
        before, after = self.bytes[:GUARD_BYTES], self.bytes[-GUARD_BYTES:]
        for guard, origin, edge in ((before, GUARD_BYTES, "begin"), (after, 0, "end")):
            wrong = np.flatnonzero(guard != _GUARD)
            if len(wrong):
                raise AssertionError(
                    f"{who}: {len(wrong)} bytes around {name} were overwritten, first the one at "
                    f"{int(wrong[0]) - origin:+d} from its {edge}"
                )
        if self._original is not None and self.array.tobytes() != self._original:
            raise AssertionError(f"{who}: {name} was changed, expected READ to leave it as it is")
