"""A traced step: a straight-line list of kernel calls over symbolic buffers.

Knows shapes and kernels. Knows no memory, no device and no model.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cugraphs.kernel import Access, ArrayType, Cost, Dim, Kernel, bind_axis


class Kind(enum.Enum):
    """Who owns a buffer's memory, and for how long."""

    WEIGHT = "weight"  # loaded once, read-only
    STATE = "state"  # lives across steps, updated in place (KV cache)
    INPUT = "input"  # fixed address, filled by the host before every step
    OUTPUT = "output"  # fixed address, read by the host after every step
    TEMP = "temp"  # lives inside one step; the kind whose place in the arena is planned


@dataclass(eq=False, slots=True)
class Buffer:
    """One symbolic array. Two buffers are equal only if they are the same object."""

    id: int
    name: str
    type: ArrayType
    kind: Kind

    def __repr__(self) -> str:
        """``%7:hidden``."""
        return f"%{self.id}:{self.name}"


@dataclass(frozen=True, slots=True)
class Op:
    """One kernel launch. ``operands`` follow ``kernel.operands``; optional ones may be missing.

    The WRITE operands come first, so ``written`` and ``read`` are slices.
    """

    kernel: Kernel
    operands: tuple[Buffer, ...]
    attrs: Mapping[str, Any]
    axes: Mapping[str, int]

    @property
    def written(self) -> tuple[Buffer, ...]:
        """The WRITE operands."""
        return self.operands[: len(self.kernel.produced)]

    @property
    def read(self) -> tuple[Buffer, ...]:
        """The UPDATE and READ operands."""
        return self.operands[len(self.kernel.produced) :]

    def cost(self, sizes: Mapping[str, int], **context: int) -> Cost:
        """The work of this launch with its dims bound to ``sizes``.

        Args:
            sizes: rows, tokens, seqs … by name.
            context: further axes that a cost may use (``context`` = tokens in the cache).
        """
        axes = {name: bind_axis(size, sizes) for name, size in self.axes.items()}
        dtype = self.kernel.dtype_of([buffer.type for buffer in self.operands])
        return self.kernel.cost({**axes, **context}, dtype, **self.attrs)

    def phases(self, sizes: Mapping[str, int], **context: int) -> Mapping[str, Cost]:
        """The work of each of its phases, as :meth:`cost`; empty where the kernel has none."""
        if self.kernel.phases is None:
            return {}
        axes = {name: bind_axis(size, sizes) for name, size in self.axes.items()}
        dtype = self.kernel.dtype_of([buffer.type for buffer in self.operands])
        return self.kernel.phases({**axes, **context}, dtype, **self.attrs)

    def workspace_bytes(self) -> int:
        """Scratch memory of the launches on a GPU, with every dim at its maximum."""
        dtype = self.kernel.dtype_of([buffer.type for buffer in self.operands])
        axes = {name: int(size) for name, size in self.axes.items()}
        return self.kernel.workspace_bytes(axes, dtype, self.attrs)

    def __str__(self) -> str:
        """``rms_norm(%9:out <- %7:hidden, %8:weight, eps=1e-05)``; ``&`` is updated in place."""
        left, right = [], []
        for operand, buffer in zip(self.kernel.operands, self.operands, strict=False):
            if operand.access is Access.READ:
                right.append(repr(buffer))
            else:
                left.append("&" * (operand.access is Access.UPDATE) + repr(buffer))
        right += [f"{key}={value}" for key, value in self.attrs.items()]
        return f"{self.kernel.name}({', '.join(left)} <- {', '.join(right)})"


@dataclass
class Program:
    """Buffers, and the ops over them in execution order. ``dims`` are bound before it runs."""

    name: str
    buffers: list[Buffer] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    dims: dict[str, Dim] = field(default_factory=dict)

    def of_kind(self, *kinds: Kind) -> Iterator[Buffer]:
        """The buffers of these kinds, in the order in which they were declared."""
        return (buffer for buffer in self.buffers if buffer.kind in kinds)

    def cost(self, sizes: Mapping[str, int], **context: int) -> Cost:
        """The work of one step, each operand of each op counted once."""
        total = Cost(0, 0)
        for op in self.ops:
            total += op.cost(sizes, **context)
        return total

    def __str__(self) -> str:
        """The program as text: declared buffers by kind, then one numbered line per op."""
        lines = [f"program {self.name}({', '.join(repr(dim) for dim in self.dims.values())})"]
        for kind in (Kind.INPUT, Kind.OUTPUT, Kind.STATE, Kind.WEIGHT, Kind.TEMP):
            lines += [f"  {kind.value:6} {buffer!r} {buffer.type}" for buffer in self.of_kind(kind)]
        lines += [f"{index:5d}  {op}" for index, op in enumerate(self.ops)]
        return "\n".join(lines)
