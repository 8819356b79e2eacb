"""``LLM``: a model folder, ready to generate. The only module beside the CLI that names a model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cugraphs.chat_template import ChatTemplate
from cugraphs.checkpoint import Checkpoint
from cugraphs.counted import counted
from cugraphs.cuda_availability import wake_driver
from cugraphs.device_choice import (
    MemoryBudget,
    choose_device,
    choose_dtype,
    plan_kv_cache,
    steps_ahead,
    steps_loop,
)
from cugraphs.engine import Engine
from cugraphs.ladder import Ladder, OffLadder
from cugraphs.memory_map import MemoryMap
from cugraphs.metrics import EngineMetrics
from cugraphs.model_lookup import find_model
from cugraphs.model_runner import GraphMode, ModelRunner, check_graph_mode
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.weights import begin_loading
from cugraphs.outputs import RequestOutput
from cugraphs.prompts import Prompt, checked_prompt, prompt_list, shown
from cugraphs.request import Request
from cugraphs.sampling_params import SamplingParams, sampling_params_from_generation_config
from cugraphs.start_times import span
from cugraphs.statistics import EngineStats
from cugraphs.step_plan import StepPlan
from cugraphs.text_stream import TextStream
from cugraphs.token_ring import MAX_STEPS
from cugraphs.tokenizer import Tokenizer

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

_log = logging.getLogger("cugraphs")

MAX_NUM_BATCHED_TOKENS = 2048  # of a step, where max_num_seqs is not larger

Message = Mapping[str, Any]


class LLM:
    """A Llama with its tokenizer: ``generate``, ``stream`` and ``chat``, from one thread at a time.

    Another thread that comes meanwhile is refused: many callers at once take ``AsyncLLM``.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int | None = None,
        num_kv_blocks: int | None = None,
        kv_cache_bytes: int | None = None,
        gpu_memory_utilization: float = 0.9,
        graph_mode: GraphMode = "full_and_piecewise",
        capture_sizes: str | Sequence[int] = "default",
        max_capture_size: int | None = None,
        off_ladder: OffLadder = "split",
        prefix_caching: bool = True,
        num_scheduler_steps: int = 1,
        step_loops: bool | None = None,
        async_scheduling: bool | None = None,
        batch_invariant: bool = False,
        allow_tf32: bool = False,
        tuning_table: str | Path | None = None,
        seed: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Read the model, plan its steps and allocate everything.

        Args:
            model: a folder with config.json and safetensors, ``"demo"``, or a Hub id
                ``"org/name"`` (from the local cache, or downloaded with the extra ``hub``).
            device: "cpu", "cuda", or "auto", which says what it takes and why.
            dtype: "auto", "float32", "float16" or "bfloat16"; "auto" is the checkpoint's own on a
                GPU. The CPU computes in float32 whatever the checkpoint holds, and says so.
            max_model_len: tokens of a sequence, prompt and answer; default the model's own limit.
            max_num_seqs: sequences that run at once.
            max_num_batched_tokens: tokens of a step, of prompts and answers together; default 2048,
                or max_num_seqs if that is more.
            num_kv_blocks: blocks of 16 tokens in the KV cache; default as many as all sequences
                can use, within a quarter of the machine's memory, or what is left of the GPU's.
            kv_cache_bytes: the cache's size in bytes instead.
            gpu_memory_utilization: share of the GPU's memory, for everything on it, 0 to 1.
            graph_mode: what is captured as CUDA graphs: "none", "piecewise" (between attention, for
                steps with prompt tokens), "full" (decode steps) or "full_and_piecewise".
            capture_sizes: batch sizes of decode steps that are captured: "default", "latency",
                "throughput", "vllm", or a list.
            max_capture_size: the largest of them; default max_num_seqs.
            off_ladder: what a larger batch does: "split", run "eager", or be an "error".
            prefix_caching: a prompt that begins as an earlier one did, block by block of 16 tokens,
                uses what is in the cache of it. The rest of the prompt is then computed in another
                shape, so last bits can differ; not with batch_invariant.
            num_scheduler_steps: decode steps, 1 to 64, that are queued together, while no other
                prompt could join them. The host has less to do for each token.
            step_loops: on a GPU those steps are one launch that ends by itself once all answers
                have ended, or a step after another prompt has come. Without, they are replays that
                nothing stops: a prompt waits for all that are queued, up to 2 K - 1 of K steps.
                Default: where several are queued together.
            async_scheduling: queue a step while the one before still runs; its tokens come from the
                device's own state. Default: where the device is not the CPU.
            batch_invariant: a sequence's tokens do not depend, bit for bit, on what runs beside
                it; slower.
            allow_tf32: matrix products of a float32 model may round their operands to TF32 on a
                GPU: several times as fast with many rows, with 10 bits of mantissa for 23.
            tuning_table: a file of ``cugraphs tune``; default the tables that are found for the
                GPU: the user's own in the cache folder, and the one shipped.
            seed: makes sampling without a seed of its own repeatable.
            progress: called while loading with (bytes done, bytes in all), by another thread.

        Raises:
            ValueError, OSError: the model or an argument cannot be used; the message says why.
            MemoryError: it does not fit.
        """
        if seed is not None and not (isinstance(seed, int) and 0 <= seed < 2**64):
            raise ValueError(f"LLM: seed is {seed!r}, expected 0 <= seed < 2**64, or None")
        _count("num_scheduler_steps", num_scheduler_steps, most=MAX_STEPS)
        self.folder = find_model(model)
        if device != "cpu":
            wake_driver()  # what follows needs Python's lock, which this does not
        with Checkpoint.open(self.folder) as checkpoint:
            self.config = LlamaConfig.from_hf(checkpoint.config, str(self.folder / "config.json"))
            with span("tokenizer"):
                self.tokenizer = Tokenizer.load(
                    self.folder, checkpoint.config, checkpoint.generation_config
                )
            self.device = choose_device(device, allow_tf32=allow_tf32, tuning_table=tuning_table)
            self.dtype = choose_dtype(dtype, self.device, self.config.dtype, allow_tf32=allow_tf32)
            self.max_model_len = self._choose_length(max_model_len)
            self._generation_config = checkpoint.generation_config
            ladder = Ladder(
                _count("max_num_seqs", max_num_seqs),
                capture_sizes,
                max_capture_size=max_capture_size,
                off_ladder=off_ladder,
            )
            budget = MemoryBudget(num_kv_blocks, kv_cache_bytes, gpu_memory_utilization)
            with span("plan"):
                plan = self._plan(ladder, max_num_batched_tokens, budget, batch_invariant)
            with span("chat template"):
                self._chat_template = ChatTemplate.load(self.folder, self.tokenizer)
            with span("allocate weights, begin to load"):
                weights, loading = begin_loading(
                    checkpoint.tensors,
                    self.config,
                    self.dtype,
                    self.max_model_len,
                    self.device,
                    source=str(self.folder),
                    progress=_running_total(progress, checkpoint.nbytes),
                )
            with loading:  # meanwhile: binding and capture need the weights' addresses alone
                self.runner = ModelRunner(
                    plan,
                    weights,
                    self.device,
                    mode=check_graph_mode(graph_mode),
                    loops=steps_loop(step_loops, num_scheduler_steps),
                    memory_bytes=budget.device_bytes(self.device),
                )
        if not self.device.shares_host_memory:
            _log.info(_memory_notice(self.runner))
        self.engine = Engine(
            self.runner,
            self.tokenizer,
            vocab_size=self.config.vocab_size,
            max_num_seqs=max_num_seqs,
            seed=seed,
            prefix_caching=prefix_caching,
            num_scheduler_steps=num_scheduler_steps,
            steps_ahead=steps_ahead(async_scheduling, self.device),
        )

    def memory_map(self) -> MemoryMap:
        """Where the device's memory went: print it."""
        return self.runner.memory_map()

    def stats(self) -> EngineStats:
        """Requests, tokens, steps by rung and reason, KV blocks and host time since the start."""
        return self.engine.stats()

    def export_metrics(self, registry: CollectorRegistry | None = None) -> None:
        """Register counters and times with prometheus-client (the extra ``metrics``).

        Args:
            registry: None is prometheus-client's own.

        Raises:
            RuntimeError: it is not installed.
            ValueError: the registry has an engine's metrics already.
        """
        EngineMetrics(self.engine, registry)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continue every prompt; they run together.

        Args:
            prompts: one prompt or a list of them; a prompt is a string or a list of token ids.
            params: one for all, or one per prompt; None takes generation_config.json's sampling.

        Returns:
            One output per prompt, in their order.

        Raises:
            TypeError, ValueError: a prompt or its parameters cannot be used; nothing is run.
            FloatingPointError: the logits of a prompt hold NaN or infinity; the others are aborted.
            RuntimeError: the text of an answer cannot be made, likewise.
        """
        many = prompt_list(prompts)
        each = self._params_list(params, len(many))
        requests: list[Request] = []
        try:
            for prompt, p in zip(many, each, strict=True):
                requests.append(self._add(prompt, p, len(requests) if len(many) > 1 else None))
            for request in requests:  # in any order: every step runs all of them
                while not request.finished:
                    _raise_failures(self.engine.step(), requests)
            return [request.output() for request in requests]
        finally:  # an interrupt or an error leaves no request behind
            for request in requests:
                self.engine.abort(request)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> TextStream:
        """Continue one prompt, yielding its text in pieces as they become final.

        Raises:
            ValueError: ``params.n`` is not 1; else as :meth:`generate`.
        """
        token_ids, text, resolved = self.prepare(prompt, params)
        if resolved.n != 1:
            raise ValueError(f"LLM.stream: n is {resolved.n}, expected 1; use generate")
        return TextStream(self.engine, self.engine.add_request(token_ids, resolved, text))

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        stream: bool = False,
    ) -> RequestOutput | TextStream:
        """Answer a conversation through the model's chat template.

        Args:
            messages: dicts with "role" and "content", the last one to be answered.
            params: None takes generation_config.json's sampling.
            stream: yield text pieces instead of returning the output.

        Raises:
            ValueError: the model has no chat template, or a message does not fit it.
        """
        text = self.render_chat(messages)
        if stream:
            return self.stream(text, params)
        return self.generate(text, params)[0]

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The prompt that the chat template makes of a conversation. Raises as :meth:`chat`."""
        if self._chat_template is None:
            raise ValueError(
                f"{self.folder}: the model has no chat template, expected chat_template.jinja or "
                "chat_template in tokenizer_config.json; use generate with a prompt of your own"
            )
        return self._chat_template.render(messages)

    def default_params(self) -> SamplingParams:
        """The sampling that generation_config.json asks for."""
        return sampling_params_from_generation_config(self._generation_config)

    def prepare(
        self, prompt: Prompt, params: SamplingParams | None
    ) -> tuple[list[int], str | None, SamplingParams]:
        """What the engine takes of one prompt: its token ids, its text, and its parameters.

        Raises:
            TypeError, ValueError: it cannot be used.
        """
        (resolved,) = self._params_list(params, 1)
        return *self._encode(checked_prompt(prompt)), resolved

    def _add(self, prompt: Prompt, params: SamplingParams, number: int | None) -> Request:
        """Ask the engine; an error names the prompt by its number, where there are several."""
        try:
            token_ids, text = self._encode(prompt)
            return self.engine.add_request(token_ids, params, text)
        except ValueError as error:
            if number is None:
                raise
            raise ValueError(f"LLM.generate: prompts[{number}]: {error}") from error

    def _encode(self, prompt: Prompt) -> tuple[list[int], str | None]:
        if isinstance(prompt, str):
            token_ids = self.tokenizer.encode(prompt)
            if not token_ids:
                raise ValueError(
                    "LLM: the prompt is empty and the model has no BOS token, expected some text"
                )
            return token_ids, prompt
        return list(prompt), None

    def _params_list(
        self, params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if params is None:
            params = self.default_params()
        if isinstance(params, SamplingParams):
            return [params] * count
        each = list(params) if isinstance(params, Sequence) else [params]
        for p in each:
            if not isinstance(p, SamplingParams):
                raise TypeError(
                    f"LLM: params is {shown(p)}, expected SamplingParams, one or one per prompt"
                )
        if len(each) != count:
            raise ValueError(
                f"LLM: params has {len(each)} SamplingParams for {counted(count, 'prompt')}, "
                "expected one, or one per prompt"
            )
        return each

    def _choose_length(self, max_model_len: int | None) -> int:
        if max_model_len is None:
            return self.config.longest_max_model_len
        if type(max_model_len) is not int or max_model_len < 2:
            raise ValueError(
                f"LLM: max_model_len is {max_model_len!r}, expected an integer of at least 2"
            )
        self.config.check_max_model_len(max_model_len)
        return max_model_len

    def _plan(
        self,
        ladder: Ladder,
        max_num_batched_tokens: int | None,
        budget: MemoryBudget,
        batch_invariant: bool,
    ) -> StepPlan:
        tokens = max(MAX_NUM_BATCHED_TOKENS, ladder.max_rows)
        if max_num_batched_tokens is not None:
            tokens = _count("max_num_batched_tokens", max_num_batched_tokens, ladder.max_rows)
        cache = plan_kv_cache(
            self.config,
            self.dtype,
            self.max_model_len,
            ladder.max_rows,
            budget.num_kv_blocks,
            budget.kv_bytes(self.device),
        )
        budget.check(cache)
        return StepPlan(
            Llama(self.config, self.dtype, batch_invariant=batch_invariant),
            cache,
            vocab_size=self.config.vocab_size,
            max_num_seqs=ladder.max_rows,
            max_num_batched_tokens=tokens,
            ladder=ladder,
        )


def _memory_notice(runner: ModelRunner) -> str:
    """What was captured, and what is left for the KV cache."""
    blocks, cache = runner.num_kv_blocks, runner.plan.cache
    return (
        f"{counted(runner.counts.captures, 'graph')} in {runner.capture_seconds:.2f} s and "
        f"{runner.graph_bytes / 2**20:.0f} MiB, {runner.expected_graph_bytes / 2**20:.0f} MiB "
        f"expected; KV cache {runner.kv_bytes / 2**30:.2f} GiB: "
        f"{counted(blocks, 'block')}, {counted((blocks - 1) * cache.block_size, 'token')} at once"
    )


def _raise_failures(outputs: Sequence[RequestOutput], requests: Sequence[Request]) -> None:
    """Raise the error of one of these requests, if it has failed in a step, and which it is."""
    failed = {output.request_id for output in outputs if output.error is not None}
    for number, request in enumerate(requests if failed else ()):
        if request.request_id in failed:
            raise request.failure(f"LLM.generate: prompts[{number}]")


def _count(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """A count that the caller gave, checked."""
    if type(value) is not int or value < least or (most is not None and value > most):
        wanted = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"LLM: {name} is {value!r}, expected an integer of {wanted}")
    return value


def _running_total(
    progress: Callable[[int, int], None] | None, total: int
) -> Callable[[int], None] | None:
    if progress is None:
        return None
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(min(done, total), total)

    return advance
