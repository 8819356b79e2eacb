"""What ``bench throughput`` and ``bench latency`` share: options, the engine, the workload, output.

A workload runs through the same engine as ``cugraphs generate``, greedily and with a fixed number
of tokens for each answer. Weights are the model's own, or random ones made on the device.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from cugraphs.bench_machine import describe_machine, measure_gpu
from cugraphs.cli.bench_session import (
    check_counts,
    check_record_file,
    read_config,
)
from cugraphs.cli.options import (
    add_device_options,
    add_model_choice,
    device_as_option,
    load_llm,
)
from cugraphs.cli.workload_options import Workload, add_workload_options
from cugraphs.cuda_device import CudaDevice
from cugraphs.decode_bench import stand_in_tokenizer
from cugraphs.device_choice import (
    MemoryBudget,
    choose_device,
    choose_dtype,
    plan_kv_cache,
    steps_ahead,
    steps_loop,
)
from cugraphs.engine import Engine
from cugraphs.figure_file import check_figure_file
from cugraphs.gpu_specs import GpuSpec
from cugraphs.ladder import PROFILES, Ladder
from cugraphs.llm import MAX_NUM_BATCHED_TOKENS
from cugraphs.model_runner import ModelRunner, check_graph_mode
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.random_weights import random_weights
from cugraphs.serving_bench import ServingResult, ServingRun
from cugraphs.serving_bound import ServingWork, serving_work
from cugraphs.step_plan import StepPlan
from cugraphs.workloads import Demand

if TYPE_CHECKING:
    from cugraphs.device import Device

_WARM_UP_REQUESTS = 2
_WARM_UP_RUN = 1 << 31  # no other run has its prompts, so none of theirs is in the cache


def add_serving_options(parser: argparse.ArgumentParser, *, requests: int) -> None:
    """Add the model, the engine's limits, the workload and where results go."""
    add_model_choice(parser)
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="of MODEL read config.json alone; with --shape there are no others",
    )
    add_device_options(parser)
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--max-num-seqs", type=int, default=256, metavar="N", help="that run at once (default 256)"
    )
    engine.add_argument(
        "--max-num-batched-tokens",
        type=int,
        metavar="N",
        help=f"of a step (default {MAX_NUM_BATCHED_TOKENS}, or --max-num-seqs if that is more)",
    )
    engine.add_argument(
        "--profile", default="default", choices=PROFILES, help='of the ladder (default: "default")'
    )
    engine.add_argument(
        "--no-prefix-caching", action="store_true", help="compute every prompt from its beginning"
    )
    engine.add_argument(
        "--batch-invariant", action="store_true", help="no row depends on those beside it; slower"
    )
    add_workload_options(parser, requests=requests)
    results = parser.add_argument_group("results")
    results.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    results.add_argument("--plot", type=Path, metavar="FILE", help="draw them: .png, .svg or .pdf")


@dataclass(frozen=True)
class Bench:
    """An engine under test.

    Args:
        name: of the model.
        weights: "random", or "its own".
        engine: with nothing to do.
        runner: of its steps.
        vocab_size: of the model.
        mode: what is captured, in words.
        machine: names and versions.
        gpu: with its ceilings, measured now; None on the CPU.
        work: of its model's steps.
    """

    name: str
    weights: str
    engine: Engine
    runner: ModelRunner
    vocab_size: int
    mode: str
    machine: dict[str, str]
    gpu: GpuSpec | None
    work: ServingWork

    def bound_share(self, result: ServingResult) -> float | None:
        """Which share of a run's seconds with requests its steps take at least."""
        if self.gpu is None or not result.busy_s:
            return None
        return self.work.run_s(self.gpu, result) / result.busy_s


def check_result_files(args: argparse.Namespace) -> None:
    """Refuse files that could not be written, before anything is run.

    Raises:
        ValueError, RuntimeError: one cannot be.
    """
    check_record_file(args.json)
    if args.plot is not None:
        check_figure_file(args.plot)


def choose_workload(args: argparse.Namespace) -> Workload:
    """The workload that the options name; sequences are made as long as it needs.

    Raises:
        ValueError, OSError: an option or the model cannot be used; nothing was loaded.
    """
    check_counts("--max-num-seqs", [args.max_num_seqs])
    check_graph_mode(args.graph_mode)
    if (tokens := args.max_num_batched_tokens) is not None and tokens < args.max_num_seqs:
        raise ValueError(
            f"bench: --max-num-batched-tokens is {tokens}, expected at least --max-num-seqs, "
            f"{args.max_num_seqs}"
        )
    _, config = read_config(args)
    if args.max_model_len is not None:
        check_counts("--max-model-len", [args.max_model_len], config.longest_max_model_len)
    workload = Workload(args, args.max_model_len or config.longest_max_model_len)
    args.max_model_len = args.max_model_len or workload.longest
    return workload


