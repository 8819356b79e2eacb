"""Tokens to answers in a thread of its own, so that a step never waits for text.

The engine puts the tokens of each step into a queue. The thread gives them to the completions and
tells which have ended, by a stop string too. The engine may have sampled more by then: a completion
takes nothing after its end. Knows completions and requests; no scheduling and no device.

Whoever has waited in :meth:`TextWorker.drain` may touch the completions until tokens are put again.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

from cugraphs.completion import Completion
from cugraphs.kernel import Array
from cugraphs.outputs import Logprob, RequestOutput
from cugraphs.request import Request
from cugraphs.sequence import Sequence as TokenSequence
from cugraphs.tokenizer import Tokenizer

Answer = tuple[Request, Completion]

MAX_STEPS_BEHIND = 4  # of the text behind the steps, then those wait
NOT_NUMBERS = (
    "the logits at position {position} hold NaN or infinity, expected numbers; the weights are "
    "damaged, or the activations overflow in this dtype"
)


class Begun(NamedTuple):
    """A sequence that took a slot: the slot's tokens are its own from here on.

    Args:
        slot: that it took.
        sequence: who took it.
        time_s: when it was scheduled.
        cached_tokens: of its tokens, those that need not be computed.
    """

    slot: int
    sequence: TokenSequence
    time_s: float
    cached_tokens: int


@dataclass(frozen=True)
class PromptRows:
    """Rows of a step that tell the log-probabilities of prompt tokens.

    Args:
        sequence: whose prompt.
        position: of the first of these tokens in the prompt.
        first_row: of the step's outputs; one a token from there on.
        token_ids: one after the other.
    """

    sequence: TokenSequence
    position: int
    first_row: int
    token_ids: Sequence[int]


class StepTokens(NamedTuple):
    """What a step has sampled.

    Args:
        slots: int64 [n].
        token_ids: int32 [n]; negative where the logits were no numbers.
        positions: int64 [n]; where they stand in their sequences.
        is_last: bool [n]; whether a token ends its sequence; one that is no number does.
        time_s: when they were there.
        begun: sequences that took a slot since the last step.
        rows: int [n]; of each, in ``logprobs``; None where there are none.
        logprobs: the step's outputs by name, where log-probabilities are wanted.
        prompts: rows of the same outputs.
    """

    slots: Array
    token_ids: Array
    positions: Array
    is_last: Array
    time_s: float
    begun: Sequence[Begun] = ()
    rows: Array | None = None
    logprobs: Mapping[str, Array] | None = None
    prompts: Sequence[PromptRows] = ()


@dataclass(frozen=True)
class StepResults:
    """What the tokens of a step have brought.

    Args:
        outputs: of requests that stream, what is new; of others, everything once they have ended.
        ended: completions that have ended, with their requests; all of a request that failed.
    """

    outputs: Sequence[RequestOutput]
    ended: Sequence[Answer]


class TextWorker:
    """The engine's end of the queue, and what the thread hands back.

    Attributes:
        results: of each step whose tokens were given to their completions.
        errors: what went wrong beside the answers, so that a step is left halfway.
    """

    def __init__(self, tokenizer: Tokenizer, num_slots: int) -> None:
        """Start the thread; it ends when nobody holds the worker any more."""
        # Ctrl-C may come at any instruction of whoever puts: this queue has no lock of Python's
        # and no count that it could leave halfway.
        queue: SimpleQueue[StepTokens | threading.Event | None] = SimpleQueue()
        writer = AnswerWriter(tokenizer, num_slots)
        self.results, self.errors = writer.results, writer.errors
        self._queue, self._answers = queue, writer.answers
        weakref.finalize(self, queue.put, None).atexit = False
        threading.Thread(
            target=_work, args=(queue, writer), name="cugraphs text", daemon=True
        ).start()

    def add(self, request: Request, completion: Completion) -> None:
        """Give a completion of a request the tokens of its sequence."""
        self._answers[completion.sequence] = request, completion

    def remove(self, completion: Completion) -> None:
        """Give it no more tokens; nothing happens a second time."""
        self._answers.pop(completion.sequence, None)

    def remove_all(self) -> None:
        """Wait until all tokens are in their completions, which get no more."""
        self.drain()
        self._answers.clear()

    def put(self, tokens: StepTokens) -> None:
        """Hand over a step's tokens; where too many steps are queued, wait for them."""
        if self._queue.qsize() >= MAX_STEPS_BEHIND:
            self.drain()
        self._queue.put(tokens)

    def drain(self) -> None:
        """Wait until all tokens are in their completions."""
        reached = threading.Event()
        self._queue.put(reached)
        reached.wait()

    @property
    def catch_up(self) -> Callable[[], None]:
        """As :meth:`drain`, for what the thread holds: it does not keep the worker."""
        this = weakref.ref(self)

        def catch_up() -> None:
            worker = this()
            if worker is not None:
                worker.drain()

        return catch_up


