"""What a step costs the host: scheduling, state, inputs, results and text, without a device.

The pipeline runs as it does in an engine, over a device that computes nothing and a runner that
draws tokens. Text is timed apart, on the same tokens, since it has a thread of its own.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cugraphs.block_manager import BlockManager
from cugraphs.completion import Completion
from cugraphs.device import CpuDevice, Run
from cugraphs.kernel import Array
from cugraphs.kv_cache import KVCacheShape
from cugraphs.ladder import Ladder
from cugraphs.model_runner import Model, ModelRunner, StepPlan, Ticket
from cugraphs.program import Buffer, Program
from cugraphs.request import Request
from cugraphs.sampling_params import SamplingParams
from cugraphs.scheduler import Scheduler
from cugraphs.sequence import Sequence as TokenSequence
from cugraphs.statistics import EngineCounters
from cugraphs.step_pipeline import StepPipeline
from cugraphs.text_worker import AnswerWriter, StepTokens
from cugraphs.tokenizer import Tokenizer

BLOCK_SIZE = 16
PROMPT_TOKENS = 64  # a sequence that joins brings
PHASES = ("schedule", "submit", "collect")
_WARM_UP_STEPS = 20


@dataclass(frozen=True)
class HostTimes:
    """What steps of so many rows cost.

    Args:
        rows: sequences that run at once.
        answer_tokens: of each, after which another sequence takes its place; 0: none ends.
        steps: timed.
        phase_us: microseconds of a step, by phase.
        text_us: of a token, in the thread of the text.
        profile: the functions of the step's thread that took most, as (place, microseconds of a
            step), from a run of its own that is slower for it.
    """

    rows: int
    answer_tokens: int
    steps: int
    phase_us: Mapping[str, float]
    text_us: float
    profile: Sequence[tuple[str, float]]

    @property
    def step_us(self) -> float:
        """Of a step, all phases."""
        return sum(self.phase_us.values())


class _IdleDevice(CpuDevice):
    """Memory of the CPU, and programs that do nothing."""

    def bind(
        self,
        program: Program,
        arrays: Mapping[Buffer, Array],
        *,
        workspace: Array | None,
        poison: bool,
    ) -> list[Run]:
        """No ops."""
        return []


class _DrawingRunner(ModelRunner):
    """A runner whose steps have random tokens."""

    def __init__(self, plan: StepPlan) -> None:
        super().__init__(plan, _Nothing(), _IdleDevice())
        rows = plan.state.num_slots
        self._drawn = np.random.default_rng(0).integers(
            plan.vocab_size // 2, plan.vocab_size, (64, 2 * rows), np.int32
        )
        self._next = 0

    def collect(self, ticket: Ticket) -> Mapping[str, Array]:
        self._next = (self._next + 1) % len(self._drawn)
        return {"token_ids": self._drawn[self._next, : len(ticket.parts[0]["token_ids"])]}
