"""What every kernel's declaration and reference must satisfy, on every case and dtype."""

import inspect
import itertools

import ml_dtypes
import numpy as np
import pytest

from cugraphs.kernel import DTYPES, Access, ArrayType
from cugraphs.kernels import ALL
from cugraphs.testing import case_arrays
from cugraphs.tolerance import error

FLOATS = ("float64", "float32", "bfloat16", "float16")
CASES = [
    pytest.param(kernel, case, id=f"{kernel.name}-{case.name}")
    for kernel in ALL
    for case in kernel.cases
]
# Their results are rounded twice: `out` of the norm comes from the rounded `sum`.
# Half units in the last place that the roundings on the way to a result can add up to.
ROUNDINGS = {
    "decode_layer": 5,
    "add_rms_norm": 3,
    "paged_prefill_attention": 3,  # the weights of V too
    "linear_add": 3,
    "linear_add_rms_norm": 5,
    "linear_rope_append": 5,
    "linear_swiglu": 5,
    "norm_linear": 3,
    "norm_swiglu": 5,
    "norm_rope_append": 5,
    "rope_append_attention": 7,  # queries and keys too, in scores of up to 4
}
# They stand for LINEAR among others, and have the bits that it has by default.
OF_LINEAR = {
    *("linear_add", "linear_add_rms_norm", "linear_residual", "linear_rope_append"),
    *("linear_swiglu", "norm_linear", "norm_rope_append", "norm_swiglu"),
}


def as_dtype(kernel, arrays, dtype):
    """The same values with the "T" operands in another dtype."""
    return tuple(
        array.astype(DTYPES[dtype]) if operand.dtype == "T" else array
        for operand, array in zip(kernel.supplied, arrays, strict=False)
    )


def types(arrays):
    return list(map(ArrayType.of, arrays))


def run(kernel, arrays, attrs):
    """Results of the WRITE operands, then the UPDATE ones; READ operands cannot be written."""
    arrays = [array.copy() for array in arrays]
    for operand, array in zip(kernel.supplied, arrays, strict=False):
        array.flags.writeable = operand.access is Access.UPDATE
    with np.errstate(all="raise"):
        results = kernel.reference(*arrays, **attrs)
    assert isinstance(results, tuple) and len(results) == len(kernel.produced)
    updated = [
        array
        for operand, array in zip(kernel.supplied, arrays, strict=False)
        if operand.access is Access.UPDATE
    ]
    return [*results, *updated]


def invariant_attrs(kernel, case):
    """The case's scalars, with batch invariance where the kernel offers it."""
    offered = "batch_invariant" in inspect.signature(kernel.reference).parameters
    return {**case.attrs, "batch_invariant": True} if offered else dict(case.attrs)


def row_axis(kernel):
    """The axis of independent rows; None where rows belong together, or nothing is written."""
    if not kernel.produced or any("seqs" in operand.shape for operand in kernel.operands):
        return None
    axes = [operand.shape[0] for operand in kernel.produced]
    return None if any("+" in axis for axis in axes) else axes[0]


def take_rows(kernel, arrays, rows):
    return tuple(
        array[rows] if operand.shape[0] == row_axis(kernel) else array
        for operand, array in zip(kernel.supplied, arrays, strict=False)
    )


def test_every_kernel_has_its_own_name_and_cases():
    assert len({kernel.name for kernel in ALL}) == len(ALL)
    for kernel in ALL:
        names = [case.name for case in kernel.cases]
        assert names and len(set(names)) == len(names), kernel.name


@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_reference_takes_the_operands_in_declared_order_then_the_scalars(kernel):
    parameters = inspect.signature(kernel.reference).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == [operand.name for operand in kernel.supplied]
    scalars = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert scalars >= {name for case in kernel.cases for name in case.attrs}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("kernel", "case"), CASES)
def test_results_have_the_inferred_types(kernel, case, dtype):
    arrays = case_arrays(kernel, case, dtype)
    produced, axes = kernel.infer(types(arrays), case.attrs)
    results = run(kernel, arrays, case.attrs)
    assert types(results[: len(produced)]) == produced
    assert all(result.flags.c_contiguous for result in results)
    cost = kernel.cost(axes, dtype, **case.attrs)
    assert cost.bytes_accessed > 0 and cost.flops >= 0


