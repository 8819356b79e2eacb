"""Matrix products through cuBLASLt that a stream capture can record.

CuPy's own cuBLAS wrappers refuse to run while a stream is capturing. cuBLASLt takes its handle,
workspace and stream as arguments, so nothing hidden is touched. It is reached through
``nvmath.bindings.cublasLt`` (NVIDIA's own, 5.5 MB, and 6.5 MB of cuda-core that it depends on): the
structures and enumerations of a library that grows every release are better kept by its makers than
in a binding of ours.

A product is planned once, outside any capture: its algorithm is the tuning table's, else the first
that the library's heuristics name. Nothing is timed here, and launching queries and allocates
nothing.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import MatrixProduct
from cugraphs.lone_import import import_alone
from cugraphs.one_line import reason
from cugraphs.tuning_table import Product, TuningTable, load_table

# cudaDataType_t and cublasComputeType_t, which the bindings leave as integers.
_CUDA_DTYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
_COMPUTE_32F, _COMPUTE_32F_FAST_TF32 = 68, 77
_TRANSPOSE = 1
# cublasLtReductionScheme_t: partial sums of split-K stay in float32, so that one rounding remains.
_REDUCTION_COMPUTE_TYPE = 2
_TILE_NAME = re.compile(r"TILE_(\d+)x(\d+)")
_log = logging.getLogger("cugraphs")


@dataclass(frozen=True)
class MatrixShape:
    """Sizes of ``out [tokens, out_features] = x [tokens, in_features] @ weight.T (+ bias)``."""

    tokens: int
    out_features: int
    in_features: int
    dtype: str
    has_bias: bool = False


class CublasLt:
    """One cuBLASLt handle."""

    def __init__(
        self,
        *,
        allow_tf32: bool = False,
        card: str | None = None,
        tuning_table: Path | None = None,
    ) -> None:
        """Make a handle.

        Args:
            allow_tf32: let float32 products round their operands to TF32.
            card: the GPU's name, for its tuning table; None uses no table.
            tuning_table: use this file instead of the tables that are found.

        Raises:
            RuntimeError: the library is not installed; the message says what to install.
            ValueError: a tuning table cannot be read.
        """
        self._lt: Any = _import_bindings()
        try:
            self._handle = self._lt.create()
        except Exception as error:  # the bindings have no common class for a missing library
            raise RuntimeError(
                f"cuBLASLt: cannot be loaded ({reason(error)}), expected cuBLAS; "
                "pip install 'cugraphs[cuda13]' (or cuda12)"
            ) from None
        self.allow_tf32 = allow_tf32
        self.tuning = TuningTable("", 0)
        if card is not None:
            self.tuning = load_table(card, self.version, tuning_table)
        self._one, self._zero = np.array([1], np.float32), np.array([0], np.float32)
        self._plans: dict[tuple[MatrixShape, int], MatrixPlan] = {}
        self._descriptions: list[_Description] = []

    @property
    def version(self) -> int:
        """The library's version, for tuning tables."""
        return int(self._lt.get_version())

    def plan(self, shape: MatrixShape, bias_ptr: int = 0, *, stream: int) -> MatrixPlan:
        """The plan for a shape, made once.

        Args:
            shape: of the product.
            bias_ptr: [out_features] of the operands' dtype, added before the one rounding.
            stream: the CUstream that will run it, which must not be capturing.

        Raises:
            RuntimeError: the stream is capturing, or the library has no algorithm for the shape.
        """
        key = (shape, bias_ptr)
        if key not in self._plans:
            if _is_capturing(stream):
                raise RuntimeError(
                    f"cuBLASLt: {shape} is planned while its stream is capturing, expected "
                    "before; bind a program, and run it once, before it is captured"
                )
            self._plans[key] = self._make_plan(shape, bias_ptr)
        return self._plans[key]

    def heuristics(
        self,
        shape: MatrixShape,
        bias_ptr: int = 0,
        *,
        count: int = 1,
        workspace_bytes: int = MatrixProduct.workspace_bytes,
    ) -> list[MatrixPlan]:
        """Plans with up to ``count`` algorithms that the library proposes, its favourite first."""
        described = self._describe(shape, bias_ptr)
        lt = self._lt
        preference = lt.matmul_preference_create()
        attributes = lt.MatmulPreferenceAttribute
        results = np.zeros(count, lt.matmul_heuristic_result_dtype)
        found = np.zeros(1, np.int32)
        try:
            for attribute, value in (
                (attributes.MAX_WORKSPACE_BYTES, np.array([workspace_bytes], np.uint64)),
                (attributes.REDUCTION_SCHEME_MASK, np.array([_REDUCTION_COMPUTE_TYPE], np.uint32)),
            ):
                lt.matmul_preference_set_attribute(
                    preference, attribute, value.ctypes.data, value.nbytes
                )
            lt.matmul_algo_get_heuristic(
                self._handle,
                described.description,
                *described.layouts,
                preference,
                count,
                results.ctypes.data,
                found.ctypes.data,
            )
        finally:
            lt.matmul_preference_destroy(preference)
        return [
            MatrixPlan(described, np.array(result["algo"]), int(result["workspace_size"]))
            for result in results[: found[0]]
            if result["state"] == 0
        ]

    def restore(self, shape: MatrixShape, bias_ptr: int, algorithm: bytes) -> MatrixPlan | None:
        """A plan with an algorithm of this version, from its bytes; None if it cannot run this."""
        lt = self._lt
        described = self._describe(shape, bias_ptr)
        restored = np.frombuffer(algorithm, np.uint64).copy()
        result = np.zeros(1, lt.matmul_heuristic_result_dtype)
        try:
            lt.matmul_algo_check(
                self._handle,
                described.description,
                *described.layouts,
                restored.ctypes.data,
                result.ctypes.data,
            )
        except Exception:  # the bindings' own class, which says no more than "not supported"
            return None
        needed_bytes = int(result[0]["workspace_size"])
        if result[0]["state"] != 0 or needed_bytes > MatrixProduct.workspace_bytes:
            return None
        return MatrixPlan(described, restored, needed_bytes)

    def tiles(self, plan: MatrixPlan) -> dict[tuple[int, int], int]:
        """The tiles that the plan's algorithm has: their ids, by (features, rows) of the result."""
        lt = self._lt
        written = np.zeros(1, np.uint64)
        asked = (plan.algorithm.ctypes.data, lt.MatmulAlgoCapAttribute.TILE_IDS)
        lt.matmul_algo_cap_get_attribute(*asked, 0, 0, written.ctypes.data)
        ids = np.zeros(int(written[0]) // 4, np.uint32)
        lt.matmul_algo_cap_get_attribute(*asked, ids.ctypes.data, ids.nbytes, written.ctypes.data)
        names = {int(tile): tile.name for tile in lt.MatmulTile}
        sizes = {int(each): _TILE_NAME.fullmatch(names.get(int(each), "")) for each in ids}
        return {(int(m[1]), int(m[2])): each for each, m in sizes.items() if m is not None}

    def kind(self, plan: MatrixPlan) -> tuple[int, ...]:
        """What plans of one product share that differ by tiles, clusters and splits only."""
        names = self._lt.MatmulAlgoConfigAttribute
        return tuple(
            self._config(plan.algorithm, name)
            for name in (names.ID, names.STAGES_ID, names.CUSTOM_OPTION, names.INNER_SHAPE_ID)
        )

    def varied(
        self,
        plan: MatrixPlan,
        shape: MatrixShape,
        bias_ptr: int,
        *,
        tile: int,
        cluster: tuple[int, int],
        splits: int,
    ) -> MatrixPlan | None:
        """The plan with other tiles; None if its algorithm cannot run this.

        Args:
            plan: of the library's heuristics.
            shape: of the product.
            bias_ptr: as of :meth:`plan`.
            tile: its id.
            cluster: blocks that share operands, along features and rows.
            splits: parts of in_features.
        """
        lt, algorithm = self._lt, plan.algorithm.copy()
        names, shapes = lt.MatmulAlgoConfigAttribute, lt.ClusterShape
        values = {
            names.TILE_ID: tile,
            names.SPLITK_NUM: splits,
            names.REDUCTION_SCHEME: _REDUCTION_COMPUTE_TYPE if splits > 1 else 0,
        }
        has_clusters = self._config(algorithm, names.CLUSTER_SHAPE_ID) != shapes.SHAPE_AUTO
        if has_clusters or cluster != (1, 1):
            values[names.CLUSTER_SHAPE_ID] = int(shapes[f"SHAPE_{cluster[0]}x{cluster[1]}x1"])
        try:
            for name, each in values.items():
                value = np.array([each], lt.get_matmul_algo_config_attribute_dtype(name))
                lt.matmul_algo_config_set_attribute(
                    algorithm.ctypes.data, name, value.ctypes.data, value.nbytes
                )
        except Exception:  # an algorithm without clusters, say: the bindings say no more
            return None
        return self.restore(shape, bias_ptr, algorithm.tobytes())

    def _config(self, algorithm: np.ndarray[Any, Any], name: int) -> int:
        """An attribute of an algorithm."""
        value = np.zeros(1, self._lt.get_matmul_algo_config_attribute_dtype(name))
        written = np.zeros(1, np.uint64)
        self._lt.matmul_algo_config_get_attribute(
            algorithm.ctypes.data, name, value.ctypes.data, value.nbytes, written.ctypes.data
        )
        return int(value[0])

    def launch(
        self,
        plan: MatrixPlan,
        out: int,
        x: int,
        weight: int,
        workspace: int,
        stream: int,
        residual: int = 0,
    ) -> None:
        """Queue one product on ``stream``.

        Args:
            plan: of the product.
            out: device pointer of the result.
            x: device pointer.
            weight: device pointer.
            workspace: ``MatrixProduct.workspace_bytes`` of scratch memory, aligned to 256 bytes.
            stream: the CUstream.
            residual: device pointer of what is added, laid out as the result; 0 adds nothing.
        """
        self._lt.matmul(
            self._handle,
            plan.described.description,
            self._one.ctypes.data,
            weight,
            plan.described.weight_layout,
            x,
            plan.described.x_layout,
            (self._one if residual else self._zero).ctypes.data,
            residual or out,
            plan.described.out_layout,
            out,
            plan.described.out_layout,
            plan.algorithm.ctypes.data,
            workspace,
            MatrixProduct.workspace_bytes,
            stream,
        )

    def close(self) -> None:
        """Destroy every plan and the handle."""
        for described in self._descriptions:
            self._lt.matmul_desc_destroy(described.description)
            for layout in (described.weight_layout, described.x_layout, described.out_layout):
                self._lt.matrix_layout_destroy(layout)
        self._descriptions.clear()
        self._plans.clear()
        self._lt.destroy(self._handle)

    def product(self, shape: MatrixShape) -> Product:
        """What tuning tables call a shape."""
        dtype = "tf32" if self.allow_tf32 and shape.dtype == "float32" else shape.dtype
        return Product(dtype, shape.out_features, shape.in_features, shape.has_bias)

    def _make_plan(self, shape: MatrixShape, bias_ptr: int) -> MatrixPlan:
        choice = self.tuning.find(self.product(shape), shape.tokens)
        if choice is not None and choice.algorithm is not None:
            plan = self.restore(shape, bias_ptr, choice.algorithm)
            if plan is not None:
                return plan
            _log.info("cuBLASLt: the tuned algorithm cannot run %s; the library chooses", shape)
        plans = self.heuristics(shape, bias_ptr)
        if not plans:
            raise RuntimeError(f"cuBLASLt: there is no algorithm for {shape}, expected one")
        return plans[0]

    def _describe(self, shape: MatrixShape, bias_ptr: int) -> _Description:
        lt = self._lt
        dtype = _CUDA_DTYPES[shape.dtype]
        tf32 = self.allow_tf32 and shape.dtype == "float32"
        # cuBLASLt is column-major: there, our row-major arrays are transposed, and the product is
        # out.T = weight.T.T @ x.T.
        description = lt.matmul_desc_create(
            _COMPUTE_32F_FAST_TF32 if tf32 else _COMPUTE_32F, _CUDA_DTYPES["float32"]
        )
        attributes = lt.MatmulDescAttribute
        self._set(description, attributes.TRANSA, _TRANSPOSE, np.int32)
        if shape.has_bias:
            self._set(description, attributes.EPILOGUE, lt.Epilogue.BIAS, np.int32)
            self._set(description, attributes.BIAS_POINTER, bias_ptr, np.uint64)
            self._set(description, attributes.BIAS_DATA_TYPE, dtype, np.int32)
        k, m, n = shape.in_features, shape.out_features, shape.tokens
        described = _Description(
            description,
            weight_layout=lt.matrix_layout_create(dtype, k, m, k),
            x_layout=lt.matrix_layout_create(dtype, k, n, k),
            out_layout=lt.matrix_layout_create(dtype, m, n, m),
        )
        self._descriptions.append(described)
        return described

    def _set(self, description: int, attribute: int, value: int, type_: type[np.generic]) -> None:
        buffer = np.array([value], type_)
        self._lt.matmul_desc_set_attribute(
            description, attribute, buffer.ctypes.data, buffer.nbytes
        )


@dataclass(frozen=True)
class _Description:
    """cuBLASLt's descriptors of a product and its operands."""

    description: int
    weight_layout: int
    x_layout: int
    out_layout: int

    @property
    def layouts(self) -> tuple[int, int, int, int]:
        """Of A, B, C and D, as the library calls them; C is D."""
        return (self.weight_layout, self.x_layout, self.out_layout, self.out_layout)


@dataclass(frozen=True, eq=False)
class MatrixPlan:
    """A product that is ready to launch: cuBLASLt's descriptors and the chosen algorithm."""

    described: _Description
    algorithm: np.ndarray[Any, Any]
    workspace_bytes: int


def _is_capturing(stream: int) -> bool:
    from cuda.bindings import driver

    error, status = driver.cuStreamIsCapturing(driver.CUstream(stream))
    if error:
        raise RuntimeError(f"cuBLASLt: the driver does not know the stream ({error.name})")
    return bool(status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


def _import_bindings() -> Any:  # noqa: ANN401 - a module without types
    try:
        return import_alone("nvmath.bindings.cublasLt")  # the whole package takes 0.4 s
    except ImportError as error:
        raise RuntimeError(
            f"cuBLASLt: nvmath-python does not import ({reason(error)}), expected it; "
            "pip install 'cugraphs[cuda13]' (or cuda12)"
        ) from None
