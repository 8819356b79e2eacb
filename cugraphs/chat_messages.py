"""Messages of a chat, checked and in the plain form that chat templates take.

Knows what a message is: a role, and content that is a string or, as OpenAI's API has it, a list of
parts. Only text is taken. Knows no template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cugraphs.one_line import quoted

Message = Mapping[str, object]
"""`{"role": …, "content": …}` and whatever else a template understands."""


def plain_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    r"""Return copies of the messages, with text parts joined by "\n" to one string.

    vLLM joins them so for templates that take strings, as those of text models do.

    Raises:
        TypeError: `messages` is no list, or holds something that is no dict.
        ValueError: a message lacks a field, or holds something else than text.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise TypeError(
            f"ChatTemplate: messages is {type(messages).__name__}, expected a list of messages"
        )
    if not messages:
        raise ValueError("ChatTemplate: messages is empty, expected one message or more")
    return [
        _plain_message(f"ChatTemplate: messages[{index}]", message)
        for index, message in enumerate(messages)
    ]


def _plain_message(who: str, message: object) -> dict[str, object]:
    """Return a copy of one message; `who` is what errors call it."""
    if not isinstance(message, Mapping):
        raise TypeError(f"{who} is {type(message).__name__}, expected a dict with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        found = repr(role) if "role" in message else "missing"
        raise ValueError(f"{who}: role is {found}, expected a string such as 'user'")
    content = message.get("content")
    if isinstance(content, list | tuple):
        return {**message, "content": _joined_text(who, content)}
    # A message that only calls tools has no text of its own.
    if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        found = type(content).__name__ if "content" in message else "missing"
        raise ValueError(f"{who}: content is {found}, expected a string or a list of text parts")
    return dict(message)


def _joined_text(who: str, parts: Sequence[object]) -> str:
    """Return the text of a list of `{"type": "text", "text": …}`, a line each."""
    wanted = 'expected {"type": "text", "text": a string}'
    if not parts:
        raise ValueError(f"{who}: content is an empty list, expected a string or text parts")
    texts = []
    for index, part in enumerate(parts):
        where = f"{who}: content[{index}]"
        if not isinstance(part, Mapping):
            raise ValueError(f"{where} is {type(part).__name__}, {wanted}")
        kind = part.get("type")
        if kind != "text":
            found = quoted(kind) if "type" in part else "missing"
            raise ValueError(
                f"{where}: type is {found}, expected 'text': the model reads text only"
            )
        text = part.get("text")
        if not isinstance(text, str):
            found = type(text).__name__ if "text" in part else "missing"
            raise ValueError(f"{where}: text is {found}, {wanted}")
        texts.append(text)
    return "\n".join(texts)
