"""What a kernel runs on a GPU, as data: launches of its functions, and products by cuBLASLt.

Knows no device: the same value is compiled, run by the CPU emulation, and launched.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cugraphs.array_type import DTYPES
from cugraphs.counted import counted
from cugraphs.tensor_map import TensorMap

CUDA_TYPES: Mapping[str, str] = {
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
}

MAX_CLUSTER = 8  # blocks, that every card with clusters takes
MAX_STACK = 32  # ops that are one launch; kernels/stack.cuh has the same

WORKSPACE = "workspace"  # in ``Launch.operands``: the scratch memory that the op's launches share
NOTHING = "nothing"  # there too: a null pointer, in the place of an operand that is left out


def in_workspace(offset_bytes: int) -> str:
    """In ``Launch.operands``: the scratch memory from an offset on, a multiple of 256 bytes."""
    assert offset_bytes % 256 == 0, f"{offset_bytes} bytes"
    return f"{WORKSPACE}+{offset_bytes}"


def offset_in_workspace(operand: str) -> int | None:
    """Where in the scratch memory an operand of a launch begins; None where it is another."""
    name, _, offset = operand.partition("+")
    return int(offset or 0) if name == WORKSPACE else None


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
            kernel declares one, or places in it (:func:`in_workspace`), and :data:`NOTHING`; None
            passes all operands and no workspace.
        shared_bytes: dynamic shared memory of a block.
        programmatic: may begin before the launch before it ends, where that is one of ours too
            (programmatic dependent launch). Each of its threads calls ``wait_for_previous_kernel``
            before it writes anything, reads what is neither constant nor settled, or returns.
        settles: lets the next launch begin only after its own wait, so that when that one runs,
            what was queued before this one has ended.
        arch: the one architecture that has what it uses, as NVRTC names it: ``"sm_90a"`` for wgmma
            and TMA. Empty: any, and the CPU emulation.
        elsewhere: what runs in its place on other architectures and in the CPU emulation, which may
            be nothing, or have an architecture of its own; None where ``arch`` is empty.
        tensor_maps: parameters after the scalars, for the copy engine; they need an ``arch``.
        cluster: so many blocks, neighbours in x, run at the same time and read each other's shared
            memory; more than 1 needs an ``arch`` and divides the grid.
        meets: all its blocks run at the same time and meet in memory (kernels/meeting.cuh); needs
            an ``arch`` and blocks in x alone. A card with fewer multiprocessors is elsewhere.
        stack: operands that each op has of its own where several, one after the other, are one
            launch: up to :data:`MAX_STACK` ops of one kernel with the same scalars and sizes, the
            ``out`` of one being the ``x`` of the next and of nobody else, and all operands but
            these being the same arrays. What an op updates of them, but for places, no later one
            has, and its ``next_place`` is the ``here`` of the next. They come first, as one
            parameter (kernels/stack.cuh); ``operands`` names the others. Only a kernel of
            one launch has it.
        phases: names of what its blocks go through, one after the other, for each op that it is
            made for. They note each in a build with clock stamps (kernels/phase_stamps.cuh), and
            the kernel prices them.
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
    meets: bool = False
    stack: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a launch that not every machine has an answer for."""
        if bool(self.arch) != (self.elsewhere is not None):
            raise ValueError(
                f"Launch: {self.function} has arch {self.arch!r} and "
                f"{counted(len(self.elsewhere or ()), 'launch', 'launches')} elsewhere, expected "
                "both or neither"
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
        if self.meets and not (self.arch and self.cluster == 1 and self.grid[1:] == (1, 1)):
            raise ValueError(
                f"Launch: {self.function} meets with arch {self.arch!r}, clusters of "
                f"{self.cluster} and a grid of {self.grid}, expected an arch, no clusters and "
                "blocks in x alone"
            )
        if self.stack and (self.operands is None or not {*self.stack}.isdisjoint(self.operands)):
            raise ValueError(
                f"Launch: {self.function} has a stack of {', '.join(self.stack)} and operands "
                f"{self.operands}, expected the operands that are not in the stack"
            )

    def on(
        self, arch: str, multiprocessors: int | None = None
    ) -> tuple[Launch | MatrixProduct, ...]:
        """What runs on ``arch`` (``"sm_90"``), or in the CPU emulation where that is empty.

        Args:
            arch: of the card.
            multiprocessors: that it has; None: as many as any launch wants.
        """
        elsewhere = bool(self.arch) and self.arch.rstrip("af") != arch
        if self.meets and multiprocessors is not None:
            elsewhere |= multiprocessors < self.grid[0]
        if not elsewhere:
            return (self,)
        return tuple(running_on(arch, self.elsewhere or (), multiprocessors))

    def renamed(self, operands: Sequence[str], names: Mapping[str, str]) -> Launch:
        """The same launch, and what runs elsewhere, in a kernel whose operands have other names.

        Args:
            operands: of the kernel whose launch it is, in order.
            names: by these, what the other kernel passes; what is missing is left out.

        Raises:
            ValueError: it has tensor maps, or a product of cuBLASLt runs elsewhere: both are of
                operands by their own names.
        """
        others: list[Launch] = []
        for other in self.elsewhere or ():
            if self.tensor_maps or not isinstance(other, Launch):
                raise ValueError(
                    f"Launch: {self.function} has tensor maps or a product of cuBLASLt elsewhere, "
                    "expected neither in a launch that is renamed"
                )
            others.append(other.renamed(operands, names))
        own = tuple(names.get(name, NOTHING) for name in self.operands or operands)
        return replace(self, operands=own, elsewhere=tuple(others) if self.arch else None)


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


def stack_words(elements: Sequence[Sequence[int]]) -> array[int]:
    """The first parameter of a launch that has a stack, 64-bit words: kernels/stack.cuh.

    Args:
        elements: of each op, the addresses of its operands in the stack.
    """
    assert 1 <= len(elements) <= MAX_STACK, f"a stack of {len(elements)}"
    words = array("Q", [address for element in elements for address in element])
    words.extend([0] * (len(elements[0]) * (MAX_STACK - len(elements))))
    words.append(len(elements))
    return words


def running_on(
    arch: str, launches: Iterable[Launch | MatrixProduct], multiprocessors: int | None = None
) -> list[Launch | MatrixProduct]:
    """What runs of a kernel's launches on a card; arguments as of :meth:`Launch.on`."""
    running: list[Launch | MatrixProduct] = []
    for each in launches:
        running += each.on(arch, multiprocessors) if isinstance(each, Launch) else (each,)
    return running
