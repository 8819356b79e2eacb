"""Serve requests in batch-invariant mode and keep the bits of every row of logits."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from model_runs import load_weights

from cugraphs import SamplingParams
from cugraphs.checkpoint import Checkpoint
from cugraphs.cpu_device import CpuDevice
from cugraphs.device import Device
from cugraphs.engine import Engine
from cugraphs.json_file import read_json_object
from cugraphs.kv_cache import KVCacheShape
from cugraphs.ladder import PROFILES, Ladder
from cugraphs.model_runner import GraphMode, ModelRunner
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.step_plan import StepPlan
from cugraphs.tokenizer import Tokenizer

BLOCK_SIZE = 4  # small, so that short sequences cross block edges


@dataclass(frozen=True)
class Asked:
    """A request; its seed is its name."""

    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True)
class Served:
    """What a request got: its tokens, and the bytes of its logits by position."""

    token_ids: tuple[int, ...]
    logits: dict[int, bytes]


@dataclass(frozen=True)
class Limits:
    """What a server may use, and when requests arrive.

    Args:
        max_num_seqs: and with it the buckets.
        max_num_batched_tokens: and with it the chunks of prompts.
        num_blocks: few of them make sequences wait and be preempted.
        arrivals: (steps that run before it arrives, number of the request), in order.
        rungs: the ladder's, a profile or row counts.
        prefix_caching: prompts that begin alike share blocks.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    arrivals: tuple[tuple[int, int], ...]
    rungs: str | tuple[int, ...] = "default"
    prefix_caching: bool = False


class RecordingRunner(ModelRunner):
    """A runner that keeps the logits of every row, under the seed of its sequence."""

    logits: dict[int, dict[int, bytes]]  # by seed and position of the token that they tell
    seeds: dict[int, int]  # of each slot
    submitted: deque[list[tuple[int, int]]]  # (seed, position) of each row of steps in flight

    def write_slot(self, slot, params, **request):
        self.seeds[slot] = request["seed"]
        super().write_slot(slot, params, **request)

    def submit(self, decode_slots, positions, chunks=(), **options):
        ticket = super().submit(decode_slots, positions, chunks, **options)
        rows = list(zip(decode_slots.tolist(), positions.tolist(), strict=True))
        for chunk in chunks:
            rows += [(chunk.slot, chunk.start + i + 1) for i in range(len(chunk.prompt_targets))]
            if chunk.samples:
                rows.append((chunk.slot, chunk.start + len(chunk.token_ids)))
        self.submitted.append([(self.seeds[slot], position) for slot, position in rows])
        return ticket

    def collect(self, ticket):
        outputs = super().collect(ticket)
        rows = self.submitted.popleft()
        for (seed, position), logits in zip(rows, outputs["logits"], strict=True):
            known = self.logits.setdefault(seed, {})
            found = logits.tobytes()
            assert known.setdefault(position, found) == found, "differs after a preemption"
        return outputs


