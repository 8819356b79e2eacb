"""What ``LLM`` decides where it is not told: device, dtype, KV blocks, how steps are queued.

Which device, dtype and blocks is logged with the reason.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cugraphs.counted import counted
from cugraphs.cpu_device import CpuDevice
from cugraphs.cuda_availability import CudaUnavailable, has_driver
from cugraphs.cuda_device import CudaDevice
from cugraphs.device import Device
from cugraphs.kv_cache import KVCacheShape

BLOCK_SIZE = 16  # tokens in a KV block
CPU_KV_SHARE = 0.25  # of the machine's memory, for the KV pool unless num_kv_blocks is given
GPU_MEMORY_UTILIZATION = 0.9  # of the device's memory, for everything
_DTYPES = ("auto", "float32", "float16", "bfloat16")
_log = logging.getLogger("cugraphs")


class ModelSizes(Protocol):
    """What the planning of memory needs to know of a model."""

    @property
    def num_hidden_layers(self) -> int:
        """Layers, each with a K and a V cache."""

    @property
    def num_key_value_heads(self) -> int:
        """KV heads."""

    @property
    def head_dim(self) -> int:
        """Elements of a head."""

    @property
    def num_parameters(self) -> int:
        """Weights of the model."""


def choose_device(
    device: str, *, allow_tf32: bool = False, tuning_table: str | Path | None = None
) -> Device:
    """The device called ``device``; "auto" takes a GPU if one can be used, and says why not.

    Args:
        device: "auto", "cpu" or "cuda".
        allow_tf32: float32 matrix products may round their operands to TF32.
        tuning_table: a file of ``cugraphs tune``, for a GPU; None takes what there is for it.

    Raises:
        ValueError: another name, or a tuning table that cannot be read.
        TypeError: ``allow_tf32`` or ``tuning_table`` is something else.
        CudaUnavailable: "cuda" is asked for and cannot be used.
    """
    _log_to_stderr()
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"LLM: device is {device!r}, expected 'auto', 'cpu' or 'cuda'")
    if type(allow_tf32) is not bool:
        raise TypeError(f"LLM: allow_tf32 is {allow_tf32!r}, expected True or False")
    if not isinstance(tuning_table, str | Path | None):
        raise TypeError(f"LLM: tuning_table is {tuning_table!r}, expected a path or None")
    table = None if tuning_table is None else Path(tuning_table)
    chosen = _choose_device(device, allow_tf32, table)
    if table is not None and chosen.shares_host_memory:
        _log.info("tuning_table has no effect: it is of a GPU's matrix products")
    return chosen


def _choose_device(device: str, allow_tf32: bool, table: Path | None) -> Device:
    if device == "cpu":
        return CpuDevice()
    if device == "cuda":
        try:
            return CudaDevice(allow_tf32=allow_tf32, tuning_table=table)
        except CudaUnavailable as problem:  # unlike who needs a GPU, this caller has a choice
            raise CudaUnavailable(problem.problem, cpu_instead="device='cpu'") from None
    if not has_driver():
        _log.info("device cpu: this machine has no NVIDIA driver")
        return CpuDevice()
    try:
        gpu = CudaDevice(allow_tf32=allow_tf32, tuning_table=table)
    except RuntimeError as error:  # CudaUnavailable, or no cuBLASLt
        _log.info("device cpu: %s", str(error).removeprefix("cuda: "))
        return CpuDevice()
    _log.info("device cuda: %s", gpu.gpu_name)
    return gpu


def choose_dtype(
    dtype: str, device: Device, checkpoint_dtype: str, *, allow_tf32: bool = False
) -> str:
    """The dtype to compute in: the checkpoint's own on a GPU, float32 on the CPU.

    ``allow_tf32`` is a permission: where nothing can use it, that is said, and no error.

    Raises:
        ValueError: a dtype that is not known.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"LLM: dtype is {dtype!r}, expected one of {', '.join(_DTYPES)}")
    if device.shares_host_memory:
        note = "" if dtype in ("auto", "float32") else f", not in {dtype}"
        _log.info("dtype float32: the CPU computes in float32%s", note)
        if allow_tf32:
            _log.info("allow_tf32 has no effect: the CPU does not round to TF32")
        return "float32"
    chosen = checkpoint_dtype if dtype == "auto" else dtype
    _log.info("dtype %s%s", chosen, ": the checkpoint's own" if dtype == "auto" else "")
    if allow_tf32 and chosen != "float32":
        _log.info("allow_tf32 has no effect: the dtype is %s, TF32 is of float32 alone", chosen)
    return chosen


