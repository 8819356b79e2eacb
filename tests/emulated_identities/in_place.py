"""Launches on operands where they lie: in memory of the caller's, maybe one within another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cugraphs.emulation.emulate import emulated, packed_map
from cugraphs.emulation.library import Buffer, Library
from cugraphs.kernel import Access, Array, Kernel, Launch, MatrixProduct


def buffers_of(kernel: Kernel, arrays: Sequence[Array]) -> dict[str, Buffer]:
    """All operands, by their names."""
    return {
        o.name: Buffer(
            o.name, a.ctypes.data, a.nbytes, a.itemsize, o.access is not Access.READ, False
        )
        for o, a in zip(kernel.operands, arrays, strict=True)
    }


def launch_in_place(
    kernel: Kernel,
    launches: Sequence[Launch | MatrixProduct],
    buffers: Mapping[str, Buffer],
    *,
    checked: Sequence[str] = (),
    order: str = "forward",
    arch: str = "",
) -> None:
    """Run launches; ``checked``: the operands that all memory belongs to, or nothing is checked."""
    names = [operand.name for operand in kernel.operands]
    assert kernel.source is not None
    for launch in emulated(launches, arch):
        library = Library(kernel.source, [launch.function], checked=bool(checked))
        library.register([buffers[name] for name in checked])
        library.launch(
            launch.function,
            launch.grid,
            launch.block,
            [
                *(buffers[name] for name in launch.operands or names),
                *launch.scalars,
                *(packed_map(each, buffers[each.operand]) for each in launch.tensor_maps),
            ],
            shared_bytes=launch.shared_bytes,
            order=order,
            programmatic=launch.programmatic,
            cluster=launch.cluster,
        )
