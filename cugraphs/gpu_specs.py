"""What a GPU can do by its data sheet: bandwidth, matrix throughput, memory, SMs, L2 cache.

Figures are NVIDIA's own: bandwidth and memory in decimal units, matrix throughput dense (many data
sheets print it with 2:4 sparsity, which is twice that) with float32 accumulation. No card reaches
them: `cugraphs check --bench` measures what one does reach. Knows no model and asks no device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuSpec:
    """One GPU.

    Args:
        name: as NVIDIA writes it.
        read_bytes_per_s: of its memory.
        flops_per_s: dense bf16 matrix products, float32 sums; fp16 has the same.
        memory_bytes: as sold. Drivers report from 0 to 8% more (the data sheet's GB are near GiB).
        num_sms: streaming multiprocessors.
        l2_bytes: of the L2 cache.
        arch: as NVRTC names it.
        sources: of each figure, by field; what is not named is from ``"all"``.
        replaced: the fields that are not the data sheet's, and where their figures are from.
    """

    name: str
    read_bytes_per_s: float
    flops_per_s: float
    memory_bytes: int
    num_sms: int
    l2_bytes: int
    arch: str
    sources: Mapping[str, str]
    replaced: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse figures that no GPU has."""
        for field in ("read_bytes_per_s", "flops_per_s", "memory_bytes", "num_sms", "l2_bytes"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"GpuSpec: {field} is {value}, expected a positive number")

    def with_figures(self, source: str, **figures: float | None) -> GpuSpec:
        """This GPU with measured or chosen figures in place of the data sheet's.

        Args:
            source: of these figures.
            figures: by field; None leaves the data sheet's.
        """
        given = {field: value for field, value in figures.items() if value is not None}
        replaced = {**self.replaced, **dict.fromkeys(given, source)}
        return dataclasses.replace(self, replaced=replaced, **given)  # type: ignore[arg-type]

    def source(self, field: str) -> str:
        """Where a figure is from."""
        return self.replaced.get(field) or self.sources.get(field, self.sources["all"])


def _spec(
    name: str,
    arch: str,
    figures: tuple[float, float, int, int, int],
    sheet: str,
    **sources: str,
) -> GpuSpec:
    """From GB/s, TFLOP/s, GB, SMs and MiB of L2."""
    gb_per_s, tflops, gb, num_sms, l2_mib = figures
    return GpuSpec(
        name=name,
        read_bytes_per_s=gb_per_s * 1e9,
        flops_per_s=tflops * 1e12,
        memory_bytes=gb * 10**9,
        num_sms=num_sms,
        l2_bytes=l2_mib << 20,
        arch=arch,
        sources={"all": sheet, **sources},
    )


_HALF = "half of the figure that the data sheet prints with sparsity"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet"
_GA100 = "NVIDIA A100 Tensor Core GPU Architecture white paper"
_GH100 = "NVIDIA H100 Tensor Core GPU Architecture white paper"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture white paper"
_AD102 = "NVIDIA Ada GPU Architecture white paper"
_GB202 = "NVIDIA RTX Blackwell GPU Architecture white paper"
_ASKED = "cudaDeviceProp of such a card"

GPU_SPECS: Mapping[str, GpuSpec] = {
    "a100": _spec(
        *("A100 SXM 80GB", "sm_80", (2039, 312, 80, 108, 40), _A100),
        num_sms=_GA100,
        l2_bytes=_GA100,
    ),
    "a100-40gb": _spec(
        *("A100 SXM 40GB", "sm_80", (1555, 312, 40, 108, 40), _A100),
        num_sms=_GA100,
        l2_bytes=_GA100,
    ),
    "h100": _spec(
        *("H100 SXM", "sm_90", (3350, 989, 80, 132, 50), "NVIDIA H100 Tensor Core GPU data sheet"),
        flops_per_s=f"the same: {_HALF}, 1,979 TFLOP/s",
        num_sms=_GH100,
        l2_bytes=_GH100,
    ),
    "h100-pcie": _spec(
        *("H100 PCIe", "sm_90", (2000, 756, 80, 114, 50), "NVIDIA H100 Tensor Core GPU data sheet"),
        flops_per_s=f"the same: {_HALF}, 1,513 TFLOP/s",
        num_sms=_GH100,
        l2_bytes=_GH100,
    ),
    "h200": _spec(
        *("H200 SXM", "sm_90", (4800, 989, 141, 132, 60), "NVIDIA H200 Tensor Core GPU data sheet"),
        flops_per_s=f"the same: {_HALF}, 1,979 TFLOP/s",
        num_sms=_ASKED,
        l2_bytes=_ASKED,
    ),
    "b200": _spec(
        *("B200", "sm_100", (7700, 2250, 180, 148, 126), "NVIDIA HGX B200 data sheet"),
        flops_per_s=f"the same: {_HALF}, 4.5 PFLOP/s",
        num_sms=_ASKED,
        l2_bytes="NVIDIA Blackwell Tuning Guide",
    ),
    "l4": _spec(
        *("L4", "sm_89", (300, 121, 24, 58, 48), "NVIDIA L4 Tensor Core GPU data sheet"),
        flops_per_s=f"the same: {_HALF}, 242 TFLOP/s",
        num_sms="the same: 7,424 CUDA cores, 128 an SM",
        l2_bytes=_ASKED,
    ),
    "l40s": _spec(
        *("L40S", "sm_89", (864, 362, 48, 142, 96), "NVIDIA L40S data sheet"),
        num_sms="the same: 18,176 CUDA cores, 128 an SM",
        l2_bytes=_AD102,
    ),
    "rtx3090": _spec("GeForce RTX 3090", "sm_86", (936, 71, 24, 82, 6), _GA102),
    "rtx4090": _spec("GeForce RTX 4090", "sm_89", (1008, 165.2, 24, 128, 72), _AD102),
    "rtx5090": _spec("GeForce RTX 5090", "sm_120", (1792, 209.5, 32, 170, 96), _GB202),
}


def gpu_spec(name: str) -> GpuSpec:
    """The data sheet of the GPU called ``name``; upper case, spaces, "-" and "_" do not matter.

    Raises:
        ValueError: no such GPU; the message lists those that are known.
    """
    by_key = {_key(known): spec for known, spec in GPU_SPECS.items()}
    spec = by_key.get(_key(name))
    if spec is None:
        raise ValueError(f"gpu: {name!r} is not known, expected one of {', '.join(GPU_SPECS)}")
    return spec


def _key(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
