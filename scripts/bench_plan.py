"""Measures how long planning takes: trace, fuse, assign and verify of every program of a model.

    python scripts/bench_plan.py
    python scripts/bench_plan.py --model smollm2-135m --repeats 30

Plans what an engine needs before it can run: a decode program for each fusion class of the ladder,
which serve all rungs, and the mixed program. No weights, no GPU. Times are wall-clock milliseconds
of one thread, the least and the median of the repeats; the target is 300 ms in all for an 8B model.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from cugraphs.buffer_assignment import BufferAssignment, assign_buffers
from cugraphs.compiler import Step
from cugraphs.executable import PlannedProgram
from cugraphs.fusion import fuse
from cugraphs.kv_cache import KVCacheShape
from cugraphs.model_shapes import MODEL_SHAPES, model_shape
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.program import Program
from cugraphs.step_plan import StepPlan
from cugraphs.trace import Tracer

TARGET_MS = 300.0
PHASES = ("trace", "fuse", "assign", "verify")
MAX_MODEL_LEN, BLOCK_SIZE = 8192, 16
T = TypeVar("T")

MODELS = ("llama-3.1-8b", "smollm2-135m")


def step_plan(config: LlamaConfig, max_num_seqs: int, tokens: int) -> StepPlan:
    """Everything at once, as an engine plans it."""
    cache = KVCacheShape(
        num_layers=config.num_hidden_layers,
        num_blocks=1 + max_num_seqs * MAX_MODEL_LEN // BLOCK_SIZE,
        num_kv_heads=config.num_key_value_heads,
        block_size=BLOCK_SIZE,
        head_dim=config.head_dim,
        dtype="bfloat16",
        max_model_len=MAX_MODEL_LEN,
    )
    plan = StepPlan(
        Llama(config, "bfloat16"),
        cache,
        vocab_size=config.vocab_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=tokens,
    )
    plan.arena()
    return plan


@dataclass
class Timings:
    """Milliseconds of each repeat, by phase, and what was planned."""

    planned: PlannedProgram
    num_traced_ops: int
    ms: dict[str, list[float]] = field(default_factory=dict)

    @property
    def row(self) -> str:
        """Least milliseconds of each phase, and least and median of their sum."""
        sums = [sum(parts) for parts in zip(*self.ms.values(), strict=True)]
        phases = "".join(f"{min(self.ms[phase]):8.2f}" for phase in PHASES)
        program = self.planned.program
        return (
            f"{program.name:<12}{self.num_traced_ops:>6}{len(program.ops):>7}{phases}"
            f"{min(sums):8.2f}{statistics.median(sums):8.2f}"
        )


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """The result, and the wall-clock milliseconds that it took."""
    start = time.perf_counter()
    result = function()
    return result, (time.perf_counter() - start) * 1e3


def traced_program(name: str, step: Step) -> Program:
    """The program that ``step`` records."""
    tracer = Tracer(name)
    step(tracer)
    return tracer.program


def measure(name: str, step: Step, repeats: int) -> Timings:
    """Trace, fuse, assign and verify one program ``repeats`` times."""
    ms: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for _ in range(repeats):
        traced, trace_ms = timed(partial(traced_program, name, step))
        fused, fuse_ms = timed(partial(fuse, traced))
        assignment, assign_ms = timed(partial(assign_buffers, fused))
        _, verify_ms = timed(partial(assignment.verify, fused))
        for phase, phase_ms in zip(PHASES, (trace_ms, fuse_ms, assign_ms, verify_ms), strict=True):
            ms[phase].append(phase_ms)
    return Timings(PlannedProgram(fused, assignment), len(traced.ops), ms)


def memory_row(name: str, assignment: BufferAssignment) -> str:
    """Bytes of the temporaries, against the lower bound and against no sharing."""
    return (
        f"{name:<12}{len(assignment.offsets):>8}{assignment.arena_bytes:>16,}"
        f"{assignment.peak_live_bytes:>16,}{assignment.total_bytes:>18,}"
    )


def bench(name: str, max_num_seqs: int, token_counts: list[int], repeats: int) -> None:
    """Print both tables and the totals of one model."""
    config = LlamaConfig.from_hf(model_shape(name), name)
    plans = {tokens: step_plan(config, max_num_seqs, tokens) for tokens in token_counts}
    plan = plans[token_counts[0]]
    steps: dict[str, Step] = {
        f"decode_{rows}": partial(plan.record_decode, rows=rows) for rows in plan.ladder.classes
    }
    steps |= {f"mixed_{tokens}": each.record_mixed for tokens, each in plans.items()}
    timings = [measure(step_name, step, repeats) for step_name, step in steps.items()]

    print(f"{name}, bfloat16, {max_num_seqs} sequences, rungs {plan.ladder.rungs}")
    print(f"\n{'ms':<12}{'traced':>6}{'fused':>7}" + "".join(f"{p:>8}" for p in PHASES), end="")
    print(f"{'sum':>8}{'median':>8}")
    for timing in timings:
        print(timing.row)
    print(f"\n{'bytes':<12}{'buffers':>8}{'arena':>16}{'lower bound':>16}{'without sharing':>18}")
    for timing in timings:
        print(memory_row(timing.planned.program.name, timing.planned.assignment))
    print()
    for tokens in token_counts:
        plan_all = partial(step_plan, config, max_num_seqs, tokens)
        totals = [timed(plan_all)[1] for _ in range(repeats)]
        print(
            f"all rungs and mixed_{tokens}: {min(totals):.1f} ms least, "
            f"{statistics.median(totals):.1f} ms median, target {TARGET_MS:.0f} ms"
        )


def main() -> None:
    """Parse the arguments and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODEL_SHAPES, help="default: an 8B and a 135M")
    parser.add_argument("--max-num-seqs", type=int, default=256, metavar="N")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192], metavar="N")
    parser.add_argument("--repeats", type=int, default=10, metavar="N")
    args = parser.parse_args()
    gc.collect()
    for index, name in enumerate([args.model] if args.model else MODELS):
        print("\n" * bool(index), end="")
        bench(name, args.max_num_seqs, args.tokens, args.repeats)


if __name__ == "__main__":
    main()
