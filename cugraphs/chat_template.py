"""Messages of a chat to the text of a prompt, by the template that comes with the model.

Knows where model folders keep templates. What a message is, is in `chat_messages`; the rendering
itself in `chat_template_worker`, a process that is ended if it takes too long. Knows no model, no
history.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from cugraphs.chat_messages import Message, plain_messages
from cugraphs.json_file import read_json_object
from cugraphs.model_file import read_file
from cugraphs.one_line import reason
from cugraphs.tokenizer import Tokenizer
from cugraphs.tokenizer_settings import read_tokenizer_settings, token_text

_START_LIMIT_S = 60.0
_MEMORY_LIMIT_BYTES = 2**30


class ChatTemplate:
    """The chat templates of one model; renders messages within a time, a memory and a size.

    Attributes:
        names: names of the templates; most models have `default` alone.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        origins: Mapping[str, str] | None = None,
        time_limit_s: float = 5.0,
        max_characters: int = 2**24,
    ) -> None:
        """Hold templates; nothing runs before the first `render`.

        Args:
            templates: name to jinja2 source.
            special_tokens: `bos_token`, `eos_token` … to their text.
            origins: name to the file that errors name.
            time_limit_s: wall time that one rendering may take.
            max_characters: most characters that one rendering may give.
        """
        self.names = tuple(templates)
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._origins = dict(origins or {})
        self._time_limit_s = time_limit_s
        self._max_characters = max_characters
        self._worker: _Worker | None = None
        self._lock = threading.Lock()

    @classmethod
    def load(cls, folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """Read the templates of a model folder, None if it has none.

        Of two templates with one name, `*.jinja` goes before `chat_template.json`, and that before
        `tokenizer_config.json`.

        Raises:
            ValueError: a file is broken; the message names it.
        """
        templates: dict[str, str] = {}
        origins: dict[str, str] = {}
        for name in ("tokenizer_config.json", "chat_template.json"):
            path = folder / name
            if path.is_file():
                found = _named_templates(path)
                templates |= found
                origins |= dict.fromkeys(found, str(path))
        additional = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        for path in (*additional, folder / "chat_template.jinja"):
            if path.is_file():
                name = path.stem if path in additional else "default"
                templates[name] = _read_text(path)
                origins[name] = str(path)
        if not templates:
            return None
        return cls(templates, _special_tokens(folder, tokenizer), origins=origins)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        name: str | None = None,
        **extra: object,
    ) -> str:
        """Return the prompt of a chat. Its BOS, if the template writes one, is part of the text.

        Args:
            messages: `{"role": …, "content": …}` each, oldest first; content is a string or a list
                of text parts. Other keys go to the template.
            add_generation_prompt: end with the header of the assistant's answer.
            name: which template; None takes `tool_use` if there are `tools` and it exists, else
                `default`, else the only one.
            extra: variables for the template, `tools` and `documents` among them; JSON values.

        Raises:
            TypeError: messages or a message have the wrong type.
            ValueError: a message lacks a field, or the template fails, refuses the messages or
                exceeds a limit.
        """
        plain = plain_messages(messages)
        chosen = self._chosen(name, extra)
        variables = {
            "tools": None,
            "documents": None,
            **self._special_tokens,
            **extra,
            "messages": plain,
            "add_generation_prompt": add_generation_prompt,
        }
        request = {
            "source": self._templates[chosen],
            "variables": variables,
            "max_characters": self._max_characters,
        }
        who = f"{self._origins.get(chosen, 'ChatTemplate')}: chat template {chosen}"
        try:
            line = json.dumps(request).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(
                f"{who}: a message or a variable is no JSON value ({error}), expected strings, "
                "numbers, lists and dicts"
            ) from None
        with self._lock:
            if self._worker is None or not self._worker.is_alive:
                self._worker = _Worker()
            answer = self._worker.ask(line, self._time_limit_s)
        if answer is None:
            raise ValueError(f"{who}: takes longer than {self._time_limit_s:g} s, expected less")
        if "error" in answer:
            raise ValueError(f"{who}: {answer['error']}")
        return answer["text"]

    def _chosen(self, name: str | None, extra: Mapping[str, object]) -> str:
        """Return the name of the template to use."""
        if name is None:
            if extra.get("tools") and "tool_use" in self._templates:
                return "tool_use"
            if "default" in self._templates:
                return "default"
            if len(self._templates) == 1:
                return self.names[0]
        if name is None or name not in self._templates:
            raise ValueError(
                f"ChatTemplate: name is {name!r}, expected one of {', '.join(self.names)}"
            )
        return name