def open_bench(benchmark: str, args: argparse.Namespace, workload: Workload) -> Bench:
    """Load what the options name, print what runs, and warm it up.

    Args:
        benchmark: its name.
        args: with the options of :func:`add_serving_options`.
        workload: two small requests of it warm up.

    Raises:
        ValueError, OSError, MemoryError: the model or an option cannot be used.
    """
    _, config = read_config(args)
    if args.shape is not None or args.random_weights:
        name, engine, runner = args.shape or args.model, *_random_engine(args, config)
        weights = "random"
    else:
        llm = load_llm(
            args,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            capture_sizes=args.profile,
            prefix_caching=not args.no_prefix_caching,
            batch_invariant=args.batch_invariant,
        )
        name, engine, runner, weights = args.model, llm.engine, llm.runner, "its own"
    machine = _describe(runner.device)
    mode = "none (the CPU captures nothing)"
    gpu = None
    if isinstance(runner.device, CudaDevice):
        mode = args.graph_mode if args.graph_mode != "none" else "none (EAGER, launch by launch)"
        try:
            gpu = measure_gpu(runner.device)
        except MemoryError as error:  # the KV cache has it all
            print(f"cugraphs: no share of a bound: {error}", file=sys.stderr)
    dtype = runner.plan.cache.dtype
    print(f"bench {benchmark}: {name}, {dtype}, weights: {weights}; mode {mode}")
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    if gpu is not None:
        print(
            f"ceilings, measured now: {gpu.read_bytes_per_s / 1e12:.3f} TB/s read, "
            f"{gpu.flops_per_s / 1e12:.0f} TFLOP/s of bf16 matrix products"
        )
    print(workload, flush=True)
    demands = workload.demands(config.vocab_size, run=_WARM_UP_RUN)[:_WARM_UP_REQUESTS]
    few = [dataclasses.replace(one, output_tokens=min(one.output_tokens, 8)) for one in demands]
    ServingRun(engine, few).run()
    work = serving_work(runner.plan.mixed.program, runner.plan.cache)
    return Bench(name, weights, engine, runner, config.vocab_size, mode, machine, gpu, work)


def serve(
    bench: Bench, demands: Sequence[Demand], advance: Callable[[str], None]
) -> tuple[ServingResult, bool]:
    """Run a workload; what there is of it, and whether it was interrupted."""
    run = ServingRun(bench.engine, demands, on_finished=lambda answer: advance("requests"))
    try:
        run.run()
    except KeyboardInterrupt:
        return run.result(), True
    return run.result(), False


def _random_engine(args: argparse.Namespace, config: LlamaConfig) -> tuple[Engine, ModelRunner]:
    """An engine with random weights and a stand-in vocabulary, as ``LLM`` makes one of a folder."""
    with device_as_option():
        device: Device = choose_device(
            args.device, allow_tf32=args.allow_tf32, tuning_table=args.tuning_table
        )
    dtype = choose_dtype(args.dtype, device, config.dtype, allow_tf32=args.allow_tf32)
    budget = MemoryBudget(args.num_kv_blocks, None, args.gpu_memory_utilization)
    ladder = Ladder(args.max_num_seqs, args.profile)
    tokens = args.max_num_batched_tokens or max(MAX_NUM_BATCHED_TOKENS, args.max_num_seqs)
    plan = StepPlan(
        Llama(config, dtype, batch_invariant=args.batch_invariant),
        plan_kv_cache(
            *(config, dtype, args.max_model_len, args.max_num_seqs),
            budget.num_kv_blocks,
            budget.kv_bytes(device),
        ),
        vocab_size=config.vocab_size,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=tokens,
        ladder=ladder,
    )
    runner = ModelRunner(
        plan,
        random_weights(config, dtype, args.max_model_len, device),
        device,
        mode=check_graph_mode(args.graph_mode),
        loops=steps_loop(args.step_loops, args.num_scheduler_steps),
        memory_bytes=budget.device_bytes(device),
    )
    engine = Engine(
        runner,
        stand_in_tokenizer(config.vocab_size),
        vocab_size=config.vocab_size,
        max_num_seqs=args.max_num_seqs,
        seed=args.seed,
        prefix_caching=not args.no_prefix_caching,
        num_scheduler_steps=args.num_scheduler_steps,
        steps_ahead=steps_ahead(args.async_scheduling, device),
    )
    return engine, runner


def _describe(device: Device) -> dict[str, str]:
    if isinstance(device, CudaDevice):
        return describe_machine(device)
    return {
        "cpu": platform.processor() or platform.machine(),
        "numpy": version("numpy"),
        "python": platform.python_version(),
    }
