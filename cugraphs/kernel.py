"""What a kernel is: operands with named axes, a launcher, a NumPy reference, a cost and cases.

This module knows nothing about CuPy, programs or models, so a kernel's module can be imported,
checked and run through its reference on a machine without a GPU.
"""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from cugraphs.tensor_map import TensorMap

Array = np.ndarray[Any, np.dtype[Any]]
Axes = Mapping[str, int]

DTYPES: Mapping[str, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype(np.int32),
    "uint32": np.dtype(np.uint32),
    "uint8": np.dtype(np.uint8),
}

CUDA_TYPES: Mapping[str, str] = {
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
}


MAX_CLUSTER = 8  # blocks, that every card with clusters takes

WORKSPACE = "workspace"  # in ``Launch.operands``: the scratch memory that the op's launches share


class Access(enum.Enum):
    """How a launch touches an operand."""

    READ = "read"
    WRITE = "write"  # every element is overwritten; the old contents are not read
    UPDATE = "update"  # read and written in place (the KV cache)


class Dim(int):
    """A leading axis whose size is chosen when the program is bound, at most ``int(dim)``.

    It behaves as the int of its maximum, so a program is traced and planned at its largest row
    count. ``dim + 1`` is the axis that is always one longer (``query_start_loc``).
    """

    name: str
    offset: int

    def __new__(cls, name: str, maximum: int, offset: int = 0) -> Dim:
        """Make the axis ``name``, at most ``maximum`` (+ ``offset``) long.

        Raises:
            ValueError: ``maximum`` is below 1.
        """
        if maximum < 1:
            raise ValueError(f"Dim: maximum of {name!r} is {maximum}, expected at least 1")
        self = super().__new__(cls, maximum + offset)
        self.name = name
        self.offset = offset
        return self

    def __add__(self, other: int) -> Dim:
        """The axis that is ``other`` longer than this one at every binding."""
        return Dim(self.name, int(self) - self.offset, self.offset + other)

    __radd__ = __add__

    def __sub__(self, other: int) -> Dim:
        """The axis that is ``other`` shorter than this one at every binding."""
        return self + -other

    def __str__(self) -> str:
        """``rows`` or ``seqs+1``."""
        return f"{self.name}+{self.offset}" if self.offset else self.name

    def __repr__(self) -> str:
        """``rows<=64``."""
        return f"{self}<={int(self)}"


def bind_axis(size: int, sizes: Mapping[str, int]) -> int:
    """The bound size of an axis: a :class:`Dim` is looked up in ``sizes``, an int is itself.

    Raises:
        ValueError: the size is missing, negative, or above the dim's maximum.
    """
    if not isinstance(size, Dim):
        return size
    if size.name not in sizes:
        raise ValueError(f"bind: no size is given for axis {size.name!r}, expected {size!r}")
    bound = sizes[size.name] + size.offset
    if not size.offset <= bound <= int(size):
        raise ValueError(
            f"bind: axis {size.name!r} is {sizes[size.name]}, "
            f"expected 0 to {int(size) - size.offset}; "
            "trace the program at a larger maximum"
        )
    return bound


