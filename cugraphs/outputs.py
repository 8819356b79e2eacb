"""What a request gives back: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from cugraphs.statistics import RequestTimes


@dataclass(frozen=True)
class Logprob:
    """One token's natural-log probability, before temperature, penalties and filters.

    Args:
        logprob: at most 0.
        rank: 1 is the likeliest token.
        decoded_token: the token's text.
    """

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True)
class CompletionOutput:
    """One answer to a prompt.

    Args:
        index: which of the request's ``n`` samples.
        text: the generated text, without the prompt and without the stop that ended it.
        token_ids: the generated tokens; a stop token that ended them is the last.
        finish_reason: "stop" (EOS, a stop token or string), "length" (max_tokens or the model's
            limit), "abort", "error" (of its request), or None while it still runs.
        stop_reason: the stop token id or stop string that ended it; None for EOS and otherwise.
        logprobs: for each generated token the likeliest tokens and itself, by token id; None if
            not asked for.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: tuple[dict[int, Logprob], ...] | None = None


@dataclass(frozen=True)
class RequestOutput:
    """A prompt and its answers: all of them so far, or in a stream what is new of them.

    Args:
        request_id: given by the engine, rising.
        prompt: the text, or None if token ids were given.
        prompt_token_ids: the tokens of the prompt, BOS included; what is left of them where they
            were truncated.
        outputs: one per sample; in a stream one per sample that has gained something.
        finished: whether every sample has ended.
        prompt_logprobs: for each prompt token the likeliest tokens and itself, by token id; the
            first is None, since nothing precedes it. None if not asked for.
        error: what went wrong, if the request ended for it; other requests go on.
        times: how long it waited and took, as far as that is known.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    prompt_logprobs: tuple[dict[int, Logprob] | None, ...] | None = None
    error: str | None = None
    times: RequestTimes | None = field(default=None, compare=False)
