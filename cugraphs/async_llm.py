"""``AsyncLLM``: an ``LLM`` whose steps run in a thread of their own, for servers and notebooks.

Any number of tasks ask and listen at once; their requests run together. Only the thread touches the
engine: what tasks want of it waits in a queue until the step is done.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cugraphs.llm import LLM, Message, Prompt
from cugraphs.outputs import RequestOutput
from cugraphs.request import Request
from cugraphs.sampling_params import SamplingParams
from cugraphs.statistics import EngineStats


@dataclass(frozen=True)
class Delta:
    """What one sample of a request gained since the last delta.

    Args:
        index: which of the request's ``n`` samples.
        text: new text, final; may be empty while a stop string or a character is incomplete.
        token_ids: new tokens.
        finish_reason: "stop", "length", "abort", or None while it still runs.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None


@dataclass(frozen=True)
class _Listener:
    """Where a request's outputs go.

    Args:
        request: that it listens to.
        loop: of the task that listens.
        queue: that the task reads.
    """

    request: Request
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[RequestOutput | BaseException]

    def put(self, item: RequestOutput | BaseException) -> None:
        """Wake the task that listens, if its loop still runs."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.queue.put_nowait, item)


class AsyncLLM:
    """A model that many tasks use at once.

    >>> async with AsyncLLM("demo") as llm:
    ...     async for delta in llm.generate("Once upon a time"):
    ...         print(delta.text, end="")
    """

    def __init__(self, model: str | Path, **options: Any) -> None:  # noqa: ANN401
        """Load the model as ``LLM`` does, and start the thread.

        Args:
            model: as of ``LLM``.
            options: as of ``LLM``.

        Raises:
            TypeError, ValueError, OSError, MemoryError: as ``LLM``.
        """
        self.llm = LLM(model, **options)
        self._wake = threading.Condition()
        self._wanted: deque[Callable[[], None]] = deque()
        self._listeners: dict[int, _Listener] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="cugraphs engine", daemon=True)
        self._thread.start()

    async def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0
    ) -> AsyncIterator[Delta]:
        """Continue one prompt. Leaving the loop over it, or cancelling its task, aborts it.

        Args:
            prompt: a string or token ids.
            params: None takes generation_config.json's sampling.
            priority: as of ``Engine.add_request``; lower goes first.

        Yields:
            What each sample gained, step by step.

        Raises:
            TypeError, ValueError: the prompt or its parameters cannot be used.
            RuntimeError: the engine is closed.
        """
        listener = await self._add(prompt, params, priority, streams=True)
        try:
            while True:
                output = await _next(listener.queue)
                for answer in output.outputs:
                    reason = answer.finish_reason
                    yield Delta(answer.index, answer.text, answer.token_ids, reason)
                if output.finished:
                    return
        finally:
            self._ask(lambda: self._drop(listener.request))

    async def complete(
        self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0
    ) -> RequestOutput:
        """Continue one prompt and return everything at the end. As :meth:`generate` else."""
        listener = await self._add(prompt, params, priority, streams=False)
        try:
            return await _next(listener.queue)
        finally:
            self._ask(lambda: self._drop(listener.request))

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> AsyncIterator[Delta]:
        """Answer a conversation through the model's chat template. As :meth:`generate` else."""
        return self.generate(self.llm.render_chat(messages), params)

    def stats(self) -> EngineStats:
        """Counters of the engine."""
        return self.llm.stats()

    async def close(self) -> None:
        """Abort what still runs, and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Close."""
        await self.close()

    async def _add(
        self, prompt: Prompt, params: SamplingParams | None, priority: int, *, streams: bool
    ) -> _Listener:
        token_ids, text, resolved = self.llm.prepare(prompt, params)
        loop = asyncio.get_running_loop()
        added: Future[_Listener] = Future()

        def add() -> None:
            if not added.set_running_or_notify_cancel():
                return  # the task has left already
            try:
                request = self.llm.engine.add_request(
                    token_ids, resolved, text, priority=priority, streams=streams
                )
            except Exception as error:
                added.set_exception(error)
                return
            listener = _Listener(request, loop, asyncio.Queue())
            self._listeners[request.request_id] = listener
            added.set_result(listener)

        def leave() -> None:
            if not added.cancelled() and added.exception() is None:
                self._drop(added.result().request)

        self._ask(add, refuse=added)
        try:
            return await asyncio.wrap_future(added)
        except asyncio.CancelledError:
            self._ask(leave)  # behind what was asked before, whether that could be cancelled or not
            raise

    def _ask(self, call: Callable[[], None], refuse: Future[_Listener] | None = None) -> None:
        """Let the thread do something between two steps."""
        with self._wake:
            if self._closing:
                if refuse is not None:
                    refuse.set_exception(RuntimeError("AsyncLLM: it is closed"))
                return
            self._wanted.append(call)
            self._wake.notify()

    def _work(self) -> None:
        """The thread: do what is asked for, then run a step, until it is closed."""
        engine = self.llm.engine
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._wanted or self._closing or engine.has_unfinished()
                )
                if self._closing:
                    break
            try:
                self._do_what_is_wanted()
                outputs = engine.step()
            except Exception as error:  # of the whole step: nobody's request can go on
                self._fail(error)
                continue
            for output in outputs:
                listener = self._listeners.get(output.request_id)
                if listener is not None:
                    listener.put(output)
        while self._wanted:
            with suppress(Exception):  # of a device that failed: nobody is left to be told
                self._do_what_is_wanted()
        self._fail(RuntimeError("AsyncLLM: it was closed before the request had ended"))

    def _do_what_is_wanted(self) -> None:
        while self._wanted:
            self._wanted.popleft()()

    def _fail(self, error: BaseException) -> None:
        """Tell all who listen, and drop their requests, whatever becomes of that."""
        for listener in list(self._listeners.values()):
            listener.put(error)
            with suppress(Exception):
                self._drop(listener.request)

    def _drop(self, request: Request) -> None:
        self._listeners.pop(request.request_id, None)
        self.llm.engine.abort(request)


async def _next(queue: asyncio.Queue[RequestOutput | BaseException]) -> RequestOutput:
    """What comes next; an error is raised."""
    item = await queue.get()
    if isinstance(item, BaseException):
        raise item
    return item
