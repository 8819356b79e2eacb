"""Launch a kernel's CUDA form on device arrays: compile or find its cubins, check, pack, launch.

The only module that loads GPU code. Arguments are packed once, when a program is bound; a launch
is then one driver call, eager or under capture.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.counted import counted
from cugraphs.cublaslt import CublasLt, MatrixPlan, MatrixShape
from cugraphs.kernel import (
    DTYPES,
    NOTHING,
    WORKSPACE,
    ArrayType,
    Kernel,
    Launch,
    MatrixProduct,
    offset_in_workspace,
    running_on,
    stack_words,
)
from cugraphs.nvrtc import compile_cubin
from cugraphs.start_times import span
from cugraphs.tensor_map_encoding import encode_tensor_map

# Builds of all kernels, as NVRTC's options; see kernels/ptx.cuh.
DELAYED = "-DDELAYED"  # sleeps where programmatic launches meet, so that a missing wait shows
STAMPED = "-DSTAMPED"  # notes when each block waits, goes on and ends
PROGRAMMATIC_SM = 90  # the first architecture that has programmatic dependent launch
DeviceArray = Any  # a cupy.ndarray: CuPy has no types, and is imported only where there is a GPU


class LaunchForm:
    """One launch without its arrays: what it has in common with the same op of every layer."""

    def __init__(
        self, kernel: Kernel, launch: Launch, stream: int, build: tuple[str, ...] = ()
    ) -> None:
        """Find the function and fill in the configuration.

        Args:
            kernel: whose ``.cu`` file it is.
            launch: function, geometry and scalars.
            stream: the CUstream.
            build: :data:`DELAYED` or :data:`STAMPED`, or none.

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
        assert kernel.source is not None, f"{kernel.name}: launches without a source file"
        self.declared = launch
        self.label = launch.function
        self.operands = launch.operands or tuple([operand.name for operand in kernel.operands])
        # Each scalar in the low bytes of a word of its own, where the driver reads it.
        self.scalars = [int.from_bytes(scalar.tobytes(), "little") for scalar in launch.scalars]
        self.tensor_maps = launch.tensor_maps
        self.settles = launch.settles
        arch = launch.arch or device_arch()
        pointer = _function(kernel.source, launch.function, arch, launch.shared_bytes, build)
        self.function = driver.CUfunction(pointer)
        attributes = [_cluster(driver, launch.cluster)] if launch.cluster > 1 else []
        if launch.meets:
            attributes = [*attributes, _all_at_once(driver)]
        self.config = _config(driver, launch, stream, attributes)
        self.config_after_ours = self.config
        if launch.programmatic and int(device_arch().removeprefix("sm_")) >= PROGRAMMATIC_SM:
            attributes = [*attributes, _begins_early(driver)]
            self.config_after_ours = _config(driver, launch, stream, attributes)
        self.launch = driver.cuLaunchKernelEx


def _config(
    driver: Any,  # noqa: ANN401 - no types
    launch: Launch,
    stream: int,
    attributes: list[Any],
) -> Any:  # noqa: ANN401
    """Geometry, stream and attributes as the driver takes them."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block, 1, 1
    config.sharedMemBytes = launch.shared_bytes
    config.hStream = driver.CUstream(stream)
    if attributes:
        config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def _cluster(driver: Any, blocks: int) -> Any:  # noqa: ANN401
    """The attribute that makes so many neighbours in x a cluster."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    size = attribute.value.clusterDim
    size.x, size.y, size.z = blocks, 1, 1
    return attribute


def _all_at_once(driver: Any) -> Any:  # noqa: ANN401
    """The attribute that has all blocks of a launch placed at the same time, or none."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    attribute.value.cooperative = 1
    return attribute


def _begins_early(driver: Any) -> Any:  # noqa: ANN401
    """The attribute that lets a launch begin before the one before it has ended."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


