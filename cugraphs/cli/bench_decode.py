"""How long a decode step takes: mean over the tokens after a prompt, sampling included.

Timed twice, on a rested GPU: as the engine drives it, with scheduling and text, and on the GPU
alone, replay by replay. Shares are of the floor, to read all weights and the sequences' K and V
once, at the read ceiling that is measured first. No prompt is computed: the KV cache is filled with
random numbers.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cugraphs.cli.bench_session import (
    BenchSession,
    add_common_options,
    check_counts,
    progress_bar,
)
from cugraphs.cli.tables import TableConsole, milliseconds, new_table
from cugraphs.counted import counted
from cugraphs.decode_bench import (
    GREEDY,
    ONE_AHEAD,
    REST_S,
    BenchModel,
    DecodeTimes,
    Queueing,
    RandomCacheRunner,
    length_of,
    step_work,
    time_decode,
)
from cugraphs.gpu_specs import GpuSpec
from cugraphs.ladder import Ladder
from cugraphs.model_runner import GraphMode
from cugraphs.sampling_params import SamplingParams
from cugraphs.step_bound import StepBound, bound_step
from cugraphs.token_ring import MAX_STEPS

if TYPE_CHECKING:
    from argparse import _SubParsersAction

MODES = {
    "full": "full (the step is one CUDA graph)",
    "none": "none (EAGER, launch by launch: not decode speed)",
}


_SAMPLING = (
    ("temperature", float, "of the sampled tokens (default: greedy; where a filter is given, 1)"),
    ("top-k", int, "sample from the N likeliest tokens only"),
    ("top-p", float, "sample from the likeliest tokens that together have this probability"),
    ("min-p", float, "drop tokens below this share of the likeliest token's probability"),
)


@dataclass(frozen=True)
class DecodeResult:
    """One batch and prompt: times, and the least that the card could take.

    Args:
        times: measured.
        launches: of a step.
        bound: of the step, by the measured ceilings.
        floor_ms: to read weights, K and V.
        step_share: the floor's share of a step as the engine drives it.
        replay_share: its share of a replay on the GPU; None where there is none.
    """

    times: DecodeTimes
    launches: int
    bound: StepBound
    floor_ms: float
    step_share: float
    replay_share: float | None


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the benchmark."""
    parser = subparsers.add_parser(
        "decode", help="time of a decode step, and its share of the bound", description=__doc__
    )
    add_common_options(parser)
    add_work_options(parser, batches=[1], prompts=[128])
    parser.add_argument(
        "--mode", default="full", choices=MODES, help="full: one graph (default); none: eager"
    )
    parser.add_argument(
        "--sync",
        action="store_true",
        help="wait for the tokens of a step before the next is queued, as nobody would",
    )
    parser.add_argument(
        "--scheduler-steps",
        type=int,
        default=1,
        metavar="K",
        help="steps that are queued together (default 1)",
    )
    parser.add_argument(
        "--step-loops", action="store_true", help="queue those as one launch, a loop"
    )
    for name, kind, text in _SAMPLING:
        parser.add_argument(f"--{name}", type=kind, metavar="N", help=text)
    parser.set_defaults(run=run)


def sampling_of(args: argparse.Namespace) -> SamplingParams:
    """How the tokens are drawn.

    Raises:
        ValueError: a number is out of range.
    """
    names = [name.replace("-", "_") for name, _, _ in _SAMPLING]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if not given:
        return GREEDY
    return SamplingParams(ignore_eos=True, seed=0, **given)


