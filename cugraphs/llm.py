"""``LLM``: a model folder, ready to generate. The only module beside the CLI that names a model."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cugraphs.chat_template import ChatTemplate
from cugraphs.checkpoint import Checkpoint
from cugraphs.engine import Engine
from cugraphs.kv_cache import KVCacheShape
from cugraphs.model_lookup import find_model
from cugraphs.model_runner import ModelRunner, StepPlan
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.weights import load_weights
from cugraphs.outputs import RequestOutput
from cugraphs.sampling_params import SamplingParams, sampling_params_from_generation_config
from cugraphs.tokenizer import Tokenizer

BLOCK_SIZE = 16  # tokens in a KV block
MAX_NUM_BATCHED_TOKENS = 2048  # of a step, where max_num_seqs is not larger
CPU_KV_SHARE = 0.25  # of the machine's memory, for the KV pool unless num_kv_blocks is given

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
_log = logging.getLogger("cugraphs")


class LLM:
    """A Llama with its tokenizer: ``generate``, ``stream`` and ``chat``."""

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        num_kv_blocks: int | None = None,
        batch_invariant: bool = False,
        seed: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Read the model, plan its steps and allocate everything.

        Args:
            model: a folder with config.json and safetensors, ``"demo"``, or a Hub id
                ``"org/name"`` (from the local cache, or downloaded with the extra ``hub``).
            device: "cpu", or "auto", which says what it takes and why.
            dtype: "auto", "float32", "float16" or "bfloat16"; the CPU computes in float32
                whatever the checkpoint holds, and says so.
            max_model_len: tokens of a sequence, prompt and answer; default the model's own limit.
            max_num_seqs: sequences that run at once.
            num_kv_blocks: blocks of 16 tokens in the KV cache; default as many as all sequences
                can use, within a quarter of the machine's memory.
            batch_invariant: a sequence's tokens do not depend, bit for bit, on what runs beside
                it; slower.
            seed: makes sampling without a seed of its own repeatable.
            progress: called while loading with (bytes done, bytes in all).

        Raises:
            ValueError, OSError: the model or an argument cannot be used; the message says why.
            MemoryError: it does not fit.
        """
        self.folder = find_model(model)
        self.device = _choose_device(device)
        self.dtype = _choose_dtype(dtype)
        with Checkpoint.open(self.folder) as checkpoint:
            self.config = LlamaConfig.from_hf(checkpoint.config, str(self.folder / "config.json"))
            self.max_model_len = self._choose_length(max_model_len)
            self.tokenizer = Tokenizer.load(
                self.folder, checkpoint.config, checkpoint.generation_config
            )
            self._generation_config = checkpoint.generation_config
            plan = self._plan(max_num_seqs, num_kv_blocks, batch_invariant)
            weights = load_weights(
                checkpoint.tensors,
                self.config,
                self.dtype,
                self.max_model_len,
                source=str(self.folder),
                progress=_running_total(progress, checkpoint.nbytes),
            )
        self._latest: dict[int, RequestOutput] = {}
        self._chat_template = ChatTemplate.load(self.folder, self.tokenizer)
        self.runner = ModelRunner(plan, weights)
        self.engine = Engine(
            self.runner,
            self.tokenizer,
            vocab_size=self.config.vocab_size,
            max_num_seqs=max_num_seqs,
            seed=seed,
        )

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
        """
        many = _prompt_list(prompts)
        each = self._params_list(params, len(many))
        ids = self._add_all(
            [(self._encode(prompt), p) for prompt, p in zip(many, each, strict=True)]
        )
        try:
            while not all(self._latest[request_id].finished for request_id in ids):
                self._step()
            return [self._latest[request_id] for request_id in ids]
        finally:  # an interrupt or an error leaves no request behind
            self._forget(ids)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> TextStream:
        """Continue one prompt, yielding its text in pieces as they become final.

        Raises:
            ValueError: ``params.n`` is not 1; else as :meth:`generate`.
        """
        (resolved,) = self._params_list(params, 1)
        if resolved.n != 1:
            raise ValueError(f"LLM.stream: n is {resolved.n}, expected 1; use generate")
        (request_id,) = self._add_all([(self._encode(prompt), resolved)])
        return TextStream(self, request_id)

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

    def _step(self) -> None:
        """Run one step for whoever waits: generate and several streams may take turns."""
        for output in self.engine.step():
            self._latest[output.request_id] = output

    def _forget(self, ids: Sequence[int]) -> None:
        for request_id in ids:
            self.engine.abort(request_id)
            del self._latest[request_id]

    def _add_all(
        self, prompts: Sequence[tuple[tuple[list[int], str | None], SamplingParams]]
    ) -> list[int]:
        """Queue all requests, or none if one is refused."""
        ids: list[int] = []
        try:
            for (token_ids, text), params in prompts:
                request_id = self.engine.add_request(token_ids, params, text)
                ids.append(request_id)
                self._latest[request_id] = self.engine.output(request_id)
        except BaseException:
            self._forget(ids)
            raise
        return ids

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
        each = [params] * count if isinstance(params, SamplingParams) else list(params)
        for p in each:
            if not isinstance(p, SamplingParams):
                raise TypeError(f"LLM: params is {p!r}, expected SamplingParams")
        if len(each) != count:
            raise ValueError(
                f"LLM: {len(each)} SamplingParams for {count} prompts, expected one or one each"
            )
        return each

    def _choose_length(self, max_model_len: int | None) -> int:
        if max_model_len is None:
            return self.config.longest_max_model_len
        if not isinstance(max_model_len, int) or max_model_len < 2:
            raise ValueError(f"LLM: max_model_len is {max_model_len!r}, expected at least 2")
        self.config.check_max_model_len(max_model_len)
        return max_model_len

    def _plan(
        self, max_num_seqs: int, num_kv_blocks: int | None, batch_invariant: bool
    ) -> StepPlan:
        if not isinstance(max_num_seqs, int) or max_num_seqs < 1:
            raise ValueError(f"LLM: max_num_seqs is {max_num_seqs!r}, expected at least 1")
        cache = plan_kv_cache(
            self.config, self.dtype, self.max_model_len, max_num_seqs, num_kv_blocks
        )
        return StepPlan(
            Llama(self.config, self.dtype, batch_invariant=batch_invariant),
            cache,
            vocab_size=self.config.vocab_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(MAX_NUM_BATCHED_TOKENS, max_num_seqs),
        )


class TextStream(Iterator[str]):
    """The text of one request, piece by piece; ``output`` is all of it so far."""

    def __init__(self, llm: LLM, request_id: int) -> None:
        """Follow a request that was just added."""
        self._llm = llm
        self._request_id = request_id
        self._given = 0
        self.output = llm._latest[request_id]

    def __next__(self) -> str:
        """The next piece of final text; runs steps until there is one."""
        try:
            while True:
                self.output = self._llm._latest.get(self._request_id, self.output)
                text = self.output.outputs[0].text
                if self._given < len(text):
                    piece = text[self._given :]
                    self._given = len(text)
                    return piece
                if self.output.finished or self._request_id not in self._llm._latest:
                    raise StopIteration
                self._llm._step()
        except BaseException:  # the end, an error or an interrupt: the engine forgets the request
            self.close()
            raise

    def close(self) -> None:
        """Stop the request; what it has so far stays in ``output``."""
        if self._request_id in self._llm._latest:
            self._llm._forget([self._request_id])

    def __del__(self) -> None:
        """Stop the request when nobody listens any more."""
        self.close()


def plan_kv_cache(
    config: LlamaConfig,
    dtype: str,
    max_model_len: int,
    max_num_seqs: int,
    num_kv_blocks: int | None,
) -> KVCacheShape:
    """The shape of the KV cache on the CPU.

    Without ``num_kv_blocks``: what all sequences can use at their full length, or a quarter of
    the machine's memory if that is less, but always one sequence and the scratch block.

    Raises:
        ValueError: ``num_kv_blocks`` is too small for one sequence of ``max_model_len``.
    """
    per_sequence = -(-max_model_len // BLOCK_SIZE)

    def shape(num_blocks: int) -> KVCacheShape:
        return KVCacheShape(
            num_layers=config.num_hidden_layers,
            num_blocks=num_blocks,
            num_kv_heads=config.num_key_value_heads,
            block_size=BLOCK_SIZE,
            head_dim=config.head_dim,
            dtype=dtype,
            max_model_len=max_model_len,
        )

    if num_kv_blocks is None:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        affordable = int(memory_bytes * CPU_KV_SHARE) // shape(1).bytes_per_block
        num_kv_blocks = 1 + max(per_sequence, min(per_sequence * max_num_seqs, affordable))
    elif not isinstance(num_kv_blocks, int) or num_kv_blocks < per_sequence + 1:
        raise ValueError(
            f"LLM: num_kv_blocks is {num_kv_blocks!r}, expected at least {per_sequence + 1}: "
            f"{per_sequence} for max_model_len {max_model_len} and the scratch block; "
            "raise it or lower max_model_len"
        )
    return shape(num_kv_blocks)


def log_to_stderr() -> None:
    """Show the package's notices on stderr unless the program has set up logging itself."""
    if not _log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("cugraphs: %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)


def _choose_device(device: str) -> str:
    log_to_stderr()
    if device not in ("auto", "cpu"):
        raise ValueError(f"LLM: device is {device!r}, expected 'auto' or 'cpu'")
    if device == "auto":
        _log.info("device cpu: the only one that this version runs on")
    return "cpu"


def _choose_dtype(dtype: str) -> str:
    known = ("auto", "float32", "float16", "bfloat16")
    if dtype not in known:
        raise ValueError(f"LLM: dtype is {dtype!r}, expected one of {', '.join(known)}")
    note = "" if dtype in ("auto", "float32") else f", not in {dtype}"
    _log.info("dtype float32: the CPU computes in float32%s", note)
    return "float32"


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list."""
    if isinstance(prompts, str):
        return [prompts]
    many = list(prompts)
    if many and all(isinstance(item, int) for item in many):
        return [many]  # type: ignore[list-item]
    for item in many:
        if not isinstance(item, str) and (
            not isinstance(item, Sequence) or not all(isinstance(t, int) for t in item)
        ):
            raise TypeError(f"LLM: a prompt is {item!r}, expected a string or a list of token ids")
    return many  # type: ignore[return-value]


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
