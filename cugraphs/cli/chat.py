"""``cugraphs chat MODEL``: talk to a model that has a chat template.

End a line with a backslash to go on in the next one. /reset forgets the conversation, /system TEXT
sets the system prompt and does too, /exit or Ctrl-D ends. Ctrl-C stops the answer, not the program.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cugraphs.cli.options import add_model_options, add_sampling_options, load_llm, sampling_params

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from cugraphs.llm import LLM
    from cugraphs.sampling_params import SamplingParams

Message = dict[str, str]


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_options(parser)
    parser.add_argument("--system", metavar="TEXT", help="system prompt of the conversation")
    add_sampling_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, answer, repeat, until the input ends."""
    llm = load_llm(args, max_num_seqs=1)
    params = sampling_params(args, llm)
    llm.render_chat([{"role": "user", "content": "?"}])  # a model without a template fails here
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() its line editing and history
        print(f"{__doc__.splitlines()[2]} {__doc__.splitlines()[3]}", file=sys.stderr)
    history = _start(args.system)
    for text in _inputs():
        if text == "/exit":
            break
        if text == "/reset":
            history = _start(history[0]["content"] if _has_system(history) else None)
        elif text.startswith("/system"):
            history = _start(text.removeprefix("/system").strip() or None)
        elif text.startswith("/"):
            print(f"cugraphs: {text.split()[0]} is no command", file=sys.stderr)
        elif text.strip():
            _answer(llm, params, history, text)
    return 0


def _answer(llm: LLM, params: SamplingParams, history: list[Message], text: str) -> None:
    """Print the answer to ``text`` and add both to the history; keep what an interrupt leaves."""
    history.append({"role": "user", "content": text})
    pieces: list[str] = []
    try:
        for piece in llm.stream(llm.render_chat(history), params):
            pieces.append(piece)
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(" [stopped]", end="", file=sys.stderr)
    except ValueError as error:  # the conversation has outgrown the model: say so, go on
        print(f"cugraphs: {error}; /reset starts anew", file=sys.stderr)
        history.pop()
        return
    print(flush=True)
    history.append({"role": "assistant", "content": "".join(pieces)})


def _inputs() -> Iterator[str]:
    """What the person says, one turn at a time; a backslash at the end of a line joins lines."""
    lines: list[str] = []
    while True:
        prompt = ("... " if lines else "> ") if sys.stdin.isatty() else ""
        try:
            line = input(prompt)
        except KeyboardInterrupt:  # at the prompt it drops what was typed
            print(file=sys.stderr)
            lines = []
            continue
        except EOFError:
            break
        if line.endswith("\\"):
            lines.append(line[:-1])
        else:
            yield "\n".join([*lines, line])
            lines = []
    if lines:
        yield "\n".join(lines)


def _start(system: str | None) -> list[Message]:
    return [{"role": "system", "content": system}] if system else []


def _has_system(history: list[Message]) -> bool:
    return bool(history) and history[0]["role"] == "system"
