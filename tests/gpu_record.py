"""The record of the last GPU run: what it was run on, and whether the kernels have changed since.

``pytest -m gpu`` on a GPU writes tests/gpu_record.json at its end. Every other run compares.
"""

import hashlib
import json
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


def write_record(counts: dict[str, int], seconds: float) -> dict[str, Any]:
    """Record a run on the current GPU."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    record = {
        "kernels_sha256": kernels_hash(),
        "gpu": properties["name"].decode(),
        "driver_cuda": cupy.cuda.runtime.driverGetVersion(),
        "runtime_cuda": cupy.cuda.runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
        **counts,
        "seconds": round(seconds, 1),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    return record


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
    return None