@dataclass(frozen=True)
class MemoryBudget:
    """How much memory the KV cache may take; a number of blocks or bytes goes before the share.

    Args:
        num_kv_blocks: blocks, the scratch block included.
        kv_cache_bytes: bytes.
        gpu_memory_utilization: of a GPU's memory, what everything on it may take; the cache gets
            what is left.
    """

    num_kv_blocks: int | None = None
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION

    def __post_init__(self) -> None:
        """Refuse what is no budget."""
        if self.num_kv_blocks is not None and self.kv_cache_bytes is not None:
            raise ValueError(
                f"LLM: num_kv_blocks is {self.num_kv_blocks} and kv_cache_bytes "
                f"{self.kv_cache_bytes}, expected one of them"
            )
        if self.kv_cache_bytes is not None and type(self.kv_cache_bytes) is not int:
            raise TypeError(f"LLM: kv_cache_bytes is {self.kv_cache_bytes!r}, expected an integer")
        share = self.gpu_memory_utilization
        if not (isinstance(share, int | float) and 0 < share <= 1):
            raise ValueError(
                f"LLM: gpu_memory_utilization is {share!r}, expected above 0 and at most 1"
            )

    @property
    def is_explicit(self) -> bool:
        """Whether the cache's own size is given."""
        return self.num_kv_blocks is not None or self.kv_cache_bytes is not None

    def kv_bytes(self, device: Device) -> int:
        """Bytes that the cache may take at most; on a GPU it gets fewer in the end."""
        if self.kv_cache_bytes is not None:
            return self.kv_cache_bytes
        share = CPU_KV_SHARE if device.shares_host_memory else self.gpu_memory_utilization
        return int(device.total_bytes * share)

    def check(self, cache: KVCacheShape) -> None:
        """Refuse a cache that is larger than the bytes that were asked for.

        Raises:
            ValueError: not even one sequence fits.
        """
        if self.kv_cache_bytes is not None and cache.nbytes > self.kv_cache_bytes:
            raise ValueError(
                f"LLM: kv_cache_bytes is {self.kv_cache_bytes}, expected at least {cache.nbytes} "
                f"for one sequence of {counted(cache.max_model_len, 'token')}; raise it or lower "
                "max_model_len"
            )

    def device_bytes(self, device: Device) -> int | None:
        """Of the device's memory, what everything may take; None where the cache's size is set."""
        if self.is_explicit or device.shares_host_memory:
            return None
        return int(device.total_bytes * self.gpu_memory_utilization)


def plan_kv_cache(
    config: ModelSizes,
    dtype: str,
    max_model_len: int,
    max_num_seqs: int,
    num_kv_blocks: int | None,
    available_bytes: int,
) -> KVCacheShape:
    """The shape of the KV cache.

    Without ``num_kv_blocks``: what all sequences can use at their full length, or what fits in
    ``available_bytes`` if that is less, but always one sequence and the scratch block.

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
        affordable = available_bytes // shape(1).bytes_per_block
        num_kv_blocks = 1 + max(per_sequence, min(per_sequence * max_num_seqs, affordable))
    elif type(num_kv_blocks) is not int or num_kv_blocks < per_sequence + 1:
        raise ValueError(
            f"LLM: num_kv_blocks is {num_kv_blocks!r}, expected at least {per_sequence + 1}: "
            f"{per_sequence} for max_model_len {max_model_len} and the scratch block; "
            "raise it or lower max_model_len"
        )
    return shape(num_kv_blocks)


def steps_ahead(async_scheduling: bool | None, device: Device) -> int:
    """Steps that may be in flight when others are submitted.

    Args:
        async_scheduling: whether any may; None: where the device runs beside the host.
        device: that runs them.
    """
    return int(not device.shares_host_memory if async_scheduling is None else async_scheduling)


def steps_loop(step_loops: bool | None, num_steps: int) -> bool:
    """Whether steps that are submitted together are one launch that ends itself.

    Args:
        step_loops: as was asked; None: where there are several, so that no prompt waits for all.
        num_steps: that are submitted together.
    """
    return num_steps > 1 if step_loops is None else step_loops


class _StderrHandler(logging.Handler):
    """Prints on what ``sys.stderr`` is at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"cugraphs: {record.getMessage()}", file=sys.stderr)


def _log_to_stderr() -> None:
    """Show the package's notices on stderr unless the program has set up logging itself."""
    if not _log.handlers and not logging.getLogger().handlers:
        _log.addHandler(_StderrHandler())
        _log.setLevel(logging.INFO)
