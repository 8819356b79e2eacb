"""The pipeline on one screen: trace, fuse, assign, lay out one arena.

Needs no device. What comes out is bound to memory by the executable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cugraphs.arena import Arena
from cugraphs.buffer_assignment import assign_buffers
from cugraphs.executable import INPUTS, PlannedProgram, input_bytes, output_region
from cugraphs.fusion import fuse
from cugraphs.interpreter import TEMPORARIES
from cugraphs.kernel import WORKSPACE
from cugraphs.program import Kind
from cugraphs.trace import Tracer

Step = Callable[[Tracer], None]


def plan_program(name: str, step: Step, *, least_rows: int = 1) -> PlannedProgram:
    """Trace ``step``, fuse, and assign its temporaries.

    Args:
        name: of the program, in dumps and errors.
        step: records the step on the tracer and marks its outputs.
        least_rows: that it is bound at.

    Raises:
        TypeError, ValueError: a call in ``step`` does not fit its kernel.
    """
    tracer = Tracer(name)
    step(tracer)
    program = fuse(tracer.program, least_rows=least_rows)
    assignment = assign_buffers(program)
    assignment.verify(program)
    return PlannedProgram(program, assignment)


def plan_arena(planned: Sequence[PlannedProgram], *, workspace: bool = False) -> Arena:
    """One arena for all programs: inputs, outputs, one workspace, one space for temporaries.

    The inputs of a program lie one after the other, so that one copy sends them; all programs share
    their space. Outputs of one name are the same memory in every program, sized for the largest.
    One op runs at a time, so all ops share the workspace; one step runs at a time, so all programs
    share the temporaries' space. A further program that is not larger than the largest adds no
    byte.

    Args:
        planned: every program that will be bound to the arena.
        workspace: with the scratch memory of the kernels' launches, which only a GPU needs.
    """
    sizes = {INPUTS: max((input_bytes(plan.program) for plan in planned), default=0)}
    for plan in planned:
        for buffer in plan.program.of_kind(Kind.OUTPUT):
            name = output_region(buffer)
            sizes[name] = max(sizes.get(name, 0), buffer.type.nbytes)
    if workspace:
        ops = [op for plan in planned for op in plan.program.ops]
        sizes[WORKSPACE] = max((op.workspace_bytes() for op in ops), default=0)
    sizes[TEMPORARIES] = max((plan.assignment.arena_bytes for plan in planned), default=0)
    arena = Arena()
    for name, nbytes in sizes.items():
        arena.add(name, nbytes)
    return arena
