"""Cugraphs: Llama decoding as planned, captured and replayed CUDA graphs, without a framework.

Names are loaded on first use, so that ``import cugraphs`` is cheap and never imports CuPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cugraphs.async_llm import AsyncLLM as AsyncLLM
    from cugraphs.compiled_step import CompiledStep as CompiledStep
    from cugraphs.compiled_step import compile as compile
    from cugraphs.llm import LLM as LLM
    from cugraphs.outputs import CompletionOutput as CompletionOutput
    from cugraphs.outputs import RequestOutput as RequestOutput
    from cugraphs.sampling_params import SamplingParams as SamplingParams

_HOME = {
    "AsyncLLM": "cugraphs.async_llm",
    "CompiledStep": "cugraphs.compiled_step",
    "LLM": "cugraphs.llm",
    "CompletionOutput": "cugraphs.outputs",
    "RequestOutput": "cugraphs.outputs",
    "SamplingParams": "cugraphs.sampling_params",
    "compile": "cugraphs.compiled_step",
}
__all__ = [
    "LLM",
    "AsyncLLM",
    "CompiledStep",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "compile",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - classes of any type
    if name not in _HOME:
        raise AttributeError(f"module 'cugraphs' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
