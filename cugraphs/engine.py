"""Requests in, tokens out, one step at a time: schedule, run, collect.

Knows no files and no devices; the runner and the tokenizer arrive as arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cugraphs.block_manager import BlockManager
from cugraphs.completion import Completion
from cugraphs.kernel import Array
from cugraphs.model_runner import PROMPT_LOGITS_ROWS, ModelRunner
from cugraphs.outputs import Logprob
from cugraphs.request import Request
from cugraphs.sampling_params import SamplingParams
from cugraphs.scheduler import ScheduledChunk, Scheduler
from cugraphs.sequence import Sequence as TokenSequence
from cugraphs.sequence_state import MAX_EOS_TOKEN_IDS
from cugraphs.statistics import EngineCounters, EngineStats, RequestTimes
from cugraphs.step_state import Chunk
from cugraphs.tokenizer import Tokenizer

PRIORITY_SPAN = 1000  # requests that one step of priority lets a request overtake


class Engine:
    """Continuous batching over one model runner."""

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_num_seqs: int,
        seed: int | None = None,
        prefix_caching: bool = True,
    ) -> None:
        """Start with no requests.

        Args:
            runner: runs the steps.
            tokenizer: of the model.
            vocab_size: of the model; token ids are below it.
            max_num_seqs: sequences that run at once.
            seed: makes the seeds of requests without one repeatable; None draws them at random.
            prefix_caching: a prompt that begins as an earlier one did uses its blocks.

        Raises:
            ValueError: the KV cache cannot hold one sequence of the model's length; or the model
                has too many EOS tokens.
        """
        cache = runner.plan.cache
        self._runner = runner
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = cache.max_model_len
        self._eos_token_ids = sorted(tokenizer.eos_token_ids)
        self._requests: set[Request] = set()
        self._aborted: list[Request] | None = None  # during a step: those that end after it
        self._owner: dict[TokenSequence, tuple[Request, Completion]] = {}
        self._counters = EngineCounters()
        self.on_finished: list[Callable[[RequestTimes], None]] = []  # for each request that ends
        self._next_request_id = 0
        self._next_seq_id = 0
        self._seeds = np.random.default_rng(seed)
        self.blocks = BlockManager(
            runner.num_kv_blocks, cache.block_size, prefix_caching=prefix_caching
        )
        needed = self.blocks.blocks_for(cache.max_model_len)
        if self.blocks.num_usable < needed:
            raise ValueError(
                f"Engine: the KV cache has {self.blocks.num_usable} usable blocks of "
                f"{cache.block_size} tokens, expected at least {needed} for max_model_len "
                f"{cache.max_model_len}; raise num_kv_blocks to {needed + 1} or lower max_model_len"
            )
        if len(self._eos_token_ids) > MAX_EOS_TOKEN_IDS:
            raise ValueError(
                f"Engine: the model has {len(self._eos_token_ids)} EOS tokens, "
                f"expected at most {MAX_EOS_TOKEN_IDS}"
            )
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=runner.plan.max_num_batched_tokens,
            max_prompt_logits=PROMPT_LOGITS_ROWS,
        )

    def add_request(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        prompt: str | None = None,
        *,
        priority: int = 0,
    ) -> Request:
        """Queue a prompt.

        Args:
            prompt_token_ids: 1 to ``max_model_len - 1`` token ids, once they are truncated as
                ``params`` ask.
            params: how to continue it.
            prompt: its text, handed back in the outputs.
            priority: a request goes before those that came up to ``PRIORITY_SPAN`` requests
                earlier, for each step that its priority is lower. So none waits for ever.

        Returns:
            The request, which grows with every step.

        Raises:
            ValueError: the prompt is empty or too long, or a token id is not the model's.
        """
        token_ids = params.truncate(prompt_token_ids, self._max_model_len - 1)
        self._check_prompt(token_ids, params)
        left = self._max_model_len - len(token_ids)
        max_tokens = left if params.max_tokens is None else min(params.max_tokens, left)
        seed = params.seed
        if seed is None:
            seed = int(self._seeds.integers(2**64, dtype=np.uint64))
        order = self._next_request_id + priority * PRIORITY_SPAN
        shares = len(token_ids) > self.blocks.block_size  # a block that the samples can share
        completions: list[Completion] = []
        for sample_index in range(params.n):
            sequence = TokenSequence(
                self._next_seq_id, token_ids, params, max_tokens, seed, sample_index, order
            )
            if completions and self.blocks.prefix_caching and shares:
                sequence.leader = completions[0].sequence
            self._next_seq_id += 1
            completions.append(Completion(sequence, self._tokenizer))
        prompt_logprobs: list[dict[int, Logprob] | None] | None = (
            None if params.prompt_logprobs is None else [None]
        )
        request = Request(self._next_request_id, prompt, token_ids, completions, prompt_logprobs)
        self._next_request_id += 1
        self._requests.add(request)
        for completion in completions:
            self._owner[completion.sequence] = (request, completion)
            self.scheduler.add(completion.sequence)
        return request

    def abort(self, request: Request) -> None:
        """Stop a request; nothing happens if it has ended. Within a step: after the step."""
        if self._aborted is not None:
            self._aborted.append(request)
            return
        for completion in request.completions:
            if completion.sequence in self._owner:
                if completion.sequence.finish_reason is None:
                    completion.sequence.finish("abort")
                    completion.flush()
                self._drop(completion.sequence)
        self._end(request)

    def stats(self) -> EngineStats:
        """Counters since the start, and what is so now."""
        blocks, counts, mine = self.blocks, self._runner.counts, self._counters
        return EngineStats(
            requests_waiting=len(self.scheduler.waiting),
            requests_running=len(self.scheduler.running),
            requests_finished=mine.requests_finished,
            steps=mine.steps,
            prompt_tokens=mine.prompt_tokens,
            generated_tokens=mine.generated_tokens,
            cached_tokens=blocks.num_cached_tokens,
            preemptions=self.scheduler.num_preemptions,
            kv_blocks=blocks.num_usable,
            kv_blocks_used=blocks.num_usable - blocks.num_free,
            kv_blocks_cached=blocks.num_cached,
            captures=counts.captures,
            replays=dict(counts.replays),
            eager_steps=dict(counts.eager_steps),
            padding_rows=counts.padding_rows,
            off_ladder_steps=counts.off_ladder_steps,
            host_seconds=dict(mine.host_seconds),
        )

    def has_unfinished(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._requests)

    def step(self) -> list[Request]:
        """Run one step; returns the requests that got a token.

        An interrupt or an error takes the step back: its sequences are computed anew later.

        Raises:
            FloatingPointError: the logits of a sequence hold NaN or infinity.
        """
        self._aborted = []
        try:
            return self._step()
        except BaseException:
            self.scheduler.preempt_all()
            raise
        finally:
            aborted, self._aborted = self._aborted, None
            for request in aborted:
                self.abort(request)

    def _step(self) -> list[Request]:
        counters = self._counters
        with counters.phase("schedule"):
            scheduled = self.scheduler.schedule()
        if not scheduled:
            return []
        with counters.phase("prepare"):
            now_s = time.perf_counter()
            for item in scheduled:
                if item.is_new:
                    self._write_slot(item.sequence)
                    request, _ = self._owner[item.sequence]
                    request.clock.begin(now_s, item.sequence.num_computed)
            chunks = [self._chunk(item) for item in scheduled]
        with counters.phase("run"):
            outputs = self._runner.run(chunks)
        with counters.phase("collect"):
            counters.steps += 1
            return self._collect(scheduled, chunks, outputs)

    def _chunk(self, scheduled: ScheduledChunk) -> Chunk:
        """The tokens of a scheduled chunk, and what is wanted of its rows."""
        sequence, start = scheduled.sequence, scheduled.sequence.num_computed
        stop = start + scheduled.num_tokens
        params = sequence.params
        targets: list[int] = []
        if sequence.wants_prompt_logprobs:
            targets = sequence.prompt_token_ids[start + 1 : stop + 1]
        return Chunk(
            token_ids=sequence.tokens(start, stop),
            start=start,
            block_table=self.blocks.block_table(sequence.seq_id),
            slot=sequence.slot,
            samples=scheduled.samples,
            num_logprobs=-1 if params.logprobs is None else params.logprobs,
            prompt_targets=targets,
            num_prompt_logprobs=-1 if params.prompt_logprobs is None else params.prompt_logprobs,
        )

    def _collect(
        self,
        scheduled: Sequence[ScheduledChunk],
        chunks: Sequence[Chunk],
        outputs: Mapping[str, Array],
    ) -> list[Request]:
        """Hand each row's results to its sequence, and drop the sequences that end."""
        progressed: dict[Request, None] = {}  # in the order of the rows
        now_s = time.perf_counter()
        row = 0
        for item, chunk in zip(scheduled, chunks, strict=True):
            sequence = item.sequence
            request, completion = self._owner[sequence]
            sequence.num_computed += item.num_tokens
            self._counters.prompt_tokens += item.num_tokens - chunk.is_decode
            self.blocks.register(sequence.seq_id, sequence.tokens, sequence.num_computed)
            for position, token_id in enumerate(chunk.prompt_targets, start=chunk.start):
                if position == sequence.num_prompt_logprobs:  # else known: it was preempted since
                    sequence.num_prompt_logprobs += 1
                    assert request.prompt_logprobs is not None
                    request.prompt_logprobs.append(self._logprobs(outputs, row, token_id))
                row += 1
            if not chunk.samples:
                continue
            token_id = int(outputs["token_ids"][row])
            if token_id < 0:
                raise FloatingPointError(
                    f"Engine: the logits of request {request.request_id} at position "
                    f"{sequence.num_tokens} hold NaN or infinity, expected numbers; the weights "
                    "are damaged, or the activations overflow in this dtype"
                )
            if completion.logprobs is not None:
                completion.logprobs.append(self._logprobs(outputs, row, token_id))
            row += 1
            completion.append(token_id)
            self._counters.generated_tokens += 1
            request.clock.token(now_s, is_first=len(sequence.output_token_ids) == 1)
            if sequence.finish_reason is not None:
                self._drop(sequence)
            progressed[request] = None
        for request in progressed:
            if request.finished:
                self._end(request)
        return list(progressed)

    def _logprobs(
        self, outputs: Mapping[str, Array], row: int, token_id: int
    ) -> dict[int, Logprob]:
        """The likeliest tokens of a row, and ``token_id`` if it is not among them."""
        found = {}
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

    def _write_slot(self, sequence: TokenSequence) -> None:
        params = sequence.params
        eos = [] if params.ignore_eos else self._eos_token_ids
        self._runner.write_slot(
            sequence.slot,
            params,
            seed=sequence.seed,
            sample_index=sequence.sample_index,
            stop_token_ids=[*eos, *(params.stop_token_ids or ())],
            prompt_token_ids=sequence.prompt_token_ids,
            output_token_ids=sequence.output_token_ids,
            end_position=len(sequence.prompt_token_ids) + sequence.max_tokens,
        )

    def _end(self, request: Request) -> None:
        if request in self._requests:
            self._requests.discard(request)
            request.clock.end_s = time.perf_counter()
            self._counters.requests_finished += 1
            for callback in self.on_finished:
                callback(request.clock.times)

    def _drop(self, sequence: TokenSequence) -> None:
        self.scheduler.finish(sequence)
        del self._owner[sequence]

    def _check_prompt(self, token_ids: Sequence[int], params: SamplingParams) -> None:
        if not token_ids:
            raise ValueError("Engine: the prompt has 0 tokens, expected at least 1")
        if len(token_ids) >= self._max_model_len:
            raise ValueError(
                f"Engine: the prompt has {len(token_ids)} tokens, expected at most "
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
