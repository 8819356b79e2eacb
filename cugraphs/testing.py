"""Prove a kernel from its declaration: compiled, emulated on the CPU, and run on a GPU.

``assert_kernel(MY_KERNEL)`` is a whole test of a kernel, this project's or a user's own. Knows the
stages and the comparison with the reference; how each stage runs a kernel is its own module's.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from cugraphs.counted import counted
from cugraphs.emulation import emulate
from cugraphs.emulation.build import compiler
from cugraphs.emulation.emulate import bind_launches
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernel import DTYPES, Array, Case, Kernel, Launch, running_on
from cugraphs.kernel_source import cuda_include_folder
from cugraphs.nvrtc import ARCHITECTURES, MAX_SHARED_BYTES, Cubin, compile_cubin, nvrtc_version
from cugraphs.tolerance import Error

NO_ERROR = Error(0.0, 0.0)
STAGES = ("compile", "emulate", "gpu")
ORDERS = ("forward", "reverse", "random")

_REGISTER_UNIT = 8  # a thread's registers are given out in such units
_MAX_BLOCK_REGISTERS = 65536

# What runs a kernel on the UPDATE and READ arrays, with its scalars, and returns the WRITE ones.
Runner = Callable[[Kernel, Sequence[Array], Mapping[str, Any]], tuple[Array, ...]]


@dataclass(frozen=True)
class CheckResult:
    """One case of one kernel in one dtype at one stage.

    Args:
        kernel: its name.
        case: the case's name.
        dtype: of the "T" operands.
        stage: one of :data:`STAGES`.
        passed: whether everything held.
        found: the largest errors over operands and runs; 0 where the stage computes nothing.
        allowed: what the tolerance allows for that operand.
        message: what failed, in one line; else what was seen.
    """

    kernel: str
    case: str
    dtype: str
    stage: str
    passed: bool
    found: Error = NO_ERROR
    allowed: Error = NO_ERROR
    message: str = ""

    def __str__(self) -> str:
        """``rms_norm one_row bfloat16 emulate: failed: ...``."""
        outcome = "passed" if self.passed else "failed"
        told = f": {self.message}" if self.message else ""
        return f"{self.kernel} {self.case} {self.dtype} {self.stage}: {outcome}{told}"


def assert_kernel(
    kernel: Kernel,
    *,
    stages: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    cases: Sequence[str] | None = None,
) -> list[CheckResult]:
    """As :func:`check_kernel`, and every result must have passed.

    Raises:
        AssertionError: some have not; the message lists them, one a line.
    """
    __tracebackhide__ = True  # pytest shows the message and the line that called this
    results = check_kernel(kernel, stages=stages, dtypes=dtypes, cases=cases)
    failed = [str(result) for result in results if not result.passed]
    if failed:
        raise AssertionError(
            "\n".join([f"{len(failed)} of {counted(len(results), 'check')} failed", *failed])
        )
    return results


def check_kernel(
    kernel: Kernel,
    *,
    stages: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    cases: Sequence[str] | None = None,
    progress: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run every case of a kernel in every dtype through the stages.

    * ``compile``: what the case launches compiles for all of ``nvrtc.ARCHITECTURES``, without
      spills and within every card's shared memory. Needs NVRTC.
    * ``emulate``: the source runs on the CPU, checked for races, bounds and uninitialised reads,
      and plain with threads in three orders. Needs g++.
    * ``gpu``: it runs on the GPU, eager and as a captured graph.

    Emulated and GPU results must be within the tolerance of the reference in float64, outputs start
    as NaN, and nothing may be written around the operands or to those that are READ.

    Args:
        kernel: a declaration with ``source`` and ``launches``.
        stages: of :data:`STAGES`; by default those that this machine has the tools for.
        dtypes: of ``cugraphs.kernel.CUDA_TYPES``; by default all.
        cases: names; by default all.
        progress: called with each result.

    Raises:
        ValueError: a stage, dtype or case is unknown, or the kernel has no CUDA source.
        RuntimeError: a stage that was asked for lacks its tools, or this machine has no stage.
    """
    stages = _chosen_stages(stages)
    results = []
    for case, dtype in check_plan(kernel, dtypes, cases):
        for stage in stages:
            result = _check(kernel, case, dtype, stage)
            results.append(result)
            if progress is not None:
                progress(result)
    return results


def check_plan(
    kernel: Kernel, dtypes: Sequence[str] | None = None, cases: Sequence[str] | None = None
) -> list[tuple[Case, str]]:
    """Every case and dtype that :func:`check_kernel` goes through.

    Raises:
        ValueError: a dtype or case is unknown, or the kernel has no CUDA source or no case.
    """
    if kernel.source is None or kernel.launches is None:
        raise ValueError(
            f"{kernel.name}: source or launches is None, expected both to prove its CUDA form"
        )
    known = [case.name for case in kernel.cases]
    _refuse_unknown(f"{kernel.name}: case", cases or (), known)
    _refuse_unknown(f"{kernel.name}: dtype", dtypes or (), kernel.cuda_dtypes)
    if not known:
        raise ValueError(f"{kernel.name}: cases is empty, expected inputs to prove it on")
    takes_dtype = any(operand.dtype == "T" for operand in kernel.operands)
    chosen = list(dtypes or kernel.cuda_dtypes) if takes_dtype else ["float32"]
    return [
        (case, dtype)
        for case in kernel.cases
        if not cases or case.name in cases
        for dtype in chosen
    ]


