"""When decode steps begin and end by the GPU's own clock, for benchmarks.

A stamped plan is a plan whose decode steps have one more launch at each end. Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import Access, Array, Axes, Cost, Kernel, Launch, Operand
from cugraphs.model_runner import ModelRunner
from cugraphs.sequence_state import SequenceState
from cugraphs.step_plan import StepPlan
from cugraphs.trace import Tracer

STAMPED_STEPS = 4096  # the newest ones are kept
BEGIN, END = 0, 1


def _refuse(*arrays: Array, which: int) -> tuple[Array, ...]:
    """A clock of the GPU's own has no form in NumPy.

    Raises:
        ValueError: always; a stamped plan is for a GPU.
    """
    raise ValueError(
        "stamp: the device is the CPU, which has no clock of a GPU's, expected a GPU; "
        "use StepPlan in place of StampedPlan, or device='cuda'"
    )


def _no_cost(axes: Axes, dtype: str, *, which: int) -> Cost:
    return Cost(0, 0)


def _launches(axes: Axes, dtype: str, *, which: int) -> tuple[Launch, ...]:
    scalars = (np.int32(axes["steps"]), np.int32(which))
    return (Launch("stamp", (1, 1, 1), 1, scalars, programmatic=True),)


STAMP = Kernel(
    name="stamp",
    operands=(
        Operand("stamps", ("steps", "ends", "words"), "uint32", Access.UPDATE),
        Operand("count", ("one",), "uint32", Access.UPDATE),
    ),
    reference=_refuse,
    cost=_no_cost,
    source=Path(__file__).with_name("stamp.cu"),
    launches=_launches,
)


class StampedPlan(StepPlan):
    """A plan whose decode steps tell when they begin and end."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401
        """As :class:`StepPlan`."""
        super().__init__(*args, **options)
        slots, blocks = self.state.num_slots, self.cache.max_blocks
        self.state = _StampedState(slots, self.vocab_size, blocks)

    def record_decode(self, t: Tracer, rows: int) -> None:
        """Record the step between two stamps."""
        stamps = t.state("stamps", (STAMPED_STEPS, 2, 2), "uint32")
        count = t.state("stamp_count", (1,), "uint32")
        t.call_tuple(STAMP, stamps, count, which=BEGIN)
        super().record_decode(t, rows)
        t.call_tuple(STAMP, stamps, count, which=END)


class _StampedState(SequenceState):
    """A state with room for the stamps."""

    def allocate(self, zero_bytes: Callable[[int], Array]) -> dict[str, Array]:
        stamps = zero_bytes(STAMPED_STEPS * 16).view("uint32").reshape(STAMPED_STEPS, 2, 2)
        count = zero_bytes(4).view("uint32")
        return {**super().allocate(zero_bytes), "stamps": stamps, "stamp_count": count}


def newest_stamps(runner: ModelRunner, steps: int) -> Array:
    """Begin and end of the newest steps in ns: int64 [steps, 2]. Waits for the device."""
    count = int(runner.device.read(runner.state["stamp_count"])[0])
    words = np.ascontiguousarray(runner.device.read(runner.state["stamps"]))
    places = np.arange(count - steps, count) % STAMPED_STEPS
    found: Array = words.view(np.int64)[..., 0][places]
    return found
