"""Every kernel's source, run on the CPU, gives its reference's results: all cases and dtypes.

Plain in three orders of threads, with the same bits in each, and checked for races, bounds and
uninitialised reads.
"""

import concurrent.futures
import os

import pytest
from conftest import needs_compiler
from emulated_identities.identity import assert_same_bits

from cugraphs import testing
from cugraphs.emulation import emulate
from cugraphs.emulation.build import build_kernel
from cugraphs.emulation.emulate import functions_of_cases
from cugraphs.kernels import ALL
from cugraphs.testing import assert_kernel

pytestmark = needs_compiler

WITH_SOURCE = [kernel for kernel in ALL if kernel.source is not None]
CASES = [
    pytest.param(kernel, case.name, id=f"{kernel.name}-{case.name}")
    for kernel in WITH_SOURCE
    for case in kernel.cases
]


@pytest.fixture(scope="module")
def built():
    """Every library, made on all cores: each is one call of g++."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [
            pool.submit(build_kernel, kernel.source, functions_of_cases(kernel), checked=checked)
            for kernel in WITH_SOURCE
            if functions_of_cases(kernel)
            for checked in (False, True)
        ]
        concurrent.futures.wait(jobs)  # a failed one fails again in the tests of its kernel


@pytest.fixture
def same_bits(monkeypatch):
    """The identity `orders_agree` of whatever runs in several orders, without more runs."""
    forward = []  # what the plain run before has written

    def compare(kernel, arrays, attrs, *, checked=False, order="forward"):
        found = emulate(kernel, arrays, attrs, checked=checked, order=order)
        if checked:  # the first run of a case and dtype
            forward.clear()
            return found
        written = [array.copy() for array in (*found, *arrays)]
        if order == "forward":
            forward[:] = written
        assert_same_bits(f"beside the forward order, {order}", written, forward)
        return found

    monkeypatch.setattr(testing, "emulate", compare)


@pytest.mark.parametrize(("kernel", "case"), CASES)
def test_emulated_results_are_the_references(kernel, case, built, same_bits):
    assert_kernel(kernel, stages=["emulate"], cases=[case])