class PreparedLaunch:
    """One launch of our own kernel with its arguments packed.

    ``begins_early``: after one of ours it may begin before that one ends.
    """

    is_ours = True

    def __init__(
        self,
        form: LaunchForm,
        pointers: Sequence[int],
        stacked: Sequence[Sequence[int]] = (),
    ) -> None:
        """Pack the arguments.

        Args:
            form: the launch.
            pointers: of the form's operands, 0 for an optional one that is left out.
            stacked: of each op that the launch is made for, those of the operands in its stack.
        """
        self.label = form.label
        self.settles = form.settles
        self.begins_early = form.config_after_ours is not form.config
        self.declared = form.declared
        self._form = form
        self._pointers, self._stacked = pointers, stacked
        # Arguments begin at these words; a stack and a tensor map take several.
        starts = []
        values: list[int] = []
        if self.declared.stack:
            starts.append(0)
            values += stack_words(stacked)
        for argument in (*pointers, *form.scalars):
            starts.append(len(values))
            values.append(argument)
        for tensor_map in form.tensor_maps:
            starts.append(len(values))
            address = pointers[form.operands.index(tensor_map.operand)]
            values += encode_tensor_map(tensor_map, address)
        # The values, and after them where each argument is, as the driver wants to be told.
        self._words = array("Q", values + starts)
        first = self._words.buffer_info()[0]
        self._words[len(values) :] = array("Q", [first + 8 * start for start in starts])
        self._arguments = first + 8 * len(values)

    @staticmethod
    def join(launches: Sequence[PreparedLaunch]) -> PreparedLaunch:
        """The one launch that stands for those of several ops, in order, of one form."""
        form = launches[0]._form
        pointers = list(launches[0]._pointers)
        out = form.operands.index("out")
        pointers[out] = launches[-1]._pointers[out]
        stacked = [element for launch in launches for element in launch._stacked]
        return PreparedLaunch(form, pointers, stacked)

    def __call__(self, after_ours: bool = False) -> None:
        """Queue the launch.

        Args:
            after_ours: what is before it in the stream is a launch of ours, so that it may begin
                before that one ends, if it is declared so.

        Raises:
            RuntimeError: the driver refuses it; the message names the function.
        """
        form = self._form
        config = form.config_after_ours if after_ours else form.config
        (error,) = form.launch(config, form.function, self._arguments, 0)
        if error:
            raise RuntimeError(f"launch: {self.label} fails with {error.name}")


class PreparedProduct:
    """One cuBLASLt matrix product with its plan and pointers."""

    is_ours = False
    settles = False
    begins_early = False

    def __init__(
        self,
        cublaslt: CublasLt,
        plan: MatrixPlan,
        pointers: tuple[int, int, int, int],
        stream: int,
        residual: int,
    ) -> None:
        """Keep what a launch needs.

        Args:
            cublaslt: the library.
            plan: of the product.
            pointers: of out, x, weight and the workspace.
            stream: the CUstream.
            residual: pointer of what is added; 0 where nothing is.
        """
        self.label = "matrix product"
        self._cublaslt = cublaslt
        self._plan = plan
        self._pointers = pointers
        self._stream = stream
        self._residual = residual

    def __call__(self, after_ours: bool = False) -> None:
        """Queue the product, which begins when all before it has ended."""
        self._cublaslt.launch(self._plan, *self._pointers, self._stream, self._residual)


Prepared = PreparedLaunch | PreparedProduct


def queue(launches: Iterable[Prepared], after_ours: bool = False) -> bool:
    """Queue launches one after the other; whether what is last in the stream now is one of ours.

    The one place that decides which launches are programmatic: those that are declared so and
    directly follow one of ours. What is not ours (cuBLASLt, copies, fills, another graph) does not
    wait for the launch before the one before, so nothing may begin ahead of its end.

    Args:
        launches: in order.
        after_ours: whether what is last in the stream before them is a launch of ours.
    """
    for launch in launches:
        launch(after_ours)
        after_ours = launch.is_ours
    return after_ours


