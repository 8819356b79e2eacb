"""Ctrl-C while modules are imported: noted at once, raised when they are there."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_interrupt() -> Iterator[None]:
    """Hold SIGINT back until the end of the context, and raise it there as KeyboardInterrupt.

    In the midst of an import it can be lost in a callback of Python's, or leave a module's lock
    held for ever. A program that handles SIGINT in its own way, or ignores it, goes on doing so.

    Raises:
        KeyboardInterrupt: there was one.
    """
    noted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        noted = True

    holds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if holds:
        try:
            signal.signal(signal.SIGINT, note)
        except ValueError:  # not the main thread, and no other is interrupted
            holds = False
    try:
        yield
    finally:
        if holds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if noted:
            raise KeyboardInterrupt
