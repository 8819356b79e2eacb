"""Whether this machine's GPU can be used, and if not, why, in one line that says what to do.

Takes no memory of the GPU, and runs nothing on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distributions, version

from cugraphs.one_line import reason
from cugraphs.start_times import span

MIN_COMPUTE_CAPABILITY = 80  # bfloat16 and cp.async
CUPY_WHEELS = (
    "cupy",
    *(f"cupy-cuda{cuda}" for cuda in ("102", "110", "111", "11x", "12x", "13x", "14x")),
    *(f"cupy-rocm-{rocm}" for rocm in ("4-3", "5-0", "7-0")),
)
INSTALL = "pip install 'cugraphs[cuda13]' (or cuda12, by the driver)"


class CudaUnavailable(RuntimeError):
    """The GPU cannot be used; the message is one line and says what to do.

    Args:
        problem: what is wrong, and what would mend it.
        cpu_instead: how the caller asks for the CPU, if it has that choice; what is at the end of
            the message then.
    """

    def __init__(self, problem: str, *, cpu_instead: str | None = None) -> None:
        """Both are kept, so that who passes the error on can spell the choice anew."""
        super().__init__(problem if cpu_instead is None else f"{problem}; or use {cpu_instead}")
        self.problem = problem
        self.cpu_instead = cpu_instead


def has_driver() -> bool:
    """Whether NVIDIA's driver library is on this machine; needs nothing that is not."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def check_driver() -> None:
    """Refuse a machine without NVIDIA's driver, and wake none.

    Raises:
        CudaUnavailable: it is not there.
    """
    if not has_driver():
        raise CudaUnavailable(
            "cuda: libcuda.so.1 is not found, expected NVIDIA's driver; install it"
        )


def wake_driver() -> None:
    """Begin to start the driver, in a thread, and import CuPy meanwhile.

    The driver takes a quarter of a second or more, and no Python. Without one nothing happens; what
    is wrong with it or with CuPy, :func:`check_cuda` says. Where CuPy is loaded already, the driver
    is awake.
    """
    if "cupy" in sys.modules or not has_driver():
        return

    def wake() -> None:
        driver = ctypes.CDLL("libcuda.so.1")
        with span("driver, GPU context"):
            context = ctypes.c_void_p()
            if driver.cuInit(0) == 0:  # and GPU 0, which a process begins with
                driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)

    threading.Thread(target=wake, name="cugraphs driver", daemon=True).start()
    with span("import CuPy"), contextlib.suppress(ImportError):
        import cupy  # noqa: F401


def check_cuda() -> str:
    """The GPU's name, if programs can run on it.

    Raises:
        CudaUnavailable: no CuPy, two of them, one for another CUDA version than cuda-bindings or
            the driver, no driver, no GPU, or one that is too old.
    """
    wheels = _cupy_wheels()
    if len(wheels) > 1:
        raise CudaUnavailable(
            f"cuda: {' and '.join(wheels)} are both installed and overwrite each other, expected "
            f"one; pip uninstall {' '.join(wheels)}, then {INSTALL}"
        )
    check_driver()
    try:
        import cupy
    except ImportError as error:
        raise CudaUnavailable(f"cuda: CuPy does not import ({reason(error)}); {INSTALL}") from None
    built_for = int(cupy.cuda.runtime.runtimeGetVersion()) // 1000
    _check_bindings(built_for)
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if "InsufficientDriver" in str(error):
            raise CudaUnavailable(
                f"cuda: the driver is older than CUDA {built_for}, which CuPy is built for; "
                f"install a newer driver{_other_extra(wheels, built_for)}"
            ) from None
        raise CudaUnavailable(f"cuda: no GPU can be used ({reason(error)})") from None
    if count == 0:
        raise CudaUnavailable("cuda: the driver finds no GPU, expected one")
    device = cupy.cuda.Device()
    name = str(cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode())
    capability = int(device.compute_capability)
    if capability < MIN_COMPUTE_CAPABILITY:
        raise CudaUnavailable(
            f"cuda: {name} is sm_{capability}, expected sm_{MIN_COMPUTE_CAPABILITY} or newer "
            "(Ampere)"
        )
    return name


def _cupy_wheels() -> list[str]:
    """Names of the installed distributions that write the folder ``cupy``."""
    # By name: to read the metadata of all that is installed takes tenths of a second.
    return [name for name in CUPY_WHEELS if any(True for _ in distributions(name=name))]


def _other_extra(wheels: Sequence[str], cuda_major: int) -> str:
    """What else than a newer driver helps: the extra for older ones, without both CuPy wheels."""
    if cuda_major <= 12:
        return ""  # there is none
    remove = f"pip uninstall {' '.join(wheels)}, then " if wheels else ""
    return f", or {remove}pip install 'cugraphs[cuda12]'"


def _check_bindings(cuda_major: int) -> None:
    """Refuse cuda-bindings of another CUDA version than CuPy's.

    Raises:
        CudaUnavailable: it is another, or none is installed.
    """
    try:
        found = version("cuda-bindings")
    except PackageNotFoundError:
        raise CudaUnavailable(f"cuda: cuda-bindings is not installed; {INSTALL}") from None
    if int(found.split(".")[0]) != cuda_major:
        raise CudaUnavailable(
            f"cuda: CuPy is built for CUDA {cuda_major} and cuda-bindings is {found}, expected "
            f"one CUDA version; pip install 'cugraphs[cuda{cuda_major}]'"
        )
