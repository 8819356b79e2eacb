"""How long a step takes at least on a GPU, and what padding rows add to it, regime by regime.

The roofline of a decode step: the linear layers read every weight once and compute every row of the
rung, whichever takes longer; then attention reads the K and V of the live rows. Knows no program,
no memory and no measured kernel: every time here is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from cugraphs.gpu_specs import GpuSpec

# Rows that matrix kernels compute at a time: the n of an mma, and usual tiles of matrix libraries.
TILE_ROWS = (8, 16, 64, 128)

NEGLIGIBLE_SHARE = 0.05  # of a step: below it, launches are not worth a graph


@dataclass(frozen=True)
class StepWork:
    """What one step has to do, as far as its time depends on it.

    Args:
        weight_bytes: read once a step.
        linear_flops_per_row: of all linear layers.
        kv_bytes_per_token: K and V of one token, all layers.
        launches: kernels of a step.
    """

    weight_bytes: int
    linear_flops_per_row: int
    kv_bytes_per_token: int
    launches: int


@dataclass(frozen=True)
class StepBound:
    """The least time of one decode step.

    Args:
        weight_ms: to read the weights.
        linear_ms: to compute the linear layers for every row of the rung.
        kv_ms: to read K and V of the live rows.
        total_ms: linear layers, bound by the longer of the two, then attention.
    """

    weight_ms: float
    linear_ms: float
    kv_ms: float
    total_ms: float


@dataclass(frozen=True)
class TilePrice:
    """Padding where kernels compute whole tiles of rows.

    Args:
        tile_rows: rows of a tile.
        rows: what is computed for the batch alone.
        rung_rows: what is computed for the rung.
        added_ms: compute time between the two.
    """

    tile_rows: int
    rows: int
    rung_rows: int
    added_ms: float


@dataclass(frozen=True)
class PaddingPrice:
    """What it costs to run a batch at a larger rung.

    Args:
        share: padding's share of the rung's rows.
        added_ms: what it adds to the step's bound.
        compute_ms: what it adds where the linear layers are bound by compute, row by row.
        compute_bound_from_rows: where they begin to be; below, padding rows are free.
        kv_ms: what dead rows read: nothing, as their length is 0.
        kv_if_read_ms: what they would, were each as long as a live one.
        tiles: where kernels compute whole tiles of rows.
    """

    share: float
    added_ms: float
    compute_ms: float
    compute_bound_from_rows: int
    kv_ms: float
    kv_if_read_ms: float
    tiles: tuple[TilePrice, ...]


def bound_step(work: StepWork, gpu: GpuSpec, *, rows: int, rung: int, context: int) -> StepBound:
    """The bound of a decode step of ``rows`` live rows at ``rung``.

    Args:
        work: of the model's step.
        gpu: that runs it.
        rows: live rows.
        rung: rows that are computed.
        context: tokens in the cache of each live row, the current one included.
    """
    weight_ms = _read_ms(gpu, work.weight_bytes)
    linear_ms = _compute_ms(gpu, rung * work.linear_flops_per_row)
    kv_ms = _read_ms(gpu, rows * context * work.kv_bytes_per_token)
    return StepBound(weight_ms, linear_ms, kv_ms, max(weight_ms, linear_ms) + kv_ms)


def price_padding(
    work: StepWork, gpu: GpuSpec, *, rows: int, rung: int, context: int
) -> PaddingPrice:
    """What ``rung - rows`` dead rows cost, in each regime; arguments as of ``bound_step``."""
    exact = bound_step(work, gpu, rows=rows, rung=rows, context=context)
    padded = bound_step(work, gpu, rows=rows, rung=rung, context=context)
    row_ms = _compute_ms(gpu, work.linear_flops_per_row)
    tiles = []
    for tile in TILE_ROWS:
        computed, computed_rung = (-(-count // tile) * tile for count in (rows, rung))
        added_ms = (computed_rung - computed) * row_ms
        tiles.append(TilePrice(tile, computed, computed_rung, added_ms))
    return PaddingPrice(
        share=(rung - rows) / rung,
        added_ms=padded.total_ms - exact.total_ms,
        compute_ms=padded.linear_ms - exact.linear_ms,
        compute_bound_from_rows=int(exact.weight_ms / row_ms) + 1,
        kv_ms=0.0,
        kv_if_read_ms=_read_ms(gpu, (rung - rows) * context * work.kv_bytes_per_token),
        tiles=tuple(tiles),
    )


@dataclass(frozen=True)
class LaunchPrice:
    """What queueing a step launch by launch costs, and where that stops to matter.

    Args:
        total_ms: of all launches on the host.
        share: of the step's bound.
        saved_ms: what a graph at the rung saves against launches at exactly the batch's rows: where
            the host runs ahead of the GPU, so that only what exceeds the step shows; and where it
            waits for every step. Below 0 padding costs more than launches.
        hidden_from_weight_bytes: weights whose reading takes as long as the launches.
        negligible_from_weight_bytes: weights of which the launches are 5%.
        negligible_from_kv_tokens: tokens in the cache, over all rows, from which they are 5% of
            this model's step.
    """

    total_ms: float
    share: float
    saved_ms: tuple[float, float]
    hidden_from_weight_bytes: int
    negligible_from_weight_bytes: int
    negligible_from_kv_tokens: int


def price_launches(
    work: StepWork,
    gpu: GpuSpec,
    exact: StepBound,
    padded: StepBound,
    *,
    launch_us: float,
    graph_launch_us: float,
) -> LaunchPrice:
    """What the launches of a step cost beside its bound.

    Args:
        work: of the step.
        gpu: that runs it.
        exact: the bound of the step launch by launch, at the batch's own rows.
        padded: the bound of the step as a graph, at the rung.
        launch_us: host time of one launch.
        graph_launch_us: host time of a graph's launch.
    """
    total_ms = work.launches * launch_us / 1e3
    graph_ms = graph_launch_us / 1e3
    long_step_ms = total_ms / NEGLIGIBLE_SHARE
    bytes_per_ms = gpu.read_bytes_per_s / 1e3
    left_ms = long_step_ms - max(exact.weight_ms, exact.linear_ms)
    kv_tokens = max(left_ms, 0.0) * bytes_per_ms / work.kv_bytes_per_token
    return LaunchPrice(
        total_ms=total_ms,
        share=total_ms / exact.total_ms,
        saved_ms=(
            max(total_ms, exact.total_ms) - max(graph_ms, padded.total_ms),
            total_ms + exact.total_ms - graph_ms - padded.total_ms,
        ),
        hidden_from_weight_bytes=round(total_ms * bytes_per_ms),
        negligible_from_weight_bytes=round(long_step_ms * bytes_per_ms),
        negligible_from_kv_tokens=round(kv_tokens),
    )


def _read_ms(gpu: GpuSpec, nbytes: float) -> float:
    return nbytes / gpu.read_bytes_per_s * 1e3


def _compute_ms(gpu: GpuSpec, flops: float) -> float:
    return flops / gpu.flops_per_s * 1e3
