"""The KV cache in device memory: addresses first, memory once it is known how much is left.

Graphs hold addresses, and what graphs cost the driver is known only after they are captured. So the
pool reserves the addresses of the largest cache, graphs are captured over them, and then the first
blocks of every array are backed with what is left. Nothing is captured twice.
"""

from __future__ import annotations

import contextlib
from typing import Any

from cugraphs.kernel import DTYPES
from cugraphs.kv_cache import KVCacheShape


class CudaKVPool:
    """K and V of every layer, in one range of addresses."""

    def __init__(self, cache: KVCacheShape, stream: Any) -> None:  # noqa: ANN401 - CuPy's
        """Reserve addresses for ``cache.num_blocks`` blocks; no memory is taken.

        Raises:
            MemoryError: the driver has no such range.
        """
        import cupy
        from cuda.bindings import driver

        self._driver = driver
        self._stream = stream
        self._location = driver.CUmemLocation()
        self._location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._location.id = cupy.cuda.Device().id
        self._properties = driver.CUmemAllocationProp()
        self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location = self._location
        minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self._unit_bytes = int(
            self._call(driver.cuMemGetAllocationGranularity(self._properties, minimum))
        )
        type_ = cache.layer_type
        self._block_bytes = type_.nbytes // cache.num_blocks
        self._stride_bytes = self._whole_units(type_.nbytes)
        self._nbytes = self._stride_bytes * len(cache.types)
        self._base = int(self._call(driver.cuMemAddressReserve(self._nbytes, 0, 0, 0)))
        self._backed_bytes = 0  # of each array
        self.arrays: dict[str, Any] = {}
        for index, name in enumerate(cache.types):
            begin = self._base + index * self._stride_bytes
            memory = cupy.cuda.UnownedMemory(begin, type_.nbytes, self)
            pointer = cupy.cuda.MemoryPointer(memory, 0)
            self.arrays[name] = cupy.ndarray(type_.shape, DTYPES[type_.dtype], pointer)

    def bytes_of(self, num_blocks: int) -> int:
        """Memory that so many blocks take, in the driver's units."""
        return self._whole_units(num_blocks * self._block_bytes) * len(self.arrays)

    def blocks_in(self, nbytes: int) -> int:
        """The most blocks that take no more than ``nbytes``."""
        units = max(nbytes, 0) // len(self.arrays) // self._unit_bytes
        return units * self._unit_bytes // self._block_bytes

    def back(self, num_blocks: int) -> None:
        """Give the first blocks memory, and zero block 0.

        Raises:
            MemoryError: it does not fit; nothing is backed then.
        """
        assert not self._backed_bytes, "the pool is backed once"
        nbytes = self._whole_units(num_blocks * self._block_bytes)
        driver = self._driver
        access = driver.CUmemAccessDesc()
        access.location = self._location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        done = 0
        try:
            for done in range(len(self.arrays)):
                begin = self._base + done * self._stride_bytes
                memory = self._call(driver.cuMemCreate(nbytes, self._properties, 0))
                self._call(driver.cuMemMap(begin, nbytes, 0, memory, 0))
                self._call(driver.cuMemRelease(memory))  # the mapping keeps it
                self._call(driver.cuMemSetAccess(begin, nbytes, [access], 1))
        except MemoryError:
            self._unmap(done, nbytes)
            raise MemoryError(
                f"cuda: {num_blocks:,} blocks of the KV cache are {self.bytes_of(num_blocks):,} "
                "bytes, which do not fit; lower num_kv_blocks or gpu_memory_utilization"
            ) from None
        self._backed_bytes = nbytes
        for array in self.arrays.values():
            array[:1].data.memset_async(0, self._block_bytes, self._stream)

    def close(self) -> None:
        """Give memory and addresses back; the arrays are not to be used any more."""
        if self._base:
            self._stream.synchronize()
            if self._backed_bytes:
                self._unmap(len(self.arrays), self._backed_bytes)
            self._driver.cuMemAddressFree(self._base, self._nbytes)
            self._base = 0

    def __del__(self) -> None:
        """Close, once no array is left."""
        if getattr(self, "_base", 0):
            with contextlib.suppress(Exception):  # at exit CuPy may be gone, and memory with it
                self.close()

    def _unmap(self, count: int, nbytes: int) -> None:
        for index in range(count):
            self._driver.cuMemUnmap(self._base + index * self._stride_bytes, nbytes)

    def _whole_units(self, nbytes: int) -> int:
        return -(-nbytes // self._unit_bytes) * self._unit_bytes

    def _call(self, answer: tuple[Any, ...]) -> Any:  # noqa: ANN401
        """The result of a driver call.

        Raises:
            MemoryError: the driver has no memory or no addresses left.
            RuntimeError: it fails otherwise.
        """
        error, *results = answer
        if error == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError("cuda: the driver is out of memory")
        if error:
            raise RuntimeError(f"cuda: the driver fails with {error.name}")
        return results[0] if results else None
