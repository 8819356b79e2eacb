"""Run by the Python of an environment that holds a CUDA extra: what it offers is what we call.

    python tests/cuda_bindings.py sm_80 sm_90 sm_120

Imports the modules that wrap CUDA, compares the signatures of all that they call, fills a launch
configuration, and compiles one function of every kernel for the architectures. Needs no GPU, no
driver and no cuBLAS. Prints one JSON object. Spills are listed and are no error here: how many
registers a function needs is judged for the newest compiler, in test_compile_gate.
"""

import importlib.metadata
import inspect
import json
import sys
import types

import cupy
from cuda.bindings import driver
from cuda.bindings import nvrtc as nvrtc_bindings
from nvmath.bindings import cublasLt

from cugraphs import cublaslt, cuda_device, cuda_loop, gpu_runs, launch, nvrtc
from cugraphs.emulation.emulate import bind_launches
from cugraphs.kernel import Kernel, Launch
from cugraphs.kernel_source import cuda_include_folder
from cugraphs.kernels import ALL, LINEAR_RESIDUAL
from cugraphs.testing import case_arrays

# LINEAR_RESIDUAL is cuBLASLt's alone.
WITH_LAUNCHES = [kernel for kernel in ALL if kernel is not LINEAR_RESIDUAL]

# Parameters of each function that we call, in order. CUDA 12 and 13 have the same; a later version
# that adds one (as cuGraphAddNode did) fails here, without a GPU. The form of that one which we
# call is looked at apart: it has another name in 12.
SIGNATURES: dict[types.ModuleType, dict[str, str]] = {
    driver: {
        "cuLaunchKernelEx": "config f kernelParams extra",
        "cuFuncSetAttribute": "hfunc attrib value",
        "cuStreamIsCapturing": "hStream",
        "cuTensorMapEncodeTiled": "tensorDataType tensorRank globalAddress globalDim globalStrides "
        "boxDim elementStrides interleave swizzle l2Promotion oobFill",
        "cuStreamQuery": "hStream",
        "cuStreamBeginCaptureToGraph": "hStream hGraph dependencies dependencyData "
        "numDependencies mode",
        "cuStreamEndCapture": "hStream",
        "cuCtxGetCurrent": "",
        "cuCtxGetDevResource": "hCtx typename",
        "cuGraphCreate": "flags",
        "cuGraphDestroy": "hGraph",
        "cuGraphGetNodes": "hGraph numNodes",
        "cuGraphConditionalHandleCreate": "hGraph ctx defaultLaunchValue flags",
        "cuGraphInstantiate": "hGraph flags",
        "cuGraphExecDestroy": "hGraphExec",
        "cuGraphUpload": "hGraphExec hStream",
        "cuGraphLaunch": "hGraphExec hStream",
    },
    nvrtc_bindings: {
        "nvrtcVersion": "",
        "nvrtcCreateProgram": "src name numHeaders headers includeNames",
        "nvrtcAddNameExpression": "prog name_expression",
        "nvrtcCompileProgram": "prog numOptions options",
        "nvrtcGetLoweredName": "prog name_expression",
        "nvrtcGetCUBINSize": "prog",
        "nvrtcGetCUBIN": "prog cubin",
        "nvrtcGetProgramLogSize": "prog",
        "nvrtcGetProgramLog": "prog log",
        "nvrtcDestroyProgram": "prog",
    },
    cublasLt: {
        "create": "",
        "destroy": "light_handle",
        "get_version": "",
        "matmul": "light_handle compute_desc alpha a adesc b bdesc beta c cdesc d ddesc algo "
        "workspace workspace_size_in_bytes stream",
        "matmul_desc_create": "compute_type scale_type",
        "matmul_desc_destroy": "matmul_desc",
        "matmul_desc_set_attribute": "matmul_desc attr buf size_in_bytes",
        "matrix_layout_create": "type rows cols ld",
        "matrix_layout_destroy": "mat_layout",
        "matmul_preference_create": "",
        "matmul_preference_destroy": "pref",
        "matmul_preference_set_attribute": "pref attr buf size_in_bytes",
        "matmul_algo_get_heuristic": "light_handle operation_desc adesc bdesc cdesc ddesc "
        "preference requested_algo_count heuristic_results_array return_algo_count",
        "matmul_algo_check": "light_handle operation_desc adesc bdesc cdesc ddesc algo result",
    },
}

CUPY_NAMES = (
    (
        cupy.cuda,
        "Device Event Memory MemoryPointer PinnedMemory PinnedMemoryPointer Stream UnownedMemory "
        "alloc_pinned_memory get_elapsed_time",
    ),
    (cupy.cuda.Device, "id compute_capability attributes"),
    (cupy.cuda.MemoryPointer, "ptr memset_async copy_from_device_async"),
    (cupy.cuda.Stream, "synchronize begin_capture end_capture"),
    (cupy.cuda.Graph, "launch"),
    (
        cupy.cuda.runtime,
        "getDeviceCount getDeviceProperties hostAllocMapped memGetInfo "
        "runtimeGetVersion streamCaptureModeThreadLocal",
    ),
    (cupy.ndarray, "data dtype flags get nbytes reshape set shape strides view"),
)


