"""Matrix products through cuBLASLt that a stream capture can record.

CuPy's own cuBLAS wrappers refuse to run while a stream is capturing. cuBLASLt takes its handle,
workspace and stream as arguments, so nothing hidden is touched. It is reached through
``nvmath.bindings.cublasLt`` (NVIDIA's own, 5.5 MB, and 6.5 MB of cuda-core that it depends on): the
structures and enumerations of a library that grows every release are better kept by its makers than
in a binding of ours.

A product is planned once, outside any capture; launching it queries and allocates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cugraphs.kernel import MatrixProduct
from cugraphs.one_line import reason

# cudaDataType_t and cublasComputeType_t, which the bindings leave as integers.
_CUDA_DTYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
_COMPUTE_32F, _COMPUTE_32F_FAST_TF32 = 68, 77
_TRANSPOSE = 1


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

    def __init__(self, *, allow_tf32: bool = False) -> None:
        """Make a handle.

        Args:
            allow_tf32: let float32 products round their operands to TF32.

        Raises:
            RuntimeError: the library is not installed; the message says what to install.
        """
        self._lt: Any = _import_bindings()
        try:
            self._handle = self._lt.create()
        except Exception as error:  # the bindings have no common class for a missing library
            raise RuntimeError(
                f"cuBLASLt: cannot be loaded ({reason(error)}), expected cuBLAS; "
                "pip install 'cugraphs[cuda13]' (or cuda12)"
            ) from None
        self._fp32_compute = _COMPUTE_32F_FAST_TF32 if allow_tf32 else _COMPUTE_32F
        self._one, self._zero = np.array([1], np.float32), np.array([0], np.float32)
        self._plans: dict[tuple[MatrixShape, int], MatrixPlan] = {}

    @property
    def version(self) -> int:
        """The library's version, for tuning tables."""
        return int(self._lt.get_version())

    def plan(self, shape: MatrixShape, bias_ptr: int = 0, choice: int = 0) -> MatrixPlan:
        """The plan for a shape; asks for the heuristics once. Not to be called in a capture.

        Args:
            shape: of the product.
            bias_ptr: [out_features] of the operands' dtype, added before the one rounding.
            choice: which of the library's heuristics, from its first.

        Raises:
            RuntimeError: the library has no algorithm for the shape.
        """
        key = (shape, bias_ptr)
        if choice == 0 and key in self._plans:
            return self._plans[key]
        plan = self._make_plan(shape, bias_ptr, choice)
        if choice == 0:
            self._plans[key] = plan
        return plan

    def launch(
        self, plan: MatrixPlan, out: int, x: int, weight: int, workspace: int, stream: int
    ) -> None:
        """Queue one product on ``stream``.

        Args:
            plan: of the product.
            out: device pointer of the result.
            x: device pointer.
            weight: device pointer.
            workspace: ``MatrixProduct.workspace_bytes`` of scratch memory, aligned to 256 bytes.
            stream: the CUstream.
        """
        self._lt.matmul(
            self._handle,
            plan.description,
            self._one.ctypes.data,
            weight,
            plan.weight_layout,
            x,
            plan.x_layout,
            self._zero.ctypes.data,
            out,
            plan.out_layout,
            out,
            plan.out_layout,
            plan.algorithm.ctypes.data,
            workspace,
            MatrixProduct.workspace_bytes,
            stream,
        )

    def close(self) -> None:
        """Destroy every plan and the handle."""
        for plan in self._plans.values():
            self._lt.matmul_desc_destroy(plan.description)
            for layout in (plan.weight_layout, plan.x_layout, plan.out_layout):
                self._lt.matrix_layout_destroy(layout)
        self._plans.clear()
        self._lt.destroy(self._handle)

    def _make_plan(self, shape: MatrixShape, bias_ptr: int, choice: int) -> MatrixPlan:
        lt = self._lt
        dtype = _CUDA_DTYPES[shape.dtype]
        compute = self._fp32_compute if shape.dtype == "float32" else _COMPUTE_32F
        # cuBLASLt is column-major: there, our row-major arrays are transposed, and the product is
        # out.T = weight.T.T @ x.T.
        description = lt.matmul_desc_create(compute, _CUDA_DTYPES["float32"])
        attributes = lt.MatmulDescAttribute
        self._set(description, attributes.TRANSA, _TRANSPOSE, np.int32)
        if shape.has_bias:
            self._set(description, attributes.EPILOGUE, lt.Epilogue.BIAS, np.int32)
            self._set(description, attributes.BIAS_POINTER, bias_ptr, np.uint64)
            self._set(description, attributes.BIAS_DATA_TYPE, dtype, np.int32)
        k, m, n = shape.in_features, shape.out_features, shape.tokens
        weight_layout = lt.matrix_layout_create(dtype, k, m, k)
        x_layout = lt.matrix_layout_create(dtype, k, n, k)
        out_layout = lt.matrix_layout_create(dtype, m, n, m)
        preference = lt.matmul_preference_create()
        limit = np.array([MatrixProduct.workspace_bytes], np.uint64)
        lt.matmul_preference_set_attribute(
            preference, lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES, limit.ctypes.data, 8
        )
        results = np.zeros(choice + 1, lt.matmul_heuristic_result_dtype)
        count = np.zeros(1, np.int32)
        layouts = (weight_layout, x_layout, out_layout, out_layout)
        try:
            lt.matmul_algo_get_heuristic(
                self._handle,
                description,
                *layouts,
                preference,
                choice + 1,
                results.ctypes.data,
                count.ctypes.data,
            )
        finally:
            lt.matmul_preference_destroy(preference)
        if count[0] <= choice:
            raise RuntimeError(
                f"cuBLASLt: {count[0]} algorithms for {shape}, expected {choice + 1}"
            )
        algorithm = results[choice : choice + 1]["algo"].copy()
        return MatrixPlan(description, weight_layout, x_layout, out_layout, algorithm)

    def _set(self, description: int, attribute: int, value: int, type_: type[np.generic]) -> None:
        buffer = np.array([value], type_)
        self._lt.matmul_desc_set_attribute(
            description, attribute, buffer.ctypes.data, buffer.nbytes
        )


@dataclass(frozen=True, eq=False)
class MatrixPlan:
    """A product that is ready to launch: cuBLASLt's descriptors and the chosen algorithm."""

    description: int
    weight_layout: int
    x_layout: int
    out_layout: int
    algorithm: np.ndarray[Any, Any]


def _import_bindings() -> Any:  # noqa: ANN401 - a module without types
    try:
        from nvmath.bindings import cublasLt
    except ImportError as error:
        raise RuntimeError(
            f"cuBLASLt: nvmath-python does not import ({reason(error)}), expected it; "
            "pip install 'cugraphs[cuda13]' (or cuda12)"
        ) from None
    return cublasLt
