"""One request while it runs: a prompt and its growing answers. No scheduling, no arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

from cugraphs.completion import Completion
from cugraphs.outputs import Logprob, RequestOutput
from cugraphs.statistics import RequestClock


@dataclass(eq=False)
class Request:
    """A prompt with its ``n`` answers; the engine lets them grow, whoever asked looks on.

    Args:
        request_id: given by the engine, rising.
        prompt: its text, or None if token ids were given.
        prompt_token_ids: never empty.
        completions: one per sample.
        prompt_logprobs: so far, one per prompt token; None if not asked for.
        clock: when it came, began and ended.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    completions: list[Completion]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    clock: RequestClock = field(default_factory=RequestClock)

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return all(c.sequence.finish_reason is not None for c in self.completions)

    def output(self) -> RequestOutput:
        """A copy of all there is so far: its cost grows with the answer."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=tuple(self.prompt_token_ids),
            outputs=tuple(completion.output() for completion in self.completions),
            finished=self.finished,
            prompt_logprobs=None if self.prompt_logprobs is None else tuple(self.prompt_logprobs),
            times=self.clock.times,
        )
