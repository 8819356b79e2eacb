"""Runs the smallest cases of every kernel under compute-sanitizer, and records what it says.

    python scripts/sanitize_kernels.py

Needs a GPU and compute-sanitizer (part of the CUDA toolkit). Tools: memcheck (out of bounds,
misaligned), initcheck (reads of device memory that nothing wrote) and synccheck (barriers that not
all threads reach). racecheck sees shared memory only, which the CPU emulation checks on every case.
"""

import argparse
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cugraphs.kernel import Case, Kernel
from cugraphs.kernels import ALL
from cugraphs.testing import case_arrays

TOOLS = ("memcheck", "initcheck", "synccheck")
RECORD = Path(__file__).resolve().parent.parent / "tests" / "sanitizer_record.json"


def main() -> int:
    """Run all tools at once; exit code 1 if one reports an error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run_smallest_cases()
        return 0
    if shutil.which("compute-sanitizer") is None:
        print("sanitize_kernels: compute-sanitizer is not found; install the CUDA toolkit")
        return 2
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        runs = list(pool.map(sanitize, TOOLS))
    summaries = {}
    for tool, done in zip(TOOLS, runs, strict=True):
        lines = [line for line in done.stdout.splitlines() if "ERROR SUMMARY" in line]
        summaries[tool] = lines[-1].removeprefix("========= ") if lines else "no summary"
        print(f"{tool}: {summaries[tool]}", flush=True)
        if done.returncode:
            told = [line for line in done.stdout.splitlines() if "Host Frame" not in line]
            print("\n".join(told[:120]), done.stderr[-2000:], sep="\n")
    import cupy

    sys.path.insert(0, str(RECORD.parent))
    from gpu_record import kernels_hash  # type: ignore[import-not-found]  # of the tests

    gpu = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    cases = [f"{kernel.name} {case.name}" for kernel in ALL for case in smallest(kernel)]
    record = {"gpu": gpu, "kernels_sha256": kernels_hash(), "tools": summaries, "cases": cases}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(": 0 errors" in summary for summary in summaries.values()) else 1


def sanitize(tool: str) -> subprocess.CompletedProcess[str]:
    """One tool, in a process of its own."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    # cuda-bindings asks the driver for functions that it may not have: no error of ours.
    command += ["--report-api-errors", "no", sys.executable, __file__, "--run"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def run_smallest_cases() -> None:
    """What the sanitizer watches: eager launches of each kernel in two dtypes."""
    from cugraphs.gpu_runs import run_on_gpu

    for kernel in ALL:
        for case in smallest(kernel):
            for dtype in {"float32", "bfloat16"}.intersection(kernel.cuda_dtypes):
                run_on_gpu(kernel, case_arrays(kernel, case, dtype), case.attrs)
                print(f"{kernel.name} {case.name} {dtype}", flush=True)


def smallest(kernel: Kernel) -> list[Case]:
    """The three cases with the fewest bytes of operands."""
    sizes = {}
    for case in kernel.cases:
        sizes[case.name] = sum(array.nbytes for array in case_arrays(kernel, case, "float32"))
    return sorted(kernel.cases, key=lambda case: sizes[case.name])[:3]


if __name__ == "__main__":
    sys.exit(main())
