"""Token ids to text piece by piece, and stop strings in the pieces.

Knows `Tokenizer` and strings. Knows no request, no engine and no printing.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from cugraphs.tokenizer import REPLACEMENT_CHARACTER, Tokenizer

_CONTEXT_TOKENS = 4
"""Tokens before a new one that its text can depend on.

An unfinished UTF-8 character is at most 3 bytes, so at most 3 tokens; one token before those keeps
the decoder from taking a word's leading space for the start of the text. Where the context begins
inside a character, its first bytes decode to U+FFFD in the delivered and in the new text alike.
"""

_LONGEST_WINDOW = 64  # tokens; it is cut only now and then


class IncrementalDetokenizer:
    """Text of a growing token sequence: the joined pieces are text(prompt + output) - text(prompt).

    The minus takes off what the two texts have in common from the start. So a SentencePiece-style
    output keeps the space of its first word after a prompt, and loses it, as `Tokenizer.decode`
    does, after a prompt of special tokens only; a character begun in the prompt is given whole.

    A push after a plain token (`Tokenizer.plain_text`) gives a plain one's text as it is. Any other
    decodes the new token behind a few earlier ones, whatever the length of the sequence.
    The library's `DecodeStream` does not do: where a bad byte follows a byte-fallback character it
    raises "Invalid prefix encountered" from then on, it holds back every run of U+FFFD, genuine or
    not, and it has no flush for a tail that stays unfinished.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        """Start after a prompt.

        Args:
            tokenizer: decodes.
            prompt_token_ids: what precedes the output; only its end is looked at.
            skip_special_tokens: leave special tokens out of the text.
        """
        self._tokenizer = tokenizer
        self._plain_text = tokenizer.plain_text
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._fallback_bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._window: list[int] = []  # the last tokens that have text
        for token_id in reversed(prompt_token_ids):
            if self._has_text(token_id):
                self._window.insert(0, token_id)
                if len(self._window) == _CONTEXT_TOKENS:
                    break
        for token_id in self._window:
            self._follow_bytes(token_id)
        self._delivered = self._decode(self._window)  # text of the window that is out already
        self._after_plain = bool(self._window) and self._plain_text(self._window[-1]) is not None
        self._is_behind = False  # plain tokens were pushed, so that `_delivered` is too short

    def push(self, token_id: int) -> str:
        """Return the text that this token makes final: often its own, "" or that of several."""
        text = self._plain_text(token_id)
        if text is not None and self._after_plain and token_id not in self._skipped:
            self._window.append(token_id)
            if len(self._window) > _LONGEST_WINDOW:
                del self._window[:-_CONTEXT_TOKENS]
            self._is_behind = True
            return text
        if not self._has_text(token_id):
            return ""
        self._catch_up()
        self._after_plain = text is not None
        self._window.append(token_id)
        self._follow_bytes(token_id)
        piece = self._undelivered(self._final_text())
        if piece:
            del self._window[:-_CONTEXT_TOKENS]
            self._delivered = self._final_text()
        return piece

    def flush(self) -> str:
        """Return what was held back, an unfinished character as U+FFFD; a second time nothing."""
        self._catch_up()
        text = self._decode(self._window)
        piece = self._undelivered(text)
        self._delivered = text
        return piece

    def _catch_up(self) -> None:
        """Make the window, and what is out of it, as if each token had been decoded behind it."""
        if self._is_behind:
            del self._window[:-_CONTEXT_TOKENS]
            self._fallback_bytes.reset()
            self._delivered = self._decode(self._window)
            self._is_behind = False

    def _has_text(self, token_id: int) -> bool:
        """Whether a token stands in the text: neither skipped nor unknown to the tokenizer."""
        return self._tokenizer.token(token_id) != "" and token_id not in self._skipped

    def _follow_bytes(self, token_id: int) -> None:
        """Keep track of the byte-fallback tokens at the end that may still become a character."""
        byte = self._tokenizer.byte_values.get(token_id)
        if byte is None:
            self._fallback_bytes.reset()
        else:
            self._fallback_bytes.decode(bytes((byte,)))

    def _final_text(self) -> str:
        """Return the text of the window that no later token can change."""
        unfinished = len(self._fallback_bytes.getstate()[0])
        text = self._decode(self._window[: len(self._window) - unfinished])
        if self._tokenizer.byte_values:
            return text
        # Byte-level BPE: whatever is unfinished at the end decodes to one U+FFFD.
        return text.removesuffix(REPLACEMENT_CHARACTER)

    def _undelivered(self, text: str) -> str:
        """Return what `text` has beyond the delivered text."""
        common = len(self._delivered)
        # Less than all of it is a prefix only while a character of the prompt is unfinished.
        while self._delivered[:common] != text[:common]:
            common -= 1
        return text[common:]

    def _decode(self, token_ids: list[int]) -> str:
        """Return the text of tokens that all have text."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


class StopStringMatcher:
    """Cuts a stream of pieces at the first stop string, across the edges of pieces.

    The match that completes first in the stream wins; of those that complete at one character, the
    one that starts earliest. Held back is only what may still be the beginning of a stop string.
    Each stop string is followed by its Knuth-Morris-Pratt automaton: a push costs its characters
    times the stop strings.

    Attributes:
        matched: the stop string that ended the stream, None so far.
    """

    def __init__(self, stops: Sequence[str], include_stop_str_in_output: bool) -> None:
        """Watch for `stops`, none of them empty; if asked, leave the match in the text."""
        if isinstance(stops, str) or "" in stops:
            raise ValueError(f"StopStringMatcher: stops is {stops!r}, expected non-empty strings")
        self._stops = [(stop, _failure_table(stop)) for stop in stops]
        self._matched_lengths = [0] * len(self._stops)
        self._include = include_stop_str_in_output
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> tuple[str, bool]:
        """Return the text that can be given out, and whether a stop string has ended the stream.

        After the end every push returns `("", True)`.
        """
        if self.matched is not None:
            return "", True
        if not self._stops:
            return piece, False
        text = self._held + piece
        for end, character in enumerate(piece, start=len(self._held) + 1):
            complete = self._advance(character)
            if complete:
                self.matched = max(complete, key=len)
                self._held = ""
                return text[: end if self._include else end - len(self.matched)], True
        final = len(text) - max(self._matched_lengths, default=0)
        self._held = text[final:]
        return text[:final], False

    def flush(self) -> str:
        """Return what is held back, once the stream has ended without a stop string."""
        held, self._held = self._held, ""
        self._matched_lengths = [0] * len(self._stops)
        return held

    def _advance(self, character: str) -> list[str]:
        """Take one character into every automaton; return the stop strings that it completes."""
        complete = []
        for index, (stop, failure) in enumerate(self._stops):
            length = self._matched_lengths[index]
            while length and stop[length] != character:
                length = failure[length - 1]
            length += stop[length] == character
            self._matched_lengths[index] = length
            if length == len(stop):
                complete.append(stop)
        return complete


def _failure_table(stop: str) -> list[int]:
    """Return, per prefix of `stop`, the length of its longest proper prefix that is its suffix."""
    table = [0]
    length = 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = table[length - 1]
        length += stop[length] == character
        table.append(length)
    return table
