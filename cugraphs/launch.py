"""Launch a kernel's CUDA form on device arrays: compile or find its cubins, check, pack, launch.

The only module that loads GPU code. Arguments are packed once, when a program is bound; a launch
is then one driver call, eager or under capture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from cugraphs.cublaslt import CublasLt, MatrixPlan, MatrixShape
from cugraphs.kernel import DTYPES, WORKSPACE, ArrayType, Kernel, Launch
from cugraphs.nvrtc import compile_cubin

DeviceArray = Any  # a cupy.ndarray: CuPy has no types, and is imported only where there is a GPU


class PreparedLaunch:
    """One launch of our own kernel with its arguments packed."""

    def __init__(
        self, kernel: Kernel, launch: Launch, pointers: Sequence[int], stream: int
    ) -> None:
        """Pack the arguments.

        Args:
            kernel: whose ``.cu`` file it is.
            launch: function, geometry and scalars.
            pointers: of the arrays, 0 for an optional one that is left out.
            stream: the CUstream.

        Raises:
            TypeError: a scalar is no NumPy one, so that its C type is not known.
        """
        from cuda.bindings import driver

        for scalar in launch.scalars:
            if not isinstance(scalar, np.generic):
                raise TypeError(
                    f"{kernel.name}: a scalar of {launch.function} is the {type(scalar).__name__} "
                    f"{scalar!r}, expected a NumPy scalar of the parameter's type, as np.int32"
                )
        self._driver = driver
        self.label = launch.function
        self._function = driver.CUfunction(_function(kernel, launch))
        values: list[np.generic] = [np.uint64(pointer) for pointer in pointers]
        values += launch.scalars
        # The driver reads each argument where its pointer says; the arrays keep both alive.
        self._values = [np.array([value]) for value in values]
        self._pointers = np.array([value.ctypes.data for value in self._values], np.uint64)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block, 1, 1
        config.sharedMemBytes = launch.shared_bytes
        config.hStream = driver.CUstream(stream)
        if launch.programmatic:
            attribute = driver.CUlaunchAttribute()
            attribute.id = (
                driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        self._config = config
        self._arguments = int(self._pointers.ctypes.data)

    def __call__(self) -> None:
        """Queue the launch.

        Raises:
            RuntimeError: the driver refuses it; the message names the function.
        """
        (error,) = self._driver.cuLaunchKernelEx(self._config, self._function, self._arguments, 0)
        if error:
            raise RuntimeError(f"launch: {self.label} fails with {error.name}")


class PreparedProduct:
    """One cuBLASLt matrix product with its plan and pointers."""

    def __init__(
        self, cublaslt: CublasLt, plan: MatrixPlan, pointers: tuple[int, int, int, int], stream: int
    ) -> None:
        """Keep what a launch needs; ``pointers`` are of out, x, weight and the workspace."""
        self.label = "matrix product"
        self._cublaslt = cublaslt
        self._plan = plan
        self._pointers = pointers
        self._stream = stream

    def __call__(self) -> None:
        """Queue the product."""
        self._cublaslt.launch(self._plan, *self._pointers, self._stream)


Prepared = PreparedLaunch | PreparedProduct


def prepare(
    kernel: Kernel,
    arrays: Sequence[DeviceArray],
    attrs: Mapping[str, Any],
    *,
    stream: int,
    cublaslt: CublasLt,
    workspace: DeviceArray | None,
) -> list[Prepared]:
    """What ``kernel`` runs on these arrays, ready to be queued; nothing is launched.

    Args:
        kernel: has a CUDA form.
        arrays: its operands in declaration order; optional ones may be left out.
        attrs: its scalars.
        stream: the CUstream.
        cublaslt: for matrix products.
        workspace: uint8 [bytes]; the kernel's ``workspace_bytes`` or more; None where it needs
            none.

    Raises:
        TypeError, ValueError: an array has another dtype, shape or layout than declared, the
            workspace is too small, or the kernel has no CUDA form.
    """
    if kernel.launches is None:
        raise ValueError(f"{kernel.name}: has no CUDA form, expected launches and a .cu file")
    if len(arrays) > len(kernel.operands):
        known = ", ".join(operand.name for operand in kernel.operands)
        raise TypeError(
            f"{kernel.name}: got {len(arrays)} arrays, expected at most {len(kernel.operands)} "
            f"({known})"
        )
    types = [_array_type(kernel, operand.name, array) for operand, array in _pairs(kernel, arrays)]
    # Written operands come first, UPDATE ones among them: pick the WRITE ones by their place.
    written = [t for o, t in zip(kernel.operands, types, strict=False) if o in kernel.produced]
    supplied = [t for o, t in zip(kernel.operands, types, strict=False) if o not in kernel.produced]
    expected, axes = kernel.infer(supplied, attrs)
    for operand, found, wanted in zip(kernel.produced, written, expected, strict=True):
        if found != wanted:
            raise ValueError(f"{kernel.name}: {operand.name} is {found}, expected {wanted}")
    if any(size == 0 for size in axes.values()):
        return []  # no rows: a grid of 0 blocks is an error on the device
    pointers = {o.name: 0 for o in kernel.operands}
    pointers |= {o.name: int(array.data.ptr) for o, array in _pairs(kernel, arrays)}
    prepared: list[Prepared] = []
    dtype = kernel.dtype_of(types)
    needed = kernel.workspace_bytes(axes, dtype, attrs)
    given = 0 if workspace is None else int(workspace.nbytes)
    if needed > given:
        raise ValueError(f"{kernel.name}: workspace is {given} bytes, expected at least {needed}")
    pointers[WORKSPACE] = int(workspace.data.ptr) if workspace is not None else 0
    arch = device_arch()
    parts = [
        part
        for launch in kernel.launches(axes, dtype, **attrs)
        for part in (launch.on(arch) if isinstance(launch, Launch) else (launch,))
    ]
    for launch in parts:
        if isinstance(launch, Launch):
            names = launch.operands or [operand.name for operand in kernel.operands]
            prepared.append(
                PreparedLaunch(kernel, launch, [pointers[name] for name in names], stream)
            )
        else:
            bias = pointers.get("bias", 0)
            shape = MatrixShape(
                axes["tokens"], axes["out_features"], axes["in_features"], dtype, bool(bias)
            )
            plan = cublaslt.plan(shape, bias, stream=stream)
            where = (
                pointers["out"],
                pointers["x"],
                pointers["weight"],
                pointers[WORKSPACE],
            )
            prepared.append(PreparedProduct(cublaslt, plan, where, stream))
    return prepared


def _pairs(kernel: Kernel, arrays: Sequence[DeviceArray]) -> list[tuple[Any, DeviceArray]]:
    return list(zip(kernel.operands, arrays, strict=False))


def _array_type(kernel: Kernel, name: str, array: DeviceArray) -> ArrayType:
    names = {dtype: key for key, dtype in DTYPES.items()}
    if array.dtype not in names:
        raise TypeError(f"{kernel.name}: {name} is {array.dtype}, expected one of {[*DTYPES]}")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{kernel.name}: {name} has strides {array.strides}, expected a contiguous array; "
            "copy it with cupy.ascontiguousarray"
        )
    return ArrayType(tuple(array.shape), names[array.dtype])


@cache
def device_arch() -> str:
    """The current device's architecture as NVRTC names it: ``sm_90``."""
    import cupy

    return f"sm_{cupy.cuda.Device().compute_capability}"


@cache
def _function(kernel: Kernel, launch: Launch) -> int:
    """The CUfunction of a launch, compiled for the current device or from the cache."""
    import cupy
    from cuda.bindings import driver

    assert kernel.source is not None, f"{kernel.name}: launches without a source file"
    cubin = compile_cubin(kernel.source, launch.function, launch.arch or device_arch())
    module = cupy.cuda.function.Module()
    module.load(cubin.data)
    found = module.get_function(cubin.lowered_name)
    _KEEP.append((module, found))
    pointer = int(found.ptr)
    if launch.shared_bytes > 48 * 1024:  # above it a kernel must opt in
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (error,) = driver.cuFuncSetAttribute(
            driver.CUfunction(pointer), attribute, launch.shared_bytes
        )
        if error:
            raise RuntimeError(
                f"launch: {launch.function} asks for {launch.shared_bytes} bytes of shared memory, "
                f"and the driver answers {error.name}"
            )
    return pointer


_KEEP: list[Any] = []  # modules stay loaded while the process lives: their functions are cached
