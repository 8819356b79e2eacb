"""What steps have sampled, for the host to read while the device runs on; and how loops stop.

The last kernel of a step writes a word for each row into memory that host and device share: the
row's token and the number of the step. A token is there once its word has the step's number, so the
host never waits for the device's stream. A ring of such words holds the last steps. A loop over
steps tells its end in the same way, and ends when the host asks for it by a word of its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from cugraphs.counted import counted
from cugraphs.device import Device
from cugraphs.kernel import DTYPES, Array, ArrayType
from cugraphs.kernels.step_numbers import DEAD
from cugraphs.program import Buffer
from cugraphs.trace import Tracer

__all__ = ["DEAD", "MAX_STEPS", "RING_STEPS", "RingBuffers", "TokenRing", "declare_ring"]

RING_STEPS = 256  # steps whose words are kept: a power of two, since numbers wrap around
MAX_STEPS = 64  # of one launch: several launches may be under way

_PAUSE_S, _PAUSE_SHARE = 20e-6, 0.02  # between two looks at the ring; as a share of a step
_ALMOST = 0.9  # of the time of a step, after which the next one's words are looked for
_CHECK_EVERY_S = 0.01  # how often the device is asked for errors meanwhile
_MASK = 0xFFFFFFFF
_HALF = 1 << 31  # numbers are 32 bits; which of two is later is clear within half of them


@dataclass(frozen=True)
class RingBuffers:
    """The STATE buffers by which steps are numbered and tell their tokens.

    Args:
        step: int32 [1]; the number of the newest step that has begun.
        token_ring: int32 [RING_STEPS, rows, 2]; (token, step), for the host.
        loop_ends: int32 [RING_STEPS, 2]; (steps made, first step) of loops that ended, for the
            host.
        stop_at: int32 [1]; from the host: loops that began with this step or before it end.
    """

    step: Buffer
    token_ring: Buffer
    loop_ends: Buffer
    stop_at: Buffer


def ring_types(max_rows: int) -> dict[str, ArrayType]:
    """The types of :class:`RingBuffers` for steps of at most ``max_rows`` sampled rows."""
    return {
        "step": ArrayType((1,), "int32"),
        "token_ring": ArrayType((RING_STEPS, max_rows, 2), "int32"),
        "loop_ends": ArrayType((RING_STEPS, 2), "int32"),
        "stop_at": ArrayType((1,), "int32"),
    }


def declare_ring(t: Tracer, max_rows: int) -> RingBuffers:
    """Declare the ring in a trace."""
    types = ring_types(max_rows)
    return RingBuffers(**{name: t.state(name, a.shape, a.dtype) for name, a in types.items()})


class TokenRing:
    """The ring of one device, and the numbers of the steps that are launched on it.

    Numbers are counted without end here; the device knows their lowest 32 bits.

    Attributes:
        arrays: the device's array for every buffer of :class:`RingBuffers`, by name.
        next_step: the number of the first step that is launched next.
    """

    def __init__(self, device: Device, max_rows: int, *, time_limit_s: float = 120.0) -> None:
        """Allocate the ring.

        Args:
            device: runs the steps.
            max_rows: sampled rows of a step.
            time_limit_s: how long a wait for one step may take.
        """
        self.next_step = 1
        self._device = device
        self._time_limit_s = time_limit_s
        self.arrays: dict[str, Array] = {}
        host: dict[str, Array] = {}
        for name, type_ in ring_types(max_rows).items():
            dtype = DTYPES[type_.dtype]
            if name == "step":  # nobody on the host reads it
                self.arrays[name] = device.zero_bytes(type_.nbytes).view(dtype)
                continue
            on_device, on_host = device.map_bytes(type_.nbytes)
            self.arrays[name] = on_device.view(dtype).reshape(type_.shape)
            host[name] = on_host.view(dtype).reshape(type_.shape)
        # Words of steps that are never looked for at their place.
        before = np.arange(RING_STEPS, dtype=np.int32) - 1
        host["token_ring"][..., 1] = before[:, None]
        host["loop_ends"][..., 1] = before
        self._tokens = host["token_ring"].view(np.int64)[..., 0]  # a word is read as one
        self._ends = host["loop_ends"].view(np.int64)[..., 0]
        self._stop_at = host["stop_at"]
        self._stopped = 0
        self._newest, self._newest_s, self._step_s = 0, 0.0, 0.0  # of the steps that were read

    def begin(self, num_steps: int = 1) -> int:
        """The number of the first of so many steps that are launched together.

        Raises:
            ValueError: they are fewer than 1 or more than ``MAX_STEPS``.
        """
        if not 1 <= num_steps <= MAX_STEPS:
            raise ValueError(
                f"TokenRing: num_steps is {num_steps}, expected 1 to {MAX_STEPS} in one launch"
            )
        first = self.next_step
        self.next_step += num_steps
        if first - self._stopped > _HALF // 2:  # or an old request would seem to lie ahead
            self.stop(first - _HALF // 2)
        return first

    def poll(self, step: int, rows: int) -> Array | None:
        """The tokens that ``step`` has sampled in its first rows, or None while one is missing.

        They are kept until ``RING_STEPS`` more steps are launched.

        Returns:
            int32 [rows]; -1 where the logits were no numbers, ``DEAD`` in dead rows.
        """
        words = self._words(step, rows)
        is_there = np.count_nonzero(words[1::2] == as_int32(step)) == rows
        return words[::2].copy() if is_there else None

    def steps_made(self, first_step: int) -> int | None:
        """How many steps the loop made that began with ``first_step``; None while it runs."""
        word = int(self._ends[first_step % RING_STEPS])  # one load
        return word & _MASK if word >> 32 & _MASK == first_step & _MASK else None

    def has_ended(self, loop: int) -> bool:
        """Whether the loop that began with step ``loop`` has made its last step."""
        return self.steps_made(loop) is not None

    def wait(self, step: int, rows: int, *, loop: int | None = None) -> Array | None:
        """As :meth:`poll`, but waits.

        Args:
            step: was launched.
            rows: of it.
            loop: the first step of the loop that it belongs to, if it does.

        Returns:
            As :meth:`poll`; None if the loop ended before the step.

        Raises:
            TimeoutError: it takes too long.
            RuntimeError: the device failed, or runs nothing that would write the words.
        """
        start = time.perf_counter()
        check_s, is_idle, has_slept = start + _CHECK_EVERY_S, False, False
        while True:
            made = None if loop is None else self.steps_made(loop)
            if made is not None and loop is not None and step >= loop + made:
                return None
            tokens = self.poll(step, rows)
            if tokens is not None:
                if has_slept:
                    self._arrived(step, time.perf_counter())
                return tokens
            if is_idle:
                raise RuntimeError(
                    f"TokenRing: the words of step {step} are not there and nothing runs on the "
                    f"device, expected a launched step of {counted(rows, 'row')} or more, that is "
                    f"read before {RING_STEPS} later ones are launched"
                )
            now = time.perf_counter()
            if now - start > self._time_limit_s:
                raise TimeoutError(self._overdue(step, rows))
            if now > check_s or self._device.shares_host_memory:
                is_idle = self._device.check()
                check_s = now + _CHECK_EVERY_S
                continue
            # Other threads run meanwhile. The first sleep is nearly as long as a step.
            due_s = self._newest_s + _ALMOST * self._step_s - now
            pause_s = max(due_s, _PAUSE_S, _PAUSE_SHARE * self._step_s)
            time.sleep(min(pause_s, _CHECK_EVERY_S))
            has_slept = True

    def stop(self, first_step: int | None = None) -> None:
        """Let loops end after the step that they are in. Any thread may ask for it.

        Args:
            first_step: loops that began with it or before; None: all that were launched.
        """
        first = self.next_step - 1 if first_step is None else first_step
        if first > self._stopped:
            self._stopped = first
            self._stop_at[:] = as_int32(first)

    def _arrived(self, step: int, now_s: float) -> None:
        """Learn from the words that have just come how long a step takes.

        A longer one is believed slowly: after a prompt's step the next may be short again.
        """
        count = step - self._newest
        if 1 <= count <= MAX_STEPS:
            most_s = max(1.25 * self._step_s, _PAUSE_S)
            self._step_s = min((now_s - self._newest_s) / count, most_s)
        self._newest, self._newest_s = step, now_s

    def _words(self, step: int, rows: int) -> Array:
        """What is now at the place of a step: int32 [2 * rows], a token and a number in turn."""
        words: Array = self._tokens[step % RING_STEPS, :rows].copy().view(np.int32)
        return words

    def _overdue(self, step: int, rows: int) -> str:
        words = self._words(step, rows)
        missing = np.flatnonzero(words[1::2] != as_int32(step)).tolist()
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        return (
            f"TokenRing: step {step} has not written the words of {len(missing)} of "
            f"{counted(rows, 'row')} ({shown}) within {self._time_limit_s:g} s; the device hangs "
            "in it or in a step before"
        )


def as_int32(step: int) -> int:
    """The number as the device knows it: its lowest 32 bits, as int32 has them."""
    return (step + _HALF & _MASK) - _HALF
