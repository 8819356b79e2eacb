"""One answer while it grows: its sequence, its text, and the rules that end it."""

from __future__ import annotations

from cugraphs.detokenizer import IncrementalDetokenizer, StopStringMatcher
from cugraphs.outputs import CompletionOutput, Logprob
from cugraphs.sequence import Sequence
from cugraphs.tokenizer import Tokenizer


class Completion:
    """Takes the tokens of a sequence one by one.

    Attributes:
        sequence: whose tokens they are.
        pieces: its text in final, non-empty pieces.
        logprobs: one entry per token; None if not asked for.
    """

    def __init__(self, sequence: Sequence, tokenizer: Tokenizer) -> None:
        """Start after the prompt of ``sequence``."""
        params = sequence.params
        self.sequence = sequence
        self.logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self._tokenizer = tokenizer
        self.pieces: list[str] = []
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            sequence.prompt_token_ids,
            skip_special_tokens=params.skip_special_tokens,
        )
        self._stops = StopStringMatcher(params.stop_strings, params.include_stop_str_in_output)

    def append(self, token_id: int) -> None:
        """Take a sampled token: extend the text, and finish the sequence if a rule says so.

        The first ``min_tokens`` tokens neither end the answer nor count for stop strings. A stop
        token's text is left out unless ``include_stop_str_in_output``.
        """
        sequence, params = self.sequence, self.sequence.params
        sequence.output_token_ids.append(token_id)
        count = len(sequence.output_token_ids)
        long_enough = count > params.min_tokens
        is_eos = not params.ignore_eos and token_id in self._tokenizer.eos_token_ids
        if long_enough and (is_eos or token_id in (params.stop_token_ids or ())):
            sequence.finish("stop", None if is_eos else token_id)
            if params.include_stop_str_in_output:
                self._push(self._detokenizer.push(token_id))
        else:
            piece = self._detokenizer.push(token_id)
            if not long_enough:
                self._give(piece)
            elif self._push(piece):
                sequence.finish("stop", self._stops.matched)
            if sequence.finish_reason is None and count >= sequence.max_tokens:
                sequence.finish("length")
        if sequence.finish_reason is not None:
            self.flush()

    def flush(self) -> None:
        """Give out what is held back; a stop string can still complete in it."""
        if self._stops.matched is None and self._push(self._detokenizer.flush()):
            self.sequence.finish("stop", self._stops.matched)
        self._give(self._stops.flush())

    def output(self) -> CompletionOutput:
        """The answer so far."""
        sequence = self.sequence
        return CompletionOutput(
            index=sequence.sample_index,
            text=self.text,
            token_ids=tuple(sequence.output_token_ids),
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
        )

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)

    def _push(self, piece: str) -> bool:
        text, stopped = self._stops.push(piece)
        self._give(text)
        return stopped

    def _give(self, piece: str) -> None:
        if piece:
            self.pieces.append(piece)
