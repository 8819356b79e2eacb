"""What a step costs the host: scheduling, state, inputs, results and text, without a device.

The pipeline runs as it does in an engine on a GPU, one step ahead, over a device that computes
nothing; its tokens are drawn between the steps. Text is timed apart, on the same tokens, since it
has a thread of its own.
"""

from __future__ import annotations

import cProfile
import gc
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cugraphs.block_manager import BlockManager
from cugraphs.completion import Completion
from cugraphs.cpu_device import CpuDevice
from cugraphs.device import QueueOp
from cugraphs.device_choice import ModelSizes
from cugraphs.kernel import Array
from cugraphs.kv_cache import KVCacheShape
from cugraphs.ladder import Ladder
from cugraphs.model_runner import ModelRunner
from cugraphs.program import Buffer, Program
from cugraphs.request import Request
from cugraphs.sampling_params import SamplingParams
from cugraphs.scheduler import Scheduler
from cugraphs.sequence import Sequence as TokenSequence
from cugraphs.statistics import PHASES, EngineCounters
from cugraphs.step_pipeline import StepPipeline
from cugraphs.step_plan import Model, StepPlan
from cugraphs.text_worker import AnswerWriter, StepTokens
from cugraphs.token_ring import RING_STEPS
from cugraphs.tokenizer import Tokenizer

BLOCK_SIZE = 16
STEPS_AHEAD = 1
PROMPT_TOKENS = 64  # a sequence that joins brings
_WARM_UP_STEPS = 20
_TEXT_STEPS = 200  # whose text is timed
_WINDOW_STEPS = 16  # timed together: each sequence fills a block in them
_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


def length_of(steps: int) -> int:
    """Tokens of a sequence that does not end while so many steps are timed and profiled."""
    return PROMPT_TOKENS + _WARM_UP_STEPS + 2 * steps + _WINDOW_STEPS + 2


@dataclass(frozen=True)
class HostTimes:
    """What steps of so many rows cost.

    Args:
        rows: sequences that run at once.
        answer_tokens: of each, after which another sequence takes its place; 0: none ends.
        steps: timed.
        phase_us: microseconds of a step by the clock, by phase: means over 16 steps, the median of
            those. To "wait" is to read tokens that are there.
        cpu_us: of a step, of the processor in the step's thread, likewise. Where others want the
            processor too the clock says more.
        collections: of garbage, while the steps were timed, by generation.
        collection_us: of a step, in those: a mean, whatever windows they fell into.
        text_us: of a token, of the processor in the thread of the text: the median over steps.
        profile: the functions of the step's thread that took most, as (place, microseconds of a
            step), from a run of its own that is slower for it.
    """

    rows: int
    answer_tokens: int
    steps: int
    phase_us: Mapping[str, float]
    cpu_us: float
    collections: Sequence[int]
    collection_us: float
    text_us: float
    profile: Sequence[tuple[str, float]]

    @property
    def step_us(self) -> float:
        """Of a step, all phases."""
        return sum(self.phase_us.values())


class _IdleDevice(CpuDevice):
    """Memory of the CPU, programs that do nothing, and sizes rounded as for a GPU."""

    shares_host_memory = False

    def bind(
        self,
        program: Program,
        arrays: Mapping[Buffer, Array],
        *,
        workspace: Array | None,
        poison: bool,
    ) -> list[QueueOp]:
        """No ops."""
        return []


class _DrawingRunner(ModelRunner):
    """A runner whose steps have random tokens."""

    def __init__(self, plan: StepPlan, weights: Mapping[str, Array]) -> None:
        super().__init__(plan, weights, _IdleDevice())
        draw = np.random.default_rng(0)
        self._drawn = draw.integers(0, plan.vocab_size, (64, plan.ring_rows), np.int32)

    def draw(self) -> None:
        """Say the tokens of the next steps, as a device that has run them."""
        for step in range(self.ring.next_step, self.ring.next_step + 1 + STEPS_AHEAD):
            words = self.ring.arrays["token_ring"][step % RING_STEPS]
            words[:, 0], words[:, 1] = self._drawn[step % len(self._drawn)], step


