"""Is a value that came out of a JSON file what it must be, and if not, one line that says so.

Each check takes `where` (`config.json: hidden_size`) and the value, returns the value with its
type, or raises a ValueError that reads `<where> is <found>, expected <wanted>`. The value may be
anything: numbers too long to print, NaN, deep nesting. Knows no key of any model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

_SHOWN_CHARACTERS = 60  # of a string or number inside a message
_PRINTABLE_BITS = 256  # Python refuses to print integers of thousands of digits


def shown(value: object) -> str:
    """`value` as JSON on one short line; containers by their kind, never by their contents."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > _PRINTABLE_BITS:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        text = json.dumps(value[:_SHOWN_CHARACTERS])  # escapes newlines and lone surrogates
        return text if len(value) <= _SHOWN_CHARACTERS else f"{text[:-1]}..."
    if isinstance(value, Mapping):
        return "an object" if value else "an empty object"
    if isinstance(value, Sequence):
        return "a list" if value else "an empty list"
    return f"a {type(value).__name__}"


def shown_key(key: object) -> str:
    """`key` bare where it is a plain name, else quoted and cut: a message stays one line."""
    if isinstance(key, str) and key.isidentifier() and len(key) <= _SHOWN_CHARACTERS:
        return key
    return shown(key)


def same(value: object, other: object) -> bool:
    """Equality of JSON values: true is not 1, and 1.0 is 1."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def check_integer(where: str, value: object, most: int) -> int:
    """A whole number from 1 to `most`; booleans and 4096.0 are none. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{where} is {shown(value)}, expected a positive integer")
    if value > most:
        raise ValueError(f"{where} is {shown(value)}, expected at most {most:,}")
    return value


def check_number(where: str, value: object, least: float, most: float) -> float:
    """A finite number from `least` to `most`; booleans are none. Raises ValueError."""
    # Compared before it is converted: float() of a huge integer raises OverflowError.
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, float) and not math.isfinite(value))
        or not least <= value <= most
    ):
        raise ValueError(f"{where} is {shown(value)}, expected a number from {least:g} to {most:g}")
    return float(value)


def check_bool(where: str, value: object) -> bool:
    """True or false; 0 and 1 are neither. Raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{where} is {shown(value)}, expected true or false")
    return value


def check_choice(where: str, value: object, choices: Sequence[str]) -> str:
    """One of the strings `choices`. Raises ValueError."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{where} is {shown(value)}, expected one of {', '.join(choices)}")
    return value


def check_object(where: str, value: object) -> Mapping[str, object]:
    """A JSON object. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is {shown(value)}, expected an object")
    return value
