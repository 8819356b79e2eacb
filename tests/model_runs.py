"""Run a checkpoint's steps without a tokenizer: what the model tests share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.checkpoint import Checkpoint
from cugraphs.cpu_device import CpuDevice
from cugraphs.device import Device
from cugraphs.kv_cache import KVCacheShape
from cugraphs.ladder import Ladder
from cugraphs.model_runner import ModelRunner
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.weights import begin_loading
from cugraphs.step_plan import StepPlan
from cugraphs.step_state import Chunk

BLOCK_SIZE = 4  # small, so that short sequences cross block edges


def load_weights(
    tensors: Mapping[str, Any],
    config: LlamaConfig,
    dtype: str,
    length: int,
    device: Device,
    **how: Any,
) -> dict[str, Any]:
    """Every weight on the device, loaded."""
    weights, loading = begin_loading(tensors, config, dtype, length, device, **how)
    with loading:
        return weights


class ModelRun:
    """Greedy sequences of one model over scattered blocks of a poisoned cache, on one device."""

    def __init__(
        self,
        config: LlamaConfig,
        tensors: Mapping[str, Any],
        *,
        dtype: str = "float32",
        max_num_seqs: int = 20,
        max_model_len: int = 64,
        max_num_batched_tokens: int | None = None,
        block_size: int = BLOCK_SIZE,
        batch_invariant: bool = False,
        poison: bool = True,
        mode: str = "none",
        ladder: Ladder | None = None,
        device: Device | None = None,
        source: str = "test",
        loops: bool = False,
    ) -> None:
        self.config = config
        device = device or CpuDevice()
        weights = load_weights(tensors, config, dtype, max_model_len, device, source=source)
        cache = KVCacheShape(
            num_layers=config.num_hidden_layers,
            num_blocks=1 + max_num_seqs * -(-max_model_len // block_size),
            num_kv_heads=config.num_key_value_heads,
            block_size=block_size,
            head_dim=config.head_dim,
            dtype=dtype,
            max_model_len=max_model_len,
        )
        plan = StepPlan(
            Llama(config, dtype, batch_invariant=batch_invariant),
            cache,
            vocab_size=config.vocab_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens or max(max_num_seqs * max_model_len, 64),
            ladder=ladder,
            output_logits=True,
        )
        self.runner = ModelRunner(
            plan, weights, device, poison=poison, mode=mode, debug=True, loops=loops
        )
        for name, array in self.runner.state.items():
            if "cache" in name:  # whatever is read before it is written shows
                device.write(array[1:], np.full(array[1:].shape, np.nan, array.dtype))
        order = np.random.default_rng(0).permutation(cache.num_blocks - 1) + 1
        self.block_tables = order.reshape(max_num_seqs, -1).tolist()

    def prefill(
        self, prompts: Sequence[Sequence[int]], *, starts: Sequence[int] | None = None
    ) -> tuple[list[int], list[np.ndarray]]:
        """One step over whole prompts (or their rest from ``starts``): the sampled token of each,
        and its logits [tokens, vocab] at every position."""
        starts = starts or [0] * len(prompts)
        chunks = [
            Chunk(
                token_ids=prompt[start:],
                start=start,
                block_table=table,
                slot=slot,
                prompt_targets=prompt[start + 1 :],
            )
            for slot, (prompt, start, table) in enumerate(
                zip(prompts, starts, self.block_tables, strict=False)
            )
        ]
        outputs = self.runner.run_mixed(chunks)
        ends = np.cumsum([chunk.num_logits for chunk in chunks])
        logits = np.split(outputs["logits"].copy(), ends[:-1])
        return outputs["token_ids"][ends - 1].tolist(), logits

    def decode(self, sequences: Sequence[Sequence[int]]) -> tuple[list[int], np.ndarray]:
        """One decode step over the last token of each sequence; sampled tokens and logits."""
        chunks = [
            Chunk(token_ids=tokens[-1:], start=len(tokens) - 1, block_table=table, slot=slot)
            for slot, (tokens, table) in enumerate(zip(sequences, self.block_tables, strict=False))
        ]
        outputs = self.runner.run(chunks)
        return outputs["token_ids"].tolist(), outputs["logits"].copy()

    def greedy(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        """``count`` greedy tokens after each prompt, decoded together."""
        sequences = [list(map(int, prompt)) for prompt in prompts]
        tokens, _ = self.prefill(sequences)
        for step in range(count):
            if step:
                tokens, _ = self.decode(sequences)
            for sequence, token in zip(sequences, tokens, strict=True):
                sequence.append(token)
        return sequences


class CheckpointRun(ModelRun):
    """A :class:`ModelRun` of a checkpoint folder."""

    def __init__(self, folder: Path, **options: Any) -> None:
        with Checkpoint.open(folder) as checkpoint:
            config = LlamaConfig.from_hf(checkpoint.config, str(folder / "config.json"))
            super().__init__(config, checkpoint.tensors, source=str(folder), **options)
