"""Text to token ids and back, over the `tokenizers` library: which ids begin and end a text.

Knows `tokenizer.json`, what of its settings counts, and the token ids in the two model
configurations.
Knows no model, no chat template and no stream: see `chat_template` and `detokenizer`.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import tokenizers

from cugraphs.one_line import reason
from cugraphs.tokenizer_settings import TokenizerSetting, read_tokenizer_settings, token_text

REPLACEMENT_CHARACTER = "\ufffd"


class Tokenizer:
    """Encodes with exactly one BOS where the model wants one, decodes without broken characters.

    Attributes:
        bos_token_id: the token that begins a text, None where none is known.
        eos_token_ids: the tokens that end a text, from all the files that name one.
        special_token_ids: the tokens that `skip_special_tokens` leaves out.
        byte_values: id of each byte-fallback token (`<0x0A>`) to its byte; empty without fallback.
        vocab_size: one more than the largest id the tokenizer knows. A model may have more.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        prefix: tuple[int, ...],
        bos_token_id: int | None,
        eos_token_ids: frozenset[int],
        model_vocab_size: int = 0,
    ) -> None:
        """Wrap a tokenizer of the library; `Tokenizer.load` is the way in for a model folder.

        Args:
            backend: the library's tokenizer.
            prefix: ids that go before every text, BOS among them.
            bos_token_id: the token that begins a text.
            eos_token_ids: the tokens that end a text.
            model_vocab_size: rows of the model's embedding; ids below it are valid, known or not.
        """
        self._backend = backend
        self._prefix = prefix
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(
            token_id for token_id, token in added.items() if token.special
        )
        # Added tokens may lie beyond a hole; the ids below them are counted.
        self.vocab_size = max(
            backend.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1
        )
        self._id_limit = max(self.vocab_size, model_vocab_size)
        self.byte_values: Mapping[int, int] = _byte_values(backend)
        self._way_to_join = _way_to_join(backend)
        self._plain_texts: dict[int, str | None] = {}

    @classmethod
    def load(
        cls,
        folder: Path,
        config: Mapping[str, object],
        generation_config: Mapping[str, object],
    ) -> Tokenizer:
        """Read the tokenizer of a model folder.

        Args:
            folder: holds `tokenizer.json` and, if they exist, `tokenizer_config.json` and
                `special_tokens_map.json`.
            config: the model's `config.json`.
            generation_config: its `generation_config.json`, empty where there is none.

        Raises:
            FileNotFoundError: there is no `tokenizer.json`.
            ValueError: a file is broken, or names a token that the tokenizer does not have.
        """
        backend = _read_backend(folder)
        settings = read_tokenizer_settings(folder)

        prefix = _template_prefix(backend)
        bos_token_id = _named_token_id(backend, settings, "bos_token")
        if bos_token_id is None and prefix:
            bos_token_id = prefix[0]
        if bos_token_id is None:
            found = _token_ids("config.json", config, "bos_token_id")
            found += _token_ids("generation_config.json", generation_config, "bos_token_id")
            bos_token_id = found[0] if found else None

        add_bos = settings.get("add_bos_token", TokenizerSetting(None, folder))
        if add_bos.value is not None and not isinstance(add_bos.value, bool):
            raise ValueError(
                f"{add_bos.file}: add_bos_token is {add_bos.value!r}, expected true or false"
            )
        if add_bos.value and not prefix:
            if bos_token_id is None:
                raise ValueError(
                    f"{add_bos.file}: bos_token is missing, expected a token: add_bos_token is true"
                )
            prefix = (bos_token_id,)
        elif add_bos.value is False:
            prefix = ()

        eos_token_ids = frozenset(
            _token_ids("config.json", config, "eos_token_id")
            + _token_ids("generation_config.json", generation_config, "eos_token_id")
        )
        if not eos_token_ids:
            eos_token_id = _named_token_id(backend, settings, "eos_token")
            eos_token_ids = frozenset(() if eos_token_id is None else (eos_token_id,))

        vocab_size = config.get("vocab_size", 0)
        return cls(
            backend,
            prefix=prefix,
            bos_token_id=bos_token_id,
            eos_token_ids=eos_token_ids,
            model_vocab_size=vocab_size if isinstance(vocab_size, int) else 0,
        )

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Return the ids of `text`: one BOS first if the model wants one, never an EOS after it.

        A text that begins with the BOS token in letters, as a chat template writes it, gets no
        second one. Special tokens written in the text become their ids.

        Args:
            text: any text; empty gives the BOS alone.
            add_bos: False leaves out what the tokenizer would put before the text.

        Raises:
            TypeError: it is no string.
            ValueError: it holds half of a surrogate pair.
        """
        if not isinstance(text, str):
            raise TypeError(f"Tokenizer: text is {type(text).__name__}, expected a string")
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        except TypeError:  # half of a surrogate pair, which no UTF-8 can hold
            raise ValueError("Tokenizer: text holds a lone surrogate, expected Unicode") from None
        if not add_bos or (ids and ids[0] in (self.bos_token_id, *self._prefix[:1])):
            return ids
        return [*self._prefix, *ids]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become U+FFFD, unknown ids nothing.

        Differs from the library in one point: in a run of byte-fallback tokens it keeps the valid
        characters, as SentencePiece does, where the library drops the whole run for one bad byte.
        So a character once decoded stays, which a stream needs.

        Raises:
            ValueError: an id is neither the tokenizer's nor the model's.
        """
        checked = [self._checked(token_id) for token_id in ids]
        if not self.byte_values:
            return str(self._backend.decode(checked, skip_special_tokens=skip_special_tokens))
        tokens = []
        run: list[int] = []  # ids of byte-fallback tokens, consecutive as the decoder sees them
        for token_id in checked:
            token = self._backend.id_to_token(token_id)
            if token is None or (skip_special_tokens and token_id in self.special_token_ids):
                continue
            if token_id in self.byte_values:
                run.append(token_id)
            else:
                if run:
                    tokens += self._valid_run(run)
                tokens.append(token)
                run = []
        return str(self._backend.decoder.decode(tokens + self._valid_run(run)))

    def token(self, token_id: int) -> str:
        """Return one token as the vocabulary writes it (`▁the`, `Ġthe`); "" for a padded id."""
        return self._backend.id_to_token(self._checked(token_id)) or ""

    def plain_text(self, token_id: int) -> str | None:
        """Return what a token adds to any text that ends with such a token; remembered.

        None where that depends on more: of a token that may be a part of a character or has no
        text, and of every token where the decoder looks at more than one.
        """
        try:
            return self._plain_texts[token_id]
        except KeyError:
            return self._plain_texts.setdefault(token_id, self._find_plain_text(token_id))

    def _find_plain_text(self, token_id: int) -> str | None:
        if self._way_to_join is None or token_id in self.byte_values:
            return None
        text = self.decode([token_id], skip_special_tokens=False)
        if self._way_to_join == "drops first space":
            twice = self.decode([token_id, token_id], skip_special_tokens=False)
            text = twice[len(text) :]
        if not text or REPLACEMENT_CHARACTER in text:
            return None
        return f" {text}" if self._way_to_join == "puts spaces" else text

    def token_id(self, token: str) -> int | None:
        """Return the id of a token written as the vocabulary writes it, None if there is none."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def _checked(self, token_id: int) -> int:
        """Return a valid id as an int, or raise naming it."""
        number = operator.index(token_id)
        if not 0 <= number < self._id_limit:
            raise ValueError(
                f"Tokenizer: token id is {number}, expected 0 <= token id < {self._id_limit}"
            )
        return number

    def _valid_run(self, run: list[int]) -> list[str]:
        """Return the tokens of a run of bytes, U+FFFD in place of each byte in no character."""
        run_bytes = bytes(self.byte_values[token_id] for token_id in run)
        # Undecodable bytes become one lone surrogate each, and only they do.
        text = run_bytes.decode("utf-8", errors="surrogateescape")
        tokens = []
        for character in text:
            if "\udc80" <= character <= "\udcff":
                tokens.append(REPLACEMENT_CHARACTER)
            else:
                tokens += [f"<0x{byte:02X}>" for byte in character.encode()]
        return tokens


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    """Return the library's tokenizer, set to neither cut nor pad a text."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        has_sentencepiece = (folder / "tokenizer.model").is_file()
        found = "is missing (only tokenizer.model is there)" if has_sentencepiece else "is missing"
        raise FileNotFoundError(
            f"{path}: {found}, expected the file of the tokenizers library; make it with "
            "transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise ValueError(f"{path}: is no valid tokenizer ({reason(error)})") from None
    backend.no_truncation()
    backend.no_padding()
    return backend


def _byte_values(backend: tokenizers.Tokenizer) -> dict[int, int]:
    """Return id to byte of the byte-fallback tokens, none if the decoder does not join bytes."""
    if backend.decoder is None or backend.decoder.decode(["<0x41>"]) != "A":
        return {}
    ids = ((backend.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(256))
    return {token_id: byte for token_id, byte in ids if token_id is not None}


def _way_to_join(
    backend: tokenizers.Tokenizer,
) -> Literal["as they are", "puts spaces", "drops first space"] | None:
    """Return how texts of tokens are joined, None if a token's depends on those around it."""
    if backend.decoder is None:
        return "puts spaces"
    state = json.loads(backend.decoder.__getstate__())
    steps = state.get("decoders", [state])
    if all(step["type"] == "ByteLevel" for step in steps):
        return "as they are"
    if all(
        step["type"] in ("ByteLevel", "Replace", "ByteFallback", "Fuse", "Metaspace")
        or (step["type"] == "Strip" and step["start"] <= 1 and step["stop"] == 0)
        for step in steps
    ):
        return "drops first space"
    return None


def _template_prefix(backend: tokenizers.Tokenizer) -> tuple[int, ...]:
    """Return the ids that the post-processor puts before a text; those after it are not wanted."""
    for probe in ("a", "0", " ", "."):  # one of them is some token
        encoding = backend.encode(probe, add_special_tokens=True)
        added = list(encoding.special_tokens_mask)
        if 0 in added:
            return tuple(encoding.ids[: added.index(0)])
    return ()


def _named_token_id(
    backend: tokenizers.Tokenizer, settings: Mapping[str, TokenizerSetting], key: str
) -> int | None:
    """Return the id of a token that the settings name, None where they name none."""
    setting = settings.get(key)
    if setting is None or setting.value is None:
        return None
    text = token_text(setting.value)
    if text is None:
        raise ValueError(f"{setting.file}: {key} is {setting.value!r}, expected a token")
    token_id: int | None = backend.token_to_id(text)
    if token_id is None:
        raise ValueError(f"{setting.file}: {key} is {text!r}, expected a token of tokenizer.json")
    return token_id


def _token_ids(file: str, values: Mapping[str, object], key: str) -> list[int]:
    """Return the token ids under a key: none, an int or a list of ints."""
    value = values.get(key)
    if value is None:
        return []
    ids: list[int] = []
    for token_id in value if isinstance(value, list) else [value]:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise ValueError(f"{file}: {key} is {value!r}, expected token ids >= 0")
        ids.append(token_id)
    return ids