def same_axis(a: int, b: int) -> bool:
    """Whether two axes have the same size at every binding."""
    if isinstance(a, Dim) and isinstance(b, Dim):
        return a == b and a.name == b.name and a.offset == b.offset
    return a == b and not isinstance(a, Dim) and not isinstance(b, Dim)


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
    """

    name: str
    shape: tuple[str, ...]
    dtype: str
    access: Access = Access.READ
    optional: bool = False
    constant: bool = False
    settled: bool = False
    appends: bool = False

    @cached_property
    def axes(self) -> tuple[tuple[int, str, int], ...]:
        """``(scale, name, offset)`` of each axis."""
        return tuple(_parse_axis(axis) for axis in self.shape)


@dataclass(frozen=True)
class ArrayType:
    """Shape and dtype of an array; a leading :class:`Dim` is an axis that is bound later."""

    shape: tuple[int, ...]
    dtype: str

    @cached_property
    def nbytes(self) -> int:
        """Bytes at the largest binding."""
        return DTYPES[self.dtype].itemsize * math.prod(self.shape)

    def bind(self, sizes: Mapping[str, int]) -> ArrayType:
        """The same type with every :class:`Dim` replaced by its size."""
        return ArrayType(tuple(bind_axis(axis, sizes) for axis in self.shape), self.dtype)

    def __str__(self) -> str:
        """``bfloat16[rows, 4096]``."""
        return f"{self.dtype}[{', '.join(str(axis) for axis in self.shape)}]"


@dataclass(frozen=True)
class Cost:
    """Work of one launch: bytes that must cross device memory once, and flops."""

    bytes_accessed: int
    flops: int

    def __add__(self, other: Cost) -> Cost:
        """The work of both."""
        return Cost(self.bytes_accessed + other.bytes_accessed, self.flops + other.flops)


@dataclass(frozen=True)
class Launch:
    """One launch of a ``__global__`` function of the kernel's ``.cu`` file.

    Everything here follows from axes, dtype and scalars alone, so a launch can be captured once
    and replayed on any contents.

    Args:
        function: the C++ name with its template arguments: ``"rms_norm<__nv_bfloat16, 256>"``.
        grid: blocks in x, y and z.
        block: threads of a block.
        scalars: what follows the arrays, as NumPy scalars of the parameters' types.
        operands: names of the operands that are passed, in order, "workspace" among them where the
            kernel declares one; None passes all operands and no workspace.
        shared_bytes: dynamic shared memory of a block.
        programmatic: may begin before the launch before it ends, where that is one of ours too
            (programmatic dependent launch). Each of its threads calls ``wait_for_previous_kernel``
            before it writes anything, reads what is neither constant nor settled, or returns.
        settles: lets the next launch begin only after its own wait, so that when that one runs,
            what was queued before this one has ended.
        arch: the one architecture that has what it uses, as NVRTC names it: ``"sm_90a"`` for wgmma
            and TMA. Empty: any, and the CPU emulation.
        elsewhere: what runs in its place on other architectures and in the CPU emulation, which may
            be nothing; None where ``arch`` is empty.
        tensor_maps: parameters after the scalars, for the copy engine; they need an ``arch``.
        cluster: so many blocks, neighbours in x, run at the same time and read each other's shared
            memory; more than 1 needs an ``arch`` and divides the grid.
    """

    function: str
    grid: tuple[int, int, int]
    block: int
    scalars: tuple[np.generic, ...] = ()
    operands: tuple[str, ...] | None = None
    shared_bytes: int = 0
    programmatic: bool = False
    settles: bool = False
    arch: str = ""
    elsewhere: tuple[Launch | MatrixProduct, ...] | None = None
    tensor_maps: tuple[TensorMap, ...] = ()
    cluster: int = 1

    def __post_init__(self) -> None:
        """Refuse a launch that not every machine has an answer for."""
        others = self.elsewhere or ()
        if bool(self.arch) != (self.elsewhere is not None) or any(
            isinstance(other, Launch) and other.arch for other in others
        ):
            raise ValueError(
                f"Launch: {self.function} has arch {self.arch!r} and {len(others)} "
                "launches elsewhere, expected both or neither; those run on every architecture"
            )
        if self.tensor_maps and not self.arch:
            raise ValueError(
                f"Launch: {self.function} has tensor maps and no arch, expected one that has them"
            )
        if self.cluster > 1 and not self.arch:
            raise ValueError(
                f"Launch: {self.function} has clusters of {self.cluster} and no arch, expected one "
                "that has them"
            )
        if not 1 <= self.cluster <= MAX_CLUSTER or self.grid[0] % self.cluster:
            raise ValueError(
                f"Launch: {self.function} has clusters of {self.cluster} in a grid of "
                f"{self.grid[0]} in x, expected 1 to {MAX_CLUSTER} that divide it"
            )

    def on(self, arch: str) -> tuple[Launch | MatrixProduct, ...]:
        """What runs on ``arch`` (``"sm_90"``), or in the CPU emulation where that is empty."""
        elsewhere = self.arch and self.arch.rstrip("af") != arch
        return self.elsewhere or () if elsewhere else (self,)


@dataclass(frozen=True)
class MatrixProduct:
    """``out = x @ weight.T (+ bias) (+ residual)`` by cuBLASLt, over the operands of those names.

    Args:
        adds_residual: there is a residual, [tokens, out_features], added before the one rounding.
        to_workspace: the result is the beginning of the workspace, where a launch that follows
            finds it, and not ``out``; what cuBLASLt uses comes after it.
    """

    adds_residual: bool = False
    to_workspace: bool = False

    # For split-K partial sums; what NVIDIA advises for Hopper.
    workspace_bytes: ClassVar[int] = 32 << 20

    @staticmethod
    def result_bytes(tokens: int, out_features: int, dtype: str) -> int:
        """What a result in the workspace takes, so that what follows it is aligned."""
        return -(-tokens * out_features * DTYPES[dtype].itemsize // 256) * 256


def running_on(
    arch: str, launches: Iterable[Launch | MatrixProduct]
) -> list[Launch | MatrixProduct]:
    """What runs of a kernel's launches on ``arch``, or in the CPU emulation where that is empty."""
    running: list[Launch | MatrixProduct] = []
    for each in launches:
        running += each.on(arch) if isinstance(each, Launch) else (each,)
    return running


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
                f"{self.name}: got {num_operands} operands, expected {wanted} ({names})"
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


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that a reference computes in: float64 for float64, float32 for all others."""
    return DTYPES["float64"] if dtype == DTYPES["float64"] else DTYPES["float32"]


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
