"""Rates and shares of hand-computed work, and the kernel that measures reading."""

import pytest
from conftest import needs_compiler

from cugraphs.cli.check import _table
from cugraphs.kernel import Cost
from cugraphs.kernel_speed import READ_BANDWIDTH, Ceilings, Speed, speeds_as_json
from cugraphs.testing import CheckResult, assert_kernel

CEILINGS = Ceilings(read_bytes_per_s=4e12, flops_per_s=800e12)


@needs_compiler
def test_the_read_kernel_is_proven():
    assert_kernel(READ_BANDWIDTH, stages=["compile", "emulate"])


def test_the_larger_share_is_the_rate_that_is_told():
    streaming = Speed("add", "large", "bfloat16", 1e-3, Cost(2 * 10**9, 10**9))
    assert streaming.rate(CEILINGS) == ("2,000 GB/s", pytest.approx(0.5))
    computing = Speed("linear", "large", "bfloat16", 1e-3, Cost(10**6, 4 * 10**11))
    assert computing.rate(CEILINGS) == ("400 TFLOP/s", pytest.approx(0.5))


def test_the_table_has_the_figures_and_json_has_the_numbers():
    speed = Speed("add", "large", "bfloat16", 1e-3, Cost(10**9, 10**6))
    result = CheckResult("add", "large", "bfloat16", "gpu", passed=True)
    table = _table([result], [speed], CEILINGS)
    headers = [column.header for column in table.columns]
    assert headers[-4:] == ["us", "rate", "share", "result"]
    assert [next(iter(column.cells)) for column in table.columns[-4:]] == [
        "1,000",
        "1,000 GB/s",
        "25.0%",
        "passed",
    ]
    (record,) = speeds_as_json([speed], CEILINGS)
    assert record["us"] == pytest.approx(1000) and record["bytes"] == 10**9
    assert record["share"] == pytest.approx(0.25)