def check_signatures() -> int:
    """How many functions there are; each takes what we pass."""
    for module, functions in SIGNATURES.items():
        for name, expected in functions.items():
            found = " ".join(inspect.signature(getattr(module, name)).parameters)
            assert found == expected, f"{module.__name__}.{name}({found}), expected ({expected})"
    return sum(map(len, SIGNATURES.values()))


def check_structures() -> None:
    """Fields and constants that we name exist and take what we give them."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = 1, 2, 3
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    config.sharedMemBytes = 1024
    config.hStream = driver.CUstream(0)
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    cluster = driver.CUlaunchAttribute()
    cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    size = cluster.value.clusterDim
    size.x, size.y, size.z = 8, 1, 1
    config.attrs, config.numAttrs = [attribute, cluster], 2
    assert (config.gridDimZ, config.sharedMemBytes, config.numAttrs) == (3, 1024, 2)
    assert config.attrs[0].value.programmaticStreamSerializationAllowed == 1
    assert (config.attrs[1].value.clusterDim.x, config.attrs[1].value.clusterDim.z) == (8, 1)
    assert driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == 8
    assert not driver.CUresult.CUDA_SUCCESS
    add_node = getattr(driver, "cuGraphAddNode_v2", driver.cuGraphAddNode)
    parameters = "hGraph dependencies dependencyData numDependencies nodeParams"
    assert " ".join(inspect.signature(add_node).parameters) == parameters
    node = driver.CUgraphNodeParams()
    node.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    node.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    node.conditional.size = 1
    assert node.conditional.phGraph_out is not None
    assert driver.CU_GRAPH_COND_ASSIGN_DEFAULT == 1
    # Of cublasLt.h, whose numbers never change.
    attributes = cublasLt.MatmulDescAttribute
    assert (attributes.TRANSA, attributes.EPILOGUE, attributes.BIAS_POINTER) == (3, 7, 8)
    assert attributes.BIAS_DATA_TYPE == 26 and cublasLt.Epilogue.BIAS == 4
    assert cublasLt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES == 1
    assert cublasLt.MatmulPreferenceAttribute.REDUCTION_SCHEME_MASK == 3
    assert driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE == 0
    assert cublasLt.matmul_heuristic_result_dtype.fields["algo"][0].itemsize == 64
    # Of the CuPy that loads the cubins.
    for name in ("load", "get_function"):
        assert callable(getattr(cupy.cuda.function.Module, name))
    # Of the CuPy that holds memory and streams.
    for owner, names in CUPY_NAMES:
        missing = [name for name in names.split() if not hasattr(owner, name)]
        assert not missing, f"{owner} has no {', '.join(missing)}"
    assert issubclass(cupy.cuda.runtime.CUDARuntimeError, Exception)
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, Exception)


def first_launch(kernel: Kernel, arch: str) -> Launch:
    """The first launch of our own that a case has in bfloat16."""
    for case in kernel.cases:
        _, launches = bind_launches(kernel, case_arrays(kernel, case, "bfloat16"), case.attrs)
        for each in launches:
            if isinstance(each, Launch):
                return each.on(arch)[0]
    raise AssertionError(f"{kernel.name} launches nothing")


def main() -> None:
    """Check everything; an AssertionError or another exception says what is wrong."""
    wrappers = (cublaslt, cuda_device, cuda_loop, gpu_runs, launch)
    functions = check_signatures()
    check_structures()
    compiled, spilled = 0, []
    for arch in sys.argv[1:]:
        for kernel in WITH_LAUNCHES:
            function = first_launch(kernel, arch)
            assert kernel.source is not None
            cubin = nvrtc.compile_cubin(kernel.source, function.function, function.arch or arch)
            assert cubin.data[:4] == b"\x7fELF", f"{function.function} for {arch} is no cubin"
            compiled += 1
            if cubin.spill_bytes:
                spilled.append(f"{function.function} for {arch}: {cubin.spill_bytes} bytes")
    result = {
        "imported": [module.__name__ for module in wrappers],
        "bindings": importlib.metadata.version("cuda-bindings"),
        "cupy_runtime": cupy.cuda.runtime.runtimeGetVersion(),
        "nvrtc": nvrtc.nvrtc_version(),
        "headers": str(cuda_include_folder(nvrtc.nvrtc_version()[0])),
        "functions": functions,
        "compiled": compiled,
        "spilled": spilled,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
