"""What every test may ask for: checkpoint folders, goldens, the property-test profile, the GPU.

Nothing here imports CuPy unless a test marked `gpu` is about to run.
"""

import functools
import os
import shutil

# Before NumPy is imported: on small matrices a second BLAS thread gains little, and where other
# work has the cores it stalls every product.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# isort: split
import time
from pathlib import Path

import gpu_record
import hypothesis
import pytest

STARTED = pytest.StashKey[float]()
ROOT = Path(__file__).resolve().parent.parent
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")

# CI repeats the same examples, so that a red run means a changed program; elsewhere every run
# tries new ones. No deadline: one example may be slow on a busy machine.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if IN_CI else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--smollm2`: the checkpoint of the realistic tests."""
    parser.addoption("--smollm2", metavar="FOLDER", help="SmolLM2-135M-Instruct, for -m realistic")


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
def goldens() -> Path:
    """Folder of the stored Hugging Face results that `tests/goldens/make_goldens.py` writes."""
    return ROOT / "tests" / "goldens"


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


def pytest_sessionstart(session: pytest.Session) -> None:
    """Notes when the run began."""
    session.config.stash[STARTED] = time.perf_counter()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """A whole GPU run writes its record; any other says loudly if the record is out of date."""
    chosen = config.getoption("keyword") or any(".py" in argument for argument in config.args)
    whole_gpu_run = config.getoption("markexpr") == "gpu" and not chosen
    stats = terminalreporter.stats
    counts = {
        name: sum(getattr(report, "when", None) != "teardown" for report in stats.get(key, []))
        for name, key in (("passed", "passed"), ("failed", "failed"), ("skipped", "skipped"))
    }
    counts["failed"] += len(stats.get("error", []))
    if whole_gpu_run and reason_without_gpu() is None:
        seconds = time.perf_counter() - config.stash[STARTED]
        terminalreporter.write_line(f"GPU record: {gpu_record.write_record(counts, seconds)}")
    elif line := gpu_record.verdict():
        terminalreporter.write_sep("!", line, yellow=True, bold=True)
