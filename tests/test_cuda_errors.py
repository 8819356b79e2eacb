"""What keeps a GPU from being used is one line that says what to install, on a machine without one.

CuPy, the driver and cuBLASLt are stood in for; no test here touches the real ones.
"""

import dataclasses
import importlib.metadata
import sys
import types

import numpy as np
import pytest
from device_arrays import OnDevice

from cugraphs import cublaslt, cuda_availability, device_choice, kernel_source, launch, nvrtc
from cugraphs.cli import main
from cugraphs.cli.options import device_as_option
from cugraphs.cublaslt import CublasLt
from cugraphs.cuda_availability import CudaUnavailable, check_cuda
from cugraphs.kernel import Kernel, Launch
from cugraphs.kernels import ADD, LINEAR, RMS_NORM
from cugraphs.launch import LaunchForm, prepare


class CUDARuntimeError(RuntimeError):
    """Named as CuPy's."""


@pytest.fixture
def machine(monkeypatch):
    """Makes the machine look as told; by default one on which everything is as it should be."""

    def pretend(
        *,
        wheels=("cupy-cuda13x",),
        driver=True,
        cupy_imports=True,
        bindings="13.0.1",
        count=1,
        count_error=None,
        capability="90",
        runtime=13000,
    ):
        installed = [types.SimpleNamespace(metadata={"Name": n}) for n in ("numpy", *wheels)]

        def distributions(name):
            return [each for each in installed if each.metadata["Name"] == name]

        monkeypatch.setattr(cuda_availability, "distributions", distributions)
        monkeypatch.setattr(cuda_availability, "has_driver", lambda: driver)

        def version(name):
            assert name == "cuda-bindings"
            if bindings is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return bindings

        monkeypatch.setattr(cuda_availability, "version", version)

        def get_count():
            if count_error:
                raise CUDARuntimeError(count_error)
            return count

        cupy = types.ModuleType("cupy")
        # As much of an array as a workspace is: an address, behind which nothing is read.
        cupy.uint8 = np.uint8
        cupy.ndarray = lambda shape, dtype, memory: types.SimpleNamespace(data=memory)
        cupy.cuda = types.SimpleNamespace(
            runtime=types.SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                getDeviceCount=get_count,
                runtimeGetVersion=lambda: runtime,
                getDeviceProperties=lambda number: {"name": b"NVIDIA Toy"},
            ),
            Device=lambda: types.SimpleNamespace(id=0, compute_capability=capability),
            Stream=lambda non_blocking: types.SimpleNamespace(ptr=0),
            Event=lambda disable_timing: types.SimpleNamespace(),
            Memory=lambda nbytes: None,
            MemoryPointer=lambda memory, offset: types.SimpleNamespace(ptr=256),
            memory=types.SimpleNamespace(OutOfMemoryError=MemoryError),
        )
        monkeypatch.setitem(sys.modules, "cupy", cupy if cupy_imports else None)

    return pretend


def test_a_gpu_that_can_be_used_gives_its_name(machine):
    machine()
    assert check_cuda() == "NVIDIA Toy"


