"""What common.cuh promises to any kernel, asked of it alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.emulation import emulate
from cugraphs.kernel import Access, Array, Axes, Cost, Kernel, Launch, Operand
from emulated_identities.identity import Kernels

# What common.cuh promises to any kernel, asked of it alone; {folder} holds that file.
COMMON_PROBES = """
#include "{folder}/common.cuh"
__global__ void exp2_probe(float* out, const float* x, int n) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = exp2_for<float>(x[i]);
}}
__global__ void sums_probe(float* out, const float* x, int n) {{
  out[threadIdx.x] = block_sum<128>(x[threadIdx.x]);
  out[threadIdx.x] += block_sum<128>(2.0f * x[threadIdx.x]);
}}
"""


def _probe(kernels: Kernels, function: str, x: Array, **how: Any) -> Array:
    def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
        return (Launch(function, (-(-axes["n"] // 128), 1, 1), 128, (np.int32(axes["n"]),)),)

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "common_probes.cu"
        common = kernels["rms_norm"].source
        assert common is not None
        source.write_text(COMMON_PROBES.format(folder=common.parent), "utf-8")
        operands = (Operand("out", ("n",), "T", Access.WRITE), Operand("x", ("n",), "T"))
        probe = Kernel(
            function,
            operands,
            lambda x: (x,),
            lambda axes, dtype: Cost(0, 0),
            source=source,
            launches=launches,
        )
        return emulate(probe, [x], {}, **how)[0]


def exp2_is_right(kernels: Kernels) -> None:
    """exp2_for<float> is off by less than a unit of the last place, and 0 below 2^-126."""
    x = np.concatenate([np.linspace(-126, 0, 20_000), [-127.0, -1e4, -3e38]]).astype(np.float32)
    found, exact = _probe(kernels, "exp2_probe", x), np.exp2(x.astype(np.float64))
    assert not found[-3:].any(), "exp2_for: not 0 far below 0"
    units = np.abs(found - exact)[:-3] / np.spacing(exact.astype(np.float32))[:-3]
    assert units.max() < 1, f"exp2_for: off by {units.max():.2f} units of the last place"


def block_sums_may_follow_each_other(kernels: Kernels) -> None:
    """block_sum can be called again at once, without a race and in every thread."""
    x = np.arange(128, dtype=np.float32)
    found = _probe(kernels, "sums_probe", x, checked=True)
    assert (found == 3 * x.sum()).all(), "block_sum: called twice, the sums are wrong"
