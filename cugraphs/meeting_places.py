"""Memory in which blocks of one launch meet: STATE of programs that nobody gives and nobody reads.

A place is all ones while it is clear. A layer uses one, and clears that of the layer after it
(``kernels/meeting.cuh``), so a few places serve all layers by turns. A step that was not queued to
its end may leave some that are not clear: :class:`MeetingPlaces` has them cleared before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cugraphs.array_type import Array, ArrayType
from cugraphs.counted import counted
from cugraphs.program import Buffer, Kind, Program

LEAST_LAYERS = 3  # which take turns; fewer would clear what others still read
HERE, NEXT_PLACE = "here", "next_place"  # operands: a layer's own place, and that of the next
_PREFIX = "meeting_place."


def num_places(layers: int) -> int:
    """How many places so many layers take: any three layers in a row have three, over the end too.

    Args:
        layers: of a step, at least :data:`LEAST_LAYERS`; the first follows on the last, of the step
            before.
    """
    assert layers >= LEAST_LAYERS, counted(layers, "layer")
    return next(n for n in range(LEAST_LAYERS, layers + 1) if not 0 < layers % n < LEAST_LAYERS)


def declare_places(kernel: str, layers: int, words: int, first_id: int) -> list[Buffer]:
    """The STATE of so many layers.

    Args:
        kernel: whose blocks meet there. It is in their names, so that the kernels of a program
            have places of their own; those of one name are the same memory in all programs.
        layers: as of :func:`num_places`.
        words: of a place.
        first_id: of the buffers in their program.
    """
    type_ = ArrayType((words,), "int32")
    return [
        Buffer(first_id + number, f"{_PREFIX}{kernel}.{number}", type_, Kind.STATE)
        for number in range(num_places(layers))
    ]


def is_place(buffer: Buffer) -> bool:
    """Whether it is one of :func:`declare_places`."""
    return buffer.kind is Kind.STATE and buffer.name.startswith(_PREFIX)


def places_of(programs: Iterable[Program]) -> dict[str, ArrayType]:
    """The places of all programs, by name, each once."""
    places: dict[str, ArrayType] = {}
    for buffer in (b for program in programs for b in program.buffers if is_place(b)):
        known = places.setdefault(buffer.name, buffer.type)
        assert known == buffer.type, f"{buffer.name} is {buffer.type} and {known}"
    return places


class MeetingPlaces:
    """The places of programs that share them, in a device's memory.

    ``with`` it steps are queued, which find all of them clear, whatever became of those before: an
    error or an interrupt, at any instruction, leaves it to the next ones to clear them.

    Attributes:
        arrays: by name.
    """

    def __init__(self, arrays: Mapping[str, Array], clear: Callable[[], None]) -> None:
        """Nothing is cleared yet.

        Args:
            arrays: that hold anything.
            clear: queues that all of them are filled with ones.
        """
        self.arrays = arrays
        self._clear = clear
        self._are_clear = False

    def __enter__(self) -> None:
        """Queue the clearing if the last steps were not queued to their end, or there were none."""
        if not self._are_clear:
            self._clear()
        self._are_clear = False

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """A step that is queued to its end leaves them clear."""
        self._are_clear = kind is None
