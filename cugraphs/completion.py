"""One answer while it grows: its tokens, its text, stop strings, and why it ended."""

from __future__ import annotations

from contextlib import suppress

from cugraphs.detokenizer import IncrementalDetokenizer, StopStringMatcher
from cugraphs.outputs import CompletionOutput, Logprob
from cugraphs.sequence import Sequence
from cugraphs.tokenizer import Tokenizer


class Completion:
    """Takes the tokens of a sequence one by one.

    Attributes:
        sequence: whose tokens they are.
        token_ids: of the answer.
        pieces: its text in final, non-empty pieces.
        logprobs: one entry per token; None if not asked for.
        next_position: where the next token that it takes stands in its sequence; -1 after the end.
        has_begun: whether a step has run some of its sequence.
        finish_reason: why it ended; None while it grows.
        stop_reason: the stop token or stop string that ended it.
    """

    def __init__(self, sequence: Sequence, tokenizer: Tokenizer) -> None:
        """Start after the prompt of ``sequence``."""
        params = sequence.params
        self.sequence = sequence
        self.token_ids: list[int] = []
        self.pieces: list[str] = []
        self.logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self.next_position = len(sequence.prompt_token_ids)
        self.has_begun = False
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._params = params
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            sequence.prompt_token_ids,
            skip_special_tokens=params.skip_special_tokens,
        )
        self._stops = StopStringMatcher(params.stop_strings, params.include_stop_str_in_output)
        self._has_stops = bool(params.stop_strings)
        self._given = (0, 0)  # tokens and pieces that :meth:`new_output` has given out
        self._has_told_end = False  # and whether it has told why it ended

    def append(self, token_id: int, is_last: bool) -> None:
        """Take a sampled token: extend the text, and end it if it is the last or a stop string is.

        Within the first ``min_tokens`` tokens no stop string counts. A stop token's text is left
        out unless ``include_stop_str_in_output``.

        Args:
            token_id: sampled.
            is_last: it is a stop token, or the last that the answer may have.
        """
        self.token_ids.append(token_id)
        self.next_position += 1
        if is_last and self._is_stop_token(token_id):
            is_eos = token_id in self._tokenizer.eos_token_ids and not self._params.ignore_eos
            self._end("stop", None if is_eos else token_id)
            if self._params.include_stop_str_in_output:
                self._push(self._detokenizer.push(token_id))
        else:
            piece = self._detokenizer.push(token_id)
            if not self._has_stops or len(self.token_ids) <= self._params.min_tokens:
                self._give(piece)
            elif self._push(piece):
                self._end("stop", self._stops.matched)
            if is_last and self.finish_reason is None:
                self._end("length")
        if self.finish_reason is not None:
            self._flush()

    def abort(self) -> None:
        """End it where it is; nothing happens if it has ended."""
        if self.finish_reason is None:
            self._end("abort")
            with suppress(Exception):  # else what is held back is lost, and nothing more
                self._flush()

    @property
    def has_news(self) -> bool:
        """Whether there is anything that :meth:`new_output` has not told."""
        ended = self.finish_reason is not None and not self._has_told_end
        return ended or len(self.token_ids) > self._given[0]

    def fail(self) -> None:
        """End it where it is, without what its text holds back: something went wrong."""
        self._end("error")
        if self.logprobs is not None:
            del self.logprobs[len(self.token_ids) :]

    def output(self) -> CompletionOutput:
        """The answer so far."""
        return self._output(self.token_ids, self.pieces, self.logprobs)

    def new_output(self) -> CompletionOutput:
        """What it gained since the last call."""
        tokens, pieces = self._given
        self._given = (len(self.token_ids), len(self.pieces))
        self._has_told_end = self.finish_reason is not None
        logprobs = None if self.logprobs is None else self.logprobs[tokens:]
        return self._output(self.token_ids[tokens:], self.pieces[pieces:], logprobs)

    def _output(
        self, token_ids: list[int], pieces: list[str], logprobs: list[dict[int, Logprob]] | None
    ) -> CompletionOutput:
        return CompletionOutput(
            index=self.sequence.sample_index,
            text="".join(pieces),
            token_ids=tuple(token_ids),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=None if logprobs is None else tuple(logprobs),
        )

    def _is_stop_token(self, token_id: int) -> bool:
        """Whether a token ends the answer, rather than the number of tokens."""
        params = self._params
        is_eos = not params.ignore_eos and token_id in self._tokenizer.eos_token_ids
        named = is_eos or token_id in (params.stop_token_ids or ())
        return named and len(self.token_ids) > params.min_tokens

    def _end(self, reason: str, stop_reason: int | str | None = None) -> None:
        self.finish_reason, self.stop_reason = reason, stop_reason
        self.next_position = -1

    def _flush(self) -> None:
        """Give out what is held back; a stop string can still complete in it."""
        if self._stops.matched is None and self._push(self._detokenizer.flush()):
            self._end("stop", self._stops.matched)
        self._give(self._stops.flush())

    def _push(self, piece: str) -> bool:
        """Give out text up to a stop string; whether there is one."""
        text, stopped = self._stops.push(piece)
        self._give(text)
        return stopped

    def _give(self, piece: str) -> None:
        if piece:
            self.pieces.append(piece)
