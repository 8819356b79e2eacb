"""Record a model step as a Program.

The tracer is an explicit argument of the model's code: there is no global trace.
"""

from __future__ import annotations

from typing import Any

from cugraphs.kernel import DTYPES, Access, ArrayType, Dim, Kernel
from cugraphs.program import Buffer, Kind, Op, Program


class Tracer:
    """Builds one Program: declares buffers, appends kernel launches."""

    def __init__(self, name: str = "step") -> None:
        """Start an empty program called ``name``."""
        self.program = Program(name)
        self._declared: dict[str, Buffer] = {}

    def dim(self, name: str, maximum: int) -> Dim:
        """Declare an axis that is bound before each run, to at most ``maximum``.

        Raises:
            ValueError: the name is taken, or ``maximum`` is below 1.
        """
        if name in self.program.dims:
            raise ValueError(f"Tracer: axis {name!r} is declared twice")
        self.program.dims[name] = Dim(name, maximum)
        return self.program.dims[name]

    def weight(self, name: str, shape: tuple[int, ...], dtype: str) -> Buffer:
        """Declare a WEIGHT buffer; the same name again gives the same buffer (tied weights)."""
        known = self._declared.get(name)
        if known is not None and known.kind is Kind.WEIGHT:
            if known.type != ArrayType(shape, dtype):
                raise ValueError(
                    f"Tracer: weight {name!r} is {ArrayType(shape, dtype)}, "
                    f"expected {known.type} as declared before"
                )
            return known
        return self._declare(name, shape, dtype, Kind.WEIGHT)

    def state(self, name: str, shape: tuple[int, ...], dtype: str) -> Buffer:
        """Declare a STATE buffer: it lives across steps and may be an UPDATE operand."""
        return self._declare(name, shape, dtype, Kind.STATE)

    def input(self, name: str, shape: tuple[int, ...], dtype: str) -> Buffer:
        """Declare an INPUT buffer: the host fills it before every step."""
        return self._declare(name, shape, dtype, Kind.INPUT)

    def output(self, buffer: Buffer, name: str | None = None) -> Buffer:
        """Mark a produced buffer as read by the host after the step.

        Raises:
            ValueError: the buffer is not one that this trace produced.
        """
        if buffer.kind is not Kind.TEMP:
            raise ValueError(f"Tracer: output {buffer!r} is {buffer.kind.value}, expected temp")
        buffer.kind = Kind.OUTPUT
        buffer.name = name or buffer.name
        return buffer

    def call(self, kernel: Kernel, *supplied: Buffer, **attrs: Any) -> Buffer:  # noqa: ANN401
        """Append one launch of a kernel with one WRITE operand, and return that buffer.

        Args:
            kernel: the kernel to launch.
            supplied: its UPDATE and READ operands in declaration order.
            attrs: its scalars.

        Raises:
            TypeError: wrong operand count or dtype; or the kernel writes not exactly one buffer.
            ValueError: an axis disagrees, or a WEIGHT or INPUT buffer would be updated.
        """
        if len(kernel.produced) != 1:
            raise TypeError(f"{kernel.name}: writes {len(kernel.produced)} buffers; use call_tuple")
        return self.call_tuple(kernel, *supplied, **attrs)[0]

    def call_tuple(self, kernel: Kernel, *supplied: Buffer, **attrs: Any) -> tuple[Buffer, ...]:  # noqa: ANN401
        """Append one launch, and return the buffers that it writes. Raises as :meth:`call`."""
        for buffer in supplied:
            if not (buffer.id < len(self.program.buffers)) or (
                self.program.buffers[buffer.id] is not buffer
            ):
                raise ValueError(f"{kernel.name}: {buffer!r} belongs to another trace")
        types, axes = kernel.infer([buffer.type for buffer in supplied], attrs)
        produced = tuple(
            self._append(operand.name, type_, Kind.TEMP)
            for operand, type_ in zip(kernel.produced, types, strict=True)
        )
        for operand, buffer in zip(kernel.supplied, supplied, strict=False):
            if operand.access is Access.UPDATE and buffer.kind in (Kind.WEIGHT, Kind.INPUT):
                raise ValueError(
                    f"{kernel.name}: {operand.name} is the {buffer.kind.value} {buffer.name!r}, "
                    "expected a buffer that may be updated (state or temp)"
                )
        made, given = iter(produced), iter(supplied)
        operands = tuple(
            next(made) if operand.access is Access.WRITE else next(given)
            for operand in kernel.operands[: len(produced) + len(supplied)]
        )
        self.program.ops.append(Op(kernel, operands, attrs, axes))
        return produced

    def _declare(self, name: str, shape: tuple[int, ...], dtype: str, kind: Kind) -> Buffer:
        if name in self._declared:
            raise ValueError(f"Tracer: {kind.value} {name!r} is declared twice")
        if dtype not in DTYPES:
            raise ValueError(f"Tracer: {name!r} has dtype {dtype!r}, expected one of {[*DTYPES]}")
        for axis in shape[1:]:
            if isinstance(axis, Dim):
                raise ValueError(f"Tracer: {name!r} has {axis!r} inside, expected it as first axis")
        self._declared[name] = self._append(name, ArrayType(shape, dtype), kind)
        return self._declared[name]

    def _append(self, name: str, type_: ArrayType, kind: Kind) -> Buffer:
        buffer = Buffer(len(self.program.buffers), name, type_, kind)
        self.program.buffers.append(buffer)
        return buffer
