"""Price a model on a GPU that need not be there: step, padding, launches, ladders, memory.

Reads a config.json or a named shape; loads no weights and needs no GPU. Times are lower bounds from
the GPU's data sheet, or from ceilings that `cugraphs check --bench` has measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cugraphs.arena import Arena
from cugraphs.cli.options import add_model_choice
from cugraphs.cli.plan_tables import print_report
from cugraphs.device_choice import GPU_MEMORY_UTILIZATION, plan_kv_cache
from cugraphs.figure_file import check_figure_file
from cugraphs.gpu_specs import GPU_SPECS, GpuSpec, gpu_spec
from cugraphs.json_file import read_json_object
from cugraphs.ladder import PROFILES
from cugraphs.model_lookup import find_model
from cugraphs.model_shapes import model_shape
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.plan_report import PlanReport, report_plan
from cugraphs.plan_target import HostCosts, PlanTarget
from cugraphs.step_plan import StepPlan

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_CONTEXTS = (128, 1024, 8192, 32768)
_MAX_NUM_SEQS, _MOST_NUM_SEQS = 512, 4096


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "plan", help="price a model on a GPU, without one", description=__doc__
    )
    add_model_choice(parser)
    parser.add_argument("--gpu", required=True, metavar="NAME", help=", ".join(GPU_SPECS))
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="decode rows (default 1)")
    parser.add_argument(
        "--context", type=int, metavar="N", help="tokens in each sequence (default 1024)"
    )
    parser.add_argument(
        "--profile", default="default", choices=PROFILES, help='of the ladder (default: "default")'
    )
    parser.add_argument(
        "--max-num-seqs", type=int, metavar="N", help="top of the ladder (default 512)"
    )
    parser.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=8192,
        metavar="N",
        help="tokens of a mixed step, and of the prefill that is priced (default 8192)",
    )
    parser.add_argument("--max-model-len", type=int, metavar="N", help="tokens of a sequence")
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float16"),
        help="of weights, activations, K and V (default the model's, bfloat16 for float32)",
    )
    parser.add_argument(
        "--gpu-memory-utilization",
        type=float,
        default=GPU_MEMORY_UTILIZATION,
        metavar="X",
        help="share of the memory to use; the rest is the margin (default 0.9)",
    )
    figures = parser.add_argument_group("in place of the data sheet")
    figures.add_argument(
        "--measured",
        type=Path,
        metavar="FILE",
        help="ceilings that `cugraphs check --bench --json` printed",
    )
    figures.add_argument("--bandwidth", type=float, metavar="TB/S", help="of the memory")
    figures.add_argument("--tflops", type=float, metavar="X", help="dense bf16 matrix products")
    figures.add_argument("--memory", type=float, metavar="GB", help="of the device")
    figures.add_argument(
        "--launch-us", type=float, default=4.0, metavar="US", help="of one launch (default 4)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it: .png, .svg or .pdf")
    parser.add_argument(
        "--traceback", action="store_true", help="show the Python traceback of an error"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan the model's steps, price them and print."""
    if args.plot is not None:
        check_figure_file(args.plot)
    name, config = _read_config(args)
    report = make_report(args, config)
    if args.json:
        print(json.dumps({"model": name, **_record(report)}, default=_regions))
    else:
        print_report(name, report)
    if args.plot is not None:
        from cugraphs.plan_plot import draw_plan

        draw_plan(name, report, args.plot)
    return 0


