"""What SAMPLE and LOGPROBS have in common: every case of both declarations."""

import numpy as np
import pytest
from hypothesis import strategies as st

from cugraphs.kernel import Access, ArrayType
from cugraphs.kernels.logprobs import LOGPROBS
from cugraphs.kernels.sample import SAMPLE

KERNELS = (SAMPLE, LOGPROBS)
CASES = [(kernel, case) for kernel in KERNELS for case in kernel.cases]
DTYPES = ("float32", "bfloat16", "float16")
SEEDS = st.integers(0, 2**32 - 1)

every_case = pytest.mark.parametrize(
    ("kernel", "case"), CASES, ids=[f"{kernel.name}-{case.name}" for kernel, case in CASES]
)


def arrays_of(kernel, case, dtype, seed=0):
    return case.make(np.random.default_rng(seed), np.dtype(dtype))


def is_per_row(operand):
    return operand.shape[0] == "rows"


def rows_of(kernel, arrays):
    """All rows of a case's arrays."""
    pairs = zip(kernel.supplied, arrays, strict=True)
    return np.arange(next(len(array) for operand, array in pairs if is_per_row(operand)))


def run_rows(kernel, case, arrays, rows):
    """Results on the given rows alone, and the UPDATE arrays after it."""
    picked = [
        array[rows] if is_per_row(operand) else array.copy()
        for operand, array in zip(kernel.supplied, arrays, strict=True)
    ]
    with np.errstate(all="raise"):
        results = kernel.reference(*picked, **case.attrs)
    updated = [
        array
        for operand, array in zip(kernel.supplied, picked, strict=True)
        if operand.access is Access.UPDATE
    ]
    return results, updated


def assert_same_bits(left, right):
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert left.tobytes() == right.tobytes()


# Every case of the two declarations.


@every_case
@pytest.mark.parametrize("dtype", DTYPES)
def test_case_gives_the_declared_types_and_reads_only_what_it_says(kernel, case, dtype):
    arrays = arrays_of(kernel, case, dtype)
    before = [array.copy() for array in arrays]
    for operand, array in zip(kernel.supplied, arrays, strict=True):
        array.flags.writeable = operand.access is Access.UPDATE
    types, _ = kernel.infer(list(map(ArrayType.of, arrays)), case.attrs)
    with np.errstate(all="raise"):
        results = kernel.reference(*arrays, **case.attrs)
    assert list(map(ArrayType.of, results)) == types
    for operand, array, old in zip(kernel.supplied, arrays, before, strict=True):
        if operand.access is Access.READ:
            assert_same_bits(array, old)


@every_case
def test_rows_do_not_influence_each_other(kernel, case):
    arrays = arrays_of(kernel, case, "float32")
    rows = rows_of(kernel, arrays)
    together, state = run_rows(kernel, case, arrays, rows)
    order = np.random.default_rng(1).permutation(rows)
    shuffled, shuffled_state = run_rows(kernel, case, arrays, order)
    for left, right in zip(together, shuffled, strict=True):
        assert_same_bits(left[order], right)
    for left, right in zip(state, shuffled_state, strict=True):
        assert_same_bits(left, right)
    for row in rows:
        alone, _ = run_rows(kernel, case, arrays, rows[row : row + 1])
        for left, right in zip(together, alone, strict=True):
            assert_same_bits(left[row : row + 1], right)


@every_case
def test_dead_rows_may_hold_anything(kernel, case):
    arrays = list(arrays_of(kernel, case, "float32"))
    names = [operand.name for operand in kernel.supplied]
    if kernel is LOGPROBS:
        dead = arrays[names.index("num_logprobs")] < 0
    else:
        dead = arrays[names.index("row_ids")] < 0
    rows = rows_of(kernel, arrays)
    expected, state = run_rows(kernel, case, arrays, rows)
    index = names.index("logits")
    arrays[index] = arrays[index].copy()
    arrays[index][dead] = np.float32(1e30)
    results, other_state = run_rows(kernel, case, arrays, rows)
    for left, right in zip((*expected, *state), (*results, *other_state), strict=True):
        assert_same_bits(left, right)
    for result in expected:
        assert np.isfinite(result[dead]).all()


def test_no_rows_give_no_results():
    for kernel in KERNELS:
        case = kernel.cases[0]
        arrays = arrays_of(kernel, case, "float32")
        results, _ = run_rows(kernel, case, arrays, np.arange(0))
        assert [len(result) for result in results] == [0] * len(results)


def test_checks_name_the_axis():
    axes = {"vocab": 5, "max_bias": 1, "max_stop_ids": 1, "words": 2}
    SAMPLE.check(axes)
    for axis, size, message in (
        ("max_bias", 0, "'max_bias' is 0"),
        ("max_stop_ids", 0, "'max_stop_ids' is 0"),
        ("vocab", 0, "'vocab' is 0"),
        ("vocab", 256_001, "'vocab' is 256001"),
        ("words", 4, "'words' of seeds is 4, expected 2"),
    ):
        with pytest.raises(ValueError, match=message):
            SAMPLE.check({**axes, axis: size})
    with pytest.raises(ValueError, match="max_logprobs is 0"):
        LOGPROBS.check({"vocab": 5}, max_logprobs=0)
    with pytest.raises(ValueError, match="'vocab' is 0"):
        LOGPROBS.check({"vocab": 0}, max_logprobs=1)


def test_cost_reads_each_logit_once():
    axes = {"rows": 3, "vocab": 1000}
    assert SAMPLE.cost(axes, "bfloat16").bytes_accessed == 3 * (1000 * 2 + 64)
    assert LOGPROBS.cost(axes, "float16", max_logprobs=20).bytes_accessed == 3 * (2000 + 180)