def missing_tools() -> dict[str, str]:
    """The stages that this machine cannot run: what is missing, and what to install."""
    probes: Mapping[str, Callable[[], object]] = {
        "compile": lambda: cuda_include_folder(nvrtc_version()[0]),
        "emulate": lambda: (compiler(), cuda_include_folder()),
        "gpu": _gpu_runs,
    }
    missing = {}
    for stage, probe in probes.items():
        try:
            probe()
        except RuntimeError as problem:
            missing[stage] = str(problem)
    return missing


def case_arrays(kernel: Kernel, case: Case, dtype: str) -> tuple[Array, ...]:
    """The inputs of a case: the same random numbers in every run and for every dtype."""
    seed = zlib.crc32(f"{kernel.name} {case.name}".encode())
    return case.make(np.random.default_rng(seed), DTYPES[dtype])


# ------------------------------------------------------------------------------------------ stages


def _chosen_stages(stages: Sequence[str] | None) -> list[str]:
    missing = missing_tools()
    if stages is None:
        found = [stage for stage in STAGES if stage not in missing]
        if not found:
            raise RuntimeError(f"check_kernel: this machine has no stage: {missing['emulate']}")
        return found
    _refuse_unknown("check_kernel: stage", stages, STAGES)
    for stage in stages:
        if stage in missing:
            raise RuntimeError(missing[stage])
    return list(stages)


def _refuse_unknown(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{what} is {name!r}, expected one of {', '.join(known)}")


def _check(kernel: Kernel, case: Case, dtype: str, stage: str) -> CheckResult:
    """One result; what the kernel does wrong is a failed one."""
    arrays = case_arrays(kernel, case, dtype)
    result = CheckResult(kernel.name, case.name, dtype, stage, passed=True)
    if stage == "compile":
        try:
            return replace(result, message=_compile(kernel, arrays, case.attrs))
        except ValueError as problem:
            return replace(result, passed=False, message=_one_line(problem))
    expected = ExpectedResults(kernel, arrays, case.attrs)
    for how, runner in _runs(stage):
        given = [array.copy() for array in arrays]
        try:
            found = expected.judge(runner(kernel, given, case.attrs), given)
        except (AssertionError, ValueError) as problem:
            return replace(result, passed=False, message=f"{how}: {_one_line(problem)}")
        if result.found.max <= found.found.max:
            result = replace(result, found=found.found, allowed=found.allowed)
        if found.problem:
            return replace(result, passed=False, message=f"{how}: {found.problem}")
    return result


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split())


def _runs(stage: str) -> list[tuple[str, Runner]]:
    """How a stage runs a kernel: what is said of it where it fails, and the call."""
    if stage == "gpu":
        return _gpu_runs()
    # Checked first: a plain run that writes out of bounds may end the process.
    runs: list[tuple[str, Runner]] = [("checked", partial(emulate, checked=True))]
    return runs + [(f"{order} order", partial(emulate, order=order)) for order in ORDERS]


def _gpu_runs() -> list[tuple[str, Runner]]:
    """Raises RuntimeError where no GPU can be used."""
    from cugraphs.gpu_runs import gpu_runs

    return gpu_runs()


def _compile(kernel: Kernel, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> str:
    """Compile what runs for these arrays everywhere, and say what it needs of a card.

    Raises:
        ValueError: it does not compile, spills, or needs more than a card has.
    """
    _, launches = bind_launches(kernel, arrays, attrs)
    functions, registers, shared_bytes = set(), 0, 0
    for arch in ARCHITECTURES:
        for part in running_on(arch, launches):
            if isinstance(part, Launch):
                cubin = compile_launch(kernel, part, arch)
                functions.add(part.function)
                registers = max(registers, cubin.registers)
                shared_bytes = max(shared_bytes, cubin.shared_bytes + part.shared_bytes)
    if not functions:
        return "no launch of our own"
    return (
        f"{counted(len(functions), 'function')} for {len(ARCHITECTURES)} architectures, "
        f"at most {counted(registers, 'register')} and {shared_bytes} bytes of shared memory"
    )


def compile_launch(kernel: Kernel, launch: Launch, arch: str) -> Cubin:
    """The cubin of a launch, which must run on ``arch`` as it is.

    Raises:
        ValueError: it does not compile, spills, or needs more than a card has.
    """
    assert kernel.source is not None
    cubin = compile_cubin(kernel.source, launch.function, launch.arch or arch)
    check_needs(cubin, launch, arch)
    return cubin


def check_needs(cubin: Cubin, launch: Launch, arch: str) -> None:
    """Refuse what a block needs and ``arch`` does not have.

    Raises:
        ValueError: registers are spilled, or it needs more of them, or of shared memory.
    """
    who = f"{launch.function} for {arch}"
    if cubin.spill_bytes:
        raise ValueError(
            f"{who}: {cubin.spill_bytes} bytes of registers are spilled, expected 0; "
            "give a thread less to hold"
        )
    shared_bytes = cubin.shared_bytes + launch.shared_bytes
    if shared_bytes > MAX_SHARED_BYTES[arch]:
        raise ValueError(
            f"{who}: a block needs {shared_bytes} bytes of shared memory, "
            f"expected at most {MAX_SHARED_BYTES[arch]}"
        )
    registers = -(-cubin.registers // _REGISTER_UNIT) * _REGISTER_UNIT * launch.block
    if registers > _MAX_BLOCK_REGISTERS:
        raise ValueError(
            f"{who}: a block of {counted(launch.block, 'thread')} needs "
            f"{counted(registers, 'register')}, expected at "
            f"most {_MAX_BLOCK_REGISTERS}; declare __launch_bounds__({launch.block})"
        )
