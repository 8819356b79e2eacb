"""What a benchmark runs on: the GPU, versions, and what this card can do, measured in the run."""

from __future__ import annotations

import platform
import re
from importlib.metadata import version
from pathlib import Path

from cugraphs.cuda_device import CudaDevice
from cugraphs.gpu_specs import GpuSpec
from cugraphs.kernel_speed import measure_ceilings
from cugraphs.launch import device_arch
from cugraphs.launch_timing import LaunchTimer
from cugraphs.tuning_table import version_text

_DRIVER = Path("/proc/driver/nvidia/version")


def describe_machine(device: CudaDevice) -> dict[str, str]:
    """Names and versions, by what they are of."""
    import cupy

    cuda = int(cupy.cuda.runtime.driverGetVersion())
    return {
        "gpu": device.gpu_name,
        "driver": _driver_version() or "unknown",
        "driver_cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "cupy": str(cupy.__version__),
        "cuda_bindings": version("cuda-bindings"),
        "cublaslt": version_text(device.cublaslt.version),
        "python": platform.python_version(),
    }


def measure_gpu(device: CudaDevice) -> GpuSpec:
    """This card, with bandwidth and matrix throughput as measured now.

    Raises:
        MemoryError: there is no room for what is read and multiplied.
    """
    ceilings = measure_ceilings(LaunchTimer(device))
    return GpuSpec(
        name=device.gpu_name,
        read_bytes_per_s=ceilings.read_bytes_per_s,
        flops_per_s=ceilings.flops_per_s,
        memory_bytes=device.total_bytes,
        num_sms=device.multiprocessors,
        l2_bytes=device.l2_cache_bytes,
        arch=device_arch(),
        sources={"all": "measured in the same run"},
    )


def _driver_version() -> str | None:
    """The NVIDIA driver's version, where Linux tells it."""
    try:
        text = _DRIVER.read_text()
    except OSError:
        return None
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return found[0] if found else None
