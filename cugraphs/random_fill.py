"""Random numbers in a device's memory, for benchmarks: zeros would take less power and run faster.

A few million normal numbers are drawn on the host and repeated over the array by copies on the
device, out of step with rows. So 16 GB take milliseconds, and no cuRAND is needed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from cugraphs.device import Device
from cugraphs.kernel import DTYPES, Array

BLOCK_ELEMENTS = (1 << 22) - 1  # odd, so that no two rows of a matrix are the same


def fill_random(device: Device, array: Any, *, mean: float = 0.0, std: float = 1.0) -> None:  # noqa: ANN401
    """Fill a contiguous array of the device with normal numbers, always the same ones."""
    host = normal_block(mean, std, str(array.dtype))
    flat = array.reshape(-1)
    if device.shares_host_memory:
        flat[...] = np.resize(host, flat.size)
        return
    filled = min(flat.size, host.size)
    device.write(flat[:filled], host[:filled])
    while filled < flat.size:
        count = min(filled, flat.size - filled)
        part = flat[filled : filled + count]
        part.data.copy_from_device_async(flat.data, part.nbytes, device.stream)  # type: ignore[attr-defined]
        filled += count


@cache
def normal_block(mean: float, std: float, dtype: str) -> Array:
    """``BLOCK_ELEMENTS`` normal numbers, always the same ones."""
    normal = np.random.default_rng(0).standard_normal(BLOCK_ELEMENTS, np.float32)
    return (mean + std * normal).astype(DTYPES[dtype])
