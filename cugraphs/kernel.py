"""What a kernel is: operands with named axes, a launcher, a NumPy reference, a cost and cases.

This module knows nothing about CuPy, programs or models, so a kernel's module can be imported,
checked and run through its reference on a machine without a GPU.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

# `as` where a name is handed on: what a kernel is declared with comes from here.
from cugraphs.array_type import DTYPE_NAMES as DTYPE_NAMES
from cugraphs.array_type import DTYPES as DTYPES
from cugraphs.array_type import Array as Array
from cugraphs.array_type import ArrayType as ArrayType
from cugraphs.array_type import Axes as Axes
from cugraphs.array_type import Dim as Dim
from cugraphs.array_type import bind_axis as bind_axis
from cugraphs.array_type import compute_dtype as compute_dtype
from cugraphs.array_type import same_axis as same_axis
from cugraphs.counted import counted
from cugraphs.launch_declaration import CUDA_TYPES as CUDA_TYPES
from cugraphs.launch_declaration import MAX_CLUSTER as MAX_CLUSTER
from cugraphs.launch_declaration import MAX_STACK as MAX_STACK
from cugraphs.launch_declaration import NOTHING as NOTHING
from cugraphs.launch_declaration import WORKSPACE as WORKSPACE
from cugraphs.launch_declaration import Launch as Launch
from cugraphs.launch_declaration import MatrixProduct as MatrixProduct
from cugraphs.launch_declaration import in_workspace as in_workspace
from cugraphs.launch_declaration import offset_in_workspace as offset_in_workspace
from cugraphs.launch_declaration import running_on as running_on
from cugraphs.launch_declaration import stack_words as stack_words


class Access(enum.Enum):
    """How a launch touches an operand."""

    READ = "read"
    WRITE = "write"  # every element is overwritten; the old contents are not read
    UPDATE = "update"  # read and written in place (the KV cache)


@dataclass(frozen=True)
class Operand:
    """One array argument. Axis names shared between operands must agree in size.

    Args:
        name: the parameter's name in ``launch``, ``reference`` and the ``__global__`` function.
        shape: axis names; ``"2*inter"`` is twice the axis ``inter``, ``"seqs+1"`` one more.
        dtype: a :data:`DTYPES` key; or ``"T"``, the one dtype that all ``"T"`` operands share; or
            of a result ``"W"``, what is wide for T: float32, in a float64 run float64.
        access: how the launch touches it.
        optional: may be left out; only the last operands can be.
        constant: no launch writes it (a weight, a table), so a programmatic launch may read it
            before it waits for the launch before.
        settled: a programmatic launch may read it before it waits, but for what the launch directly
            before may have appended to it. So its launch is plain after one that does not settle
            what is before it, or that writes it in another way. Where the launch itself updates
            it, that comes after the wait.
        appends: what is updated is one place for each row: its newest token.
        gathered: a table; which of its rows are read, and how few, is what other operands hold.
        scratch: what is updated is nobody's result: it means something to launches of this kernel
            alone, and the reference leaves it as it is.
    """

    name: str
    shape: tuple[str, ...]
    dtype: str
    access: Access = Access.READ
    optional: bool = False
    constant: bool = False
    settled: bool = False
    appends: bool = False
    gathered: bool = False
    scratch: bool = False

    @cached_property
    def axes(self) -> tuple[tuple[int, str, int], ...]:
        """``(scale, name, offset)`` of each axis."""
        return tuple(_parse_axis(axis) for axis in self.shape)


@dataclass(frozen=True)
class Cost:
    """Work of one launch: bytes that must cross device memory once, and flops."""

    bytes_accessed: int
    flops: int

    def __add__(self, other: Cost) -> Cost:
        """The work of both."""
        return Cost(self.bytes_accessed + other.bytes_accessed, self.flops + other.flops)


@dataclass(frozen=True)
class Case:
    """One set of inputs that every form of a kernel must get right.

    Args:
        name: says what is special about it (``"one_row"``, ``"padding_rows"``).
        make: ``make(rng, dtype)`` returns the UPDATE and READ arrays in operand order; floating
            arrays that are ``"T"`` have ``dtype``.
        attrs: the kernel's scalars.
        context: tokens in the cache of a sequence, on average, for a cost that depends on them.
    """

    name: str
    make: Callable[[np.random.Generator, np.dtype[Any]], tuple[Array, ...]]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    context: int | None = None


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel and everything the project derives from it.

    One order everywhere: ``operands``, the parameters of ``launch`` and of the ``__global__``
    function are WRITE ones, then UPDATE ones, then READ ones, then the scalars. ``reference`` takes
    the UPDATE and READ arrays in that order and the scalars by name, returns the WRITE results as a
    tuple in that order, and modifies UPDATE arrays in place.

    Args:
        name: the stem of its files.
        operands: its array arguments.
        reference: pure NumPy; computes in float32, in float64 when given float64.
        cost: ``cost(axes, dtype, **scalars)``: the work at those axis sizes.
        cases: inputs to prove every form of the kernel on.
        check: ``check(axes, **scalars)`` raises ValueError for sizes that the kernel does not take.
        source: the ``.cu`` file; None while the kernel runs on the CPU only.
        launches: ``launches(axes, dtype, **scalars)``: what runs on the GPU, in order. An
            optional operand that is left out is passed as a null pointer.
        workspace: ``workspace(axes, dtype, **scalars)``: bytes of scratch memory that the launches
            share, never less for more rows. It is aligned to 256 bytes, holds anything at entry,
            and belongs to the next op afterwards.
        benchmarks: sizes at which its time matters, for ``cugraphs check --bench``; too large to
            be proven on.
        phases: ``phases(axes, dtype, **scalars)``: the work of each phase that a launch of it
            names, in their order; ``cost`` is their sum.
        is_attention: piecewise graphs are cut here, and it runs between them at its real sizes.
        cuda_dtypes: that "T" may be on the GPU.
    """

    name: str
    operands: tuple[Operand, ...]
    reference: Callable[..., tuple[Array, ...]]
    cost: Callable[..., Cost]
    cases: tuple[Case, ...] = ()
    check: Callable[..., None] | None = None
    source: Path | None = None
    launches: Callable[..., tuple[Launch | MatrixProduct, ...]] | None = None
    workspace: Callable[..., int] | None = None
    benchmarks: tuple[Case, ...] = ()
    phases: Callable[..., Mapping[str, Cost]] | None = None
    is_attention: bool = False
    cuda_dtypes: tuple[str, ...] = tuple(CUDA_TYPES)

    def __post_init__(self) -> None:
        """Refuse operands that the rest of the project could not follow."""
        order = [Access.WRITE, Access.UPDATE, Access.READ]
        ranks = [order.index(operand.access) for operand in self.operands]
        if ranks != sorted(ranks):
            raise ValueError(
                f"{self.name}: operands are {', '.join(o.access.value for o in self.operands)}, "
                "expected write before update before read"
            )
        optional = [o.optional for o in self.operands]
        if optional != sorted(optional) or any(
            o.optional and o.access is not Access.READ for o in self.operands
        ):
            raise ValueError(f"{self.name}: only the last READ operands can be optional")
        for operand in self.operands:
            if operand.constant and operand.access is not Access.READ:
                raise ValueError(
                    f"{self.name}: {operand.name} is constant and {operand.access.value}, expected "
                    "constant operands to be READ"
                )
            if operand.settled and operand.access is Access.WRITE:
                raise ValueError(
                    f"{self.name}: {operand.name} is settled and {operand.access.value}, expected "
                    "settled operands to be READ or UPDATE"
                )
            if operand.appends and operand.access is not Access.UPDATE:
                raise ValueError(
                    f"{self.name}: {operand.name} appends and is {operand.access.value}, expected "
                    "operands that are appended to be UPDATE"
                )
            if operand.scratch and operand.access is not Access.UPDATE:
                raise ValueError(
                    f"{self.name}: {operand.name} is scratch and {operand.access.value}, expected "
                    "scratch operands to be UPDATE"
                )
            if operand.name == WORKSPACE:
                raise ValueError(
                    f"{self.name}: an operand is named {WORKSPACE!r}, expected another name: it is "
                    "what a launch calls its scratch memory"
                )
            derived = ("T", "W") if operand.access is Access.WRITE else ("T",)
            if operand.dtype not in (*DTYPES, *derived):
                raise ValueError(
                    f"{self.name}: {operand.name} has dtype {operand.dtype!r}, "
                    f"expected {' or '.join(map(repr, derived))} or one of {', '.join(DTYPES)}"
                )
        self._check_produced()

    def _check_produced(self) -> None:
        """Refuse a result whose size or dtype would follow from nothing."""
        given = [operand for operand in self.supplied if not operand.optional]
        axes = {name for operand in given for _, name, _ in operand.axes} | self.scalars.keys()
        for operand in self.produced:
            for _, name, _ in operand.axes:
                if name not in axes:
                    raise ValueError(
                        f"{self.name}: axis {name!r} of {operand.name} is not an axis of an "
                        "operand that is passed, expected that or a scalar"
                    )
            if operand.dtype in ("T", "W") and all(other.dtype != "T" for other in given):
                raise ValueError(
                    f"{self.name}: {operand.name} has dtype {operand.dtype!r}, and no operand that "
                    "is passed has dtype 'T'; expected a fixed dtype"
                )

    @cached_property
    def supplied(self) -> tuple[Operand, ...]:
        """Operands that the caller passes (READ and UPDATE)."""
        return tuple(o for o in self.operands if o.access is not Access.WRITE)

    @cached_property
    def produced(self) -> tuple[Operand, ...]:
        """Operands that the call creates (WRITE)."""
        return tuple(o for o in self.operands if o.access is Access.WRITE)

    @cached_property
    def num_required(self) -> int:
        """How many of ``supplied`` cannot be left out."""
        return sum(not operand.optional for operand in self.supplied)

    @cached_property
    def scalars(self) -> Mapping[str, bool]:
        """The scalars that ``reference`` takes by name, and whether each must be given."""
        parameters = inspect.signature(self.reference).parameters.values()
        named = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        return {p.name: p.default is p.empty for p in named}

    def dtype_of(self, types: Sequence[ArrayType]) -> str:
        """The dtype of the "T" operands, or of the first operand where there is none.

        Args:
            types: of the operands in declaration order.
        """
        for operand, type_ in zip(self.operands, types, strict=False):
            if operand.dtype == "T":
                return type_.dtype
        return types[0].dtype

    def workspace_bytes(self, axes: Axes, dtype: str, attrs: Mapping[str, Any]) -> int:
        """Bytes of scratch memory that the launches need at these sizes."""
        return 0 if self.workspace is None else self.workspace(axes, dtype, **attrs)

    def has_work(self, axes: Axes) -> bool:
        """Whether a call at these sizes writes anything, so that something must be launched.

        One result with rows is enough, whatever other axes are 0. What only updates in place has
        nothing to do where any axis is.
        """
        if not self.produced:
            return all(axes.values())
        shapes = ([axes[name] for _, name, _ in operand.axes] for operand in self.produced)
        return any(all(shape) for shape in shapes)

    def infer(
        self, types: Sequence[ArrayType], attrs: Mapping[str, Any]
    ) -> tuple[list[ArrayType], dict[str, int]]:
        """Check the supplied types and derive the produced ones.

        Args:
            types: of the UPDATE and READ operands in order; optional ones may be left out.
            attrs: the scalars; an axis that no supplied operand has takes its size from here.

        Returns:
            The types of the WRITE operands, and the size of every axis.

        Raises:
            TypeError: wrong number of operands, a scalar that is missing or unknown, or a dtype
                that the kernel does not take.
            ValueError: a rank or an axis disagrees; the message names both operands.
        """
        self._check_arguments(len(types), attrs)
        axes: dict[str, int] = {}
        t_dtype = ""
        for operand, array in zip(self.supplied, types, strict=False):
            if len(array.shape) != len(operand.shape):
                raise ValueError(
                    f"{self.name}: {operand.name} has shape {list(array.shape)}, "
                    f"expected axes [{', '.join(operand.shape)}]"
                )
            for (scale, name, offset), size in zip(operand.axes, array.shape, strict=True):
                if offset or scale != 1:
                    size = self._base_size(operand.name, scale, name, offset, size)
                known = axes.setdefault(name, size)
                if known is not size and not same_axis(known, size):
                    raise ValueError(
                        f"{self.name}: axis {name!r} is {size!r} in {operand.name}, "
                        f"expected {known!r} as in {self._first_with(name)}"
                    )
            expected = operand.dtype
            if expected == "T":
                expected = t_dtype = t_dtype or array.dtype
            if array.dtype != expected:
                raise TypeError(
                    f"{self.name}: {operand.name} is {array.dtype}, expected {expected}"
                )
        for operand in self.produced:
            for _, name, _ in operand.axes:
                if name not in axes:
                    axes[name] = int(attrs[name])
        if self.check is not None:
            self.check(axes, **attrs)
        derived = {"T": t_dtype, "W": "float64" if t_dtype == "float64" else "float32"}
        produced = [
            ArrayType(
                tuple([_scaled(scale, axes[name], offset) for scale, name, offset in operand.axes]),
                derived.get(operand.dtype, operand.dtype),
            )
            for operand in self.produced
        ]
        return produced, axes

    def _check_arguments(self, num_operands: int, attrs: Mapping[str, Any]) -> None:
        """Refuse too few or too many operands, and scalars that are missing or unknown."""
        if not self.num_required <= num_operands <= len(self.supplied):
            wanted = str(self.num_required)
            if len(self.supplied) > self.num_required:
                wanted += f" to {len(self.supplied)}"
            names = ", ".join(operand.name for operand in self.supplied)
            raise TypeError(
                f"{self.name}: got {counted(num_operands, 'operand')}, expected {wanted} ({names})"
            )
        for name, required in self.scalars.items():
            if required and name not in attrs:
                raise TypeError(f"{self.name}: the scalar {name!r} is missing")
        for name in attrs:
            if name not in self.scalars:
                raise TypeError(
                    f"{self.name}: the scalar {name!r} is unknown, "
                    f"expected {', '.join(self.scalars) or 'none'}"
                )

    def _base_size(self, operand: str, scale: int, name: str, offset: int, size: int) -> int:
        """The size of axis ``name`` when ``scale*name+offset`` is ``size``."""
        base = size - offset
        if scale == 1:
            return base
        if base % scale or isinstance(base, Dim):
            raise ValueError(
                f"{self.name}: {operand} axis '{scale}*{name}' is {size!r}, "
                f"expected a fixed multiple of {scale}"
            )
        return base // scale

    def _first_with(self, axis: str) -> str:
        """The first supplied operand that has ``axis``."""
        return next(o.name for o in self.supplied if any(axis == name for _, name, _ in o.axes))


def _scaled(scale: int, size: int, offset: int) -> int:
    """``scale*size + offset``, still a :class:`Dim` if ``size`` is one and is not scaled."""
    scaled = size if scale == 1 else scale * size
    return scaled + offset if offset else scaled


@cache
def _parse_axis(axis: str) -> tuple[int, str, int]:
    """``"2*inter"`` is (2, "inter", 0), ``"seqs+1"`` is (1, "seqs", 1)."""
    scale, star, rest = axis.partition("*")
    if not star:
        scale, rest = "1", axis
    name, _, offset = rest.partition("+")
    return int(scale), name, int(offset or 0)
