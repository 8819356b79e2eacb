"""What capturing a ladder took: time, driver memory and nodes of every rung, as a table.

Knows numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cugraphs.counted import counted


@dataclass(frozen=True)
class CapturedRung:
    """One graph.

    Attributes:
        rows: of the rung.
        warm_up_ms: of the eager step before it, on the host; 0 where none was needed.
        capture_ms: to bind, capture, instantiate and upload it, on the host.
        driver_bytes: of device memory that the driver took for it; 0 where it had some left.
        num_nodes: launches, copies and fills.
    """

    rows: int
    warm_up_ms: float
    capture_ms: float
    driver_bytes: int
    num_nodes: int


@dataclass
class CaptureReport:
    """The captured rungs in the order of their capture.

    Attributes:
        rungs: the largest first.
        stopped: why the rungs below the last one are not captured; empty where all are.
    """

    rungs: list[CapturedRung] = field(default_factory=list)
    stopped: str = ""

    def __iter__(self) -> Iterator[CapturedRung]:
        """The rungs."""
        return iter(self.rungs)

    def __len__(self) -> int:
        """How many are captured."""
        return len(self.rungs)

    @property
    def seconds(self) -> float:
        """Warm-up and capture of all."""
        return sum(rung.warm_up_ms + rung.capture_ms for rung in self.rungs) / 1e3

    @property
    def driver_bytes(self) -> int:
        """Device memory that the driver took for all."""
        return sum(rung.driver_bytes for rung in self.rungs)

    def __str__(self) -> str:
        """A line per rung, the sum, and why it ended early."""
        lines = [f"{'rows':>6} {'nodes':>7} {'warm-up ms':>11} {'capture ms':>11} {'bytes':>13}"]
        lines += [
            f"{rung.rows:6} {rung.num_nodes:7} {rung.warm_up_ms:11.2f} {rung.capture_ms:11.2f} "
            f"{rung.driver_bytes:13,}"
            for rung in self.rungs
        ]
        lines.append(
            f"{counted(len(self), 'graph')}, {self.seconds:.3f} s, {self.driver_bytes:,} bytes"
        )
        return "\n".join([*lines, *([self.stopped] if self.stopped else [])])
