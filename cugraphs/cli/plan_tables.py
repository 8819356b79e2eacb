"""The report of ``cugraphs plan`` as tables."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from cugraphs.cli.tables import TableConsole, gigabytes, megabytes, milliseconds, new_table
from cugraphs.counted import counted
from cugraphs.plan_report import DecodePrice, PlanReport


def print_report(name: str, report: PlanReport) -> None:
    """Print everything; ``name`` is the model's."""
    target, gpu = report.target, report.target.gpu
    console = TableConsole()
    print(
        f"{name}: {counted(report.num_hidden_layers, 'layer')}, "
        f"{counted(report.num_parameters, 'parameter')}, {report.dtype}"
    )
    figures = (
        ("read_bytes_per_s", f"{gpu.read_bytes_per_s / 1e12:.4g} TB/s"),
        ("flops_per_s", f"{gpu.flops_per_s / 1e12:.4g} TFLOP/s"),
        ("memory_bytes", f"{gpu.memory_bytes / 1e9:.4g} GB"),
    )
    marked = (
        text + (f" ({gpu.replaced[field]})" if field in gpu.replaced else "")
        for field, text in figures
    )
    sheet = "by data sheet" if not gpu.replaced else "otherwise by data sheet"
    cores = f"{gpu.num_sms} SMs, {gpu.l2_bytes >> 20} MiB of L2"
    print(f"{gpu.name}: {', '.join(marked)}, {cores}; {sheet}")
    print()
    console.print(_step_table(report))
    print(
        "counted: every parameter is read and multiplied, the input embedding too, and a layer is "
        "12 launches, 10 more outside;\n"
        "streamed: this project's program, in which the embedding is a gather. Times are lower "
        "bounds, one after the other."
    )
    print()
    console.print(_profile_table(report))
    host = target.host
    print(
        f"capture and graphs: expected at {host.capture_us_per_node:g} us and "
        f"{host.graph_bytes_per_node:,} bytes a node. Saved, padding deducted: from where the host "
        "runs ahead\nof the GPU, and only what exceeds the step shows, to where it waits for each "
        "step."
    )
    print()
    console.print(_rung_table(report))
    print()
    print(report.memory)
    print(_capacity(report))


def _step_table(report: PlanReport) -> Table:
    target, rung, host = report.target, report.rung, report.target.host
    rows, context = target.batch, target.context
    live = counted(rows, "row")
    title = f"decode: {live} at rung {rung:,} of {target.profile}, context {context:,}"
    table = new_table(title, "", "counted", "streamed")

    def add(label: str, text: Callable[[DecodePrice], str]) -> None:
        table.add_row(label, text(report.counted), text(report.streamed))

    add("weights", lambda p: gigabytes(p.work.weight_bytes))
    add("weight read", lambda p: milliseconds(p.exact.weight_ms))
    add(f"linear compute, {live}", lambda p: milliseconds(p.exact.linear_ms))
    if rung != rows:
        add(f"linear compute, {counted(rung, 'row')}", lambda p: milliseconds(p.padded.linear_ms))
    add("KV read", lambda p: milliseconds(p.padded.kv_ms))
    add("in sequence", lambda p: milliseconds(p.padded.total_ms))
    add("memory floor: weights and KV", lambda p: milliseconds(p.floor_ms))
    add("tokens/s at most", lambda p: f"{rows / p.padded.total_ms * 1e3:,.0f}")
    table.add_section()
    share = report.counted.padding.share
    table.add_row(f"padding: {counted(rung - rows, 'dead row')}, {share:.1%} of {rung}", "", "")
    from_rows = report.streamed.padding.compute_bound_from_rows
    add(f"  bound by weights (below {counted(from_rows, 'row')})", lambda p: milliseconds(0))
    add("  bound by linear compute", lambda p: milliseconds(p.padding.compute_ms))
    add("  KV read: a dead row's length is 0", lambda p: milliseconds(p.padding.kv_ms))
    add("  KV read, were it a live one's", lambda p: milliseconds(p.padding.kv_if_read_ms))
    for index, tile in enumerate(report.counted.padding.tiles):
        label = f"  tiles of {counted(tile.tile_rows, 'row')}: {tile.rows} -> {tile.rung_rows}"
        add(label, lambda p, i=index: milliseconds(p.padding.tiles[i].added_ms))  # type: ignore[misc]
    add("  this step's bound", lambda p: milliseconds(p.padding.added_ms))
    table.add_section()
    add(
        "launches",
        lambda p: f"{p.work.launches} at {host.launch_us:g} us = {p.launches.total_ms:.1f} ms",
    )
    add("  of the step", lambda p: f"{p.launches.share:.0%}")
    add("  saved by a graph, less padding", lambda p: _range(p.launches.saved_ms))
    table.add_row("  stop mattering (5% of a step)", "", "")
    add("    with weights from", lambda p: _whole_gb(p.launches.negligible_from_weight_bytes))
    add("    here with KV from", lambda p: counted(p.launches.negligible_from_kv_tokens, "token"))
    add("  last as long as reading", lambda p: gigabytes(p.launches.hidden_from_weight_bytes))
    table.add_section()
    add(
        f"prefill of {counted(target.prefill_tokens, 'token')}",
        lambda p: f"{p.prefill.total_ms:.0f} ms",
    )
    add("  launches of it", lambda p: f"{p.prefill.launch_share:.0%}")
    return table


def _profile_table(report: PlanReport) -> Table:
    rows = report.target.batch
    table = new_table(
        f"ladders up to {report.target.max_num_seqs}",
        *(
            "profile",
            "sizes",
            "worst padding",
            "mean",
            f"{counted(rows, 'row')} at",
            "padding adds",
        ),
        *("capture", "graphs", "saved a step"),
    )
    for price in report.profiles:
        worst = "{} -> {}, {:.0%}".format(*price.worst_padding, price.worst_share)
        table.add_row(
            price.profile + " *" * (price.profile == report.target.profile),
            str(price.num_rungs),
            worst,
            f"{price.mean_share:.0%}",
            str(price.rung),
            milliseconds(price.padding_ms),
            f"{price.capture_s:.2f} s",
            megabytes(price.graph_bytes),
            _range(price.saved_ms),
        )
    return table


def _rung_table(report: PlanReport) -> Table:
    target = report.target
    contexts = (f"{context:,}" for context in target.contexts)
    table = new_table("bound of a full rung, streamed, by tokens in each row", "rung", *contexts)
    for price in report.rungs:
        cells = ("no room" if ms is None else milliseconds(ms) for ms in price.total_ms)
        table.add_row(str(price.rung), *cells)
    return table


def _capacity(report: PlanReport) -> str:
    capacity, target = report.capacity, report.target
    margin = (
        f"of {target.gpu.memory_bytes:,} bytes {capacity.budget_bytes:,} are used, a margin of "
        f"{1 - target.gpu_memory_utilization:.0%} is left to the driver and to code"
    )
    if not capacity.num_blocks:
        return f"{margin}: the model does not fit"
    return (
        f"{margin}: K and V of {counted(capacity.num_tokens, 'token')}, "
        f"{counted(capacity.num_seqs, 'sequence')} of "
        f"{target.context:,} or {capacity.num_full_seqs:,} of {report.max_model_len:,}"
    )


def _range(ms: tuple[float, float]) -> str:
    return f"{ms[0]:.2f} to {ms[1]:.2f} ms"


def _whole_gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:,.0f} GB"
