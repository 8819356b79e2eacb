"""What a model costs on a GPU that is not there: decode steps, padding, launches, ladders, memory.

Two conventions stand side by side. "counted" is the usual back-of-envelope one: every parameter is
read and multiplied at every step, the input embedding included, and a layer is 12 launches.
"streamed" is what this project's programs do: the embedding is a gather of a few rows, and runs of
kernels are fused. Knows planned programs and data sheets; asks no device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cugraphs.arena import Arena
from cugraphs.device_choice import ModelSizes
from cugraphs.executable import PlannedProgram
from cugraphs.kernel import DTYPES
from cugraphs.kv_cache import KVCacheShape
from cugraphs.ladder import PROFILES, Ladder
from cugraphs.memory_map import MemoryMap, map_fitted_memory
from cugraphs.plan_target import PlanTarget, count_nodes, expected_graphs, launches_by_class
from cugraphs.pricing import StepPrice, price_step
from cugraphs.step_bound import (
    LaunchPrice,
    PaddingPrice,
    StepBound,
    StepWork,
    bound_step,
    price_launches,
    price_padding,
)

# A layer without fusion: rms_norm, qkv, rope, append to the cache, attention, o, add, rms_norm,
# gate_up, silu_and_mul, down, add. Outside the layers: embedding, last norm, head, and 7 of logits
# processing, sampling and bookkeeping. Llama-3.1-8B: 32 * 12 + 10 = 394.
COUNTED_LAUNCHES_PER_LAYER = 12
COUNTED_LAUNCHES_OUTSIDE = 10


@dataclass(frozen=True)
class PrefillPrice:
    """The least time of a prompt of ``tokens`` tokens in one step, and launches' share of it."""

    tokens: int
    total_ms: float
    launches: int
    launch_share: float


@dataclass(frozen=True)
class DecodePrice:
    """One decode step under one convention.

    Args:
        convention: "counted" or "streamed".
        work: of a step.
        floor_ms: to read weights, K and V, and nothing else.
        exact: the bound at a rung of exactly the batch.
        padded: the bound at the rung that serves it.
        padding: what lies between the two.
        launches: what they cost at the rung.
        prefill: of one prompt.
    """

    convention: str
    work: StepWork
    floor_ms: float
    exact: StepBound
    padded: StepBound
    padding: PaddingPrice
    launches: LaunchPrice
    prefill: PrefillPrice


@dataclass(frozen=True)
class RungPrice:
    """The bound of a full rung at each context; None where its K and V do not fit."""

    rung: int
    total_ms: tuple[float | None, ...]


@dataclass(frozen=True)
class ProfilePrice:
    """One profile of the ladder, for the batch that is asked about.

    Args:
        profile: its name.
        num_rungs: graphs to capture.
        worst_padding: the (rows, rung) with the largest share of padding.
        worst_share: that share.
        mean_share: padding's share of all rows, over batches of every size.
        rung: that serves the batch.
        padding_ms: what padding to it adds to the step's bound.
        capture_s: expected, for all graphs.
        graph_bytes: expected of the driver, for all graphs.
        saved_ms: a step, as of ``LaunchPrice``: what padding adds is deducted.
    """

    profile: str
    num_rungs: int
    worst_padding: tuple[int, int]
    worst_share: float
    mean_share: float
    rung: int
    padding_ms: float
    capture_s: float
    graph_bytes: int
    saved_ms: tuple[float, float]


@dataclass(frozen=True)
class KVCapacity:
    """What fits beside weights, state, arena and graphs.

    Args:
        budget_bytes: the part of the memory that may be used.
        margin_bytes: the part that is left alone.
        num_blocks: without the scratch block; 0 where the model does not fit.
        num_tokens: that they hold.
        num_seqs: concurrent sequences of the context asked about.
        num_full_seqs: of ``max_model_len`` tokens.
    """

    budget_bytes: int
    margin_bytes: int
    num_blocks: int
    num_tokens: int
    num_seqs: int
    num_full_seqs: int


@dataclass(frozen=True)
class PlanReport:
    """Everything about one model on one GPU; see the parts."""

    target: PlanTarget
    num_hidden_layers: int
    num_parameters: int
    dtype: str
    max_model_len: int
    rung: int
    counted: DecodePrice
    streamed: DecodePrice
    rungs: tuple[RungPrice, ...]
    profiles: tuple[ProfilePrice, ...]
    memory: MemoryMap
    capacity: KVCapacity


