"""One sequence: its tokens, how many of them are computed, and why it ended. No CuPy."""

from __future__ import annotations

from dataclasses import dataclass, field

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
        leader: the sequence of the same prompt that computes it for this one too.
        num_computed: tokens whose K and V are in the cache.
        slot: its place in the sampling state while it runs, else -1.
        num_prompt_logprobs: prompt tokens whose log-probability is known; the first has none.
    """

    seq_id: int
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    seed: int = 0
    sample_index: int = 0
    order: int = 0
    leader: Sequence | None = None
    output_token_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    slot: int = -1
    num_prompt_logprobs: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed(self) -> int:
        """Tokens that the next steps must run; 1 for a sequence that decodes."""
        return self.num_tokens - self.num_computed

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
        """Whether its prompt is just being computed by another sequence."""
        return (
            self.leader is not None
            and self.leader.finish_reason is None
            and self.leader.num_computed < len(self.prompt_token_ids)
        )

    def tokens(self, start: int, stop: int) -> list[int]:
        """The tokens at positions ``start`` to ``stop - 1``, over prompt and output."""
        prompt = len(self.prompt_token_ids)
        if start >= prompt:
            return self.output_token_ids[start - prompt : stop - prompt]
        return [
            *self.prompt_token_ids[start:stop],
            *self.output_token_ids[: max(stop - prompt, 0)],
        ]

    def finish(self, reason: str, stop_reason: int | str | None = None) -> None:
        """Mark the sequence as ended."""
        self.finish_reason = reason
        self.stop_reason = stop_reason
