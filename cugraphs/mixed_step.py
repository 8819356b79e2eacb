"""Steps with prompt tokens: at sizes that come again, and small ones as graphs.

Knows programs, sizes and memory; not what a chunk is. Rows beyond those of the step are dead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from cugraphs.bucketed_step import ProgramMemory, StepCounts
from cugraphs.counted import counted
from cugraphs.device import CaptureError, Device
from cugraphs.executable import pieces_of
from cugraphs.kernel import Array
from cugraphs.ladder import Ladder, token_ladder
from cugraphs.mixed_sizes import FEW_TOKENS, round_rows, round_tokens
from cugraphs.step_plan import StepPlan

_log = logging.getLogger("cugraphs")

# Tokens of a step up to which pieces are captured. Measured on an H200, one prompt, eager against
# pieces: Llama 3.2 1B 1.51 to 1.33 ms at 8 tokens, 2.09 to 1.99 at 128; Llama 3.1 8B 5.08 to 4.87
# and 6.18 to 6.08. From 200 tokens on the padding of the 8B costs more than its launches.
MAX_PIECE_TOKENS = 128


class MixedStep:
    """Runs chunks of several sequences, the pieces between attention replayed where captured."""

    def __init__(
        self, plan: StepPlan, device: Device, memory: ProgramMemory, counts: StepCounts
    ) -> None:
        """Bind the program; nothing is captured yet.

        Args:
            plan: the planned programs.
            device: runs them.
            memory: was laid out for them.
            counts: where steps, captures and padding are counted.
        """
        self.executable = memory.executable(plan.mixed)
        self.num_captured_nodes = 0
        self._plan = plan
        self._device = device
        self._counts = counts
        self._rungs: Ladder | None = None  # of token counts that are captured

    def sizes(self, tokens: int, seqs: int, logits: int) -> dict[str, int]:
        """Sizes that serve so many: on a GPU a little larger, so that bindings come again."""
        sizes = {"tokens": tokens, "seqs": seqs, "logits": logits}
        if not self._device.shares_host_memory:  # there binding costs little, and padding much
            plan = self._plan
            sizes = {
                "tokens": round_tokens(tokens, plan.max_num_batched_tokens),
                "seqs": round_rows(seqs, plan.state.num_slots),
                "logits": round_rows(logits, plan.ring_rows),
            }
        if self._rungs is not None and tokens <= self._rungs.top:
            sizes["tokens"] = self._rungs.rung_for(tokens)
        return sizes

    def run(self, sizes: Mapping[str, int], tokens: int) -> dict[str, Array]:
        """Queue a step on what ``executable.inputs(sizes)`` was filled with.

        Args:
            sizes: from :meth:`sizes`.
            tokens: those of the chunks.

        Returns:
            The device's outputs, at ``sizes``.
        """
        self._counts.padding_rows += sizes["tokens"] - tokens
        if self._rungs is None or tokens > self._rungs.top:
            self._counts.eager_steps["a step with prompt tokens"] += 1
        return self.executable.run(sizes)

    def capture(self, fill_dead: Callable[[dict[str, Array]], None]) -> None:
        """Capture the runs of ops between attention at every token rung, the largest first.

        And the whole step of one prompt that ends in it: attention's launches too follow from
        sizes alone, and a graph leaves no gaps between kernels. A failure leaves all of it eager; a
        device without graphs captures nothing.

        Args:
            fill_dead: fills the inputs of a step without a chunk.
        """
        if not self._device.has_graphs:
            return
        rungs = _piece_ladder(self._plan)
        program = self._plan.mixed.program
        for tokens in reversed(rungs.rungs):
            sizes = {"tokens": tokens, "seqs": 1, "logits": 1}
            fill_dead(self.executable.inputs(sizes))
            self.executable.run(sizes)
            try:
                graphs = self.executable.capture_pieces("tokens", sizes)
                whole = self.executable.capture(sizes)
            except CaptureError as error:
                size = counted(tokens, "token")
                _log.warning("pieces of %s: %s; such steps run eagerly", size, error)
                return
            self._counts.captures += len(graphs) + 1
            self.num_captured_nodes += sum(b - a for a, b in pieces_of(program, "tokens"))
            self.num_captured_nodes += whole.num_nodes
        self._rungs = rungs


def sizes_of_a_start(plan: StepPlan, *, pieces: bool) -> list[dict[str, int]]:
    """The sizes that a start binds and those of long prompts, whose kernels are to be loaded.

    Args:
        plan: the planned programs.
        pieces: of small steps are captured.
    """
    rungs = _piece_ladder(plan).rungs if pieces else ()
    few = [tokens for tokens in FEW_TOKENS if tokens <= plan.max_num_batched_tokens]
    sizes = [{"tokens": tokens, "seqs": 1, "logits": 1} for tokens in (*rungs, *few)]
    # Rows of logits: of prompts' tokens too.
    for rows in sorted({round_rows(n, plan.ring_rows) for n in range(1, plan.ring_rows + 1)}):
        seqs = min(rows, plan.state.num_slots)
        sizes.append({"tokens": plan.max_num_batched_tokens, "seqs": seqs, "logits": rows})
    return sizes


def _piece_ladder(plan: StepPlan) -> Ladder:
    """The token counts of mixed steps whose pieces are captured."""
    return token_ladder(plan.state.num_slots, plan.max_num_batched_tokens, most=MAX_PIECE_TOKENS)