# What the machine lacks, and what the line says: what was found, and what to do.
LACKS = {
    "both CuPy wheels": (
        {"wheels": ("cupy-cuda13x", "cupy-cuda12x")},
        "cupy-cuda12x and cupy-cuda13x are both installed and overwrite each other, expected one; "
        "pip uninstall cupy-cuda12x cupy-cuda13x",
    ),
    "CuPy from source as well": (
        {"wheels": ("cupy-cuda13x", "cupy")},
        "cupy and cupy-cuda13x are both installed",
    ),
    "driver": ({"driver": False}, "libcuda.so.1 is not found, expected NVIDIA's driver; install"),
    "CuPy": (
        {"wheels": (), "cupy_imports": False},
        "CuPy does not import (",
    ),
    "cuda-bindings": (
        {"bindings": None},
        "cuda-bindings is not installed; pip install 'cugraphs[cuda13]'",
    ),
    "one CUDA version": (
        {"runtime": 12090, "bindings": "13.5.0"},
        "CuPy is built for CUDA 12 and cuda-bindings is 13.5.0, expected one CUDA version; "
        "pip install 'cugraphs[cuda12]'",
    ),
    "a driver as new as CuPy": (
        {
            "count_error": "cudaErrorInsufficientDriver: CUDA driver version is insufficient for "
            "CUDA runtime version"
        },
        "the driver is older than CUDA 13, which CuPy is built for; install a newer driver, or pip "
        "uninstall cupy-cuda13x, then pip install 'cugraphs[cuda12]'",
    ),
    "a driver for CUDA 12": (
        {
            "wheels": ("cupy-cuda12x",),
            "runtime": 12090,
            "bindings": "12.9.2",
            "count_error": "cudaErrorInsufficientDriver: CUDA driver version is insufficient",
        },
        "the driver is older than CUDA 12, which CuPy is built for; install a newer driver",
    ),
    "a GPU, says an error": (
        {"count_error": "cudaErrorNoDevice: no CUDA-capable device\nis detected"},
        "no GPU can be used (cudaErrorNoDevice: no CUDA-capable device is detected)",
    ),
    "a GPU": ({"count": 0}, "the driver finds no GPU, expected one"),
    "a GPU that is new enough": (
        {"capability": "75"},
        "NVIDIA Toy is sm_75, expected sm_80 or newer (Ampere)",
    ),
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_is_missing_is_said_in_one_line(machine, lack):
    changes, message = LACKS[lack]
    machine(**changes)
    with pytest.raises(CudaUnavailable) as caught:
        check_cuda()
    text = str(caught.value)
    assert text.startswith(f"cuda: {message}") and "\n" not in text
    assert "cpu" not in text  # whoever asks may need a GPU


def test_one_wheel_that_two_folders_list_is_one_wheel(machine):
    machine(wheels=("cupy-cuda13x", "cupy-cuda13x"))
    check_cuda()


@pytest.mark.parametrize("lack", ["driver", "both CuPy wheels", "a GPU that is new enough"])
@pytest.mark.parametrize(
    "command",
    [["generate", "demo", "Once", "--device", "cuda"], ["check", "add", "--stage", "gpu"]],
    ids=["generate", "check"],
)
def test_the_command_prints_the_line_and_exits_with_2(machine, capsys, command, lack):
    changes, message = LACKS[lack]
    machine(**changes)
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"cugraphs: error: cuda: {message}")
    assert err.endswith("; or use --device cpu\n") == (command[0] == "generate")
    assert ("cpu" in err) == (command[0] == "generate")


def test_who_can_choose_a_device_is_told_of_the_other(machine):
    machine(driver=False)
    with pytest.raises(CudaUnavailable, match=r"driver; install it; or use device='cpu'$"):
        device_choice.choose_device("cuda")


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (CudaUnavailable("cuda: no", cpu_instead="device='cpu'"), "cuda: no; or use --device cpu"),
        # Only the choice is spelled anew, never words of the problem, and none is made up.
        (
            CudaUnavailable("f(device='cpu')", cpu_instead="device='cpu'"),
            "f(device='cpu'); or use --device cpu",
        ),
        (CudaUnavailable("f(device='cpu')"), "f(device='cpu')"),
    ],
)
def test_commands_spell_the_choice_of_a_device_as_an_option(raised, says):
    with pytest.raises(CudaUnavailable) as caught, device_as_option():
        raise raised
    assert str(caught.value) == says


# ---------------------------------------------------------------------------- NVRTC and cuBLASLt


@pytest.fixture
def without_version():
    nvrtc.nvrtc_version.cache_clear()
    yield
    nvrtc.nvrtc_version.cache_clear()


