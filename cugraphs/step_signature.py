"""What a step takes and gives, by name: the same at every bucket, whatever it was traced at.

Knows traced programs; no memory, no device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cugraphs.counted import counted
from cugraphs.executable import PlannedProgram
from cugraphs.kernel import ArrayType, Dim
from cugraphs.meeting_places import is_place
from cugraphs.program import Kind


@dataclass(frozen=True)
class StepSignature:
    """The declared arrays of a step, at its largest batch.

    Args:
        name: of the step, in errors.
        axis: the rows of a batch.
        inputs: given at every call.
        outputs: returned by every call.
        weights: given once.
        state: given once, and changed by the calls.
    """

    name: str
    axis: str
    inputs: Mapping[str, ArrayType]
    outputs: Mapping[str, ArrayType]
    weights: Mapping[str, ArrayType]
    state: Mapping[str, ArrayType]

    @classmethod
    def of(cls, name: str, axis: str, planned: Mapping[int, PlannedProgram]) -> StepSignature:
        """What the programs of one step declare.

        Args:
            name: of the step.
            axis: the rows of a batch.
            planned: by the row count at which each was traced.

        Raises:
            ValueError: they differ in more than their rows, have another axis that is bound at run
                time, or have no input with the axis.
        """
        found: dict[Kind, dict[str, ArrayType]] = {kind: {} for kind in Kind}
        for rows in sorted(planned, reverse=True):  # the largest first: its types are kept
            program = planned[rows].program
            for dim in program.dims:
                if dim != axis:
                    raise ValueError(
                        f"{name}: declares the axis {dim!r}, expected {axis!r} alone; give other "
                        "axes a fixed size"
                    )
            for kind in (Kind.INPUT, Kind.OUTPUT, Kind.WEIGHT, Kind.STATE):
                for buffer in program.of_kind(kind):
                    if is_place(buffer):  # which nobody gives
                        continue
                    known = found[kind].setdefault(buffer.name, buffer.type)
                    if str(known) != str(buffer.type):
                        raise ValueError(
                            f"{name}: {kind.value} {buffer.name!r} is {buffer.type} at "
                            f"{counted(rows, 'row')} and {known} at {max(planned)}, expected one "
                            f"type; what follows the batch has the axis {axis!r} first"
                        )
        for rows, each in planned.items():
            for kind in (Kind.INPUT, Kind.OUTPUT):
                missing = found[kind].keys() - {
                    buffer.name for buffer in each.program.of_kind(kind)
                }
                if missing:
                    raise ValueError(
                        f"{name}: {kind.value} {min(missing)!r} is not declared at "
                        f"{counted(rows, 'row')}, expected the same inputs and outputs whatever "
                        "the rows"
                    )
        if all(row_offset(type_) is None for type_ in found[Kind.INPUT].values()):
            raise ValueError(f"{name}: no input has the axis {axis!r}, expected one at least")
        kinds = (Kind.INPUT, Kind.OUTPUT, Kind.WEIGHT, Kind.STATE)
        return cls(name, axis, *(found[kind] for kind in kinds))

    def check_splittable(self) -> None:
        """Refuse a step whose batches cannot run in parts, one after the other.

        Raises:
            ValueError: an output does not have one row for each row of the batch, or an input is
                longer than the batch.
        """
        wrong = [("output", n, t) for n, t in self.outputs.items() if row_offset(t) != 0]
        wrong += [("input", n, t) for n, t in self.inputs.items() if row_offset(t)]
        for kind, name, type_ in wrong:
            raise ValueError(
                f"{self.name}: {kind} {name!r} is {type_}, expected one row for each row of the "
                'batch, where batches are split; set off_ladder to "eager" or "error"'
            )


def row_offset(type_: ArrayType) -> int | None:
    """How many rows more than the batch its first axis has; None where it is a fixed size."""
    axis = type_.shape[0] if type_.shape else 0
    return axis.offset if isinstance(axis, Dim) else None
