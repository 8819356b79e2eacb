"""What the files beside `tokenizer.json` say: names of special tokens, and what else is there.

Knows `tokenizer_config.json` and `special_tokens_map.json`, as transformers writes them. Knows no
vocabulary: whether a token exists is for `tokenizer` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cugraphs.json_file import read_json_object


@dataclass(frozen=True)
class TokenizerSetting:
    """What a file says under one key, and which file it is."""

    value: object
    file: Path


def read_tokenizer_settings(folder: Path) -> dict[str, TokenizerSetting]:
    """Return the settings in a model folder by key; neither file must exist.

    `tokenizer_config.json` goes before `special_tokens_map.json`, where older tokenizers have their
    tokens; with null it says that there is no such token.

    Raises:
        ModelFileError: a file cannot be read, or is not a JSON object.
    """
    settings: dict[str, TokenizerSetting] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file():
            values = read_json_object(path)
            settings |= {key: TokenizerSetting(value, path) for key, value in values.items()}
    return settings


def token_text(value: object) -> str | None:
    """Return the text of a token, which is a string or `{"content": string}`, None for others."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None