def describe_sampling(sampling: SamplingParams) -> str:
    """In words."""
    if sampling.is_greedy:
        return "greedy"
    filters = {"top-k": sampling.top_k, "min-p": sampling.min_p}
    on = [f"{name} {value:g}" for name, value in filters.items() if value > 0]
    on += [f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
    return ", ".join([f"temperature {sampling.temperature:g}", *on])


def add_work_options(
    parser: argparse.ArgumentParser, *, batches: list[int], prompts: list[int]
) -> None:
    """Add the batches and prompts to time, one by one."""
    shown = (" ".join(map(str, values)) for values in (batches, prompts))
    parser.add_argument(
        "--batch",
        type=int,
        nargs="+",
        default=batches,
        metavar="N",
        help=f"sequences (default {next(shown)})",
    )
    parser.add_argument(
        "--prompt",
        type=int,
        nargs="+",
        default=prompts,
        metavar="N",
        help=f"tokens of each before the first step: one for all batches, or one each (default "
        f"{next(shown)})",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=128,
        metavar="N",
        help="to generate while time is taken (default 128)",
    )


def works(args: argparse.Namespace) -> list[tuple[int, int]]:
    """The (batch, prompt) pairs that are asked for.

    Raises:
        ValueError: a number is out of range, or there are not as many prompts as batches.
    """
    check_counts("--batch", args.batch)
    check_counts("--prompt", args.prompt, 1 << 24)
    check_counts("--tokens", [args.tokens], 1 << 20)
    prompts = args.prompt * len(args.batch) if len(args.prompt) == 1 else args.prompt
    if len(prompts) != len(args.batch):
        raise ValueError(
            f"bench: --prompt has {counted(len(prompts), 'number')} for "
            f"{counted(len(args.batch), 'batch', 'batches')}, expected "
            "one, or one each"
        )
    return list(zip(args.batch, prompts, strict=True))


def run(args: argparse.Namespace) -> int:
    """Time every pair, and print."""
    pairs = works(args)
    check_counts("--scheduler-steps", [args.scheduler_steps], MAX_STEPS)
    queueing = Queueing(args.scheduler_steps, 0 if args.sync else 1, args.step_loops)
    sampling = sampling_of(args)
    mode = f"{MODES[args.mode]}, {queueing}, {describe_sampling(sampling)}"
    session = BenchSession("decode", mode, args)
    longest = max(length_of(prompt, args.tokens) for _, prompt in pairs) + queueing.num_steps
    session.check_length(longest)
    gpu = session.measure_gpu()
    model = session.load(longest)
    results = []
    with progress_bar(len(pairs)) as advance:
        for batch, prompt in pairs:
            result = measure(model, gpu, batch, prompt, args.tokens, args.mode, queueing, sampling)
            results.append(result)
            advance(f"{batch} x {prompt}")
    _print(results, mode)
    session.finish(gpu, results=results)
    return 0


def measure(
    model: BenchModel,
    gpu: GpuSpec,
    batch: int,
    prompt_tokens: int,
    tokens: int,
    mode: str,
    queueing: Queueing = ONE_AHEAD,
    sampling: SamplingParams = GREEDY,
) -> DecodeResult:
    """Time one batch after one prompt, in a runner of its own."""
    # Blocks are taken ahead for all steps that are queued together.
    length = length_of(prompt_tokens, tokens) + queueing.num_steps
    plan = model.plan(Ladder(batch, [batch]), length=length)
    graph_mode: GraphMode = "full" if mode == "full" else "none"
    runner = RandomCacheRunner(model, plan, graph_mode, loops=queueing.loops)
    times = time_decode(
        runner,
        batch=batch,
        prompt_tokens=prompt_tokens,
        tokens=tokens,
        queueing=queueing,
        sampling=sampling,
    )
    context = round(times.mean_context)
    work = step_work(plan, batch, context=context, arch=gpu.arch)
    bound = bound_step(work, gpu, rows=batch, rung=batch, context=context)
    floor_ms = bound.weight_ms + bound.kv_ms
    return DecodeResult(
        times=times,
        launches=work.launches,
        bound=bound,
        floor_ms=floor_ms,
        step_share=floor_ms / times.step_ms,
        replay_share=None if times.replay_ms is None else floor_ms / times.replay_ms,
    )


def _print(results: list[DecodeResult], mode: str) -> None:
    tokens = results[0].times.tokens
    table = new_table(
        f"a decode step, mean over {counted(tokens, 'token')}; mode {mode}",
        "batch x prompt",
        *("step", "tokens/s", "floor", "share", "GPU replay", "share"),
        *("bound", "host adds", "launch", "kernels"),
    )
    for result in results:
        times = result.times
        replay = ["", "", ""]
        if times.replay_ms is not None and result.replay_share is not None:
            added_us = (times.step_ms - times.replay_ms) * 1e3
            replay = [
                milliseconds(times.replay_ms),
                f"{result.replay_share:.1%}",
                f"{added_us:,.0f} us",
            ]
        table.add_row(
            f"{times.batch} x {times.prompt_tokens}",
            milliseconds(times.step_ms),
            f"{times.tokens_per_s:,.0f}",
            milliseconds(result.floor_ms),
            f"{result.step_share:.1%}",
            *replay[:2],
            milliseconds(result.bound.total_ms),
            replay[2],
            "" if times.launch_us is None else f"{times.launch_us:.1f} us",
            f"{result.launches}",
        )
    console = TableConsole()
    console.print(table)
    console.print(
        "step: as the engine drives it, with scheduling, sampling and text; the KV cache "
        "holds random numbers, no prompt was computed. floor: weights, K and V read once at the "
        "ceiling. bound: the floor, or the linear layers' flops where they take longer than the "
        f"weights. The GPU rests {REST_S} s before step and before GPU replay; where it draws more "
        "power than it may, steps in a row take longer."
    )