class _Load:
    """A pipeline with as many sequences as it has slots."""

    def __init__(
        self,
        plan: StepPlan,
        weights: Mapping[str, Array],
        tokenizer: Tokenizer,
        *,
        answer_tokens: int,
        keeps_tokens: bool = False,
    ) -> None:
        rows = plan.state.num_slots
        self.counters = EngineCounters()
        self.tokens: list[StepTokens] = []
        self.sequences: list[TokenSequence] = []  # all of them, where tokens are kept
        self._joined = 0
        self._answer_tokens, self._rows = answer_tokens, rows
        self.keeps_tokens = keeps_tokens
        self._prompts = np.random.default_rng(1).integers(0, plan.vocab_size, (64, PROMPT_TOKENS))
        blocks = BlockManager(
            plan.cache.num_blocks,
            BLOCK_SIZE,
            num_slots=rows,
            max_blocks=plan.cache.max_blocks,
        )
        self.scheduler = Scheduler(
            blocks,
            max_num_seqs=rows,
            max_model_len=plan.cache.max_model_len,
            max_num_batched_tokens=plan.max_num_batched_tokens,
            max_prompt_logits=rows,
        )
        self._runner = _DrawingRunner(plan, weights)
        self.pipeline = StepPipeline(
            self.scheduler,
            self._runner,
            self.counters,
            eos_token_ids=sorted(tokenizer.eos_token_ids),
            give=self._keep,
            steps_ahead=STEPS_AHEAD,
        )
        self.cpu_s = 0.0  # of the steps
        for row in range(rows):
            # Lengths differ, so that blocks fill and sequences end in different steps.
            self._join(PROMPT_TOKENS - row % BLOCK_SIZE, row * answer_tokens // rows)

    def run(self, steps: int) -> None:
        """Run steps, and let others join for those that end."""
        for _ in range(steps):
            self._runner.draw()
            begin_s = time.thread_time()
            self.counters.begin_phases()
            self.pipeline.step()
            self.cpu_s += time.thread_time() - begin_s
            while len(self.scheduler.running) + len(self.scheduler.waiting) < self._rows:
                self._join(PROMPT_TOKENS, 0)

    def _keep(self, tokens: StepTokens) -> None:
        if self.keeps_tokens:
            self.tokens.append(tokens)

    def _join(self, prompt_tokens: int, answered: int) -> None:
        number = self._joined
        self._joined += 1
        prompt = self._prompts[number % len(self._prompts), :prompt_tokens].tolist()
        prompt[0] = number % 997  # no two of those that run together begin alike
        longest = self.scheduler.slots.token_ids.shape[1] - prompt_tokens
        max_tokens = self._answer_tokens - answered if self._answer_tokens else longest
        sequence = TokenSequence(number, prompt, _GREEDY, max_tokens, order=number)
        if self.keeps_tokens:
            self.sequences.append(sequence)
        self.scheduler.add(sequence)


def host_plan(
    model: Model, sizes: ModelSizes, *, rows: int, vocab_size: int, max_model_len: int
) -> StepPlan:
    """A plan with room in the cache for ``rows`` sequences of ``max_model_len`` tokens."""
    cache = KVCacheShape(
        num_layers=sizes.num_hidden_layers,
        num_blocks=1 + rows * -(-max_model_len // BLOCK_SIZE),
        num_kv_heads=sizes.num_key_value_heads,
        block_size=BLOCK_SIZE,
        head_dim=sizes.head_dim,
        dtype="float32",
        max_model_len=max_model_len,
    )
    return StepPlan(
        model,
        cache,
        vocab_size=vocab_size,
        max_num_seqs=rows,
        max_num_batched_tokens=max(2048, rows),
        ladder=Ladder(rows),
    )


def time_host(
    plan: StepPlan,
    weights: Mapping[str, Array],
    tokenizer: Tokenizer,
    *,
    answer_tokens: int,
    steps: int,
) -> HostTimes:
    """Time steps of as many sequences as the plan has slots, then the text of their tokens."""
    load = _Load(plan, weights, tokenizer, answer_tokens=answer_tokens)
    load.run(_WARM_UP_STEPS)
    count = -(-steps // _WINDOW_STEPS)
    gc.collect()  # what starting has left, which a long run has behind it
    with _watched_collection() as pauses_s:
        windows, cpu_us = zip(*(_window_us(load) for _ in range(count)), strict=True)
    talk = _Load(plan, weights, tokenizer, answer_tokens=answer_tokens, keeps_tokens=True)
    talk.run(_WARM_UP_STEPS + _TEXT_STEPS)
    return HostTimes(
        rows=plan.state.num_slots,
        answer_tokens=answer_tokens,
        steps=steps,
        phase_us=sorted(windows, key=lambda phases: sum(phases.values()))[len(windows) // 2],
        cpu_us=statistics.median(cpu_us),
        collections=[len(found) for found in pauses_s],
        collection_us=sum(map(sum, pauses_s)) / (count * _WINDOW_STEPS) * 1e6,
        text_us=_text_us(talk, tokenizer),
        profile=_profile(load, steps),
    )


def _window_us(load: _Load) -> tuple[dict[str, float], float]:
    """Microseconds of a step, mean over some: of each phase by the clock, and of the processor."""
    before, before_s = dict(load.counters.host_seconds), load.cpu_s
    load.run(_WINDOW_STEPS)
    after = load.counters.host_seconds
    phase_us = {phase: (after[phase] - before[phase]) / _WINDOW_STEPS * 1e6 for phase in PHASES}
    return phase_us, (load.cpu_s - before_s) / _WINDOW_STEPS * 1e6


@contextmanager
def _watched_collection() -> Iterator[list[list[float]]]:
    """How long each collection of garbage takes inside, in seconds, by generation."""
    pauses_s: list[list[float]] = [[], [], []]
    begin_s = 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal begin_s
        if phase == "start":
            begin_s = time.perf_counter()
        else:
            pauses_s[info["generation"]].append(time.perf_counter() - begin_s)

    gc.callbacks.append(note)
    try:
        yield pauses_s
    finally:
        gc.callbacks.remove(note)


def _text_us(load: _Load, tokenizer: Tokenizer) -> float:
    """Microseconds of a token: its text, the rules, and what is handed back."""
    writer = AnswerWriter(tokenizer, len(load.scheduler.slots.sequences))
    for number, sequence in enumerate(load.sequences):
        completion = Completion(sequence, tokenizer)
        prompt = tuple(sequence.prompt_token_ids)
        request = Request(
            number, None, prompt, [completion], None, streams=False, catch_up=lambda: None
        )
        writer.answers[sequence] = request, completion
    for step in load.tokens[:_WARM_UP_STEPS]:
        writer.take(step)
    timed = load.tokens[_WARM_UP_STEPS:]
    found = []
    for step in timed:
        start_s = time.thread_time()
        writer.take(step)
        found.append((time.thread_time() - start_s) / max(len(step.slots), 1) * 1e6)
    assert not writer.errors, writer.errors
    return statistics.median(found)


def _profile(load: _Load, steps: int) -> list[tuple[str, float]]:
    """Where the step's thread spends its time: the dozen functions that take most themselves."""
    profiler = cProfile.Profile()
    profiler.enable()
    load.run(steps)
    profiler.disable()
    found = []
    for entry in profiler.getstats():
        code = entry.code
        place = code if isinstance(code, str) else f"{Path(code.co_filename).name} {code.co_name}"
        found.append((place, entry.inlinetime / steps * 1e6))
    return sorted(found, key=lambda each: -each[1])[:12]
