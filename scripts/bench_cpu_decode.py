"""Measures greedy decode tokens per second at batch 1 on the CPU, and beside it transformers.

    python scripts/bench_cpu_decode.py MODEL_FOLDER
    python scripts/bench_cpu_decode.py MODEL_FOLDER --transformers
    python scripts/bench_cpu_decode.py MODEL_FOLDER --transformers --transformers-python PYTHON

Both engines run in float32 on the same prompt token ids with the same number of threads, each in a
fresh process, taking turns, so that neither warms or slows the other. Decode time alone counts: the
time of N new tokens less that of one, over N - 1. Only the process of `--transformers` imports
torch, which may live in another Python environment.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENGINES = ("cugraphs", "transformers")
# Read by OpenBLAS, OpenMP and MKL when NumPy or torch is imported, hence before the process starts.
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Request:
    """What a worker process is to measure; travels as JSON on its standard input.

    Attributes:
        engine: One of ENGINES.
        model: Checkpoint folder.
        prompt_token_ids: The prompt, the same for both engines.
        new_tokens: N of the module's formula.
        repeats: Measurements per process, after one that warms up.
        threads: CPU threads.
    """

    engine: str
    model: str
    prompt_token_ids: list[int]
    new_tokens: int
    repeats: int
    threads: int


@dataclass(frozen=True)
class Measurement:
    """What a worker answers: milliseconds per decoded token of each repeat, and the tokens."""

    ms_per_token: list[float]
    token_ids: list[int]
    versions: dict[str, str]


Decode = Callable[[int], list[int]]  # number of new tokens -> the new token ids


def open_cugraphs(request: Request) -> tuple[Decode, dict[str, str]]:
    """Load the model with cugraphs; return its greedy decode and the versions in play."""
    import numpy as np

    from cugraphs import LLM, SamplingParams

    llm = LLM(request.model, device="cpu")

    def decode(new_tokens: int) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        (result,) = llm.generate([request.prompt_token_ids], params)
        return list(result.outputs[0].token_ids)

    return decode, {"numpy": np.__version__}


def open_transformers(request: Request) -> tuple[Decode, dict[str, str]]:
    """Load the model with transformers in float32; return its greedy decode and the versions."""
    import torch
    import transformers

    torch.set_num_threads(request.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(request.model, dtype=torch.float32)
    model.generation_config.eos_token_id = None  # decode through EOS, as ignore_eos does
    prompt = torch.tensor([request.prompt_token_ids])

    def decode(new_tokens: int) -> list[int]:
        with torch.inference_mode():
            output = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=new_tokens,
                do_sample=False,
                use_cache=True,
                pad_token_id=0,
            )
        token_ids: list[int] = output[0, prompt.shape[1] :].tolist()
        return token_ids

    return decode, {"torch": torch.__version__, "transformers": transformers.__version__}


def measure(request: Request) -> Measurement:
    """Return decode times of this process: (time of N tokens - time of one) / (N - 1)."""
    opener = open_cugraphs if request.engine == "cugraphs" else open_transformers
    decode, versions = opener(request)

    def timed_ms(new_tokens: int) -> tuple[float, list[int]]:
        start = time.perf_counter()
        token_ids = decode(new_tokens)
        elapsed_ms = 1e3 * (time.perf_counter() - start)
        if len(token_ids) != new_tokens:
            raise RuntimeError(
                f"{request.engine}: new tokens is {len(token_ids)}, expected {new_tokens}"
            )
        return elapsed_ms, token_ids

    timed_ms(8)  # first touches of weights and caches
    ms_per_token: list[float] = []
    token_ids: list[int] = []
    for _ in range(request.repeats):
        first_ms, _ = timed_ms(1)
        all_ms, token_ids = timed_ms(request.new_tokens)
        ms_per_token.append((all_ms - first_ms) / (request.new_tokens - 1))
    return Measurement(ms_per_token, token_ids, versions)


def measure_in_process(python: str, request: Request) -> Measurement:
    """Run `measure` in a fresh process of this interpreter or another."""
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(request.threads))
    finished = subprocess.run(
        [python, __file__, "--worker"],
        input=json.dumps(vars(request)),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if finished.returncode != 0:
        raise SystemExit(
            f"bench_cpu_decode: exit status of {request.engine} under {python} is "
            f"{finished.returncode}, expected 0; its message is above"
        )
    return Measurement(**json.loads(finished.stdout.splitlines()[-1]))


def streamed_weight_bytes(model: Path) -> int:
    """Return the float32 bytes of weights that one decode step reads.

    All of them, but for the input embedding of an untied model: that is a gather of one row. A tied
    matrix is read once, as the head.
    """
    from safetensors import safe_open

    elements: dict[str, int] = {}
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118  (safe_open is no mapping)
                size = 1
                for axis in file.get_slice(name).get_shape():
                    size *= axis
                elements[name] = size
    if EMBEDDING in elements and HEAD in elements:
        del elements[EMBEDDING]
    return 4 * sum(elements.values())


def summary(
    measurements: dict[str, list[Measurement]], weight_bytes: int
) -> dict[str, dict[str, Any]]:
    """Return, per engine, best and median decode speed over all rounds, and bytes per second."""
    rows: dict[str, dict[str, Any]] = {}
    for engine, rounds in measurements.items():
        times_ms = [ms for measurement in rounds for ms in measurement.ms_per_token]
        best_ms, median_ms = min(times_ms), statistics.median(times_ms)
        rows[engine] = {
            "best_tokens_per_s": 1e3 / best_ms,
            "median_tokens_per_s": 1e3 / median_ms,
            "best_ms_per_token": best_ms,
            "median_ms_per_token": median_ms,
            "best_weight_gb_per_s": weight_bytes / best_ms / 1e6,
            "ms_per_token": times_ms,
            "token_ids": rounds[-1].token_ids,
            "versions": rounds[-1].versions,
        }
    return rows


def print_table(rows: dict[str, dict[str, Any]], title: str) -> None:
    """Print the summary: figures of the best measurement, ratios of tokens/s to the last engine."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    table.add_column("engine", no_wrap=True)
    for heading in ("tokens/s", "ms/token", "GB/s", "ratio", "median tokens/s", "ratio"):
        table.add_column(heading, justify="right")
    reference = list(rows.values())[-1]
    for engine, row in rows.items():
        table.add_row(
            engine,
            f"{row['best_tokens_per_s']:.1f}",
            f"{row['best_ms_per_token']:.2f}",
            f"{row['best_weight_gb_per_s']:.1f}",
            f"{row['best_tokens_per_s'] / reference['best_tokens_per_s']:.2f}",
            f"{row['median_tokens_per_s']:.1f}",
            f"{row['median_tokens_per_s'] / reference['median_tokens_per_s']:.2f}",
        )
    console = Console()
    console.print(table)
    for engine, row in rows.items():
        versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        console.print(f"{engine}: {versions}")
    if len(rows) == len(ENGINES):
        ours, theirs = (row["token_ids"] for row in rows.values())
        same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
        agreement = f"all {len(ours)}" if same is None else f"the first {same} of {len(ours)}"
        console.print(f"the engines agree on {agreement} greedy tokens")


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments, checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="folder with safetensors and tokenizer.json")
    parser.add_argument("--prompt", default="The capital of France is")
    parser.add_argument("--new-tokens", type=int, default=64, help="decoded per measurement")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each engine")
    parser.add_argument("--repeats", type=int, default=2, help="measurements in each turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--transformers", action="store_true", help="measure transformers too")
    parser.add_argument(
        "--transformers-python",
        default=sys.executable,
        metavar="PYTHON",
        help="interpreter that has torch and transformers (default: this one)",
    )
    parser.add_argument(
        "--only", choices=ENGINES, help="measure this engine alone, without the other"
    )
    parser.add_argument("--json", action="store_true", help="print every measurement as JSON")
    arguments = parser.parse_args()
    if not (arguments.model / "tokenizer.json").is_file():
        parser.error(f"{arguments.model}/tokenizer.json is missing, expected a checkpoint folder")
    for name, lowest in (("new_tokens", 2), ("rounds", 1), ("repeats", 1), ("threads", 1)):
        found = getattr(arguments, name)
        if found < lowest:
            option = name.replace("_", "-")
            parser.error(f"--{option} is {found}, expected {lowest} or more")
    return arguments


