"""Decode steps of one batch, timed as the engine runs them and as the GPU replays them.

No prompt is computed: the KV cache is filled with random numbers, and the step after the prompts is
left out. Everything else is what a request meets: scheduling, the step with its sampling, and
text, of a stand-in vocabulary. The GPU rests before either is timed: steps draw more power than it
may take for long, so the second would be slower for the first. The model arrives as an argument.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers

from cugraphs.cuda_device import CudaDevice
from cugraphs.device import Device
from cugraphs.device_choice import ModelSizes, plan_kv_cache
from cugraphs.engine import Engine
from cugraphs.kernel import Array
from cugraphs.ladder import Ladder
from cugraphs.model_runner import GraphMode, ModelRunner, Ticket
from cugraphs.pricing import price_step
from cugraphs.random_fill import fill_random
from cugraphs.replay_timing import LAUNCHES, launch_us, replay_ms
from cugraphs.sampling_params import SamplingParams
from cugraphs.step_bound import StepWork
from cugraphs.step_plan import Model, StepPlan
from cugraphs.step_state import Chunk, fill_decode, fill_launch
from cugraphs.tokenizer import Tokenizer

WARM_UP_TOKENS = 8  # of each sequence, before time is taken
REST_S = 0.7  # until a GPU that was held back for its power is as quick as before
SETTLING_STEPS = 3  # until a step's inputs change no state any more, so that it can be replayed
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass(frozen=True)
class BenchModel:
    """A model whose weights are in a device's memory.

    Args:
        name: to print.
        model: records its steps.
        sizes: of it.
        vocab_size: of it.
        dtype: of weights, activations, K and V.
        max_model_len: tokens of the longest sequence.
        weights: by name.
        device: that holds them.
    """

    name: str
    model: Model
    sizes: ModelSizes
    vocab_size: int
    dtype: str
    max_model_len: int
    weights: Mapping[str, Array]
    device: Device

    def plan(
        self,
        ladder: Ladder,
        *,
        length: int,
        prefill_tokens: int | None = None,
        kind: type[StepPlan] = StepPlan,
    ) -> StepPlan:
        """Its steps at the rungs of a ladder.

        Args:
            ladder: of decode steps.
            length: tokens that every sequence has room for in the KV cache.
            prefill_tokens: of a mixed step; None: as few as can be, since none is run.
            kind: of the plan.
        """
        blocks = plan_kv_cache(self.sizes, self.dtype, length, ladder.max_rows, None, 1 << 62)
        longest = plan_kv_cache(self.sizes, self.dtype, self.max_model_len, 1, None, 0)
        num_blocks = max(blocks.num_blocks, longest.num_blocks)
        return kind(
            self.model,
            plan_kv_cache(
                self.sizes, self.dtype, self.max_model_len, ladder.max_rows, num_blocks, 0
            ),
            vocab_size=self.vocab_size,
            max_num_seqs=ladder.max_rows,
            max_num_batched_tokens=prefill_tokens or ladder.max_rows,
            ladder=ladder,
        )


@dataclass(frozen=True)
class Queueing:
    """How the engine queues steps.

    Args:
        num_steps: how many are submitted together.
        steps_ahead: how many may be in flight when others are submitted.
        loops: whether those together are one launch, a loop.
    """

    num_steps: int = 1
    steps_ahead: int = 1
    loops: bool = False

    def __str__(self) -> str:
        """In words."""
        queued = "one" if self.num_steps == 1 else f"{self.num_steps} at once"
        ahead = "while the last runs" if self.steps_ahead else "after the tokens of the last"
        return f"steps queued {queued}, {ahead}{', as loops' if self.loops else ''}"


ONE_AHEAD = Queueing()


@dataclass(frozen=True)
class DecodeTimes:
    """What a decode step takes.

    Args:
        batch: sequences.
        prompt_tokens: of each.
        tokens: that were generated for each while time was taken.
        step_ms: mean time of a step as the engine drives it, from the first to the last token.
        replay_ms: mean time of a replay on the GPU, over as many tokens; None where steps are
            not captured.
        launch_us: of the graph, on the host.
    """

    batch: int
    prompt_tokens: int
    tokens: int
    step_ms: float
    replay_ms: float | None = None
    launch_us: float | None = None

    @property
    def mean_context(self) -> float:
        """Tokens in the cache of each sequence, over the timed steps, the current one included."""
        return self.prompt_tokens + WARM_UP_TOKENS + (self.tokens + 1) / 2

    @property
    def tokens_per_s(self) -> float:
        """Of all sequences together."""
        return self.batch / self.step_ms * 1e3


class RandomCacheRunner(ModelRunner):
    """A runner whose KV cache holds random numbers in place of what prompts would put there."""

    def __init__(
        self,
        bench: BenchModel,
        plan: StepPlan,
        mode: GraphMode,
        progress: Callable[[int], None] | None = None,
        *,
        loops: bool = False,
    ) -> None:
        """Capture, and fill the cache.

        Raises:
            MemoryError: it does not fit.
        """
        super().__init__(
            plan, bench.weights, bench.device, mode=mode, progress=progress, loops=loops
        )
        self._random = np.random.default_rng(0)
        for name in plan.cache.types:
            fill_random(self.device, self.state[name][1:])  # block 0 is that of dead rows

    def submit(
        self,
        decode_slots: Array,
        positions: Array,
        chunks: Sequence[Chunk] = (),
        **how: Any,  # noqa: ANN401
    ) -> list[Ticket]:
        """Of chunks nothing is computed: the state is told a token for each."""
        if not chunks:
            return super().submit(decode_slots, positions, **how)
        token_ids = self._random.integers(0, self.plan.vocab_size, len(chunks), np.int32)
        for chunk, token_id in zip(chunks, token_ids, strict=True):
            self.mirror.set("num_computed", chunk.slot, chunk.start + len(chunk.token_ids))
            self.mirror.set("last_token", chunk.slot, token_id)
        return [Ticket([], outputs=[{"token_ids": token_ids}])]

    def collect(self, ticket: Ticket) -> Mapping[str, Array] | None:
        """The tokens that :meth:`submit` drew, or as of a runner."""
        return super().collect(ticket) if ticket.steps else ticket.outputs[0]


def length_of(prompt_tokens: int, tokens: int) -> int:
    """Tokens of a sequence that is timed over ``tokens`` of them."""
    return prompt_tokens + WARM_UP_TOKENS + tokens + SETTLING_STEPS + 2


def time_decode(
    runner: RandomCacheRunner,
    *,
    batch: int,
    prompt_tokens: int,
    tokens: int,
    queueing: Queueing = ONE_AHEAD,
    sampling: SamplingParams = GREEDY,
) -> DecodeTimes:
    """Time steps as the engine drives them, then replays of the step's graph, if it has one."""
    rest(runner.device)
    step_ms = time_engine(
        runner,
        batch=batch,
        prompt_tokens=prompt_tokens,
        tokens=tokens,
        queueing=queueing,
        sampling=sampling,
    )
    if batch not in runner.decode.captured or not isinstance(runner.device, CudaDevice):
        return DecodeTimes(batch, prompt_tokens, tokens, step_ms)
    rest(runner.device)
    samples = time_rung(
        runner,
        batch,
        rows=batch,
        prompt_tokens=prompt_tokens,
        replays=WARM_UP_TOKENS + tokens,
        sampling=sampling,
    )
    replay = statistics.mean(samples[WARM_UP_TOKENS:])
    launch = launch_us(runner.device, runner.decode.graph(batch))
    runner.ring.next_step += LAUNCHES
    return DecodeTimes(batch, prompt_tokens, tokens, step_ms, replay, launch)


