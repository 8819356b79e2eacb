"""Record a model step as a Program.

The tracer is an explicit argument of the model's code: there is no global trace.
"""

from __future__ import annotations

from typing import Any

from cugraphs.counted import counted
from cugraphs.kernel import DTYPES, Access, ArrayType, Dim, Kernel, same_axis
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
        """Declare a WEIGHT buffer; the same name again gives the same buffer (tied weights).

        Raises:
            ValueError: the name is that of a weight of another type.
        """
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
        """Mark a produced buffer as read by the host after the step, under its own or a new name.

        Raises:
            ValueError: the buffer is not one that this trace produced, or the name is taken.
        """
        self._check_ours("output", buffer)
        if buffer.kind is not Kind.TEMP:
            raise ValueError(f"Tracer: output {buffer!r} is {buffer.kind.value}, expected temp")
        name = name or buffer.name
        if any(other.name == name for other in self.program.of_kind(Kind.OUTPUT)):
            raise ValueError(f"Tracer: output {name!r} is declared twice; give it another name")
        buffer.kind, buffer.name = Kind.OUTPUT, name
        return buffer

    def call(self, kernel: Kernel, *supplied: Buffer, **attrs: Any) -> Buffer:  # noqa: ANN401
        """Append one launch of a kernel with one WRITE operand, and return that buffer.

        Args:
            kernel: the kernel to launch.
            supplied: its UPDATE and READ operands in declaration order.
            attrs: its scalars.

        Raises:
            TypeError: wrong operand count, scalars or dtype; or the kernel writes not exactly one
                buffer.
            ValueError: an axis disagrees, a WEIGHT or INPUT buffer would be updated, or an updated
                buffer is passed twice.
        """
        if len(kernel.produced) != 1:
            raise TypeError(
                f"{kernel.name}: writes {counted(len(kernel.produced), 'buffer')}; use call_tuple"
            )
        return self.call_tuple(kernel, *supplied, **attrs)[0]

    def call_tuple(self, kernel: Kernel, *supplied: Buffer, **attrs: Any) -> tuple[Buffer, ...]:  # noqa: ANN401
        """Append one launch, and return the buffers that it writes. Raises as :meth:`call`."""
        for buffer in supplied:
            self._check_ours(kernel.name, buffer)
        types, axes = kernel.infer([buffer.type for buffer in supplied], attrs)
        for operand, buffer in zip(kernel.supplied, supplied, strict=False):
            if operand.access is Access.UPDATE:
                _check_update(kernel.name, operand.name, buffer, supplied)
        produced = tuple(
            self._append(operand.name, type_, Kind.TEMP)
            for operand, type_ in zip(kernel.produced, types, strict=True)
        )
        self.program.ops.append(Op(kernel, produced + supplied, attrs, axes))
        return produced

    def _check_ours(self, who: str, buffer: Buffer) -> None:
        buffers = self.program.buffers
        if buffer.id >= len(buffers) or buffers[buffer.id] is not buffer:
            raise ValueError(f"{who}: {buffer!r} belongs to another trace")

    def _declare(self, name: str, shape: tuple[int, ...], dtype: str, kind: Kind) -> Buffer:
        if name in self._declared:
            raise ValueError(f"Tracer: {kind.value} {name!r} is declared twice")
        if dtype not in DTYPES:
            raise ValueError(f"Tracer: {name!r} has dtype {dtype!r}, expected one of {[*DTYPES]}")
        for position, axis in enumerate(shape):
            if isinstance(axis, Dim):
                self._check_dim(name, kind, axis, position)
            elif axis < 1:
                raise ValueError(
                    f"Tracer: {name!r} has shape {list(shape)}, expected sizes of at least 1"
                )
        self._declared[name] = self._append(name, ArrayType(shape, dtype), kind)
        return self._declared[name]

    def _check_dim(self, name: str, kind: Kind, axis: Dim, position: int) -> None:
        if position > 0:
            raise ValueError(f"Tracer: {name!r} has {axis!r} inside, expected it as first axis")
        if kind is not Kind.INPUT:
            raise ValueError(f"Tracer: {kind.value} {name!r} has {axis!r}, expected a fixed size")
        known = self.program.dims.get(axis.name)
        if known is None or not same_axis(known, axis - axis.offset):
            raise ValueError(
                f"Tracer: {name!r} has {axis!r}, which dim() of this trace did not make"
            )

    def _append(self, name: str, type_: ArrayType, kind: Kind) -> Buffer:
        buffer = Buffer(len(self.program.buffers), name, type_, kind)
        self.program.buffers.append(buffer)
        return buffer


def _check_update(kernel: str, operand: str, buffer: Buffer, supplied: tuple[Buffer, ...]) -> None:
    """Refuse to update what is read-only, or what another operand of the launch shows too."""
    if buffer.kind in (Kind.WEIGHT, Kind.INPUT):
        raise ValueError(
            f"{kernel}: {operand} is the {buffer.kind.value} {buffer.name!r}, "
            "expected a buffer that may be updated (state or temp)"
        )
    if supplied.count(buffer) > 1:
        raise ValueError(
            f"{kernel}: {operand} is {buffer!r}, which is another operand too, "
            "expected an updated buffer once"
        )
