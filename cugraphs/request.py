"""One request while it runs: a prompt and its growing answers. No scheduling, no arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cugraphs.completion import Completion
from cugraphs.outputs import CompletionOutput, Logprob, RequestOutput
from cugraphs.statistics import RequestClock, RequestTimes


@dataclass(eq=False)
class Request:
    """A prompt with its ``n`` answers; the engine lets them grow, whoever asked looks on.

    Args:
        request_id: given by the engine, rising.
        prompt: its text, or None if token ids were given.
        prompt_token_ids: never empty.
        completions: one per sample.
        prompt_logprobs: so far, one per prompt token; None if not asked for.
        streams: whether every step that brings it tokens gives them out.
        catch_up: waits until all tokens that were sampled are in the completions.
        left: answers that the engine has not let go of.
        clock: when it came, began and ended.
        error: what it ended for, if something went wrong with it.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    completions: list[Completion]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    streams: bool
    catch_up: Callable[[], None]
    left: set[Completion] = field(init=False)
    clock: RequestClock = field(default_factory=RequestClock)
    error: Exception | None = None
    _has_given: bool = False

    def __post_init__(self) -> None:
        """No answer has ended."""
        self.left = set(self.completions)

    @property
    def finished(self) -> bool:
        """Whether every answer has ended, and the engine has let go of them."""
        return not self.left

    @property
    def has_ended(self) -> bool:
        """Whether every answer has ended."""
        return all(c.finish_reason is not None for c in self.completions)

    def fail(self, error: Exception) -> list[Completion]:
        """End every answer that has not ended, for this; returns those."""
        self.error = error
        failed = [c for c in self.completions if c.finish_reason is None]
        for completion in failed:
            completion.fail()
        return failed

    def failure(self, who: str) -> Exception:
        """Its error, to be raised by whoever asked for it, under their own name for it."""
        is_nan = isinstance(self.error, FloatingPointError)
        raised = (FloatingPointError if is_nan else RuntimeError)(f"{who}: {self._error_text}")
        raised.__cause__ = self.error
        return raised

    @property
    def _error_text(self) -> str | None:
        error = self.error
        if error is None:
            return None
        says_all = isinstance(error, FloatingPointError)
        return str(error) if says_all else f"{type(error).__name__}: {error}"

    def end(self) -> None:
        """Every answer has ended: stop its clock."""
        self.clock.end([len(completion.token_ids) for completion in self.completions])

    def output(self) -> RequestOutput:
        """A copy of all there is so far: its cost grows with the answer."""
        if not self.finished:
            self.catch_up()
        outputs = [completion.output() for completion in self.completions]
        return self._output(outputs, self.prompt_logprobs, self.clock.times)

    def new_output(self) -> RequestOutput:
        """What it gained since the last call: samples without news are left out.

        The prompt's log-probabilities are in the first one, the times in the last.
        """
        logprobs = None if self._has_given else self.prompt_logprobs
        self._has_given = True
        outputs = [c.new_output() for c in self.completions if c.has_news]
        return self._output(outputs, logprobs, self.clock.times if self.has_ended else None)

    def _output(
        self,
        outputs: list[CompletionOutput],
        prompt_logprobs: list[dict[int, Logprob] | None] | None,
        times: RequestTimes | None,
    ) -> RequestOutput:
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=tuple(outputs),
            finished=self.has_ended,
            prompt_logprobs=None if prompt_logprobs is None else tuple(prompt_logprobs),
            error=self._error_text,
            times=times,
        )