def main() -> None:
    """Run the rounds and print them."""
    if sys.argv[1:] == ["--worker"]:
        print(json.dumps(vars(measure(Request(**json.load(sys.stdin))))))
        return
    from tokenizers import Tokenizer

    arguments = parse_arguments()
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    engines = [arguments.only] if arguments.only else list(ENGINES[: 1 + arguments.transformers])
    pythons = {"cugraphs": sys.executable, "transformers": arguments.transformers_python}
    measurements: dict[str, list[Measurement]] = {engine: [] for engine in engines}
    for _ in range(arguments.rounds):
        for engine in engines:
            request = Request(
                engine=engine,
                model=str(arguments.model),
                prompt_token_ids=tokenizer.encode(arguments.prompt).ids,
                new_tokens=arguments.new_tokens,
                repeats=arguments.repeats,
                threads=arguments.threads,
            )
            measurements[engine].append(measure_in_process(pythons[engine], request))
    weight_bytes = streamed_weight_bytes(arguments.model)
    rows = summary(measurements, weight_bytes)
    if arguments.json:
        print(json.dumps({"streamed_weight_bytes": weight_bytes, "engines": rows}, indent=2))
        return
    title = (
        f"{arguments.model.name}: batch 1, float32, {arguments.threads} threads, "
        f"{weight_bytes / 1e6:.0f} MB of weights per token"
    )
    print_table(rows, title)


if __name__ == "__main__":
    main()