@pytest.mark.parametrize("dtype", FLOATS[1:])
@pytest.mark.parametrize(("kernel", "case"), CASES)
def test_results_are_within_rounding_of_float64(kernel, case, dtype):
    arrays = case_arrays(kernel, case, dtype)
    exact = run(kernel, as_dtype(kernel, arrays, "float64"), case.attrs)
    # Half a unit in the last place for each rounding, and what float32 sums and exponentials lose.
    roundings = ROUNDINGS.get(kernel.name, 1)
    bound = 1e-4 + (0 if dtype == "float32" else roundings * float(ml_dtypes.finfo(dtype).eps) / 2)
    for operand, result, expected in zip(
        (*kernel.produced, *kernel.supplied),
        run(kernel, arrays, case.attrs),
        exact,
        strict=False,
    ):
        if result.dtype.kind in "iu":
            np.testing.assert_array_equal(result, expected)
        else:
            assert error(result, expected).max <= bound, operand.name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("kernel", "case"), [p for p in CASES if p.values[0].name not in ROUNDINGS]
)
def test_low_precision_is_float32_rounded_once_at_the_store(kernel, case, dtype):
    arrays = case_arrays(kernel, case, dtype)
    wide = run(kernel, as_dtype(kernel, arrays, "float32"), case.attrs)
    for result, expected in zip(run(kernel, arrays, case.attrs), wide, strict=True):
        np.testing.assert_array_equal(result, expected.astype(result.dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_huge_finite_operands_raise_no_warning(kernel, dtype):
    case = kernel.cases[0]
    largest = float(ml_dtypes.finfo(DTYPES[dtype]).max)
    signs = np.random.default_rng(1)
    arrays = [
        (signs.choice([-1, 1], array.shape) * largest).astype(array.dtype)
        if operand.dtype == "T"
        else array
        for operand, array in zip(kernel.supplied, case_arrays(kernel, case, dtype), strict=False)
    ]
    run(kernel, arrays, case.attrs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kernel", "case"),
    [p for p in CASES if row_axis(p.values[0]) and p.values[0].name not in OF_LINEAR],
)
def test_a_row_does_not_depend_on_the_rows_beside_it(kernel, case, dtype):
    arrays = case_arrays(kernel, case, dtype)
    attrs = invariant_attrs(kernel, case)
    written = len(kernel.produced)
    whole = run(kernel, arrays, attrs)
    rows = len(whole[0])

    backwards = np.arange(rows)[::-1]
    permuted = run(kernel, take_rows(kernel, arrays, backwards), attrs)
    for result, expected in zip(permuted[:written], whole[:written], strict=True):
        np.testing.assert_array_equal(result[backwards], expected)
    for result, expected in zip(permuted[written:], whole[written:], strict=True):
        # NumPy does not know that NaN of these dtypes, which nobody may read, are equal.
        assert result.tobytes() == expected.tobytes()

    for row in {0, rows // 2, rows - 1}:
        alone = run(kernel, take_rows(kernel, arrays, [row]), attrs)
        for result, expected in zip(alone[:written], whole[:written], strict=True):
            np.testing.assert_array_equal(result[0], expected[row])

    spoiled = [array.copy() for array in arrays]
    for operand, array in zip(kernel.supplied, spoiled, strict=False):
        if operand.dtype == "T" and operand.shape[0] == row_axis(kernel):
            array[1:] = np.nan
    beside_nan = run(kernel, spoiled, attrs)
    for result, expected in zip(beside_nan[:written], whole[:written], strict=True):
        np.testing.assert_array_equal(result[0], expected[0])


@pytest.mark.parametrize(("kernel", "case"), [p for p in CASES if row_axis(p.values[0])])
def test_a_row_beside_others_is_close_to_the_row_alone_by_default(kernel, case):
    arrays = case_arrays(kernel, case, "float32")
    whole = run(kernel, arrays, case.attrs)[: len(kernel.produced)]
    alone = run(kernel, take_rows(kernel, arrays, [-1]), case.attrs)
    for result, expected in zip(alone, whole, strict=False):
        np.testing.assert_allclose(result[0], expected[-1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", list(filter(row_axis, ALL)), ids=lambda kernel: kernel.name)
def test_no_rows_give_no_results(kernel):
    case = kernel.cases[0]
    arrays = take_rows(kernel, case_arrays(kernel, case, "float32"), [])
    for attrs in (dict(case.attrs), invariant_attrs(kernel, case)):
        results = run(kernel, arrays, attrs)
        assert all(len(result) == 0 for result in results[: len(kernel.produced)])


@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_a_wrong_operand_is_refused_by_name(kernel):
    case = kernel.cases[0]
    good = types(case_arrays(kernel, case, "float32"))
    for operand, (index, type_) in zip(kernel.supplied, enumerate(good), strict=False):
        wrong_rank = [*good]
        wrong_rank[index] = ArrayType((*type_.shape, 1), type_.dtype)
        with pytest.raises(ValueError, match=rf"^{kernel.name}: {operand.name} .*expected axes"):
            kernel.infer(wrong_rank, case.attrs)
        if operand.dtype != "T" or index > [o.dtype for o in kernel.supplied].index("T"):
            wrong_dtype = [*good]
            wrong_dtype[index] = ArrayType(type_.shape, "uint8")
            message = rf"^{kernel.name}: {operand.name} is uint8, expected {type_.dtype}"
            with pytest.raises(TypeError, match=message):
                kernel.infer(wrong_dtype, case.attrs)
    with pytest.raises(TypeError, match=rf"^{kernel.name}: got 0 operands, expected"):
        kernel.infer([], case.attrs)


@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_an_axis_that_disagrees_is_refused_with_both_operands(kernel):
    case = kernel.cases[0]
    good = types(case_arrays(kernel, case, "float32"))
    shared = [
        (first, second, axis)
        for first, second in itertools.combinations(range(len(good)), 2)
        for axis in kernel.supplied[first].shape
        if axis in kernel.supplied[second].shape
        and not any(axis in kernel.supplied[other].shape for other in range(first))
    ]
    for first, second, axis in shared:
        operand = kernel.supplied[second]
        shape = list(good[second].shape)
        shape[operand.shape.index(axis)] += 1
        wrong = [*good]
        wrong[second] = ArrayType(tuple(shape), good[second].dtype)
        message = rf"^{kernel.name}: axis '{axis}' .* in {operand.name}, expected .* as in "
        with pytest.raises(ValueError, match=message + kernel.supplied[first].name):
            kernel.infer(wrong, case.attrs)