class Server:
    """One model in one dtype on one device; serves lists of requests within limits."""

    def __init__(
        self,
        folder: Path,
        dtype: str,
        *,
        max_model_len: int,
        device: Device | None = None,
        mode: GraphMode = "none",
    ) -> None:
        self.dtype, self.max_model_len, self.mode = dtype, max_model_len, mode
        self.device = device or CpuDevice()
        files = [read_json_object(folder / f"{n}.json") for n in ("config", "generation_config")]
        self.tokenizer = Tokenizer.load(folder, *files)
        with Checkpoint.open(folder) as checkpoint:
            self.config = LlamaConfig.from_hf(checkpoint.config, str(folder))
            self.weights = load_weights(
                checkpoint.tensors,
                self.config,
                dtype,
                max_model_len,
                self.device,
                source=str(folder),
            )

    @property
    def fewest_blocks(self) -> int:
        """With which one sequence of the model's length can run: its blocks and the scratch one."""
        return 1 + -(-self.max_model_len // BLOCK_SIZE)

    def serve(self, asked: Sequence[Asked], limits: Limits) -> tuple[dict[int, Served], Engine]:
        """What each request got, by its number; and the engine, for what it counted."""
        config = self.config
        cache = KVCacheShape(
            num_layers=config.num_hidden_layers,
            num_blocks=limits.num_blocks,
            num_kv_heads=config.num_key_value_heads,
            block_size=BLOCK_SIZE,
            head_dim=config.head_dim,
            dtype=self.dtype,
            max_model_len=self.max_model_len,
        )
        plan = StepPlan(
            Llama(config, self.dtype, batch_invariant=True),
            cache,
            vocab_size=config.vocab_size,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            ladder=Ladder(limits.max_num_seqs, limits.rungs),
            output_logits=True,
        )
        runner = RecordingRunner(plan, self.weights, self.device, mode=self.mode, poison=True)
        runner.logits, runner.seeds, runner.submitted = {}, {}, deque()
        for name, array in runner.state.items():
            if "cache" in name:  # whatever is read before it is written shows
                self.device.write(array[1:], np.full(array[1:].shape, np.nan, array.dtype))
        engine = Engine(
            runner,
            self.tokenizer,
            vocab_size=config.vocab_size,
            max_num_seqs=limits.max_num_seqs,
            prefix_caching=limits.prefix_caching,
        )
        requests = {}
        for steps, number in limits.arrivals:
            for _ in range(steps):
                engine.step()
            requests[number] = engine.add_request(asked[number].prompt, asked[number].params)
        while engine.has_unfinished():
            engine.step()
        served = {}
        for number, request in requests.items():
            token_ids = tuple(request.output().outputs[0].token_ids)
            served[number] = Served(token_ids, runner.logits[asked[number].params.seed])
        return served, engine

    def alone(self, asked: Sequence[Asked]) -> dict[int, Served]:
        """What each request gets with nothing beside it: whole prompts, one row at a time."""
        served = {}
        for number in range(len(asked)):
            limits = Limits(1, self.max_model_len, self.fewest_blocks, ((0, number),))
            served |= self.serve(asked, limits)[0]
        return served


def requests_of(server: Server, longest: int, count: int) -> list[Asked]:
    """Prompts of 1 to ``longest`` random tokens, greedy and drawn, some with prompt logits.

    Every other prompt begins as the others of them do.
    """
    rng = np.random.default_rng(11)
    common = rng.integers(5, server.config.vocab_size, longest // 2)
    lengths = [1, 2, longest, *rng.integers(3, longest, count - 3)]
    asked = []
    for number, length in enumerate(lengths):
        params = SamplingParams(
            temperature=0 if number % 2 else 0.8,
            top_p=1.0 if number % 2 else 0.95,
            seed=number,
            max_tokens=int(rng.integers(2, 12)),
            ignore_eos=True,
            prompt_logprobs=0 if number % 3 == 0 else None,
        )
        prompt = rng.integers(5, server.config.vocab_size, length)
        if number % 2:
            prompt[: len(common)] = common[:length]
        asked.append(Asked(tuple(prompt.tolist()), params))
    return asked


@st.composite
def limits_for(draw: st.DrawFn, server: Server, count: int, budgets: Sequence[int]) -> Limits:
    """Any of the requests in any order, and any room for them."""
    numbers = draw(st.lists(st.integers(0, count - 1), unique=True, min_size=2))
    max_num_seqs = draw(st.integers(1, count))
    spare = draw(st.sampled_from([0, 1, 3, 10, 100]))
    return Limits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, draw(st.sampled_from(budgets))),
        num_blocks=server.fewest_blocks + spare,
        arrivals=tuple((draw(st.sampled_from([0, 0, 1, 3])), number) for number in numbers),
        rungs=draw(
            st.sampled_from([*PROFILES])
            | st.lists(st.integers(1, max_num_seqs), min_size=1).map(tuple)
        ),
        prefix_caching=draw(st.booleans()),
    )


def assert_same_as_alone(served: dict[int, Served], alone: dict[int, Served], what: str) -> None:
    """Bitwise the same logits at the same positions, and the same tokens."""
    for number, found in served.items():
        expected = alone[number]
        assert found.logits.keys() <= expected.logits.keys(), f"request {number}, {what}"
        for position, logits in found.logits.items():
            assert logits == expected.logits[position], (
                f"request {number} position {position}, {what}"
            )
        assert found.logits.keys() == expected.logits.keys(), f"request {number}, {what}"
        assert found.token_ids == expected.token_ids, f"request {number}, {what}"
