"""The options that name a workload of a serving benchmark, and the requests that they make."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from cugraphs.cli.bench_session import check_counts
from cugraphs.counted import counted
from cugraphs.workloads import (
    SHAREGPT_MOST,
    Demand,
    Lengths,
    fixed_lengths,
    make_demands,
    random_prompts,
    shared_prefix_prompts,
    sharegpt_lengths,
)

WORKLOADS = ("fixed", "sharegpt", "shared-prefix")
_MOST_TOKENS = 1 << 24
_FEWEST_SHAREGPT = 64  # tokens of a sequence: hardly any length that is drawn is shorter than half


def add_workload_options(parser: argparse.ArgumentParser, *, requests: int) -> None:
    """Add the kind of workload, its sizes and its seed."""
    work = parser.add_argument_group("workload")
    work.add_argument(
        "--workload",
        default="fixed",
        choices=WORKLOADS,
        help="fixed: --prompt and --output tokens each (default). sharegpt: lengths as of "
        "conversations, log-normal with the means of ShareGPT. shared-prefix: as fixed, after one "
        "of --prefixes beginnings of --prefix tokens",
    )
    work.add_argument(
        "--requests", type=int, default=requests, metavar="N", help=f"(default {requests})"
    )
    for name, text in (
        ("prompt", "tokens of a prompt (default 512, or half of the model's limit)"),
        ("output", "tokens of an answer (default 128, or a quarter of it)"),
        ("prefix", "tokens of a shared beginning (default 1024, or a quarter of it)"),
    ):
        work.add_argument(f"--{name}", type=int, metavar="N", help=text)
    work.add_argument(
        "--prefixes", type=int, default=8, metavar="N", help="beginnings to share (default 8)"
    )
    work.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of everything random (default 0)"
    )


class Workload:
    """The requests that the options ask for: any number of runs of the same kind."""

    def __init__(self, args: argparse.Namespace, limit: int) -> None:
        """Check the options.

        Args:
            args: with the options of :func:`add_workload_options`.
            limit: tokens of the longest sequence that the model can have.

        Raises:
            ValueError: a number is out of range, or the sequences are too long.
        """
        check_counts("--requests", [args.requests], 1 << 20)
        check_counts("--prefixes", [args.prefixes], 1 << 20)
        if not 0 <= args.seed < 1 << 32:
            raise ValueError(f"bench: --seed is {args.seed}, expected 0 to {(1 << 32) - 1:,}")
        self.kind: str = args.workload
        self.num_requests: int = args.requests
        self.seed: int = args.seed
        self._prompt = _tokens("--prompt", args.prompt, min(512, limit // 2))
        self._output = _tokens("--output", args.output, min(128, limit // 4))
        is_shared = self.kind == "shared-prefix"
        prefix = _tokens("--prefix", args.prefix, min(1024, limit // 4))
        self._prefix_tokens = prefix if is_shared else 0
        self._num_prefixes: int = args.prefixes if is_shared else 0
        self._most = limit // 2  # of a prompt, and of an answer, where lengths are drawn
        if self.kind == "sharegpt":
            self.longest = 2 * min(self._most, SHAREGPT_MOST)
            if limit < _FEWEST_SHAREGPT:
                raise ValueError(
                    f"bench: sequences have at most {counted(limit, 'token')}, expected at least "
                    f"{_FEWEST_SHAREGPT} for --workload sharegpt"
                )
        else:
            self.longest = self._prefix_tokens + self._prompt + self._output
        if self.longest > limit:
            raise ValueError(
                f"bench: sequences of the workload are {counted(self.longest, 'token')} long, "
                f"expected at most {limit:,}; lower --prompt, --output or --prefix, or raise "
                "--max-model-len as far as the model goes"
            )

    def lengths(self, run: int = 0) -> Lengths:
        """Of each request, without the beginning that it shares."""
        if self.kind == "sharegpt":
            random = np.random.default_rng([self.seed, run])
            return sharegpt_lengths(self.num_requests, random, most=self._most)
        return fixed_lengths(self.num_requests, self._prompt, self._output)

    def demands(
        self, vocab_size: int, *, run: int = 0, arrivals_s: Sequence[float] | None = None
    ) -> list[Demand]:
        """The requests of one run; those of another have other tokens."""
        lengths = self.lengths(run)
        random = np.random.default_rng([self.seed, run, 1])
        if self._prefix_tokens:
            prompts = shared_prefix_prompts(
                lengths,
                vocab_size,
                random,
                prefix_tokens=self._prefix_tokens,
                num_prefixes=self._num_prefixes,
            )
        else:
            prompts = random_prompts(lengths, vocab_size, random)
        return make_demands(prompts, lengths, arrivals_s)

    def describe(self) -> dict[str, Any]:
        """What goes into the record."""
        lengths = np.array(self.lengths())
        return {
            "workload": self.kind,
            "requests": self.num_requests,
            "seed": self.seed,
            "prefixes": self._num_prefixes,
            "prefix_tokens": self._prefix_tokens,
            "prompt_tokens": _extent(lengths[:, 0] + self._prefix_tokens),
            "output_tokens": _extent(lengths[:, 1]),
        }

    def __str__(self) -> str:
        """One line for people."""
        about = self.describe()
        shared = ""
        if self._num_prefixes:
            beginnings = counted(self._num_prefixes, "beginning")
            shared = f", {beginnings} of {counted(self._prefix_tokens, 'token')} shared"
        return (
            f"workload {self.kind}: {counted(self.num_requests, 'request')}, prompts of "
            f"{_extent_text(about['prompt_tokens'])}, answers of "
            f"{_extent_text(about['output_tokens'])}{shared}; seed {self.seed}"
        )


def _tokens(name: str, given: int | None, default: int) -> int:
    """A number of tokens that was asked for, or the default."""
    if given is None:
        return max(default, 1)
    check_counts(name, [given], _MOST_TOKENS)
    return given


def _extent(values: Any) -> dict[str, float]:  # noqa: ANN401 - an array
    return {"least": int(values.min()), "mean": float(values.mean()), "most": int(values.max())}


def _extent_text(extent: dict[str, float]) -> str:
    if extent["least"] == extent["most"]:
        return counted(int(extent["least"]), "token")
    return f"{extent['least']:,} to {extent['most']:,} tokens ({extent['mean']:,.0f} in the mean)"
