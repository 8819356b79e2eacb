"""What a step must cost: launches, bytes over memory and flops, by kernel.

Bytes count each operand of each launch once, weights included. No device is needed; how long a GPU
takes for it is in ``step_bound``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cugraphs.joined_ops import queued_launches
from cugraphs.kernel import Cost, bind_axis
from cugraphs.program import Buffer, Kind, Op, Program


@dataclass(frozen=True)
class KernelPrice:
    """The work of all launches of one kernel in a step."""

    name: str
    launches: int
    cost: Cost


@dataclass(frozen=True)
class StepPrice:
    """The work of one step.

    Args:
        kernels: by kernel, in order of first launch.
        weight_bytes: of the weights that the step streams whole, each once; a gathered table is
            not among them unless it is also a matrix of the step.
        linear_flops: of the ops that stream a weight matrix.
    """

    kernels: tuple[KernelPrice, ...]
    weight_bytes: int
    linear_flops: int

    @property
    def launches(self) -> int:
        """Launches of the step."""
        return sum(kernel.launches for kernel in self.kernels)

    @property
    def total(self) -> Cost:
        """The work of all kernels."""
        return sum((kernel.cost for kernel in self.kernels), Cost(0, 0))


def price_step(
    program: Program, sizes: Mapping[str, int], *, context: int, arch: str = ""
) -> StepPrice:
    """Price ``program`` at these sizes.

    Args:
        program: the step.
        sizes: of its dims.
        context: tokens in the cache of each sequence, the current one included.
        arch: whose launches are counted (``"sm_90"``); empty: those that every GPU has.
    """
    prices: dict[str, KernelPrice] = {}
    streamed = set()
    linear_flops = 0
    queued = queued_launches(program, sizes, arch)
    for op, own in zip(program.ops, queued, strict=True):
        if not op.kernel.has_work({n: bind_axis(size, sizes) for n, size in op.axes.items()}):
            continue  # as after the last attention of a step that samples nothing
        cost = op.cost(sizes, context=context)
        known = prices.get(op.kernel.name, KernelPrice(op.kernel.name, 0, Cost(0, 0)))
        launches = known.launches + (1 if op.kernel.launches is None else len(own))
        prices[op.kernel.name] = KernelPrice(known.name, launches, known.cost + cost)
        weights = streamed_weights(op)
        if any(len(weight.type.shape) > 1 for weight in weights):
            linear_flops += cost.flops
        streamed |= weights
    weight_bytes = sum(weight.type.nbytes for weight in streamed)
    return StepPrice(tuple(prices.values()), weight_bytes, linear_flops)


def streamed_weights(op: Op) -> set[Buffer]:
    """The weights that a launch reads whole: all but tables of which it gathers rows."""
    return {
        buffer
        for operand, buffer in zip(op.kernel.operands, op.operands, strict=False)
        if buffer.kind is Kind.WEIGHT and not operand.gathered
    }