def rest(device: Device) -> None:
    """Leave a GPU alone until what ran before does not count any more."""
    if isinstance(device, CudaDevice):
        device.wait()
        time.sleep(REST_S)


def time_engine(
    runner: RandomCacheRunner,
    *,
    batch: int,
    prompt_tokens: int,
    tokens: int,
    queueing: Queueing = ONE_AHEAD,
    sampling: SamplingParams = GREEDY,
) -> float:
    """Milliseconds of a step, over ``tokens`` tokens of each of ``batch`` sequences.

    Args:
        runner: of as many slots.
        batch: sequences.
        prompt_tokens: of each.
        tokens: to generate for each while time is taken.
        queueing: of the steps; loops need a runner with loops.
        sampling: of every sequence; it lets none end.
    """
    plan = runner.plan
    engine = Engine(
        runner,
        stand_in_tokenizer(plan.vocab_size),
        vocab_size=plan.vocab_size,
        max_num_seqs=batch,
        seed=0,
        prefix_caching=False,
        num_scheduler_steps=queueing.num_steps,
        steps_ahead=queueing.steps_ahead,
    )
    engine.scheduler.max_num_batched_tokens = batch * prompt_tokens  # all prompts in one step
    random = np.random.default_rng(1)
    requests = [
        engine.add_request(random.integers(0, plan.vocab_size, prompt_tokens).tolist(), sampling)
        for _ in range(batch)
    ]

    def step() -> None:
        for output in engine.step():  # none has ended when the time is over
            raise RuntimeError(f"bench decode: a sequence has ended ({output.error or 'too soon'})")

    def generated() -> int:
        return int(engine.scheduler.slots.num_tokens.min()) - prompt_tokens

    try:
        while (before := generated()) < 1 + WARM_UP_TOKENS:
            step()
        start = time.perf_counter()
        while (after := generated()) < before + tokens:
            step()
        return (time.perf_counter() - start) * 1e3 / (after - before)
    finally:
        for request in requests:
            engine.abort(request)


