"""``cugraphs check --bench``: time kernels on this machine's GPU and print a table or JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cugraphs.cli.tables import TableConsole
from cugraphs.cuda_availability import CudaUnavailable, check_cuda
from cugraphs.cuda_device import CudaDevice
from cugraphs.kernel import Case, Kernel
from cugraphs.kernel_speed import (
    SMALL_BYTES,
    Ceilings,
    NotTimed,
    Speed,
    measure_ceilings,
    speeds_as_json,
    three_digits,
    time_case,
)
from cugraphs.launch_timing import LaunchTimer
from cugraphs.one_line import reason
from cugraphs.testing import case_arrays

EXIT_FAILED = 1

_DTYPES = ("bfloat16",)  # what models are run in


def bench(kernels: Sequence[Kernel], dtypes: Sequence[str] | None, *, as_json: bool) -> int:
    """Time the benchmarks of kernels; 1 if one does not compile or run.

    Args:
        kernels: those without benchmarks are named and left out.
        dtypes: of the "T" operands; bfloat16 by default.
        as_json: print one JSON object in place of a table.

    Raises:
        RuntimeError: there is no GPU that can be used.
        ValueError: no kernel has a benchmark.
    """
    plan = [
        (kernel, case, dtype)
        for kernel in kernels
        for case in kernel.benchmarks
        for dtype in _dtypes(kernel, dtypes)
    ]
    if not plan:
        raise ValueError(
            f"check: no benchmarks are declared by {', '.join(kernel.name for kernel in kernels)}, "
            "expected sizes to time; give Kernel(..., benchmarks=(Case(...),))"
        )
    try:
        check_cuda()
    except CudaUnavailable as problem:
        raise RuntimeError(f"check: --bench needs a GPU, and none can be used: {problem}") from None
    device = CudaDevice()
    console = Console(file=sys.stderr)
    timings: list[Speed | NotTimed] = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("ceilings", total=len(plan))
        timer = LaunchTimer(device)
        ceilings = measure_ceilings(timer)
        for kernel, case, dtype in plan:
            bar.update(task, description=f"{kernel.name} {case.name}")
            timings.append(_time(timer, kernel, case, dtype))
            bar.advance(task)
    if as_json:
        record = {
            "gpu": device.gpu_name,
            "ceilings": dataclasses.asdict(ceilings),
            "speeds": speeds_as_json(timings, ceilings),
        }
        print(json.dumps(record))
    else:
        _print(device.gpu_name, ceilings, timings)
        left_out = [kernel.name for kernel in kernels if not kernel.benchmarks]
        if left_out:
            print(f"without benchmarks: {', '.join(left_out)}")
    return EXIT_FAILED if any(isinstance(t, NotTimed) and t.failed for t in timings) else 0


def _dtypes(kernel: Kernel, dtypes: Sequence[str] | None) -> Sequence[str]:
    takes_dtype = any(operand.dtype == "T" for operand in kernel.operands)
    return dtypes or _DTYPES if takes_dtype else ("float32",)


def _time(timer: LaunchTimer, kernel: Kernel, case: Case, dtype: str) -> Speed | NotTimed:
    """The time, or in words why there is none."""
    try:
        return time_case(timer, kernel, case, dtype, case_arrays(kernel, case, dtype))
    except (RuntimeError, ValueError, TypeError, MemoryError) as problem:
        return NotTimed(kernel.name, case.name, dtype, reason(problem), failed=True)


def _print(gpu_name: str, ceilings: Ceilings, timings: Sequence[Speed | NotTimed]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("kernel", "size", "dtype"):
        table.add_column(column, no_wrap=True)
    times, rates = ("us", "early us", "empty us"), ("MiB", "GB/s", "Gflop", "TFLOP/s")
    for column in (*times, *rates, "share", "early"):
        table.add_column(column, no_wrap=True, justify="right")
    for timing in timings:
        table.add_row(timing.kernel, timing.size, timing.dtype, *_figures(timing, ceilings))
    TableConsole().print(table)
    for timing in timings:
        if isinstance(timing, NotTimed):
            print(f"{timing.kernel} {timing.size} {timing.dtype}: not timed: {timing.why}")
    print(
        f"{gpu_name}, measured now: reads {ceilings.read_bytes_per_s / 1e12:.2f} TB/s, copies "
        f"{ceilings.copy_bytes_per_s / 1e12:.2f} TB/s (read + written), multiplies bfloat16 "
        f"matrices at {ceilings.flops_per_s / 1e12:.0f} TFLOP/s, takes "
        f"{ceilings.empty_s * 1e6:.2f} us for an empty kernel."
    )
    copy_share = ceilings.copy_bytes_per_s / ceilings.read_bytes_per_s
    print(
        "us: one call, in a captured chain of launches that begin one after the other, whose "
        "operands are in no cache. early us: where a launch may begin before the one before has "
        "ended, as in a step behind one that allows it; - where it may not. share (early: by early "
        "us): of the rate of reading (r), of which a kernel that also writes can reach about "
        f"{copy_share:.0%}, or of the matrix product (m), whichever is larger. empty us: so many "
        f"launches of nothing, where less than {SMALL_BYTES >> 20} MiB move."
    )


def _figures(timing: Speed | NotTimed, ceilings: Ceilings) -> list[str]:
    if isinstance(timing, NotTimed):
        return ["-"]
    share, ceiling = timing.share(ceilings)
    early_share = timing.early_share(ceilings)
    early = timing.early_seconds
    empty_us = timing.launches * ceilings.empty_s * 1e6
    return [
        f"{timing.seconds * 1e6:,.2f}",
        "-" if early is None else f"{early * 1e6:,.2f}",
        f"{empty_us:.2f}" if timing.is_small else "",
        three_digits(timing.cost.bytes_accessed / 2**20),
        three_digits(timing.bytes_per_s / 1e9),
        three_digits(timing.cost.flops / 1e9),
        three_digits(timing.flops_per_s / 1e12),
        f"{share:.1%} {ceiling[0]}",
        "-" if early_share is None else f"{early_share:.1%}",
    ]
