"""Requests in, answers out, step by step.

`StepPipeline` runs the steps. Their tokens become text in the thread of `TextWorker`, which tells
which answers have ended. Knows no files and no devices; the runner and the tokenizer arrive as
arguments.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident

import numpy as np

from cugraphs.block_manager import BlockManager
from cugraphs.completion import Completion
from cugraphs.counted import counted
from cugraphs.model_runner import ModelRunner
from cugraphs.outputs import Logprob, RequestOutput
from cugraphs.request import Request
from cugraphs.sampling_params import SamplingParams
from cugraphs.scheduler import Scheduler
from cugraphs.sequence import Sequence as TokenSequence
from cugraphs.sequence_state import MAX_EOS_TOKEN_IDS
from cugraphs.statistics import EngineCounters, EngineStats, RequestTimes
from cugraphs.step_pipeline import StepPipeline
from cugraphs.step_plan import PROMPT_LOGITS_ROWS
from cugraphs.text_worker import TextWorker
from cugraphs.token_ring import MAX_STEPS
from cugraphs.tokenizer import Tokenizer

_log = logging.getLogger("cugraphs")

PRIORITY_SPAN = 1000  # requests that one step of priority lets a request overtake


class Engine:
    """Continuous batching over one model runner. For one thread at a time; others are refused."""

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_num_seqs: int,
        seed: int | None = None,
        prefix_caching: bool = True,
        num_scheduler_steps: int = 1,
        steps_ahead: int = 0,
    ) -> None:
        """Start with no requests.

        Args:
            runner: runs the steps.
            tokenizer: of the model.
            vocab_size: of the model; token ids are below it.
            max_num_seqs: sequences that run at once.
            seed: makes the seeds of requests without one repeatable; None draws them at random.
            prefix_caching: a prompt that begins as an earlier one did uses its blocks.
            num_scheduler_steps: decode steps that are submitted together, while nobody could join.
            steps_ahead: steps that may be in flight when others are submitted.

        Raises:
            ValueError: the KV cache cannot hold one sequence of the model's length; the model has
                too many EOS tokens; or ``num_scheduler_steps`` is out of range.
        """
        if not 1 <= num_scheduler_steps <= MAX_STEPS:
            raise ValueError(
                f"Engine: num_scheduler_steps is {num_scheduler_steps}, expected 1 to {MAX_STEPS}"
            )
        cache = runner.plan.cache
        self._runner = runner
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = cache.max_model_len
        eos_token_ids = sorted(tokenizer.eos_token_ids)
        self._text = TextWorker(tokenizer, max_num_seqs)
        self._requests: set[Request] = set()
        # What the next step returns, by id(): who takes it twice, after an interrupt, has it once.
        self._outputs: dict[int, RequestOutput] = {}
        self._busy_thread: int | None = None  # that is within a step, an abort or an addition
        self._to_abort: deque[Request] = deque()
        self._counters = EngineCounters()
        self.on_finished: list[Callable[[RequestTimes], None]] = []  # for each request that ends
        self._next_request_id = 0
        self._next_seq_id = 0
        self._seeds = np.random.default_rng(seed)
        self.blocks = BlockManager(
            runner.num_kv_blocks,
            cache.block_size,
            num_slots=max_num_seqs,
            max_blocks=cache.max_blocks,
            prefix_caching=prefix_caching,
        )
        needed = self.blocks.blocks_for(cache.max_model_len)
        if self.blocks.num_usable < needed:
            raise ValueError(
                f"Engine: the KV cache has {counted(self.blocks.num_usable, 'usable block')} of "
                f"{counted(cache.block_size, 'token')}, expected at least {needed} for "
                f"max_model_len {cache.max_model_len}; raise num_kv_blocks to {needed + 1} or "
                "lower max_model_len"
            )
        if len(eos_token_ids) > MAX_EOS_TOKEN_IDS:
            raise ValueError(
                f"Engine: the model has {len(eos_token_ids)} EOS tokens, "
                f"expected at most {MAX_EOS_TOKEN_IDS}"
            )
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=max_num_seqs,
            max_model_len=cache.max_model_len,
            max_num_batched_tokens=runner.plan.max_num_batched_tokens,
            max_prompt_logits=PROMPT_LOGITS_ROWS,
        )
        self._pipeline = StepPipeline(
            self.scheduler,
            runner,
            self._counters,
            eos_token_ids=eos_token_ids,
            give=self._text.put,
            num_steps=num_scheduler_steps,
            steps_ahead=steps_ahead,
        )

    def add_request(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        prompt: str | None = None,
        *,
        priority: int = 0,
        streams: bool = False,
    ) -> Request:
        """Queue a prompt.

        Args:
            prompt_token_ids: 1 to ``max_model_len - 1`` token ids, once they are truncated as
                ``params`` ask.
            params: how to continue it.
            prompt: its text, handed back in the outputs.
            priority: a request goes before those that came up to ``PRIORITY_SPAN`` requests
                earlier, for each step that its priority is lower. So none waits for ever.
            streams: :meth:`step` returns what each step brings it, not all of it at the end.

        Returns:
            The request, which grows with every step.

        Raises:
            ValueError: the prompt is empty or too long, or a token id is not the model's.
            RuntimeError: another thread is within a call.
        """
        token_ids = params.truncate(prompt_token_ids, self._max_model_len - 1)
        self._check_prompt(token_ids, params)
        left = self._max_model_len - len(token_ids)
        max_tokens = left if params.max_tokens is None else min(params.max_tokens, left)
        seed = params.seed
        if seed is None:
            seed = int(self._seeds.integers(2**64, dtype=np.uint64))
        request_id = self._next_request_id
        order = request_id + priority * PRIORITY_SPAN
        # Within one block there is nothing to share; to compute it beside the others is quicker.
        shares = len(token_ids) > self.blocks.block_size
        completions: list[Completion] = []
        for sample_index in range(params.n):
            sequence = TokenSequence(
                self._next_seq_id,
                token_ids,
                params,
                max_tokens,
                seed,
                sample_index,
                order,
            )
            if completions and shares:
                sequence.leader = completions[0].sequence
                sequence.holders = sequence.leader.holders
            self._next_seq_id += 1
            completions.append(Completion(sequence, self._tokenizer))
        prompt_logprobs: list[dict[int, Logprob] | None] | None = (
            None if params.prompt_logprobs is None else [None]
        )
        request = Request(
            request_id,
            prompt,
            tuple(token_ids),
            completions,
            prompt_logprobs,
            streams=streams,
            catch_up=self._text.catch_up,
        )
        self._next_request_id += 1
        try:
            self._do_whole(partial(self._queue, request))
            return request
        except BaseException:
            if request in self._requests:
                self.abort(request)
            raise

    def _queue(self, request: Request) -> None:
        self._requests.add(request)
        for completion in request.completions:
            self._text.add(request, completion)
            self.scheduler.add(completion.sequence)
        if self.scheduler.could_join:
            self._pipeline.make_room()

    def abort(self, request: Request) -> None:
        """Stop a request; no step returns any more of it. Within a step: after the step."""
        self.abort_soon(request)
        self._abort_between_steps()

    def abort_soon(self, request: Request) -> None:
        """Stop a request before the next step. Waits for nothing, so that a finalizer may ask."""
        self._to_abort.append(request)

    def stats(self) -> EngineStats:
        """Counters since the start, and what is so now."""
        blocks, counts, mine = self.blocks, self._runner.counts, self._counters
        return EngineStats(
            requests_waiting=len(self.scheduler.waiting),
            requests_running=len(self.scheduler.running),
            requests_finished=mine.requests_finished,
            requests_failed=mine.requests_failed,
            steps=mine.steps,
            prompt_tokens=mine.prompt_tokens,
            generated_tokens=mine.generated_tokens,
            surplus_tokens=mine.surplus_tokens,
            cached_tokens=blocks.num_cached_tokens,
            forks=blocks.num_forks,
            forked_tokens=blocks.num_forked_tokens,
            copied_blocks=blocks.num_copied,
            preemptions=self.scheduler.num_preemptions,
            kv_blocks=blocks.num_usable,
            kv_blocks_used=blocks.num_usable - blocks.num_free,
            kv_blocks_cached=blocks.num_cached,
            captures=counts.captures,
            replays=dict(counts.replays),
            loops=dict(counts.loops),
            eager_steps=dict(counts.eager_steps),
            padding_rows=counts.padding_rows,
            off_ladder_steps=counts.off_ladder_steps,
            host_seconds=dict(mine.host_seconds),
        )

    def has_unfinished(self) -> bool:
        """Whether any request waits or runs, or has an output that no step has returned."""
        return bool(self._requests or self._outputs)

    def step(self) -> list[RequestOutput]:
        """Run one step.

        Its tokens become text while the next steps run, so an output can come some steps after
        its tokens; the last one is out when :meth:`has_unfinished` is false. An interrupt, at any
        instruction, or an error takes the step back: all sequences are computed anew later, and
        no prefix is in the cache any more.

        A request that fails, by logits that are no numbers or an error in making its text, ends
        with finish_reason "error" and fails no other.

        Returns:
            Of requests that stream, what they gained; of others, everything once they have ended.

        Raises:
            RuntimeError: another thread is within a call; or the device failed.
        """
        self._abort_between_steps()
        self._do_whole(self._step)
        self._abort_between_steps()
        outputs, self._outputs = list(self._outputs.values()), {}
        return outputs

    def _step(self) -> None:
        self._counters.begin_phases()
        self._take_results()
        self._pipeline.step()
        if self._text.errors:
            raise self._text.errors.popleft()
        self._take_results()
        if self.scheduler.is_empty:
            self._settle()

    def _do_whole(self, task: Callable[[], None]) -> None:
        """Do it to its end, or start over; meanwhile nobody aborts and no other thread comes in."""
        this = get_ident()
        # No call between look and mark: no thread and no interrupt comes in there, without a lock.
        before = self._busy_thread
        if before is not None and before != this:
            raise RuntimeError(
                "Engine: another thread is within a call, expected one thread at a time; "
                "AsyncLLM serves many callers at once"
            )
        try:
            self._busy_thread = this
            task()
        except BaseException:
            self._start_over()
            raise
        finally:
            self._busy_thread = before

    def _start_over(self) -> None:
        """Undo the steps in flight, and whatever is left halfway: what the answers hold counts."""
        self._text.remove_all()
        waiting = []
        for request in self._requests:
            for completion in request.left:
                self._text.add(request, completion)
                sequence = completion.sequence
                sequence.stand_at(completion.token_ids)
                sequence.ended = completion.finish_reason is not None
                if not sequence.ended:
                    waiting.append(sequence)
        self._pipeline.start_over(waiting)

    def _settle(self) -> None:
        """Nothing waits and nothing runs: catch up with the text, and with steps for nobody."""
        self._text.drain()
        self._take_results()
        self._pipeline.drain()

    def _take_results(self) -> None:
        """Keep the outputs that the text has made for :meth:`step`; let go of what has ended."""
        results = self._text.results
        while results:
            for request, completion in results[0].ended:
                self._let_go(request, completion)
            self._outputs |= {id(output): output for output in results[0].outputs}
            results.popleft()

    def _let_go(self, request: Request, completion: Completion) -> None:
        """Drop an answer that has ended; by a stop string its sequence may still run."""
        sequence = completion.sequence
        self._text.remove(completion)
        if completion in request.left:  # else an interrupt has met this before
            surplus = self.scheduler.num_tokens(sequence) - len(sequence.prompt_token_ids)
            surplus -= len(completion.token_ids)
            self._counters.surplus_tokens += surplus
            if not sequence.ended:
                sequence.failed = request.error is not None
                self.scheduler.finish(sequence)
                if self.scheduler.waiting:  # the device does not know that this one has ended
                    self._pipeline.make_room()
            request.left.discard(completion)
        if request.finished and request in self._requests:
            self._requests.discard(request)
            self._counters.requests_finished += 1
            self._counters.requests_failed += request.error is not None
            for callback in self.on_finished:
                try:
                    callback(request.clock.times)
                except Exception:  # whose ever it is: the request has ended all the same
                    _log.exception("Engine: a callback in on_finished failed")

    def _abort_between_steps(self) -> None:
        """Abort what is to be aborted, unless a step runs, which then does it at its end."""
        while self._to_abort and self._busy_thread is None:
            self._do_whole(self._abort_first)

    def _abort_first(self) -> None:
        self._abort(self._to_abort[0])
        self._to_abort.popleft()

    def _abort(self, request: Request) -> None:
        if not request.finished:
            self._text.drain()
            self._take_results()
        kept = [o for o in self._outputs.values() if o.request_id != request.request_id]
        self._outputs = {id(output): output for output in kept}
        if request not in self._requests:
            return
        for completion in request.left:
            completion.abort()
        request.end()
        for completion in request.completions:
            self._let_go(request, completion)
        if self.scheduler.is_empty:
            self._settle()

    def _check_prompt(self, token_ids: Sequence[int], params: SamplingParams) -> None:
        if not token_ids:
            raise ValueError("Engine: the prompt has 0 tokens, expected at least 1")
        if len(token_ids) >= self._max_model_len:
            raise ValueError(
                f"Engine: the prompt has {counted(len(token_ids), 'token')}, expected at most "
                f"{self._max_model_len - 1}: max_model_len is {self._max_model_len} "
                "and one token is generated; shorten it, or set truncate_prompt_tokens"
            )
        named = [("a prompt token id", token_ids)]
        named += [("a token id of logit_bias", list(params.logit_bias or ()))]
        named += [("a token id of stop_token_ids", list(params.stop_token_ids or ()))]
        for name, ids in named:
            if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
                wrong = next(i for i in ids if not 0 <= i < self._vocab_size)
                raise ValueError(f"Engine: {name} is {wrong}, expected 0 to {self._vocab_size - 1}")
