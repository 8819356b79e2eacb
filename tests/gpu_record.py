"""The record of the last GPU run: what it was run on, and whether the kernels have changed since.

``pytest -m gpu`` on a GPU writes tests/gpu_record.json at its end, and so does a run of whole files
of it, which keeps what is recorded of the others. Every other run compares.
"""

import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "gpu_record.json"


def kernels_hash() -> str:
    """SHA-256 over names and contents of every source file in kernels/."""
    digest = hashlib.sha256()
    for file in sorted((ROOT / "kernels").iterdir()):
        if file.suffix in (".cu", ".cuh", ".py"):
            digest.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def write_record(files: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Record the test files that a run on the current GPU went through.

    Args:
        files: passed, failed, skipped and seconds of each file by name.
    """
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    machine = {
        "kernels_sha256": kernels_hash(),
        "gpu": properties["name"].decode(),
        "driver_cuda": cupy.cuda.runtime.driverGetVersion(),
        "runtime_cuda": cupy.cuda.runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
    }
    return add_to_record(machine, files)


def add_to_record(machine: dict[str, Any], files: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Write what a run found; what others have found of other files stays, on the same machine.

    Several runs may end at once, each of its own files.
    """
    folder = os.open(RECORD.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        known = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
        same = all(known.get(key) == value for key, value in machine.items())
        files = {**(known.get("files", {}) if same else {}), **files}
        record = dict(machine)
        for key in ("passed", "failed", "skipped", "seconds"):
            record[key] = round(sum(counts[key] for counts in files.values()), 1)
        record["files"] = dict(sorted(files.items()))
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        return record
    finally:
        os.close(folder)  # and with it the lock


def gpu_test_files() -> set[str]:
    """The files of tests for a GPU."""
    texts = {file.name: file.read_text("utf-8") for file in (ROOT / "tests").glob("test_*.py")}
    return {name for name, text in texts.items() if "\npytestmark = pytest.mark.gpu\n" in text}


def verdict() -> str | None:
    """A line to print loudly where kernels/ is not what was last proven on a GPU; else None."""
    if not RECORD.is_file():
        return "kernels/ has never been proven on a GPU: tests/gpu_record.json is absent"
    record = json.loads(RECORD.read_text())
    if record["failed"]:
        return f"the last GPU run had {record['failed']} failures: see tests/gpu_record.json"
    if record["kernels_sha256"] != kernels_hash():
        return (
            f"kernels/ HAS CHANGED since it was proven on {record['gpu']}: "
            "run pytest -m gpu on a GPU and commit tests/gpu_record.json"
        )
    missing = ", ".join(sorted(gpu_test_files() - set(record.get("files", ()))))
    if missing:
        return f"{missing}: not run since the kernels changed; run pytest -m gpu on a GPU"
    return None
