"""What all benchmarks share: the model, the GPU, what is printed above the figures, and the record.

Weights are random and made on the device, in a model's shapes: no checkpoint is read.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from cugraphs.bench_machine import describe_machine, measure_gpu
from cugraphs.cli.options import add_model_choice
from cugraphs.counted import counted
from cugraphs.cuda_device import CudaDevice
from cugraphs.decode_bench import BenchModel
from cugraphs.gpu_specs import GpuSpec
from cugraphs.json_file import read_json_object
from cugraphs.model_lookup import find_model
from cugraphs.model_shapes import model_shape
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.random_weights import random_weights

_MOST_ROWS = 4096


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the model and what every benchmark of a step takes."""
    add_model_choice(parser)
    parser.add_argument(
        "--dtype",
        default="bfloat16",
        choices=("bfloat16", "float16", "float32"),
        help="of weights, activations, K and V (default bfloat16)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument(
        "--traceback", action="store_true", help="show the Python traceback of an error"
    )


def check_record_file(file: Path | None) -> None:
    """Refuse a record's file that could not be written, before anything is measured.

    Raises:
        ValueError: its folder does not exist.
    """
    if file is not None and not file.resolve().parent.is_dir():
        raise ValueError(f"bench: {file} is in no folder that exists, expected one")


def check_counts(
    name: str, counts: Sequence[int], most: int = _MOST_ROWS, *, who: str = "bench"
) -> None:
    """Refuse an option whose numbers are not 1 to ``most``.

    Raises:
        ValueError: one is not.
    """
    for count in counts:
        if not 1 <= count <= most:
            raise ValueError(f"{who}: {name} is {count}, expected 1 to {most:,}")


class BenchSession:
    """One benchmark on one GPU."""

    def __init__(
        self,
        benchmark: str,
        mode: str,
        args: argparse.Namespace,
        *,
        name: str | None = None,
        folder: Path | None = None,
        weights: str = "random weights",
    ) -> None:
        """Read the config, take the GPU and print what will run.

        Args:
            benchmark: its name.
            mode: what is captured, in words that stand beside every figure.
            args: with the options of :func:`add_common_options`.
            name: of the model, where a folder is given.
            folder: that holds the model; None takes the one that is asked for.
            weights: what they are, in words.

        Raises:
            ValueError, OSError: the model or the record's file cannot be used.
            CudaUnavailable: there is no GPU to time.
        """
        self._benchmark, self._mode, self._record_file = benchmark, mode, args.json
        check_record_file(args.json)
        self._weights = weights
        if folder is not None and name is not None:
            self.name, self.config = name, _folder_config(folder)
        else:
            self.name, self.config = read_config(args)
        self.dtype: str = args.dtype
        self.device = CudaDevice()
        self._machine = describe_machine(self.device)
        m = self._machine
        print(f"bench {benchmark}: {self.name}, {self.dtype}, {weights}; mode {mode}")
        print(
            f"{m['gpu']}, driver {m['driver']} (CUDA {m['driver_cuda']}), CuPy {m['cupy']}, "
            f"cuda-bindings {m['cuda_bindings']}, cuBLASLt {m['cublaslt']}, Python {m['python']}"
        )

    def measure_gpu(self) -> GpuSpec:
        """The card with its ceilings, measured now and printed."""
        gpu = measure_gpu(self.device)
        print(
            f"ceilings, measured now: {gpu.read_bytes_per_s / 1e12:.3f} TB/s read, "
            f"{gpu.flops_per_s / 1e12:.0f} TFLOP/s of bf16 matrix products"
        )
        return gpu

    def check_length(self, tokens: int) -> None:
        """Refuse sequences that the model cannot have.

        Raises:
            ValueError: they are too long.
        """
        if tokens > self.config.longest_max_model_len:
            raise ValueError(
                f"bench: sequences are {counted(tokens, 'token')} long, expected at most "
                f"{self.config.longest_max_model_len:,}, the model's limit"
            )

    def load(self, max_model_len: int) -> BenchModel:
        """The model with random weights.

        Raises:
            MemoryError: they do not fit.
        """
        weights = random_weights(self.config, self.dtype, max_model_len, self.device)
        self.device.stream.synchronize()
        return BenchModel(
            name=self.name,
            model=Llama(self.config, self.dtype),
            sizes=self.config,
            vocab_size=self.config.vocab_size,
            dtype=self.dtype,
            max_model_len=max_model_len,
            weights=weights,
            device=self.device,
        )

    def finish(self, gpu: GpuSpec | None, **results: Any) -> None:  # noqa: ANN401 - goes to JSON
        """Write the record, if one is wanted.

        Args:
            gpu: with its ceilings, where they were measured.
            results: what was found.
        """
        if self._record_file is None:
            return
        record = {
            "benchmark": self._benchmark,
            "mode": self._mode,
            "model": self.name,
            "dtype": self.dtype,
            "weights": self._weights.removesuffix(" weights"),
            "machine": self._machine,
            "ceilings": gpu
            and {"read_bytes_per_s": gpu.read_bytes_per_s, "flops_per_s": gpu.flops_per_s},
            **results,
        }
        write_record(self._record_file, record)


def write_record(file: Path, record: dict[str, Any]) -> None:
    """Write figures as JSON; dataclasses in it become objects."""
    file.write_text(json.dumps(record, indent=1, default=_plain) + "\n")


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr, which shows only on a terminal; the call ends one of ``total`` parts."""
    console = Console(file=sys.stderr)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)


def read_config(args: argparse.Namespace) -> tuple[str, LlamaConfig]:
    """The name to print, and the model's config."""
    if args.shape is not None:
        return args.shape, LlamaConfig.from_hf(model_shape(args.shape), args.shape)
    return args.model, _folder_config(find_model(args.model, allow_download=False))


def _folder_config(folder: Path) -> LlamaConfig:
    file = folder / "config.json"
    return LlamaConfig.from_hf(read_json_object(file), str(file))


def _plain(value: Any) -> Any:  # noqa: ANN401
    """A dataclass as JSON takes it."""
    return dataclasses.asdict(value)
