"""The least time that the steps of a serving run could take on a GPU, by the plan's own work.

A step reads every weight once, or multiplies for all of its tokens, whichever takes longer; then
it reads the K and V of the rows that decode. What attention computes over prompts is left out, so
that every figure is a lower bound. Knows planned programs and a GPU's ceilings; no engine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

from cugraphs.gpu_specs import GpuSpec
from cugraphs.kv_cache import KVCacheShape
from cugraphs.pricing import StepPrice, price_step
from cugraphs.program import Program
from cugraphs.serving_bench import ServingResult


@dataclass(frozen=True)
class ServingWork:
    """What any step of a model has to do, as far as its time depends on it.

    Args:
        weight_bytes: read once a step.
        flops_per_token: of the linear layers, without the head.
        flops_per_logits_row: of the head.
        kv_bytes_per_token: K and V of one token, all layers.
    """

    weight_bytes: int
    flops_per_token: int
    flops_per_logits_row: int
    kv_bytes_per_token: int

    def step_s(self, gpu: GpuSpec, *, tokens: float, logits_rows: float) -> float:
        """Seconds that a step takes at least, but for K and V.

        Args:
            gpu: with its ceilings.
            tokens: computed in the step.
            logits_rows: that a token is sampled of.
        """
        flops = tokens * self.flops_per_token + logits_rows * self.flops_per_logits_row
        return max(self.weight_bytes / gpu.read_bytes_per_s, flops / gpu.flops_per_s)

    def run_s(self, gpu: GpuSpec, result: ServingResult) -> float:
        """Seconds that the steps of a run take at least.

        Where a call ran several steps, each is taken to have done as much as the others.
        """
        ends = [step.end_s for step in result.steps]
        firsts = [answer.first_token_s for answer in result.answers]
        # A prompt's first token is sampled in the step of the prompt: its row computes nothing new.
        begun = Counter(bisect_left(ends, first) for first in firsts if first is not None)
        seconds = 0.0
        for index, record in enumerate(result.steps):
            if record.steps:
                decoded = max(record.generated_tokens - begun[index], 0)
                seconds += record.steps * self.step_s(
                    gpu,
                    tokens=(record.prompt_tokens + decoded) / record.steps,
                    logits_rows=record.generated_tokens / record.steps,
                )
        # The i-th token after the first is sampled with the prompt and i tokens in the cache.
        context_tokens = sum(
            later * answer.prompt_tokens + later * (later + 1) // 2
            for answer in result.answers
            if (later := answer.output_tokens - 1) > 0
        )
        return seconds + context_tokens * self.kv_bytes_per_token / gpu.read_bytes_per_s


def serving_work(mixed: Program, cache: KVCacheShape) -> ServingWork:
    """The work of a model's steps, from its program over any tokens."""

    def price(tokens: int, logits: int) -> StepPrice:
        return price_step(mixed, {"tokens": tokens, "seqs": 1, "logits": logits}, context=1)

    one = price(1, 1)
    return ServingWork(
        weight_bytes=one.weight_bytes,
        flops_per_token=price(2, 1).linear_flops - one.linear_flops,
        flops_per_logits_row=price(1, 2).linear_flops - one.linear_flops,
        kv_bytes_per_token=cache.bytes_per_block // cache.block_size,
    )