class _Worker:
    """The process that renders; any failure ends it, and a new one is started for the next text."""

    def __init__(self) -> None:
        """Start the process and wait until it is ready."""
        # -P and the parent's own path: the child imports what the parent would, from any folder.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        program = f"import cugraphs.chat_template_worker as w; w.main({_MEMORY_LIMIT_BYTES})"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._end = weakref.finalize(self, _end_process, self._process)
        if self._exchange(b"", _START_LIMIT_S) != b"ready\n":
            self._end()
            raise RuntimeError(
                f"ChatTemplate: {sys.executable} does not start the process that renders, "
                "expected a Python that can import cugraphs and jinja2"
            )

    @property
    def is_alive(self) -> bool:
        """Whether the process can be asked."""
        return self._end.alive and self._process.poll() is None

    def ask(self, request: bytes, time_limit_s: float) -> dict[str, str] | None:
        """Return the answer to a request, None if the time was over before it came."""
        answer = self._exchange(request + b"\n", time_limit_s)
        if answer is None:
            return None
        if not answer.endswith(b"\n"):
            self._end()
            return {"error": "the process that renders it ended, perhaps out of memory"}
        values: dict[str, str] = json.loads(answer)
        return values

    def _exchange(self, request: bytes, time_limit_s: float) -> bytes | None:
        """Send bytes and return the next line, None if the time was over before it came."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        is_over = threading.Event()

        def end() -> None:
            is_over.set()
            self._process.kill()

        timer = threading.Timer(time_limit_s, end)
        timer.daemon = True
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended; the read below tells
                self._process.stdin.write(request)
                self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BaseException:  # Ctrl-C: an answer that comes later would be taken for the next one
            self._end()
            raise
        finally:
            timer.cancel()
            timer.join()
        if is_over.is_set():
            self._end()
            return None
        return answer


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, reap it and close its pipes."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # what was to be written goes nowhere
                stream.close()


def _named_templates(path: Path) -> dict[str, str]:
    """Return the templates in a JSON file: one string, or a list of names and strings."""
    value = read_json_object(path).get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list):
        raise ValueError(
            f"{path}: chat_template is {type(value).__name__}, expected a string or a list"
        )
    templates = {}
    for index, entry in enumerate(value):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        source = entry.get("template") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not isinstance(source, str):
            raise ValueError(
                f"{path}: chat_template[{index}] lacks a string, expected name and template"
            )
        templates[name] = source
    return templates


def _read_text(path: Path) -> str:
    """Return a text file."""
    try:
        return read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: cannot be read as UTF-8 text ({reason(error)})") from None


def _special_tokens(folder: Path, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the special tokens that templates write, by the names they use."""
    tokens = {}
    if tokenizer.bos_token_id is not None:
        tokens["bos_token"] = tokenizer.token(tokenizer.bos_token_id)
    if len(tokenizer.eos_token_ids) == 1:
        (eos_token_id,) = tokenizer.eos_token_ids
        tokens["eos_token"] = tokenizer.token(eos_token_id)
    for key, setting in read_tokenizer_settings(folder).items():
        text = token_text(setting.value) if key.endswith("_token") else None
        if text is not None:
            tokens[key] = text
    return tokens