def make_report(args: argparse.Namespace, config: LlamaConfig) -> PlanReport:
    """The report that the options ask for.

    Raises:
        ValueError: an option is out of range, or no such GPU.
    """
    max_model_len = config.longest_max_model_len
    if args.max_model_len is not None:
        max_model_len = args.max_model_len
    config.check_max_model_len(max_model_len)
    context = min(1024, max_model_len) if args.context is None else args.context
    max_num_seqs = max(_MAX_NUM_SEQS, args.batch)
    if args.max_num_seqs is not None:
        max_num_seqs = args.max_num_seqs
    for option, value, low, high in (
        ("batch", args.batch, 1, args.max_num_seqs or _MOST_NUM_SEQS),
        ("max-num-seqs", max_num_seqs, 1, _MOST_NUM_SEQS),
        ("context", context, 1, max_model_len),
        ("max-num-batched-tokens", args.max_num_batched_tokens, max_num_seqs, 1 << 20),
    ):
        if not low <= value <= high:
            raise ValueError(f"plan: --{option} is {value}, expected {low} to {high}")
    for option, number, most in (
        ("gpu-memory-utilization", args.gpu_memory_utilization, 1),
        ("launch-us", args.launch_us, 1e6),
        ("bandwidth", args.bandwidth, 1e6),
        ("tflops", args.tflops, 1e6),
        ("memory", args.memory, 1e6),
    ):
        if number is not None and not 0 < number <= most:
            raise ValueError(f"plan: --{option} is {number}, expected above 0, at most {most:,.0f}")
    dtype = args.dtype or ("bfloat16" if config.dtype == "float32" else config.dtype)
    contexts = {one for one in (*_CONTEXTS, context) if one <= max_model_len}
    target = PlanTarget(
        gpu=_gpu(args),
        batch=args.batch,
        context=context,
        contexts=tuple(sorted(contexts)),
        profile=args.profile,
        max_num_seqs=max_num_seqs,
        prefill_tokens=min(args.max_num_batched_tokens, max_model_len),
        gpu_memory_utilization=args.gpu_memory_utilization,
        host=HostCosts(launch_us=args.launch_us),
    )
    cache = plan_kv_cache(config, dtype, max_model_len, max_num_seqs, None, 0)
    plan = StepPlan(
        Llama(config, dtype),
        cache,
        vocab_size=config.vocab_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
    )
    return report_plan(
        config,
        plan.decode,
        plan.mixed,
        plan.programs,
        cache,
        plan.arena(workspace=True),
        target,
    )


def _read_config(args: argparse.Namespace) -> tuple[str, LlamaConfig]:
    """The name to print, and the model's config."""
    if args.shape is not None:
        return args.shape, LlamaConfig.from_hf(model_shape(args.shape), args.shape)
    file = find_model(args.model, allow_download=False) / "config.json"
    return args.model, LlamaConfig.from_hf(read_json_object(file), str(file))


def _gpu(args: argparse.Namespace) -> GpuSpec:
    """The data sheet, then what was measured in its place, then what was given."""
    try:
        spec = gpu_spec(args.gpu)
    except ValueError as error:
        raise ValueError(
            f"{error}; for another card, give the nearest one and its own --bandwidth, --tflops "
            "and --memory"
        ) from None
    if args.measured is not None:
        spec = spec.with_figures(f"measured, {args.measured}", **_ceilings(args.measured))
    given = {"read_bytes_per_s": (args.bandwidth, 1e12), "flops_per_s": (args.tflops, 1e12)}
    given["memory_bytes"] = (args.memory, 1e9)
    figures = {field: None if x is None else round(x * unit) for field, (x, unit) in given.items()}
    return spec.with_figures("given", **figures)


def _ceilings(file: Path) -> dict[str, float]:
    """What `cugraphs check --bench --json` has measured on a GPU."""
    ceilings = read_json_object(file).get("ceilings")
    names = ("read_bytes_per_s", "flops_per_s")
    found: Mapping[str, Any] = ceilings if isinstance(ceilings, dict) else {}
    for name in names:
        value = found.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(
                f"plan: {file} has no ceilings.{name}, expected what "
                "`cugraphs check --bench --json` prints on a GPU"
            )
    return {name: float(found[name]) for name in names}


def _record(report: PlanReport) -> dict[str, Any]:
    """The report as JSON, with what is derived from other fields."""
    record = dataclasses.asdict(report)
    record["memory"]["used_bytes"] = report.memory.used_bytes
    record["memory"]["free_bytes"] = report.memory.free_bytes
    return record


def _regions(value: object) -> list[dict[str, Any]]:
    """An arena in JSON: its regions."""
    assert isinstance(value, Arena)
    return [dataclasses.asdict(region) for region in value.regions.values()]