def test_without_cuda_bindings_nvrtc_says_what_to_install(monkeypatch, without_version):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(RuntimeError, match=r"^nvrtc: cuda-bindings is not .*; pip install 'cugr"):
        nvrtc.nvrtc_version()


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (RuntimeError("Failed to dlopen\nlibnvrtc.so"), "libnvrtc is not found, expected the wh"),
        ((0, 12, 4), r"version is 12\.4, expected at least 12\.8"),
    ],
)
def test_nvrtc_that_is_missing_or_too_old(monkeypatch, without_version, found, message):
    def nvrtc_version():
        if isinstance(found, Exception):
            raise found
        return found

    fake = types.SimpleNamespace(
        nvrtcVersion=nvrtc_version, nvrtcResult=types.SimpleNamespace(NVRTC_SUCCESS=0)
    )
    monkeypatch.setattr(nvrtc, "_nvrtc", lambda: fake)
    with pytest.raises(RuntimeError, match=f"^nvrtc: {message}.*; pip install 'cugraphs") as caught:
        nvrtc.nvrtc_version()
    assert "\n" not in str(caught.value)


def remove_nvmath(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    monkeypatch.setitem(sys.modules, "nvmath", None)


def remove_cublas(monkeypatch):
    def create():
        raise OSError("libcublasLt.so.13: cannot open\nshared object file")

    monkeypatch.setattr(cublaslt, "_import_bindings", lambda: types.SimpleNamespace(create=create))


def test_without_nvmath_cublaslt_says_what_to_install(monkeypatch):
    remove_nvmath(monkeypatch)
    with pytest.raises(RuntimeError, match=r"^cuBLASLt: nvmath-python does not .*; pip install 'c"):
        CublasLt()


def test_without_cublas_cublaslt_says_what_to_install(monkeypatch):
    remove_cublas(monkeypatch)
    with pytest.raises(RuntimeError) as caught:
        CublasLt()
    assert str(caught.value) == (
        "cuBLASLt: cannot be loaded (libcublasLt.so.13: cannot open shared object file), "
        "expected cuBLAS; pip install 'cugraphs[cuda13]' (or cuda12)"
    )


@pytest.mark.parametrize(
    ("remove", "message"),
    [(remove_nvmath, "nvmath-python does not import ("), (remove_cublas, "cannot be loaded (")],
)
def test_the_command_prints_what_cublaslt_lacks(machine, monkeypatch, capsys, remove, message):
    machine()
    remove(monkeypatch)
    assert main(["generate", "demo", "Once", "--device", "cuda"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"cugraphs: error: cuBLASLt: {message}")
    assert err.endswith("; pip install 'cugraphs[cuda13]' (or cuda12)\n")


# ----------------------------------------------------------------------- what a launch is refused

# Arrays are judged by dtype, shape and layout alone, before anything is asked of a device: NumPy's
# do as well as CuPy's.


def rows(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def prepared(kernel: Kernel, arrays, **attrs):
    return prepare(kernel, arrays, attrs, stream=0, cublaslt=None, workspace=None)


@pytest.mark.parametrize(
    ("kernel", "arrays", "attrs", "error", "message"),
    [
        (
            ADD,
            [rows(2, 4), rows(2, 4), rows(2, 4, dtype=np.float16)],
            {},
            TypeError,
            r"^add: b is float16, expected float32$",
        ),
        (
            ADD,
            [rows(2, 4, dtype=np.int64)] * 3,
            {},
            TypeError,
            r"^add: out is int64, expected one of \['float64', 'float32',",
        ),
        (
            ADD,
            [rows(2, 4), rows(2, 4), rows(4, 2).T],
            {},
            ValueError,
            r"^add: b has strides \(4, 8\), expected a contiguous array; copy it with",
        ),
        (
            ADD,
            [rows(2, 4), rows(2, 8)[:, ::2], rows(2, 4)],
            {},
            ValueError,
            r"^add: a has strides \(32, 8\), expected a contiguous array",
        ),
        (
            ADD,
            [rows(2, 4), rows(2, 4), rows(3, 4)],
            {},
            ValueError,
            r"^add: axis 'tokens' is 3 in b, expected 2 as in a$",
        ),
        (
            ADD,
            [rows(2, 4), rows(8), rows(2, 4)],
            {},
            ValueError,
            r"^add: a has shape \[8\], expected axes \[tokens, hidden\]$",
        ),
        (
            ADD,
            [rows(3, 4), rows(2, 4), rows(2, 4)],
            {},
            ValueError,
            r"^add: out is float32\[3, 4\], expected float32\[2, 4\]$",
        ),
        (
            ADD,
            [rows(2, 4, dtype=np.float16), rows(2, 4), rows(2, 4)],
            {},
            ValueError,
            r"^add: out is float16\[2, 4\], expected float32\[2, 4\]$",
        ),
        (ADD, [rows(2, 4)] * 2, {}, TypeError, r"^add: got 1 operand, expected 2 \(a, b\)$"),
        (ADD, [rows(2, 4)] * 4, {}, TypeError, r"^add: got 4 arrays, expected at most 3 \(out, a,"),
        (
            RMS_NORM,
            [rows(2, 4), rows(2, 4), rows(4)],
            {},
            TypeError,
            r"^rms_norm: the scalar 'eps' is missing$",
        ),
        (
            LINEAR,
            [rows(2, 5), rows(2, 4), rows(5, 4), rows(4)],
            {},
            ValueError,
            r"^linear: axis 'out_features' is 4 in bias, expected 5 as in weight$",
        ),
    ],
)
def test_arrays_that_do_not_fit_the_declaration_are_refused(kernel, arrays, attrs, error, message):
    with pytest.raises(error, match=message):
        prepared(kernel, arrays, **attrs)


def test_a_kernel_without_a_cuda_form_is_refused():
    with pytest.raises(ValueError, match=r"^add: has no CUDA form, expected launches and a \.cu"):
        prepared(dataclasses.replace(ADD, launches=None), [rows(2, 4)] * 3)


@pytest.fixture
def cold(monkeypatch, tmp_path, without_version):
    """An sm_90 for which nothing is compiled yet."""
    pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings (extra dev)")
    monkeypatch.setattr(launch, "device_arch", lambda: "sm_90")
    monkeypatch.setattr(nvrtc, "cache_folder", lambda kind: tmp_path)
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    launch._plan.cache_clear()
    launch._function.cache_clear()
    kernel_source.cuda_include_folder.cache_clear()
    yield
    kernel_source.cuda_include_folder.cache_clear()


def test_without_nvrtc_a_program_is_not_bound(cold, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    monkeypatch.delattr("cuda.bindings.nvrtc", raising=False)
    with pytest.raises(RuntimeError, match=r"^nvrtc: cuda-bindings is not .*; pip install 'cugr"):
        prepared(ADD, [OnDevice(rows(2, 4))] * 3)


def test_without_cudas_headers_a_program_is_not_bound(cold, monkeypatch):
    monkeypatch.setattr(kernel_source, "_NEEDED_HEADERS", ("no_such_header.h",))
    with pytest.raises(RuntimeError, match=r"^CUDA headers: .* not found .*; pip ins") as caught:
        prepared(ADD, [OnDevice(rows(2, 4))] * 3)
    assert "\n" not in str(caught.value)


def test_no_rows_launch_nothing():
    assert prepared(ADD, [rows(0, 4)] * 3) == []


@pytest.mark.parametrize("scalar", [3, 0.5, True])
def test_a_scalar_without_a_c_type_is_refused(monkeypatch, scalar):
    pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings (extra dev)")
    monkeypatch.setattr(
        launch, "_function", lambda *_: pytest.fail("compiled before it is checked")
    )
    wrong = Launch("add<float, 4, 32>", (1, 1, 1), 32, (scalar,))
    with pytest.raises(TypeError, match=r"^add: a scalar of add<float, 4, 32> is the .*np\.int32$"):
        LaunchForm(ADD, wrong, stream=0)


def test_auto_falls_back_to_the_cpu_and_says_why(machine, monkeypatch, caplog):
    machine()
    remove_nvmath(monkeypatch)
    monkeypatch.setattr(device_choice, "has_driver", lambda: True)
    with caplog.at_level("INFO", logger="cugraphs"):
        assert device_choice.choose_device("auto").name == "cpu"
    assert "device cpu: cuBLASLt: nvmath-python does not import" in caplog.text
