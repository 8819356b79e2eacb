"""What a model is to be priced for: a GPU, a batch, a ladder, and what launches and graphs cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cugraphs.counted import counted
from cugraphs.executable import PlannedProgram
from cugraphs.gpu_specs import GpuSpec
from cugraphs.ladder import Ladder
from cugraphs.memory_map import MemoryPart
from cugraphs.pricing import price_step


@dataclass(frozen=True)
class HostCosts:
    """What the host and the driver take for launches and graphs.

    The last three were measured on an H200 (driver 580, CUDA 13.0): 51 graphs of 297 to 362 nodes
    of Llama 3.1 8B took 0.39 s to bind, warm up, capture, instantiate and upload with kernels
    loaded, and 50 MiB; the launch of a graph of 400 nodes took 3.2 us.

    Args:
        launch_us: one kernel launch.
        graph_launch_us: one launch of a graph.
        capture_us_per_node: to bind, record, instantiate and upload one node.
        graph_bytes_per_node: that the driver keeps.
    """

    launch_us: float = 4.0
    graph_launch_us: float = 3.2
    capture_us_per_node: float = 24.0
    graph_bytes_per_node: int = 3300


@dataclass(frozen=True)
class PlanTarget:
    """What to price a model for.

    Args:
        gpu: that runs it.
        batch: live rows of a decode step.
        context: tokens in the cache of each, the current one included.
        contexts: further ones, for the table of rungs.
        profile: of the ladder.
        max_num_seqs: its top.
        prefill_tokens: of the prompt whose prefill is priced; at most those of a mixed step.
        gpu_memory_utilization: share of the memory that may be used; the rest is the margin for
            the driver's context, code and other programs.
        host: costs of launches and graphs.
    """

    gpu: GpuSpec
    batch: int
    context: int
    contexts: tuple[int, ...]
    profile: str
    max_num_seqs: int
    prefill_tokens: int
    gpu_memory_utilization: float
    host: HostCosts


def launches_by_class(decode: Mapping[int, PlannedProgram], arch: str) -> dict[int, int]:
    """Launches of a decode step of each fusion class.

    They are counted at the class's largest rung; its smaller rungs have as many but for a few.

    Args:
        decode: the program of each class, by its largest rung.
        arch: whose launches are counted (``"sm_90"``).
    """
    return {
        rows: price_step(planned.program, {"rows": rows}, context=1, arch=arch).launches
        for rows, planned in decode.items()
    }


def count_nodes(ladder: Ladder, launches: Mapping[int, int]) -> int:
    """Nodes of the graphs of all rungs, by the launches of each fusion class."""
    return sum(launches[ladder.class_for(rung)] for rung in ladder.rungs)


def expected_graphs(num_graphs: int, num_nodes: int, host: HostCosts) -> MemoryPart:
    """What the driver will keep for ``num_graphs`` graphs of so many nodes together."""
    nbytes = num_nodes * host.graph_bytes_per_node
    graphs = counted(num_graphs, "graph")
    return MemoryPart("graphs", nbytes, f"that the driver keeps, expected for {graphs}")
