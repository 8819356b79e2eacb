"""Starts, each in a fresh process: when each part of one begins and ends, up to the first token.

The process is `cugraphs.start_run`, which does what a user's script does. Compiled kernels are kept
in a folder that is given: where it is empty, a start is the first one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cugraphs.one_line import one_line

_LIMIT_S = 600.0
_FIRST_TOKEN = "first token"
# Where compiled kernels are kept: ours and CuPy's, and what the driver has compiled.
_CACHES = ("XDG_CACHE_HOME", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")
# Spans that there are many of, and what they are called together.
_TOGETHER = {"compile ": "compile kernels", "load ": "load kernels"}


@dataclass(frozen=True)
class Phase:
    """A part of a start; times count from when the process was asked for.

    Args:
        name: what is done.
        begin_ms: when the first span of it begins.
        end_ms: when the last one ends.
        busy_ms: the sum of its spans: more than from begin to end where threads share it.
        count: spans.
        in_thread: beside the main thread.
    """

    name: str
    begin_ms: float
    end_ms: float
    busy_ms: float
    count: int
    in_thread: bool


@dataclass(frozen=True)
class Start:
    """One start.

    Args:
        first_token_ms: from asking for the process to the first token.
        exit_ms: to its end.
        phases: in order of their beginning.
        graphs: that were captured.
        machine: names and versions, by what they are of.
    """

    first_token_ms: float
    exit_ms: float
    phases: Sequence[Phase]
    graphs: int
    machine: Mapping[str, str]

    def phase(self, name: str) -> Phase | None:
        """The phase of a name; None where there was none."""
        return next((phase for phase in self.phases if phase.name == name), None)


def run_start(folder: Path, options: Mapping[str, Any], caches: Path) -> Start:
    """Start once.

    Args:
        folder: of the model.
        options: arguments of ``LLM``.
        caches: folder of compiled kernels, those of CuPy and the driver as well.

    Raises:
        RuntimeError: it fails, with the last line that it wrote, or does not end.
    """
    text = json.dumps({"model": str(folder), **options})
    asked_s = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cugraphs.start_run", text],
            env={**os.environ, **{name: str(caches / name.lower()) for name in _CACHES}},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"bench: the start has not ended after {_LIMIT_S:,.0f} s") from None
    ended_s = time.perf_counter()
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(f"bench: the start fails: {one_line(lines[-1], 1000)}")
    record = json.loads(done.stdout.splitlines()[-1])
    spans = [("Python", "MainThread", asked_s, record["begin_s"]), *record["spans"]]
    phases = merge_spans(spans, asked_s)
    first_token = next(phase for phase in phases if phase.name == _FIRST_TOKEN)
    return Start(
        first_token_ms=first_token.end_ms,
        exit_ms=(ended_s - asked_s) * 1e3,
        phases=phases,
        graphs=record["graphs"],
        machine=record["machine"],
    )


def merge_spans(spans: Sequence[tuple[str, str, float, float]], asked_s: float) -> list[Phase]:
    """Phases of (name, thread, begin, end), those of one name together."""
    found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for name, thread, begin_s, end_s in spans:
        for prefix, together in _TOGETHER.items():
            name = together if name.startswith(prefix) else name
        times = ((begin_s - asked_s) * 1e3, (end_s - asked_s) * 1e3)
        found.setdefault((name, thread != "MainThread"), []).append(times)
    phases = [
        Phase(
            name=name,
            begin_ms=min(begin for begin, _ in times),
            end_ms=max(end for _, end in times),
            busy_ms=sum(end - begin for begin, end in times),
            count=len(times),
            in_thread=in_thread,
        )
        for (name, in_thread), times in found.items()
    ]
    return sorted(phases, key=lambda phase: (phase.begin_ms, -phase.end_ms))
