"""One sequence as the scheduler knows it, and all running ones as arrays by slot. No CuPy."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cugraphs.kernel import Array
from cugraphs.sampling_params import SamplingParams


@dataclass(eq=False)
class Sequence:
    """A prompt that is being continued.

    Args:
        seq_id: unique in its engine.
        prompt_token_ids: never empty.
        params: how to continue it.
        max_tokens: tokens to generate at most; params.max_tokens cut to the model's limit.
        seed: key of its random numbers.
        sample_index: which of its request's samples it is.
        order: of admission: a lower one goes first.
        request_id: of the request that it is a sample of.
        leader: the sample of the same prompt that computes it for this one too.
        holders: of the samples of its prompt, those that run and whose blocks hold all of it, once
            all submitted steps have run. All samples have the same list.
        slot: its place among the running sequences, else -1.
        num_prompt_logprobs: prompt tokens whose log-probability is known; the first has none.
        ended: no token of it is wanted any more.
        failed: something went wrong with it: nobody is to find what it has written in the cache.
        token_ids: int32; prompt and answer while it waits. While it runs its slot has them.
    """

    seq_id: int
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    seed: int = 0
    sample_index: int = 0
    order: int = 0
    request_id: int = 0
    leader: Sequence | None = None
    holders: list[Sequence] = field(default_factory=list)
    slot: int = -1
    num_prompt_logprobs: int = 0
    ended: bool = False
    failed: bool = False
    token_ids: Array = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the prompt."""
        self.token_ids = np.array(self.prompt_token_ids, np.int32)

    def stand_at(self, answer_token_ids: list[int]) -> None:
        """Know so much of the answer."""
        self.token_ids = np.array([*self.prompt_token_ids, *answer_token_ids], np.int32)

    @property
    def end_position(self) -> int:
        """Tokens of prompt and answer at most."""
        return len(self.prompt_token_ids) + self.max_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether its prompt's log-probabilities are wanted of it and not complete yet.

        They are the same for all samples of a request: the first one brings them.
        """
        return (
            self.params.prompt_logprobs is not None
            and self.sample_index == 0
            and self.num_prompt_logprobs < len(self.prompt_token_ids) - 1
        )

    @property
    def waits_for_leader(self) -> bool:
        """Whether its prompt is computed by another sample, or will be, and by none as yet."""
        leader = self.leader
        return leader is not None and not leader.ended and not self.holders


class SequenceSlots:
    """The running sequences as arrays by slot: what moves at every step needs no loop over rows.

    A step is *submitted*, and *collected* once its tokens are there. Other steps may be submitted
    between the two.

    Attributes:
        sequences: who is in each slot.
        token_ids: int32 [slots, longest]; prompt and answer of each.
        num_tokens: int64 [slots]; of those, how many are known: all that were collected.
        num_computed: int64 [slots]; tokens in the cache once all submitted steps have run.
        num_written: int64 [slots]; tokens that the collected steps have put there.
        end_position: int64 [slots]; tokens of prompt and answer at most.
        decodes: bool [slots]; whether the newest token, known or not, is all that must be computed.
        ended: bool [slots]; whether no token is wanted any more, of steps still to be collected.
        last_step: int64 [slots]; the last submitted step with a row of it.
        num_with_logprobs: sequences that want log-probabilities of their answers.
    """

    def __init__(self, num_slots: int, max_model_len: int) -> None:
        """All empty. The tokens take memory only as they are written."""
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.token_ids = np.zeros((num_slots, max_model_len), np.int32)
        self.num_tokens = np.zeros(num_slots, np.int64)
        self.num_computed = np.zeros(num_slots, np.int64)
        self.num_written = np.zeros(num_slots, np.int64)
        self.end_position = np.zeros(num_slots, np.int64)
        self.decodes = np.zeros(num_slots, np.bool_)
        self.ended = np.zeros(num_slots, np.bool_)
        self.last_step = np.zeros(num_slots, np.int64)
        self.num_with_logprobs = 0

    def place(self, sequence: Sequence, slot: int, num_computed: int) -> None:
        """Put a sequence into an empty slot, with so many tokens in the cache already."""
        self.sequences[slot] = sequence
        sequence.slot = slot
        self.token_ids[slot, : len(sequence.token_ids)] = sequence.token_ids
        self.num_tokens[slot] = len(sequence.token_ids)
        self.num_computed[slot] = self.num_written[slot] = num_computed
        self.end_position[slot] = sequence.end_position
        self.num_with_logprobs += sequence.params.logprobs is not None

    def empty(self, slot: int) -> None:
        """Take the sequence out; its tokens are its own again."""
        sequence = self.sequences[slot]
        assert sequence is not None
        sequence.token_ids = self.known_tokens(slot).copy()
        sequence.slot = -1
        self.num_with_logprobs -= sequence.params.logprobs is not None
        self.sequences[slot] = None
        self.decodes[slot] = self.ended[slot] = False

    def known_tokens(self, slot: int) -> Array:
        """Prompt and answer so far, int32 (a view)."""
        known: Array = self.token_ids[slot, : self.num_tokens[slot]]
        return known
