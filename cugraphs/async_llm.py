"""``AsyncLLM``: an ``LLM`` whose steps run in a thread of their own, for servers and notebooks.

Any number of tasks ask and listen at once; their requests run together. Only the thread touches the
engine: what tasks want of it waits in a queue until the step is done. The thread knows no
``AsyncLLM``, and ends with it.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from cugraphs.engine import Engine
from cugraphs.llm import LLM, Message
from cugraphs.outputs import Logprob, RequestOutput
from cugraphs.prompts import Prompt
from cugraphs.request import Request
from cugraphs.sampling_params import SamplingParams
from cugraphs.statistics import EngineStats

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

_Call = Callable[[bool], None]  # done by the thread; told whether it is too late


@dataclass(frozen=True)
class Delta:
    """What one sample of a request gained since the last delta.

    Args:
        index: which of the request's ``n`` samples.
        text: new text, final; may be empty while a stop string or a character is incomplete.
        token_ids: new tokens.
        finish_reason: "stop", "length", "abort", or None while it still runs.
        stop_reason: the stop token id or stop string that ended it; None for EOS and otherwise.
        logprobs: for each new token the likeliest tokens and itself; None if not asked for.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    stop_reason: int | str | None = None
    logprobs: tuple[dict[int, Logprob], ...] | None = None


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


class _StepThread:
    """A thread that runs an engine's steps while there is anything to do.

    Attributes:
        engine: that only the thread touches.
        listeners: of the requests that are not over, by their number.
    """

    def __init__(self, engine: Engine) -> None:
        """Start it."""
        self.engine = engine
        self.listeners: dict[int, _Listener] = {}
        # A finalizer may put at any instruction of any thread: this queue has no lock of Python's.
        self._wanted: SimpleQueue[_Call | None] = SimpleQueue()
        self._is_over = False
        self._thread = threading.Thread(target=self._work, name="cugraphs engine", daemon=True)
        self._thread.start()

    def ask(self, call: _Call) -> None:
        """Let the thread do something between two steps; once it is over, refuse it."""
        self._wanted.put(call)
        if self._is_over:
            self._refuse_what_is_wanted()

    def close(self) -> None:
        """Let it end, after what was asked for; waits for nothing."""
        self._wanted.put(None)

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def drop(self, request: Request) -> None:
        """Nobody listens any more."""
        self.listeners.pop(request.request_id, None)
        self.engine.abort(request)

    def _work(self) -> None:
        """Do what is asked for, then run a step, until it is closed."""
        while True:
            try:
                if not self._do_what_is_wanted():
                    break
                self._tell(self.engine.step())
            except Exception as error:  # of the whole step: nobody's request can go on
                self._fail(error)
        self._is_over = True  # from here on, who asks refuses what the next line has not met
        self._refuse_what_is_wanted()
        self._fail(RuntimeError("AsyncLLM: it was closed before the request had ended"))

    def _do_what_is_wanted(self) -> bool:
        """Wait until there is anything to do; whether the thread goes on."""
        while not (self._wanted.empty() and self.engine.has_unfinished()):
            call = self._wanted.get()
            if call is None:
                return False
            call(False)
            del call  # a thread that waits keeps nothing alive
        return True

    def _refuse_what_is_wanted(self) -> None:
        while True:
            try:
                call = self._wanted.get_nowait()
            except Empty:
                return
            if call is not None:
                call(True)

    def _tell(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            listener = self.listeners.get(output.request_id)
            if listener is not None:
                failed = output.error is not None
                listener.put(listener.request.failure("AsyncLLM") if failed else output)

    def _fail(self, error: BaseException) -> None:
        """Tell all who listen, and drop their requests, whatever becomes of that."""
        for listener in list(self.listeners.values()):
            listener.put(error)
            with suppress(Exception):
                self.drop(listener.request)


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
        self._steps = _StepThread(self.llm.engine)
        weakref.finalize(self, self._steps.close)

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
            FloatingPointError: its logits hold NaN or infinity.
            RuntimeError: its text cannot be made; or the engine is closed, or the device failed.
        """
        listener = await self._add(prompt, params, priority, streams=True)
        try:
            while True:
                output = await _next(listener.queue)
                for new in output.outputs:
                    yield Delta(
                        index=new.index,
                        text=new.text,
                        token_ids=new.token_ids,
                        finish_reason=new.finish_reason,
                        stop_reason=new.stop_reason,
                        logprobs=new.logprobs,
                    )
                if output.finished:
                    return
        finally:
            self._drop(listener.request)

    async def complete(
        self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0
    ) -> RequestOutput:
        """Continue one prompt and return everything at the end. As :meth:`generate` else."""
        listener = await self._add(prompt, params, priority, streams=False)
        try:
            return await _next(listener.queue)
        finally:
            self._drop(listener.request)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[Delta]:
        """Answer a conversation through the model's chat template. As :meth:`generate` else."""
        return self.generate(self.llm.render_chat(messages), params, priority=priority)

    def stats(self) -> EngineStats:
        """Counters of the engine."""
        return self.llm.stats()

    def export_metrics(self, registry: CollectorRegistry | None = None) -> None:
        """Register counters and times with prometheus-client, as ``LLM.export_metrics``."""
        self.llm.export_metrics(registry)

    async def close(self) -> None:
        """Abort what still runs, and end the thread. One that nobody holds any more ends too."""
        self._steps.close()
        await asyncio.to_thread(self._steps.join)

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
        steps, loop = self._steps, asyncio.get_running_loop()
        added: Future[_Listener] = Future()

        def add(is_over: bool) -> None:
            if not added.set_running_or_notify_cancel():
                return  # the task has left already
            try:
                if is_over:
                    raise RuntimeError("AsyncLLM: it is closed")
                request = steps.engine.add_request(
                    token_ids, resolved, text, priority=priority, streams=streams
                )
            except Exception as error:
                added.set_exception(error)
                return
            listener = _Listener(request, loop, asyncio.Queue())
            steps.listeners[request.request_id] = listener
            added.set_result(listener)

        def leave(is_over: bool) -> None:
            if not (is_over or added.cancelled() or added.exception()):
                steps.drop(added.result().request)

        steps.ask(add)
        try:
            return await asyncio.wrap_future(added)
        except asyncio.CancelledError:
            steps.ask(leave)  # behind what was asked before, whether that could be cancelled or not
            raise

    def _drop(self, request: Request) -> None:
        """Nobody waits for it any more; behind what was asked before."""
        steps = self._steps
        steps.ask(lambda is_over: None if is_over else steps.drop(request))


async def _next(queue: asyncio.Queue[RequestOutput | BaseException]) -> RequestOutput:
    """What comes next; an error is raised."""
    item = await queue.get()
    if isinstance(item, BaseException):
        raise item
    return item
