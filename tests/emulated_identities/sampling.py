"""Sampling and log-probabilities, whose blocks share the chunks of a row."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from cugraphs.emulation import emulate
from cugraphs.emulation.emulate import bind_launches
from cugraphs.kernel import (
    CUDA_TYPES,
    WORKSPACE,
    Access,
    Axes,
    Launch,
    Operand,
    running_on,
)
from cugraphs.kernels.adjust_logits import adjust_logits
from cugraphs.testing import case_arrays
from emulated_identities.any_kernel import orders_agree
from emulated_identities.identity import (
    Identity,
    Kernels,
    assert_right_on_sm_90,
    assert_same_bits,
    case_named,
    run,
    small_cases,
)


def listed_target_agrees(kernels: Kernels) -> None:
    """A target that is among the listed tokens stands at its rank, with the same logprob."""
    kernel, found = kernels["logprobs"], 0
    for case in small_cases(kernel):
        arrays = case_arrays(kernel, case, "float32")
        target_logprobs, ranks, top_ids, top_logprobs = run(kernel, arrays, case.attrs)
        _, token_ids, target_ids, num_logprobs = arrays
        targets = np.where(target_ids >= 0, target_ids, token_ids)
        for row in np.flatnonzero((ranks > 0) & (ranks <= num_logprobs)):
            found += 1
            at = ranks[row] - 1
            assert top_ids[row, at] == targets[row], f"logprobs {case.name}: rank of row {row}"
            pair = [top_logprobs[row, at : at + 1]], [target_logprobs[row : row + 1]]
            assert_same_bits(f"logprobs {case.name} row {row}", *pair)
    assert found, "logprobs: no case has a target that is listed"


# The logits that the launches of SAMPLE see: written out, row by row.
ADJUSTED_PROBE = """
#include "{source}"
template <typename T, int kWidth>
__global__ void adjusted_probe(float* out, unsigned char* workspace) {{
  RowWork<T>& work = work_of<T>(workspace, blockIdx.y);
  if (!work.request.is_live) return;
  float* row = out + static_cast<long long>(blockIdx.y) * work.row.vocab;
  for_each_chunk<T, kWidth>(work.row, [&](const Chunk<T, kWidth>& chunk) {{
    chunk.visit([&](float logit, int id, int) {{ row[id] = logit; }});
  }});
}}
"""


def adjusted_bits(kernels: Kernels) -> None:
    """Biases, bans and penalties have the bits of their reference, which rounds each operation."""
    sample = kernels["sample"]
    assert sample.source is not None and sample.launches is not None

    def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
        assert sample.launches is not None
        first = running_on("", sample.launches(axes, dtype))[0]
        assert isinstance(first, Launch)
        probe = first.function.replace("sample_extents", "adjusted_probe")
        return (first, Launch(probe, first.grid, first.block, (), ("adjusted", WORKSPACE)))

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "adjusted_probe.cu"
        source.write_text(ADJUSTED_PROBE.format(source=sample.source), "utf-8")
        adjusted = Operand("adjusted", ("rows", "vocab"), "float32", Access.WRITE)
        probe = replace(
            sample,
            name="adjusted_probe",
            operands=(adjusted, *sample.supplied),
            source=source,
            launches=launches,
            cases=(),
        )
        for name in ("everything", "several_chunks", "odd_vocab_penalised", "stops", "frequency"):
            for dtype in CUDA_TYPES:
                arrays = case_arrays(sample, case_named(sample, name), dtype)
                counts, logits, row_ids, positions, *asked = (array.copy() for array in arrays)
                expected = adjust_logits(logits, row_ids, positions, counts, *asked[:7])
                for checked in (False, True):
                    (found,) = emulate(probe, [a.copy() for a in arrays], {}, checked=checked)
                    live = row_ids >= 0
                    same = found[live] == expected[live]
                    assert same.all(), f"sample {name} {dtype}: not the bits of adjust_logits"


def blocks_share_rows(name: str) -> Identity:
    """A row has the same bits whether one block takes all of its chunks or each has its own."""

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        assert kernel.launches is not None

        def launches(axes: Axes, dtype: str, **scalars: Any) -> tuple[Launch, ...]:
            assert kernel.launches is not None
            found = kernel.launches(axes, dtype, **scalars)
            return tuple(
                replace(launch, grid=(1, *launch.grid[1:])) if launch.grid[1] > 1 else launch
                for launch in running_on("", found)
                if isinstance(launch, Launch)
            )

        alone = replace(kernel, launches=launches)
        shared = 0
        for case in kernel.cases:
            arrays = case_arrays(kernel, case, "bfloat16")
            _, bound = bind_launches(kernel, arrays, case.attrs)
            first = running_on("", bound)[0]
            assert isinstance(first, Launch)
            shared += first.grid[0] > 1
            if 1 < first.grid[0] < 4:
                both = [run(which, arrays, case.attrs) for which in (kernel, alone)]
                assert_same_bits(f"{name} {case.name} with a block a row", both[1], both[0])
        assert shared, f"{name}: no case has rows of several chunks"

    check.__name__ = "blocks_share_rows"
    return check


def few_rows_are_right(name: str, *cases: str) -> Identity:
    """Few rows that have a cluster each are within the tolerance of the reference."""

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        assert kernel.launches is not None
        module: Any = sys.modules[kernel.launches.__module__]
        with mock.patch.object(module, "MAX_FEW_ROWS", 1 << 20):
            for case in (case_named(kernel, case) for case in cases):
                for dtype in ("float32", "bfloat16"):
                    arrays = case_arrays(kernel, case, dtype)
                    assert_right_on_sm_90(kernel, case, arrays)

    check.__name__ = "few_rows_are_right"
    return check


SAMPLE_CASES_OF_RANKS = (
    *("greedy_ties", "no_filter", "top_k_ties", "top_p", "all_filters", "odd_vocab_penalised"),
    *("several_chunks", "top_k_of_many", "few_rows_everything", "few_rows_ties", "broken_rows"),
    *("far_peak", "min_p", "top_p_ties", "block_edge", "few_rows_broken", "one_row"),
    *("all_that_are_likely", "filters_end_apart", "neighbours_tie", "draw_of_half"),
)

LOGPROBS_CASES_OF_RANKS = (
    *("random", "ties", "banned", "broken_rows", "two_tokens", "few_rows", "few_rows_ties"),
    *("many_ties", "odd_vocab", "one_row"),
)


IDENTITIES: Mapping[str, tuple[Identity, ...]] = {
    "sample": (
        orders_agree("sample"),
        adjusted_bits,
        blocks_share_rows("sample"),
        few_rows_are_right("sample", *SAMPLE_CASES_OF_RANKS),
    ),
    "logprobs": (
        orders_agree("logprobs"),
        listed_target_agrees,
        blocks_share_rows("logprobs"),
        few_rows_are_right("logprobs", *LOGPROBS_CASES_OF_RANKS),
    ),
}
"""What is asked of each kernel, by its name."""
