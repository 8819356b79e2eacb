"""The least time that the steps of a serving run could take on a GPU, by the plan's own work.

A step reads every weight once, or multiplies for all of its tokens, whichever takes longer; then
it reads the K and V of the rows that decode. What attention computes over prompts is left out, so
that every figure is a lower bound. Knows planned programs and a GPU's ceilings; no engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from cugraphs.gpu_specs import GpuSpec
from cugraphs.kv_cache import KVCacheShape
from cugraphs.pricing import StepPrice, price_step
from cugraphs.program import Program


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

    def bound_s(self, gpu: GpuSpec, *, tokens: int, logits_rows: int, context_tokens: int) -> float:
        """Seconds that a step takes at least.

        Args:
            gpu: with its ceilings.
            tokens: computed in the step.
            logits_rows: that a token is sampled of.
            context_tokens: in the cache of the rows that decode, all together.
        """
        flops = tokens * self.flops_per_token + logits_rows * self.flops_per_logits_row
        linear_s = max(self.weight_bytes / gpu.read_bytes_per_s, flops / gpu.flops_per_s)
        return linear_s + context_tokens * self.kv_bytes_per_token / gpu.read_bytes_per_s


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
