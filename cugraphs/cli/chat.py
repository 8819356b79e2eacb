"""Talk to a model that has a chat template."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cugraphs.cli.options import (
    add_model_options,
    add_sampling_options,
    check_sampling,
    load_llm,
    print_stats,
    sampling_params,
)
from cugraphs.one_line import one_line

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from cugraphs.llm import LLM
    from cugraphs.sampling_params import SamplingParams

Message = dict[str, str]

_COMMANDS = """\
A backslash at the end of a line goes on in the next one. /reset forgets the conversation,
/system TEXT does too and sets the system prompt, /exit or Ctrl-D ends. Ctrl-C stops the answer.
"""


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model",
        description=f"{__doc__}\n\n{_COMMANDS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_options(parser)
    parser.add_argument("--system", metavar="TEXT", help="system prompt of the conversation")
    add_sampling_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, answer, repeat, until the input ends."""
    check_sampling(args)
    llm = load_llm(args, max_num_seqs=1)
    params = sampling_params(args, llm)
    llm.render_chat([{"role": "user", "content": "?"}])  # a model without a template fails here
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() its line editing and history
        print(_COMMANDS, end="", file=sys.stderr)
    history = _start(args.system)
    for text in _inputs():
        command, _, rest = text.strip().partition(" ")
        if command == "/exit":
            break
        if command == "/reset":
            history = _start(history[0]["content"] if _has_system(history) else None)
        elif command == "/system":
            history = _start(rest.strip())
        elif command.startswith("/"):
            known = "expected /reset, /system TEXT or /exit"
            print(f"cugraphs: {one_line(command)} is no command, {known}", file=sys.stderr)
        elif command:
            _answer(llm, params, history, text)
    print_stats(args, llm)
    return 0


def _answer(llm: LLM, params: SamplingParams, history: list[Message], text: str) -> None:
    """Print the answer to ``text`` and add both to the history; keep what an interrupt leaves."""
    question = {"role": "user", "content": text}
    pieces: list[str] = []
    note = ""
    try:
        stream = llm.stream(llm.render_chat([*history, question]), params)
        for piece in stream:
            pieces.append(piece)
            print(piece, end="", flush=True)
        if stream.output.outputs[0].finish_reason == "length":
            note = "cut at --max-tokens, or at the model's limit"
    except KeyboardInterrupt:
        note = "stopped"
    except ValueError as error:  # the conversation has outgrown the model: say so, go on
        print(f"cugraphs: {error}; /reset starts anew", file=sys.stderr)
        return
    print(flush=True)
    if note:
        print(f"cugraphs: the answer was {note}", file=sys.stderr)
    history += [question, {"role": "assistant", "content": "".join(pieces)}]


def _inputs() -> Iterator[str]:
    """What the person says, one turn at a time; a backslash at the end of a line joins lines."""
    lines: list[str] = []
    is_typed = sys.stdin.isatty()
    while True:
        prompt = ("... " if lines else "> ") if is_typed and sys.stdout.isatty() else ""
        try:
            line = input(prompt)
        except KeyboardInterrupt:
            if not is_typed:
                raise
            print(file=sys.stderr)  # at the prompt it drops what was typed
            lines = []
            continue
        except EOFError:
            break
        except UnicodeDecodeError as error:
            raise ValueError(f"chat: stdin is no valid text ({error}), expected UTF-8") from None
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
