"""What every test may ask for: checkpoint folders, goldens, the property-test profile, the GPU.

Nothing here imports CuPy unless a test marked `gpu` is about to run.
"""

import functools
import gc
import os
import shutil
import signal
import weakref

# Before NumPy is imported: on small matrices a second BLAS thread gains little, and where other
# work has the cores it stalls every product.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Tests interrupt themselves and what they start. A shell without job control lets what it starts in
# the background ignore that, and so all that this starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# isort: split
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import gpu_record
import hypothesis
import pytest
from llm_answers import assert_idle
from model_runs import CheckpointRun
from tiny_model import write_tiny_model

from cugraphs import LLM

if TYPE_CHECKING:
    from cugraphs.cuda_device import CudaDevice

ROOT = Path(__file__).resolve().parent.parent
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")

# CI repeats the same examples, so that a red run means a changed program; elsewhere every run
# tries new ones. No deadline: one example may be slow on a busy machine.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if IN_CI else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--smollm2`: the checkpoint of the realistic tests. `--share`: tests are run by several.

    `--every-cubin`: the compile gate compiles all for all architectures.
    """
    parser.addoption("--smollm2", metavar="FOLDER", help="SmolLM2-135M-Instruct, for -m realistic")
    parser.addoption(
        "--share", metavar="FOLDER", help="empty; each test file is run by who comes to it first"
    )
    parser.addoption("--every-cubin", action="store_true", help="for tests/test_compile_gate.py")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Passes over the files that another run has come to."""
    folder = item.config.getoption("share")
    if folder is None:
        return None
    mark = ".".join(item.path.relative_to(ROOT).parts)
    return None if _comes_first(Path(folder) / mark) else True


@functools.cache
def _comes_first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


# Kernels run on the CPU through g++. In CI it must be there, so there the tests run, and fail.
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and not IN_CI,
    reason="needs g++ (Debian, Ubuntu: sudo apt-get install g++)",
)


@pytest.fixture(scope="session")
def stories260k() -> Path:
    """Folder of the public stories260K checkpoint with `hf_golden.npz`, laid beside the checkout.

    Absent, the test is skipped, but fails in CI: there the folder must be.
    """
    folder = ROOT.parent / "shared" / "models" / "stories260K"
    if not folder.is_dir():
        reason = "stories260k: the folder ../shared/models/stories260K is absent"
        if IN_CI:
            pytest.fail(f"{reason}, and CI must have it")
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `tiny_model.py`, which no test changes; some files have one of their own."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny_model") / "tiny")


@pytest.fixture(scope="module")
def shared_llm(folder: Path) -> LLM:
    """That model, for all tests of a file; they take it as ``llm``."""
    return LLM(folder, device="cpu", max_num_seqs=8, batch_invariant=True)


@pytest.fixture
def llm(shared_llm: LLM) -> Iterator[LLM]:
    """The shared model, which every test must leave without a request and without a lost block."""
    yield shared_llm
    gc.collect()
    assert_idle(shared_llm)


@pytest.fixture(scope="module")
def plain_run(folder: Path) -> CheckpointRun:
    """The same weights through the runner alone."""
    return CheckpointRun(folder, max_num_seqs=96, max_model_len=96, poison=False)


@pytest.fixture(scope="session")
def goldens() -> Path:
    """Folder of the stored Hugging Face results that `tests/goldens/make_goldens.py` writes."""
    return ROOT / "tests" / "goldens"


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[object]:
    """Device and pinned memory that the test took and still has; other processes do not count."""
    import cupy

    found: weakref.WeakSet[object] = weakref.WeakSet()

    class Memory(cupy.cuda.Memory):
        def __init__(self, nbytes: int) -> None:
            super().__init__(nbytes)
            found.add(self)

    class PinnedMemory(cupy.cuda.PinnedMemory):
        def __init__(self, nbytes: int, *flags: int) -> None:
            super().__init__(nbytes, *flags)
            found.add(self)

    monkeypatch.setattr(cupy.cuda, "Memory", Memory)
    monkeypatch.setattr(cupy.cuda, "PinnedMemory", PinnedMemory)
    return found


@pytest.fixture(scope="module")
def device() -> "CudaDevice":
    """The GPU; some files have a device of their own."""
    from cugraphs.cuda_device import CudaDevice

    return CudaDevice()


@functools.cache
def reason_without_gpu() -> str | None:
    """Why no GPU can be used from here; None where one can."""
    try:
        import cupy
    except ImportError as error:
        return f"needs a GPU: CuPy does not import ({error}); install the extra cuda12 or cuda13"
    if not cupy.cuda.is_available():
        return "needs a GPU: CuPy finds none"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a selected `gpu` test where there is no GPU, before any of its fixtures run."""
    if item.get_closest_marker("gpu") is not None and (reason := reason_without_gpu()):
        pytest.skip(reason)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """A GPU run of whole files writes its record; any other says loudly if that is out of date."""
    chosen = config.getoption("keyword") or config.getoption("share")
    chosen = chosen or any("::" in argument for argument in config.args)
    whole_gpu_run = config.getoption("markexpr") == "gpu" and not chosen
    if whole_gpu_run and reason_without_gpu() is None:
        record = gpu_record.write_record(_counts_by_file(terminalreporter))
        terminalreporter.write_line(f"GPU record: {record}")
    elif line := gpu_record.verdict():
        terminalreporter.write_sep("!", line, yellow=True, bold=True)


def _counts_by_file(terminalreporter: pytest.TerminalReporter) -> dict[str, dict[str, float]]:
    """Passed, failed and skipped tests of each file, and the seconds that they took."""
    files: dict[str, dict[str, float]] = {}
    for key, name in _COUNTED.items():
        for report in terminalreporter.stats.get(key, []):
            file = Path(report.nodeid.partition("::")[0]).name
            counts = files.setdefault(file, dict.fromkeys((*_COUNTED.values(), "seconds"), 0))
            counts[name] += int(report.when != "teardown" or key == "error")
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration"):
                file = Path(report.nodeid.partition("::")[0]).name
                files[file]["seconds"] = round(files[file]["seconds"] + report.duration, 1)
    return files


_COUNTED = {"passed": "passed", "failed": "failed", "error": "failed", "skipped": "skipped"}
