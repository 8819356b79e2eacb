"""Show what would run, where it lives, and what a decode step must move.

Reads headers, or takes a named shape, and plans; loads no weights and needs no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from cugraphs.arena import Arena
from cugraphs.checkpoint import Checkpoint
from cugraphs.cli.options import add_model_choice
from cugraphs.cli.tables import TableConsole, new_table
from cugraphs.counted import counted
from cugraphs.cpu_device import CpuDevice
from cugraphs.cuda_availability import check_cuda
from cugraphs.device_choice import GPU_MEMORY_UTILIZATION, MemoryBudget, plan_kv_cache
from cugraphs.figure_file import check_figure_file
from cugraphs.gpu_specs import GPU_SPECS, gpu_spec
from cugraphs.kv_cache import KVCacheShape
from cugraphs.llm import LLM
from cugraphs.memory_map import MemoryMap, arena_boxes, map_fitted_memory, map_memory
from cugraphs.model_lookup import find_model
from cugraphs.model_shapes import model_shape
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.weights import check_tensors
from cugraphs.plan_target import HostCosts, count_nodes, expected_graphs, launches_by_class
from cugraphs.pricing import StepPrice, price_step
from cugraphs.step_plan import StepPlan

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser("inspect", help="show what would run", description=__doc__)
    add_model_choice(parser, 'a folder, "demo", or a Hub id such as org/name')
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="decode rows (default 1)")
    parser.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="tokens in each sequence (default: a quarter of the longest)",
    )
    parser.add_argument("--max-model-len", type=int, metavar="N", help="tokens of a sequence")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="of weights and activations (default float32, as the CPU computes; with --gpu the "
        "checkpoint's)",
    )
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help=f"map the memory of this one, which need not be there: {', '.join(GPU_SPECS)}",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the arena by op: .png, .svg or .pdf"
    )
    parser.add_argument(
        "--graph-dot",
        type=Path,
        metavar="FILE",
        help="capture the decode step on this machine's GPU and write it in Graphviz's language",
    )
    parser.add_argument("--summary", action="store_true", help="leave the list of ops out")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--traceback", action="store_true", help="show the Python traceback of an error"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan the model's steps and print them."""
    if args.plot is not None:
        check_figure_file(args.plot)
    if args.graph_dot is not None:
        if args.shape is not None:
            raise ValueError("inspect: --shape has no weights, expected MODEL for --graph-dot")
        check_cuda()
    gpu = None if args.gpu is None else gpu_spec(args.gpu)
    config, stored_bytes = _read_model(args)
    max_model_len = config.longest_max_model_len
    if args.max_model_len is not None:
        max_model_len = args.max_model_len
    config.check_max_model_len(max_model_len)
    context = max(max_model_len // 4, 1) if args.context is None else args.context
    for name, value, high in (("batch", args.batch, 1024), ("context", context, max_model_len)):
        if not 1 <= value <= high:
            raise ValueError(f"inspect: --{name} is {value}, expected 1 to {high}")
    dtype = args.dtype or ("float32" if gpu is None else config.dtype)
    kv_bytes = MemoryBudget().kv_bytes(CpuDevice())
    cache = plan_kv_cache(config, dtype, max_model_len, args.batch, None, kv_bytes)
    plan = StepPlan(
        Llama(config, dtype),
        cache,
        vocab_size=config.vocab_size,
        max_num_seqs=args.batch,
        max_num_batched_tokens=max(2048, args.batch),
    )
    decode = plan.decode[plan.ladder.class_for(args.batch)]
    arch = "" if gpu is None else gpu.arch
    price = price_step(decode.program, {"rows": args.batch}, context=context, arch=arch)
    arena = plan.arena(workspace=gpu is not None)
    if gpu is None:
        memory = map_memory(plan.programs, cache, arena)
    else:
        num_nodes = count_nodes(plan.ladder, launches_by_class(plan.decode, gpu.arch))
        graphs = expected_graphs(len(plan.ladder.rungs), num_nodes, HostCosts())
        _, num_blocks = map_fitted_memory(
            *(plan.programs, cache, arena),
            graphs=graphs,
            total_bytes=gpu.memory_bytes,
            utilization=GPU_MEMORY_UTILIZATION,
        )
        kv_bytes = num_blocks * cache.bytes_per_block
        cache = plan_kv_cache(config, dtype, max_model_len, args.batch, None, kv_bytes)
        total_bytes = gpu.memory_bytes
        memory = map_memory(plan.programs, cache, arena, graphs=graphs, total_bytes=total_bytes)
    if args.json:
        record = _record(config, plan, price, arena, cache, stored_bytes, args.batch, context)
        print(json.dumps({**record, "memory": _memory_record(memory)}))
    else:
        console = TableConsole()
        console.print(_config_table(config, stored_bytes, dtype))
        if not args.summary:
            print(decode.program)
        print()
        print(f"decode step of {counted(args.batch, 'row')}: {decode.assignment.report()}")
        tokens = plan.max_num_batched_tokens
        print(f"mixed step of {counted(tokens, 'token')}: {plan.mixed.assignment.report()}")
        print(memory)
        print()
        console.print(_price_table(price, args.batch, context))
        print(
            f"a decode step streams {price.total.bytes_accessed:,} bytes: "
            f"{price.weight_bytes:,} of weights, the rest K, V and activations"
        )
    if args.plot is not None:
        _draw(args, plan, arena, dtype)
    if args.graph_dot is not None:
        llm = LLM(
            args.model,
            device="cuda",
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_seqs=args.batch,
            capture_sizes=[args.batch],
            graph_mode="full",
        )
        args.graph_dot.write_text(llm.runner.decode.graph(args.batch).dot())
    return 0


def _read_model(args: argparse.Namespace) -> tuple[LlamaConfig, int | None]:
    """The model's config, and the bytes of its checkpoint; None for a shape, which has none."""
    if args.shape is not None:
        return LlamaConfig.from_hf(model_shape(args.shape), args.shape), None
    folder = find_model(args.model)
    with Checkpoint.open(folder) as checkpoint:
        config = LlamaConfig.from_hf(checkpoint.config, str(folder / "config.json"))
        check_tensors(checkpoint.tensors, config, str(folder))
        return config, checkpoint.nbytes


def _draw(args: argparse.Namespace, plan: StepPlan, arena: Arena, dtype: str) -> None:
    """The arena by op: a decode step of the batch, and the largest mixed step."""
    from cugraphs.memory_plot import Panel, draw_memory

    decode, tokens = plan.decode[plan.ladder.class_for(args.batch)], plan.max_num_batched_tokens
    mixed_sizes = {name: int(dim) for name, dim in plan.mixed.program.dims.items()}
    panels = [
        Panel(title, planned.assignment.report(), arena_boxes(planned, arena, sizes))
        for title, planned, sizes in (
            (f"decode, {counted(args.batch, 'row')}", decode, {"rows": args.batch}),
            (f"mixed, {counted(tokens, 'token')}", plan.mixed, mixed_sizes),
        )
    ]
    draw_memory(
        panels, arena, f"{args.model or args.shape}, {dtype}: what lives where, and when", args.plot
    )


def _memory_record(memory: MemoryMap) -> Mapping[str, Any]:
    return {
        "parts": [dataclasses.asdict(part) for part in memory.parts],
        "used_bytes": memory.used_bytes,
        "total_bytes": memory.total_bytes,
        "free_bytes": memory.free_bytes,
    }


def _config_table(config: LlamaConfig, stored_bytes: int | None, dtype: str) -> Table:
    table = Table("key", "value", title="config", title_justify="left")
    for key, value in _config_record(config).items():
        table.add_row(key, str(value))
    table.add_row("parameters", f"{config.num_parameters:,}")
    stored = "nothing" if stored_bytes is None else f"{stored_bytes:,} bytes of {config.dtype}"
    table.add_row("stored", f"{stored}, computed in {dtype}")
    return table


def _config_record(config: LlamaConfig) -> dict[str, Any]:
    record = dataclasses.asdict(config)
    record["rope"] = {key: value for key, value in record["rope"].items() if value is not None}
    return record


def _price_table(price: StepPrice, batch: int, context: int) -> Table:
    rows, tokens = counted(batch, "row"), counted(context, "token")
    title = f"decode step: {rows}, {tokens} in each sequence"
    table = new_table(title, "kernel", "launches", "bytes", "flops")
    for kernel in price.kernels:
        table.add_row(
            kernel.name,
            str(kernel.launches),
            f"{kernel.cost.bytes_accessed:,}",
            f"{kernel.cost.flops:,}",
        )
    total = price.total
    table.add_section()
    table.add_row("all", str(price.launches), f"{total.bytes_accessed:,}", f"{total.flops:,}")
    return table


def _record(
    config: LlamaConfig,
    plan: StepPlan,
    price: StepPrice,
    arena: Arena,
    cache: KVCacheShape,
    stored_bytes: int | None,
    batch: int,
    context: int,
) -> Mapping[str, Any]:
    decode = plan.decode[plan.ladder.class_for(batch)]
    return {
        "config": _config_record(config),
        "parameters": config.num_parameters,
        "stored_bytes": stored_bytes,
        "program": str(decode.program).splitlines(),
        "arena_bytes": arena.nbytes,
        "arena": [dataclasses.asdict(region) for region in arena.regions.values()],
        "temporaries": {
            "decode_bytes": decode.assignment.arena_bytes,
            "decode_lower_bound_bytes": decode.assignment.peak_live_bytes,
            "mixed_bytes": plan.mixed.assignment.arena_bytes,
            "mixed_lower_bound_bytes": plan.mixed.assignment.peak_live_bytes,
        },
        "kv_pool": {
            "bytes": cache.nbytes,
            "num_blocks": cache.num_blocks,
            "block_size": cache.block_size,
        },
        "decode_step": {
            "batch": batch,
            "context": context,
            "launches": price.launches,
            "bytes": price.total.bytes_accessed,
            "weight_bytes": price.weight_bytes,
            "flops": price.total.flops,
            "kernels": {
                k.name: {"launches": k.launches, **dataclasses.asdict(k.cost)}
                for k in price.kernels
            },
        },
    }