def prepare(
    kernel: Kernel,
    arrays: Sequence[DeviceArray],
    attrs: Mapping[str, Any],
    *,
    stream: int,
    cublaslt: CublasLt,
    workspace: DeviceArray | None,
    build: tuple[str, ...] = (),
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
        build: :data:`DELAYED` or :data:`STAMPED`, or none.

    Raises:
        TypeError, ValueError: an array has another dtype, shape or layout than declared, the
            workspace is too small, or the kernel has no CUDA form.
    """
    plan = _plan(kernel, tuple(map(_key, arrays)), tuple(attrs.items()), stream, build)
    if not plan.parts:
        return []
    given = 0 if workspace is None else int(workspace.nbytes)
    if plan.workspace_bytes > given:
        raise ValueError(
            f"{kernel.name}: workspace is {given} bytes, expected at least {plan.workspace_bytes}"
        )
    pointers = dict.fromkeys(plan.operands, 0)
    for name, operand in zip(plan.operands, arrays, strict=False):
        pointers[name] = int(operand.data.ptr)
    pointers[WORKSPACE] = int(workspace.data.ptr) if workspace is not None else 0
    pointers[NOTHING] = 0
    prepared: list[Prepared] = []
    for part in plan.parts:
        if isinstance(part, LaunchForm):
            stack = part.declared.stack
            stacked = [[pointers[name] for name in stack]] if stack else []
            own = [_address(pointers, name) for name in part.operands]
            prepared.append(PreparedLaunch(part, own, stacked))
        else:
            product = cublaslt.plan(part.shape, pointers.get("bias", 0), stream=stream)
            out, scratch = pointers["out"], pointers[WORKSPACE]
            if part.result_bytes:
                out, scratch = scratch, scratch + part.result_bytes
            where = (out, pointers["x"], pointers["weight"], scratch)
            residual = pointers["residual"] if part.adds_residual else 0
            prepared.append(PreparedProduct(cublaslt, product, where, stream, residual))
    return prepared


def _address(pointers: Mapping[str, int], operand: str) -> int:
    """What a launch is given for an operand."""
    offset = offset_in_workspace(operand)
    return pointers[operand] if offset is None else pointers[WORKSPACE] + offset


@dataclass(frozen=True)
class _Product:
    """A matrix product without its arrays."""

    shape: MatrixShape
    adds_residual: bool
    result_bytes: int  # of the workspace, where its beginning is the result; else 0


@dataclass(frozen=True)
class _Plan:
    """What a kernel runs on arrays of certain types, wherever they are.

    Args:
        operands: names, in the order of the arrays.
        parts: the launches and products.
        workspace_bytes: that they need.
    """

    operands: tuple[str, ...]
    parts: tuple[LaunchForm | _Product, ...]
    workspace_bytes: int


# Shape, dtype, and the strides where there are gaps between the elements.
_ArrayKey = tuple[tuple[int, ...], np.dtype[Any], tuple[int, ...] | None]


def _key(array: DeviceArray) -> _ArrayKey:
    return array.shape, array.dtype, None if array.flags.c_contiguous else array.strides


@lru_cache(maxsize=4096)  # a few kinds of op at each size: a model's layers are alike
def _plan(
    kernel: Kernel,
    arrays: tuple[_ArrayKey, ...],
    scalars: tuple[tuple[str, Any], ...],
    stream: int,
    build: tuple[str, ...],
) -> _Plan:
    """Check the arrays against the declaration, and find the launches. Raises as ``prepare``."""
    attrs = dict(scalars)
    if kernel.launches is None:
        raise ValueError(f"{kernel.name}: has no CUDA form, expected launches and a .cu file")
    names = tuple([operand.name for operand in kernel.operands])
    if len(arrays) > len(names):
        raise TypeError(
            f"{kernel.name}: got {counted(len(arrays), 'array')}, expected at most {len(names)} "
            f"({', '.join(names)})"
        )
    types = [_array_type(kernel, name, key) for name, key in zip(names, arrays, strict=False)]
    # Written operands come first, UPDATE ones among them: pick the WRITE ones by their place.
    written = [t for o, t in zip(kernel.operands, types, strict=False) if o in kernel.produced]
    supplied = [t for o, t in zip(kernel.operands, types, strict=False) if o not in kernel.produced]
    expected, axes = kernel.infer(supplied, attrs)
    for operand, found, wanted in zip(kernel.produced, written, expected, strict=True):
        if found != wanted:
            raise ValueError(f"{kernel.name}: {operand.name} is {found}, expected {wanted}")
    if not kernel.has_work(axes):
        return _Plan(names, (), 0)  # a grid of 0 blocks is an error on the device
    dtype = kernel.dtype_of(types)
    parts: list[LaunchForm | _Product] = []
    launches = kernel.launches(axes, dtype, **attrs)
    for part in _running_here(kernel, launches, stream, build):
        if isinstance(part, LaunchForm):
            parts.append(part)
        else:
            has_bias = "bias" in names[: len(arrays)]
            out_features, in_features = types[names.index("weight")].shape
            shape = MatrixShape(axes["tokens"], out_features, in_features, dtype, has_bias)
            size = (axes["tokens"], out_features, dtype)
            result_bytes = part.result_bytes(*size) if part.to_workspace else 0
            parts.append(_Product(shape, part.adds_residual, result_bytes))
    return _Plan(names, tuple(parts), kernel.workspace_bytes(axes, dtype, attrs))


def _running_here(
    kernel: Kernel,
    launches: Sequence[Launch | MatrixProduct],
    stream: int,
    build: tuple[str, ...],
) -> Iterator[LaunchForm | MatrixProduct]:
    """What runs of a kernel's launches on the current device, where there is room for all blocks.

    A context may have fewer multiprocessors than the device, or room for no block on each.
    """
    meets = any(isinstance(part, Launch) and part.meets for part in launches)
    for part in running_on(device_arch(), launches, device_multiprocessors() if meets else None):
        if not isinstance(part, Launch):
            yield part
            continue
        form = LaunchForm(kernel, part, stream, build)
        if part.meets and blocks_at_once(form.function, part) < part.grid[0]:
            yield from _running_here(kernel, part.elsewhere or (), stream, build)
        else:
            yield form


def blocks_at_once(function: Any, launch: Launch) -> int:  # noqa: ANN401 - no types
    """Blocks of a launch that the current context runs at the same time.

    Args:
        function: the CUfunction that it launches.
        launch: of which its block and its shared memory count.

    Raises:
        RuntimeError: the driver does not say.
    """
    from cuda.bindings import driver

    error, on_each = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
        function, launch.block, launch.shared_bytes
    )
    if error:
        raise RuntimeError(
            f"launch: how many blocks of {launch.function} run at once, the driver answers with "
            f"{error.name}"
        )
    return int(on_each) * device_multiprocessors()


def _array_type(kernel: Kernel, name: str, key: _ArrayKey) -> ArrayType:
    shape, dtype, strides = key
    if dtype not in _NAMES:
        raise TypeError(f"{kernel.name}: {name} is {dtype}, expected one of {[*DTYPES]}")
    if strides is not None:
        raise ValueError(
            f"{kernel.name}: {name} has strides {strides}, expected a contiguous array; "
            "copy it with cupy.ascontiguousarray"
        )
    return ArrayType(shape, _NAMES[dtype])


_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@cache
def device_arch() -> str:
    """The current device's architecture as NVRTC names it: ``sm_90``."""
    import cupy

    return f"sm_{cupy.cuda.Device().compute_capability}"


def device_multiprocessors() -> int:
    """Multiprocessors that the current context has of the current device.

    A green context has fewer than the device's attribute says, and a cooperative launch of more
    blocks than they hold fails in it: CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE. Of a process that
    MPS gives a share, it is what the driver answers for its context; that was not tried.
    """
    import cupy
    from cuda.bindings import driver

    most = _multiprocessors(int(cupy.cuda.Device().id))
    _, context = driver.cuCtxGetCurrent()
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    try:
        error, found = driver.cuCtxGetDevResource(context, kind)
    except RuntimeError:  # a driver before CUDA 12.4, which has no green contexts
        return most
    return most if error else min(most, int(found.sm.smCount))


@cache
def _multiprocessors(device: int) -> int:
    import cupy

    return int(cupy.cuda.Device(device).attributes["MultiProcessorCount"])


@cache
def _function(
    source: Path, function: str, arch: str, shared_bytes: int, build: tuple[str, ...]
) -> int:
    """The CUfunction, compiled for an architecture or from the cache of compiled ones."""
    import cupy
    from cuda.bindings import driver

    cubin = compile_cubin(source, function, arch, options=build)
    with span(f"load {function}"):
        module = cupy.cuda.function.Module()
        module.load(cubin.data)
        found = module.get_function(cubin.lowered_name)
    _KEEP.append((module, found))
    if STAMPED in build:
        stamped_modules.append((function, module))
    pointer = int(found.ptr)
    if cubin.shared_bytes + shared_bytes > 48 * 1024:  # above it a kernel must opt in
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (error,) = driver.cuFuncSetAttribute(driver.CUfunction(pointer), attribute, shared_bytes)
        if error:
            raise RuntimeError(
                f"launch: {function} asks for {shared_bytes} bytes of shared memory, and the "
                f"driver answers {error.name}"
            )
    return pointer


def load_function(
    source: Path, function: str, arch: str, shared_bytes: int, build: tuple[str, ...] = ()
) -> None:
    """Compile, or find, and load what will be launched soon."""
    _function(source, function, arch, shared_bytes, build)


# The functions that were loaded in a build with clock stamps, and their modules.
stamped_modules: list[tuple[str, Any]] = []
_KEEP: list[Any] = []  # modules stay loaded while the process lives: their functions are cached
