"""What a start does when: spans of time by name, recorded as they end, from any thread.

A process starts once, so there is one list, as there is one log. Nothing of a running engine is
recorded: a span is begun where something is loaded, compiled, planned or captured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Something that took time.

    Args:
        name: what it was.
        thread: the name of its thread.
        begin_s: by ``time.perf_counter``, which on Linux all processes share.
        end_s: by the same clock.
    """

    name: str
    thread: str
    begin_s: float
    end_s: float


SPANS: list[Span] = []


@contextmanager
def span(name: str) -> Iterator[None]:
    """Record the time of what runs inside, whether it succeeds or not."""
    begin_s = time.perf_counter()
    try:
        yield
    finally:
        record(name, begin_s)


def record(name: str, begin_s: float) -> None:
    """Record what ran in this thread from ``begin_s`` until now."""
    SPANS.append(Span(name, threading.current_thread().name, begin_s, time.perf_counter()))