def time_rung(
    runner: RandomCacheRunner,
    rung: int,
    *,
    rows: int,
    prompt_tokens: int,
    replays: int,
    sampling: SamplingParams = GREEDY,
) -> list[float]:
    """Milliseconds of each replay of a rung on the GPU with ``rows`` live rows.

    A step leaves the state as the next one needs it, so each replay is one token further.
    """
    assert isinstance(runner.device, CudaDevice), "replays are a GPU's"
    chunks = settle(runner, rows, prompt_tokens, sampling)
    inputs = runner.decode.inputs(rung)
    inputs["changes"][:, 0] = -1
    fill_launch(inputs, runner.ring.begin())
    fill_decode(inputs, [chunk.slot for chunk in chunks])
    runner.decode.run(rung)
    runner.ring.next_step += replays  # the device counts them
    return replay_ms(runner.device, runner.decode.graph(rung), replays)


def settle(
    runner: RandomCacheRunner, rows: int, prompt_tokens: int, sampling: SamplingParams = GREEDY
) -> list[Chunk]:
    """Put ``rows`` sequences behind their prompts and run steps until the host changes nothing."""
    cache = runner.plan.cache
    per_sequence = min((runner.num_kv_blocks - 1) // rows, cache.max_blocks)
    tables = [list(range(first, first + per_sequence)) for first in _firsts(rows, per_sequence)]
    for slot in range(rows):
        runner.write_slot(
            slot,
            sampling,
            seed=slot,
            sample_index=0,
            stop_token_ids=(),
            prompt_token_ids=(),
            output_token_ids=(),
        )
    random = np.random.default_rng(2)
    tokens = random.integers(0, runner.plan.vocab_size, rows).tolist()
    chunks: list[Chunk] = []
    for position in range(prompt_tokens, prompt_tokens + SETTLING_STEPS):
        chunks = [
            Chunk([token], position, table, slot)
            for slot, (token, table) in enumerate(zip(tokens, tables, strict=True))
        ]
        tokens = runner.run(chunks)["token_ids"].tolist()
    return chunks


def _firsts(rows: int, per_sequence: int) -> range:
    """The first block of each sequence; block 0 is nobody's."""
    return range(1, 1 + rows * per_sequence, per_sequence)


def step_work(plan: StepPlan, rows: int, *, context: int, arch: str = "") -> StepWork:
    """What a decode step has to do at a rung."""
    program = plan.decode[plan.ladder.class_for(rows)].program
    price = price_step(program, {"rows": rows}, context=context, arch=arch)
    return StepWork(
        weight_bytes=price.weight_bytes,
        linear_flops_per_row=price.linear_flops // rows,
        kv_bytes_per_token=plan.cache.bytes_per_block // plan.cache.block_size,
        launches=price.launches,
    )


def stand_in_tokenizer(vocab_size: int) -> Tokenizer:
    """A word for every token id: text costs the host what it does with a real vocabulary."""
    words = {f"word{token_id}": token_id for token_id in range(vocab_size)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="word0"))
    return Tokenizer(backend, prefix=(), bos_token_id=None, eos_token_ids=frozenset())
