"""What a kernel runs on a GPU, as data: launches of its functions, and products by cuBLASLt.

Knows no device: the same value is compiled, run by the CPU emulation, and launched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cugraphs.array_type import DTYPES
from cugraphs.tensor_map import TensorMap

CUDA_TYPES: Mapping[str, str] = {
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
}


MAX_CLUSTER = 8  # blocks, that every card with clusters takes

WORKSPACE = "workspace"  # in ``Launch.operands``: the scratch memory that the op's launches share


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