def report_plan(
    sizes: ModelSizes,
    decode: Mapping[int, PlannedProgram],
    mixed: PlannedProgram,
    programs: Sequence[PlannedProgram],
    cache: KVCacheShape,
    arena: Arena,
    target: PlanTarget,
) -> PlanReport:
    """Price a planned model.

    Args:
        sizes: of the model.
        decode: the program of each fusion class, by its largest rung.
        mixed: the program of prompts.
        programs: all of them.
        cache: sizes of a block; how many blocks there are does not matter.
        arena: of all programs, the workspace included.
        target: what to price it for.
    """
    ladder = Ladder(target.max_num_seqs, target.profile)
    rung = ladder.rung_for(target.batch)
    program, arch = decode[ladder.class_for(rung)].program, target.gpu.arch
    step = price_step(program, {"rows": rung}, context=target.context, arch=arch)
    launches = launches_by_class(decode, arch)
    kv_bytes_per_token = cache.bytes_per_block // cache.block_size
    counted = StepWork(
        weight_bytes=sizes.num_parameters * DTYPES[cache.dtype].itemsize,
        linear_flops_per_row=2 * sizes.num_parameters,
        kv_bytes_per_token=kv_bytes_per_token,
        launches=sizes.num_hidden_layers * COUNTED_LAUNCHES_PER_LAYER + COUNTED_LAUNCHES_OUTSIDE,
    )
    streamed = StepWork(
        weight_bytes=step.weight_bytes,
        linear_flops_per_row=step.linear_flops // rung,
        kv_bytes_per_token=kv_bytes_per_token,
        launches=step.launches,
    )
    profiles = tuple(_price_profile(name, streamed, launches, target) for name in PROFILES)
    memory, num_blocks = map_fitted_memory(
        *(programs, cache, arena),
        graphs=expected_graphs(len(ladder.rungs), count_nodes(ladder, launches), target.host),
        total_bytes=target.gpu.memory_bytes,
        utilization=target.gpu_memory_utilization,
    )
    capacity = _capacity(num_blocks, cache, target)
    return PlanReport(
        target=target,
        num_hidden_layers=sizes.num_hidden_layers,
        num_parameters=sizes.num_parameters,
        dtype=cache.dtype,
        max_model_len=cache.max_model_len,
        rung=rung,
        counted=_price_decode("counted", counted, rung, target, _counted_prefill(counted, target)),
        streamed=_price_decode("streamed", streamed, rung, target, _own_prefill(mixed, target)),
        rungs=tuple(
            RungPrice(
                one,
                tuple(
                    bound_step(streamed, target.gpu, rows=one, rung=one, context=context).total_ms
                    if one * context <= capacity.num_tokens
                    else None
                    for context in target.contexts
                ),
            )
            for one in ladder.rungs
        ),
        profiles=profiles,
        memory=memory,
        capacity=capacity,
    )


def _price_decode(
    convention: str, work: StepWork, rung: int, target: PlanTarget, prefill: PrefillPrice
) -> DecodePrice:
    gpu, rows, context, host = target.gpu, target.batch, target.context, target.host
    exact = bound_step(work, gpu, rows=rows, rung=rows, context=context)
    padded = bound_step(work, gpu, rows=rows, rung=rung, context=context)
    return DecodePrice(
        convention=convention,
        work=work,
        floor_ms=exact.weight_ms + exact.kv_ms,
        exact=exact,
        padded=padded,
        padding=price_padding(work, gpu, rows=rows, rung=rung, context=context),
        launches=price_launches(
            *(work, gpu, exact, padded),
            launch_us=host.launch_us,
            graph_launch_us=host.graph_launch_us,
        ),
        prefill=prefill,
    )


def _counted_prefill(work: StepWork, target: PlanTarget) -> PrefillPrice:
    """Linear layers alone, every parameter for every token."""
    tokens = target.prefill_tokens
    bound = bound_step(work, target.gpu, rows=1, rung=tokens, context=0)
    return _prefill(tokens, bound.total_ms, work.launches, target)


def _own_prefill(mixed: PlannedProgram, target: PlanTarget) -> PrefillPrice:
    """The mixed program's own work: the head for one row, and attention."""
    tokens = target.prefill_tokens
    sizes = {"tokens": tokens, "seqs": 1, "logits": 1}
    price: StepPrice = price_step(mixed.program, sizes, context=tokens, arch=target.gpu.arch)
    gpu = target.gpu
    weight_ms = price.weight_bytes / gpu.read_bytes_per_s * 1e3
    linear_ms = price.linear_flops / gpu.flops_per_s * 1e3
    other_ms = (price.total.flops - price.linear_flops) / gpu.flops_per_s * 1e3
    return _prefill(tokens, max(weight_ms, linear_ms) + other_ms, price.launches, target)


def _prefill(tokens: int, total_ms: float, launches: int, target: PlanTarget) -> PrefillPrice:
    share = launches * target.host.launch_us / 1e3 / total_ms
    return PrefillPrice(tokens, total_ms, launches, share)


def _price_profile(
    name: str, work: StepWork, class_launches: Mapping[int, int], target: PlanTarget
) -> ProfilePrice:
    ladder, gpu, host = Ladder(target.max_num_seqs, name), target.gpu, target.host
    rung = ladder.rung_for(target.batch)
    rows, context = target.batch, target.context
    exact, padded = (
        bound_step(work, gpu, rows=rows, rung=one, context=context) for one in (rows, rung)
    )
    launches = price_launches(
        *(work, gpu, exact, padded),
        launch_us=host.launch_us,
        graph_launch_us=host.graph_launch_us,
    )
    fewest, top = ladder.worst_padding()
    num_nodes = count_nodes(ladder, class_launches)
    return ProfilePrice(
        profile=name,
        num_rungs=len(ladder.rungs),
        worst_padding=(fewest, top),
        worst_share=1 - fewest / top,
        mean_share=ladder.mean_padding(),
        rung=rung,
        padding_ms=padded.total_ms - exact.total_ms,
        capture_s=num_nodes * host.capture_us_per_node / 1e6,
        graph_bytes=num_nodes * host.graph_bytes_per_node,
        saved_ms=launches.saved_ms,
    )


def _capacity(num_blocks: int, cache: KVCacheShape, target: PlanTarget) -> KVCapacity:
    total = target.gpu.memory_bytes
    budget = int(total * target.gpu_memory_utilization)
    blocks_of = [-(-tokens // cache.block_size) for tokens in (target.context, cache.max_model_len)]
    return KVCapacity(
        budget_bytes=budget,
        margin_bytes=total - budget,
        num_blocks=num_blocks,
        num_tokens=num_blocks * cache.block_size,
        num_seqs=num_blocks // blocks_of[0],
        num_full_seqs=num_blocks // blocks_of[1],
    )