def _work(queue: SimpleQueue[StepTokens | threading.Event | None], writer: AnswerWriter) -> None:
    """The thread: one step's tokens after the other. It holds no worker, so that one can end it."""
    while (step := queue.get()) is not None:
        if isinstance(step, threading.Event):
            step.set()
        else:
            try:
                writer.take(step)
            except Exception as error:
                writer.errors.append(error)
        del step  # an idle thread keeps nothing alive


def _failed(request: Request, error: Exception) -> list[Answer]:
    """The answers of a request that end with this error."""
    return [(request, completion) for completion in request.fail(error)]


class AnswerWriter:
    """Gives tokens to the completions whose they are.

    Attributes:
        answers: by sequence.
        results, errors: as of the worker.
    """

    def __init__(self, tokenizer: Tokenizer, num_slots: int) -> None:
        """Start without completions."""
        self.answers: dict[TokenSequence, Answer] = {}
        self.results: deque[StepResults] = deque()
        self.errors: deque[Exception] = deque()
        self._tokenizer = tokenizer
        self._slots: list[Answer | None] = [None] * num_slots

    def take(self, step: StepTokens) -> None:
        """Give a step's tokens to their completions; tell of what has changed."""
        for begun in step.begun:
            answer = self._slots[begun.slot] = self.answers.get(begun.sequence)
            if answer is not None:  # else it was aborted since
                again = answer[1].has_begun  # it was preempted, and finds what it had itself
                answer[0].clock.begin(begun.time_s, 0 if again else begun.cached_tokens)
                answer[1].has_begun = True
        streaming: dict[Request, None] = {}  # in the order of the rows
        ended: list[Answer] = []
        for prompt in step.prompts:
            answer = self.answers.get(prompt.sequence)
            if answer is not None:
                try:
                    self._take_prompt(answer[0], prompt, step)
                except Exception as error:
                    ended += _failed(answer[0], error)
        arrays = (step.slots, step.token_ids, step.positions, step.is_last)
        columns = [array.tolist() for array in arrays]
        for index, (slot, token_id, position, is_last) in enumerate(zip(*columns, strict=True)):
            answer = self._slots[slot]
            if answer is None or answer[1].next_position != position:
                continue  # it has ended, or took this token before an interrupt
            request, completion = answer
            try:
                if token_id < 0:
                    raise FloatingPointError(NOT_NUMBERS.format(position=position))
                if completion.logprobs is not None:
                    assert step.rows is not None
                    row = int(step.rows[index])
                    completion.logprobs.append(self._logprobs(step, row, token_id))
                completion.append(token_id, is_last)
            except Exception as error:  # other requests go on
                completion.fail()
                ended += [answer, *_failed(request, error)]
                self._slots[slot] = None
                continue
            if len(completion.token_ids) == 1:
                request.clock.first_token(step.time_s)
            if request.streams:
                streaming[request] = None
            if completion.finish_reason is not None:
                ended.append(answer)
                self._slots[slot] = None
        for request in dict.fromkeys(request for request, _ in ended):
            if request.has_ended:
                request.end()
                streaming[request] = None
        if streaming or ended:
            outputs = [request.new_output() for request in streaming]
            self.results.append(StepResults(outputs, ended))

    def _take_prompt(self, request: Request, prompt: PromptRows, step: StepTokens) -> None:
        known = request.prompt_logprobs
        if known is None:
            return
        for index, token_id in enumerate(prompt.token_ids):
            if len(known) == prompt.position + index:  # else known: it was preempted since
                known.append(self._logprobs(step, prompt.first_row + index, token_id))

    def _logprobs(self, step: StepTokens, row: int, token_id: int) -> dict[int, Logprob]:
        """The likeliest tokens of a row, and ``token_id`` if it is not among them."""
        outputs, found = step.logprobs, {}
        assert outputs is not None
        for rank, top_id in enumerate(outputs["top_ids"][row].tolist(), start=1):
            if top_id < 0:
                break
            logprob = float(outputs["top_logprobs"][row, rank - 1])
            found[top_id] = Logprob(logprob, rank, self._token_text(top_id))
        if token_id not in found:
            logprob = float(outputs["target_logprobs"][row])
            rank = int(outputs["target_ranks"][row])
            found[token_id] = Logprob(logprob, rank, self._token_text(token_id))
        return found

    def _token_text(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id], skip_special_tokens=False)
