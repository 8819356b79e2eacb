"""What a caller may give as a prompt, checked; texts are not encoded here."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np

from cugraphs.one_line import one_line

Prompt = str | Sequence[int]


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list of strings and lists of ints.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, Sequence | np.ndarray):
        raise TypeError(
            f"LLM: prompts is {shown(prompts)}, expected a string, a list of token ids, "
            "or a list of such prompts"
        )
    if len(prompts) and all(_is_token_id(item) for item in prompts):
        return [checked_prompt(prompts)]
    return [checked_prompt(item, f"prompts[{i}]") for i, item in enumerate(prompts)]


def checked_prompt(prompt: object, name: str = "the prompt") -> Prompt:
    """One prompt: a string, or token ids as a list of ints.

    Raises:
        TypeError: it is neither; the message begins with ``name``.
    """
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, bytes) or not isinstance(prompt, Sequence | np.ndarray):
        raise TypeError(f"LLM: {name} is {shown(prompt)}, expected a string or a list of token ids")
    for item in prompt:
        if not _is_token_id(item):
            raise TypeError(f"LLM: {name} holds {shown(item)}, expected token ids, all integers")
    return [int(item) for item in prompt]


def _is_token_id(item: object) -> bool:
    return isinstance(item, Integral) and not isinstance(item, bool)


def shown(value: object) -> str:
    """A wrong value in a message: short, and with its type."""
    return f"{one_line(repr(value), 40)} ({type(value).__name__})"
