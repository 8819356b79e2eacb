"""Renders one chat template after another in a process of its own, which its parent may kill.

A template comes with a model and may be hostile. jinja2's sandbox keeps it from the machine, but
not from running for ever or filling the memory: one expression (`'a' * 10**12`, the text of a list
that holds itself twice, 40 levels deep) runs inside one C call that nothing in the same process can
interrupt. Here the operating system limits the memory, and the parent's clock the time.

Knows jinja2 and what transformers offers to templates. Knows no file, tokenizer or model. Requests
and answers are JSON, a line each, on the standard streams.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import signal
import sys
from typing import NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from cugraphs.one_line import one_line


class TemplateRefusedError(Exception):
    """A template has called `raise_exception`: it does not take these messages."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`, with which transformers marks the assistant's tokens: plain text here."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Return the body of the tag, in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _raise_exception(message: object) -> NoReturn:
    """Let a template refuse its messages."""
    raise TemplateRefusedError(str(message))


def _strftime_now(pattern: str) -> str:
    """Return the local time as a template wants it."""
    return datetime.datetime.now().strftime(pattern)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON; jinja2's own filter escapes `<`, `>`, `&` and `'` for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


@functools.cache
def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Return the environment that chat templates are written for."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=(jinja2.ext.loopcontrols, _GenerationTag),
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@functools.lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    """Return a template ready to render; a model has few."""
    return _environment().from_string(source)


def render(source: str, variables: dict[str, object], max_characters: int) -> str:
    """Render a template, stopping as soon as the text is longer than allowed.

    Raises:
        Exception: whatever a template may raise; see `answer`.
    """
    pieces = []
    length = 0
    for piece in _compiled(source).generate(**variables):
        length += len(piece)
        if length > max_characters:
            raise OverflowError(f"text is longer than {max_characters} characters")
        pieces.append(piece)
    return "".join(pieces)


def answer(request: str) -> str:
    """Return the answer to one request line: `{"text": …}` or `{"error": …}`."""
    try:
        text = render(**json.loads(request))
        return json.dumps({"text": text})
    except TemplateRefusedError as error:
        found = f"refuses these messages: {error}"
    except jinja2.TemplateSyntaxError as error:
        found = f"line {error.lineno}: {error.message}"
    except MemoryError:
        found = "needs too much memory"
    except RecursionError:
        found = "nests too deep"
    except Exception as error:  # a template can raise anything that Python can
        found = f"{type(error).__name__}: {error}"
    return json.dumps({"error": one_line(" ".join(found.split()), limit=1000)})


def main(memory_limit_bytes: int) -> None:
    """Answer requests until the parent closes the stream."""
    # Ctrl-C goes to the whole foreground group; it is meant for the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))
    print("ready", flush=True)
    for request in sys.stdin:
        print(answer(request), flush=True)
