"""Sizes of published Llama models, at which kernels are timed. Knows no kernel.

``8b`` is Llama 3.1 8B, ``1b`` and ``3b`` Llama 3.2 1B and 3B, ``70b`` Llama 3.1 70B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .paged_cases import Heads


@dataclass(frozen=True)
class ModelSizes:
    """What of a model's ``config.json`` the shapes of its arrays follow from."""

    hidden: int
    inter: int
    heads: Heads


VOCAB = 128_256
MODELS = {
    "1b": ModelSizes(2048, 8192, Heads(32, 8, 64)),
    "3b": ModelSizes(3072, 8192, Heads(24, 8, 128)),
    "8b": ModelSizes(4096, 14_336, Heads(32, 8, 128)),
    "70b": ModelSizes(8192, 28_672, Heads(64, 8, 128)),
}
MATRICES = {  # of 8b: out_features and in_features
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (28_672, 4096),
    "down": (4096, 14_336),
    "lm_head": (VOCAB, 4096),
}

# Decode batches, and what a prefill step holds.
_ROWS = {"8b": (1, 64, 1024, 2048, 8192), "1b": (1, 64, 2048, 8192), "70b": (64, 2048, 8192)}


def rowwise_sizes() -> Iterator[tuple[str, ModelSizes, int]]:
    """Name, model and rows of the benchmarks of kernels that move rows of activations."""
    for model, counts in _ROWS.items():
        for rows in counts:
            yield f"{model}_{rows}_row{'s' * (rows > 1)}", MODELS[model], rows
