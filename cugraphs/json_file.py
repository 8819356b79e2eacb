"""One JSON object from a file of a model folder: every such file is read here.

Knows JSON as its specification has it (RFC 8259), without Python's NaN and infinities. Knows no
key of any file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from cugraphs.model_file import read_file, refusal
from cugraphs.one_line import one_line, reason

_KINDS = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
}


def read_json_object(path: Path) -> dict[str, Any]:
    """Read one JSON object from a UTF-8 file, with or without a byte order mark.

    Raises:
        ModelFileError: Not a readable file, not JSON, or not an object.
    """
    raw = read_file(path)
    wanted = "one JSON object in UTF-8"
    advice = "download it again or correct it"
    try:
        value = json.loads(
            raw.decode("utf-8-sig"), parse_constant=_refuse_number, parse_float=_finite_float
        )
    except RecursionError:
        # From None: the traceback of a thousand levels would say no more.
        raise refusal(path, "is nested too deeply", wanted, advice) from None
    except ValueError as error:  # broken JSON, bad UTF-8, integers of thousands of digits
        raise refusal(path, f"is not valid JSON ({reason(error)})", wanted, advice) from error
    if not isinstance(value, dict):
        raise refusal(path, f"holds {json_kind(value)}", wanted, advice)
    return value


def json_kind(value: object) -> str:
    """Return what a value read from JSON is called there, with its article."""
    return _KINDS.get(type(value), "a number")


def _refuse_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{one_line(text)} is out of a double's range")
    return value
