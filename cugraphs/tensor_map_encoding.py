"""Tensor maps as kernels take them: 128 bytes that the driver makes of dims and an address."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cugraphs.tensor_map import TensorMap

_DIMS = 4


@lru_cache(maxsize=4096)  # a model's caches stay where they are: two maps a layer
def encode_tensor_map(tensor_map: TensorMap, address: int) -> tuple[int, ...]:
    """The map of an array at an address of the device, as words of 8 bytes.

    Raises:
        RuntimeError: the driver refuses it; the message names the operand.
    """
    from cuda.bindings import driver

    types: Any = driver.CUtensorMapDataType
    wide, narrow = driver.cuuint64_t, driver.cuuint32_t
    error, encoded = driver.cuTensorMapEncodeTiled(
        types.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
        if tensor_map.dtype == "bfloat16"
        else types.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        _DIMS,
        address,
        [wide(size) for size in tensor_map.shape],
        [wide(stride) for stride in tensor_map.strides_bytes],
        [narrow(size) for size in tensor_map.box],
        [narrow(1)] * _DIMS,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error:
        raise RuntimeError(
            f"launch: the tensor map of {tensor_map.operand}, shape {tensor_map.shape}, is refused "
            f"with {error.name}"
        )
    return tuple(int(word) for word in encoded.opaque)
