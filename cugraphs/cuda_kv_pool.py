"""The KV cache in device memory: addresses first, memory once it is known how much is left.

Graphs hold addresses, and what graphs cost the driver is known only after they are captured. So the
pool reserves the addresses of the largest cache, graphs are captured over them, and then the first
blocks of every array are backed with what is left. Nothing is captured twice.
"""

from __future__ import annotations

import contextlib
from typing import Any

from cugraphs.counted import counted
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

        self._stream = stream
        type_ = cache.layer_type
        self._block_bytes = type_.nbytes // cache.num_blocks
        self._range = _AddressRange(type_.nbytes, len(cache.types))
        self.arrays: dict[str, Any] = {}
        for index, name in enumerate(cache.types):
            # The arrays keep the range, so nothing of it goes before the last of them.
            begin, device_id = self._range.begin(index), self._range.device_id
            memory = cupy.cuda.UnownedMemory(begin, type_.nbytes, self._range, device_id)
            pointer = cupy.cuda.MemoryPointer(memory, 0)
            self.arrays[name] = cupy.ndarray(type_.shape, DTYPES[type_.dtype], pointer)

    def bytes_of(self, num_blocks: int) -> int:
        """Memory that so many blocks take, in the driver's units."""
        return self._range.whole_units(num_blocks * self._block_bytes) * len(self.arrays)

    def blocks_in(self, nbytes: int) -> int:
        """The most blocks that take no more than ``nbytes``."""
        units = max(nbytes, 0) // len(self.arrays) // self._range.unit_bytes
        return units * self._range.unit_bytes // self._block_bytes

    def back(self, num_blocks: int) -> None:
        """Give the first blocks memory, and zero block 0.

        Raises:
            MemoryError: it does not fit; nothing is backed then.
        """
        try:
            self._range.back(num_blocks * self._block_bytes)
        except MemoryError:
            raise MemoryError(
                f"cuda: a KV cache of {counted(num_blocks, 'block')} is "
                f"{self.bytes_of(num_blocks):,} bytes, which do not fit; lower num_kv_blocks or "
                "gpu_memory_utilization"
            ) from None
        for array in self.arrays.values():
            array[:1].data.memset_async(0, self._block_bytes, self._stream)


class _AddressRange:
    """Equal parts of a range of addresses; the beginning of each can be backed with memory."""

    def __init__(self, part_bytes: int, num_parts: int) -> None:
        import cupy
        from cuda.bindings import driver

        self._driver = driver
        self.device_id = int(cupy.cuda.Device().id)
        location = driver.CUmemLocation()
        location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = self.device_id
        self._properties = driver.CUmemAllocationProp()
        self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location = location
        self._access = driver.CUmemAccessDesc()
        self._access.location = location
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        unit = self._call(driver.cuMemGetAllocationGranularity(self._properties, minimum))
        self.unit_bytes = int(unit)
        self._part_bytes = self.whole_units(part_bytes)
        self._num_parts = num_parts
        self._base = int(self._call(driver.cuMemAddressReserve(self._nbytes, 0, 0, 0)))
        self._backed_bytes = 0  # of each part

    @property
    def _nbytes(self) -> int:
        return self._part_bytes * self._num_parts

    def whole_units(self, nbytes: int) -> int:
        """``nbytes``, rounded up to what the driver maps."""
        return -(-nbytes // self.unit_bytes) * self.unit_bytes

    def begin(self, index: int) -> int:
        """Where a part begins."""
        return self._base + index * self._part_bytes

    def back(self, part_bytes: int) -> None:
        """Give the first bytes of every part memory. Raises MemoryError; nothing is backed then."""
        assert not self._backed_bytes, "the range is backed once"
        nbytes, driver, done = self.whole_units(part_bytes), self._driver, 0
        try:
            for done in range(self._num_parts):
                memory = self._call(driver.cuMemCreate(nbytes, self._properties, 0))
                try:
                    self._call(driver.cuMemMap(self.begin(done), nbytes, 0, memory, 0))
                finally:
                    self._call(driver.cuMemRelease(memory))  # the mapping keeps it
                access = [self._access]
                self._call(driver.cuMemSetAccess(self.begin(done), nbytes, access, len(access)))
        except MemoryError:
            self._unmap(done, nbytes)
            raise
        self._backed_bytes = nbytes

    def __del__(self) -> None:
        """Give memory and addresses back. At exit the driver may be gone, and they with it."""
        if getattr(self, "_base", 0):
            with contextlib.suppress(Exception):
                self._driver.cuCtxSynchronize()
                if self._backed_bytes:
                    self._unmap(self._num_parts, self._backed_bytes)
                self._driver.cuMemAddressFree(self._base, self._nbytes)

    def _unmap(self, count: int, nbytes: int) -> None:
        for index in range(count):
            self._driver.cuMemUnmap(self.begin(index), nbytes)

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
