"""Prompts timed from the first chunk to the first token, step by step as an engine runs them.

Knows a runner and one prompt; not scheduling and text, which cost the same for any length.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from cugraphs.model_runner import ModelRunner
from cugraphs.pricing import price_step
from cugraphs.sampling_params import SamplingParams
from cugraphs.step_plan import StepPlan
from cugraphs.step_state import Chunk

_WARM_UP_RUNS = 2  # kernels are compiled or loaded, and clocks come up
_ATTENTION = "paged_prefill_attention"
_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass(frozen=True)
class PrefillWork:
    """What a prompt has to do, over all its chunks.

    Args:
        linear_flops: of the matrix products.
        attention_flops: of the positions that a token sees, no others.
        weight_bytes: read once for each chunk.
        launches: of all chunks.
    """

    linear_flops: int
    attention_flops: int
    weight_bytes: int
    launches: int

    @property
    def flops(self) -> int:
        """Of both."""
        return self.linear_flops + self.attention_flops


def chunks_of(prompt_tokens: int, chunk_tokens: int) -> list[tuple[int, int]]:
    """Where each chunk of a prompt begins and ends, of at most so many tokens."""
    starts = range(0, prompt_tokens, chunk_tokens)
    return [(start, min(start + chunk_tokens, prompt_tokens)) for start in starts]


def prefill_work(plan: StepPlan, prompt_tokens: int, *, arch: str = "") -> PrefillWork:
    """The work of a prompt in chunks as large as the plan's mixed step takes."""
    works = []
    chunks = chunks_of(prompt_tokens, plan.max_num_batched_tokens)
    for start, end in chunks:
        sizes = {"tokens": end - start, "seqs": 1, "logits": int(end == prompt_tokens)}
        price = price_step(plan.mixed.program, sizes, context=end, arch=arch)
        attention = sum(k.cost.flops for k in price.kernels if k.name == _ATTENTION)
        works.append((price.linear_flops, attention, price.weight_bytes, price.launches))
    return PrefillWork(*map(sum, zip(*works, strict=True)))


def time_prefill(runner: ModelRunner, prompt_tokens: int, *, runs: int) -> float:
    """Milliseconds until a prompt's first token is on the host, the median of some runs."""
    random = np.random.default_rng(3)
    tokens = random.integers(0, runner.plan.vocab_size, prompt_tokens).tolist()
    table = list(range(1, 1 - (-prompt_tokens // runner.plan.cache.block_size)))
    runner.write_slot(
        0,
        _GREEDY,
        seed=0,
        sample_index=0,
        stop_token_ids=(),
        prompt_token_ids=(),
        output_token_ids=(),
    )
    chunks = [
        Chunk(tokens[start:end], start, table, slot=0, samples=end == prompt_tokens)
        for start, end in chunks_of(prompt_tokens, runner.plan.max_num_batched_tokens)
    ]
    samples = []
    for _ in range(_WARM_UP_RUNS + runs):
        start = time.perf_counter()
        for chunk in chunks:
            runner.run_mixed([chunk])
        samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples[_WARM_UP_RUNS:])
