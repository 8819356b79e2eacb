"""Where the GPU's time of a step goes: every kind of op, its share of the ceiling, and the gap.

Each op is timed alone, in a chain of its kind over all layers; the replay of the whole step beside
their sum shows what launches and ramps cost, less what programmatic launches overlap. Where all
layers are one launch, the phases of a layer follow, from a replay of kernels that note the GPU's
clock; --plot draws such a replay. Weights and the KV cache are random.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cugraphs.cli.bench_session import (
    BenchSession,
    add_common_options,
    check_counts,
    progress_bar,
)
from cugraphs.cli.tables import TableConsole, new_table
from cugraphs.counted import counted
from cugraphs.cuda_device import CudaDevice
from cugraphs.decode_bench import BenchModel, length_of
from cugraphs.figure_file import check_figure_file
from cugraphs.gpu_specs import GpuSpec
from cugraphs.kernel_speed import three_digits
from cugraphs.ladder import Ladder
from cugraphs.launch import STAMPED
from cugraphs.step_profile import (
    ProfiledRunner,
    ProfiledStep,
    StepProfile,
    decode_step,
    prefill_step,
    timeline,
)
from cugraphs.step_timeline import Timed, phase_times
from cugraphs.timeline_plot import draw_timeline

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_REPLAYS = 32
_MOST_TOKENS = 1 << 20


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "profile", help="time of each op of a step on this GPU", description=__doc__
    )
    add_common_options(parser)
    parser.add_argument(
        "--batch", type=int, default=1, metavar="N", help="sequences of a decode step (default 1)"
    )
    parser.add_argument(
        "--prompt",
        type=int,
        default=128,
        metavar="N",
        help="tokens of each in the KV cache (default 128)",
    )
    parser.add_argument(
        "--prefill", type=int, metavar="N", help="in place of it, a step over a prompt of N tokens"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the step's timeline into a png, svg or pdf"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Profile one step, and print."""
    check_counts("--batch", [args.batch], who="profile")
    check_counts("--prompt", [args.prompt], _MOST_TOKENS, who="profile")
    if args.prefill is not None:
        check_counts("--prefill", [args.prefill], _MOST_TOKENS, who="profile")
    if args.plot is not None:
        check_figure_file(args.plot)
    session = BenchSession("profile", "full (the step is one CUDA graph)", args)
    length = args.prefill + 2 if args.prefill else length_of(args.prompt, _REPLAYS)
    session.check_length(length)
    gpu = session.measure_gpu()
    model = session.load(length)
    with progress_bar(1) as advance:
        step, replay_us = _prepare(model, args)
        context = args.prefill or args.prompt + _REPLAYS
        ops = step.ops_us(advance, context=context)
        has_phases = any(launch.phases for launch in step.launches)
    profile = StepProfile(_words(args), ops, replay_us)
    del step  # with its memory
    if has_phases or args.plot is not None:
        profile = _stamp(model, args, profile, context)
    _print(profile, gpu)
    session.finish(gpu, profile=profile, sum_us=profile.sum_us, gap_us=profile.gap_us)
    return 0


def _prepare(model: BenchModel, args: argparse.Namespace) -> tuple[ProfiledStep, float]:
    """The step that is asked for, its inputs in place, and the time of its replay in us."""
    if args.prefill:
        plan = model.plan(Ladder(1, [1]), length=args.prefill + 2, prefill_tokens=args.prefill)
        runner = ProfiledRunner(model, plan, "none")
        return prefill_step(runner, args.prefill, replays=8)
    plan = model.plan(Ladder(args.batch, [args.batch]), length=length_of(args.prompt, _REPLAYS))
    runner = ProfiledRunner(model, plan, "full")
    return decode_step(runner, args.batch, prompt_tokens=args.prompt, replays=_REPLAYS)


def _stamp(
    model: BenchModel, args: argparse.Namespace, profile: StepProfile, context: int
) -> StepProfile:
    """Run the step with kernels that note the clock: phases, and a picture where one is wanted."""
    stamped = BenchModel(**{**vars(model), "device": CudaDevice(build=(STAMPED,))})
    step, _ = _prepare(stamped, args)
    spans, stamped_us = timeline(step)
    if args.plot is not None:
        title = f"{model.name}, {profile.step}: {stamped_us:,.0f} us, kernels noting the clock"
        draw_timeline(spans, title, args.plot)
    phases = phase_times(spans, step.program, step.sizes, context=context)
    return replace(profile, stamped_us=stamped_us, phases=phases)


def _words(args: argparse.Namespace) -> str:
    if args.prefill:
        return f"a prompt of {counted(args.prefill, 'token')}"
    return f"decode, {args.batch} x {args.prompt}"


def _print(profile: StepProfile, gpu: GpuSpec) -> None:
    table = new_table(
        f"{profile.step}: the GPU's time by op",
        "op",
        *("size", "ops", "kernels", "us", "in all, us", "of replay"),
        *("MB", "GB/s", "TFLOP/s", "of ceiling"),
    )
    for op in sorted(profile.ops, key=lambda op: -op.total_us):
        table.add_row(
            op.kernel,
            op.detail,
            f"{op.ops}",
            f"{op.launches}",
            three_digits(op.us),
            f"{op.total_us:,.1f}",
            f"{op.total_us / profile.replay_us:.1%}",
            *_rates(op, gpu),
        )
    console = TableConsole()
    console.print(table)
    gap = profile.gap_us
    console.print(
        f"sum of ops {profile.sum_us:,.0f} us, replay {profile.replay_us:,.0f} us: gap {gap:+,.0f} "
        f"us ({gap / profile.replay_us:+.1%}). us: of one op, alone, with its launch; of ceiling: "
        "bytes at the read ceiling or flops at the matrix ceiling, whichever share is larger."
    )
    for kernel in dict.fromkeys(phase.kernel for phase in profile.phases):
        _print_phases(console, kernel, profile, gpu)
    if profile.stamped_us is not None:
        console.print(f"the replay with clock stamps: {profile.stamped_us:,.0f} us")


def _print_phases(console: TableConsole, kernel: str, profile: StepProfile, gpu: GpuSpec) -> None:
    phases = [phase for phase in profile.phases if phase.kernel == kernel]
    total_us = sum(phase.us for phase in phases)
    table = new_table(
        f"{kernel}: its phases, by clock stamps, mean of {phases[0].ops}",
        "phase",
        *("us", "in all, us", "of op", "busy, us", "MB", "GB/s", "TFLOP/s", "of ceiling"),
    )
    for phase in phases:
        table.add_row(
            phase.phase,
            three_digits(phase.us),
            f"{phase.ops * phase.us:,.1f}",
            f"{phase.us / total_us:.1%}",
            three_digits(phase.busy_us),
            *_rates(phase, gpu),
        )
    console.print(table)
    console.print(
        f"{total_us:,.1f} us of an op. us: from the last block's end of the phase before to its "
        "own; busy: an average block, from when it has what the phase needs to its end. What a "
        "phase reads may be under way before it begins: shares of short ones mean little alone."
    )


def _rates(work: Timed, gpu: GpuSpec) -> tuple[str, ...]:
    """MB, GB/s, TFLOP/s, of ceiling."""
    return (
        three_digits(work.cost.bytes_accessed / 1e6),
        three_digits(work.bytes_per_s / 1e9),
        three_digits(work.flops_per_s / 1e12),
        f"{work.share(gpu.read_bytes_per_s, gpu.flops_per_s):.1%}",
    )
