"""Kernel, Operand, ArrayType and Dim: what a declaration says, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_kernels import MAKE, SPLIT, free

from cugraphs.kernel import (
    DTYPES,
    Access,
    ArrayType,
    Cost,
    Dim,
    Kernel,
    Operand,
    bind_axis,
    compute_dtype,
    same_axis,
)
from cugraphs.kernels import ADD, LINEAR, PAGED_PREFILL_ATTENTION, RMS_NORM, ROPE_APPEND

F32 = "float32"


def kernel(*operands: Operand, name: str = "k", reference=lambda: ()) -> Kernel:
    return Kernel(name, operands, reference, free)


# --- Dim


@given(st.integers(1, 10**9), st.integers(0, 5))
def test_a_dim_is_the_int_of_its_maximum(maximum, offset):
    dim = Dim("rows", maximum) + offset
    assert dim == maximum + offset and dim * 2 == 2 * (maximum + offset)
    assert (dim.name, dim.offset) == ("rows", offset)


def test_a_dim_prints_its_name_and_maximum():
    seqs = Dim("seqs", 8)
    assert str(seqs) == "seqs" and repr(seqs) == "seqs<=8"
    assert str(seqs + 1) == "seqs+1" and repr(seqs + 1) == "seqs+1<=9"


def test_a_dim_stays_a_dim_when_it_is_lengthened_or_shortened():
    seqs = Dim("seqs", 8)
    for longer in (seqs + 1, 1 + seqs, seqs + 2 - 1):
        assert same_axis(longer, Dim("seqs", 8, 1))
    assert same_axis(seqs + 1 - 1, seqs)


@pytest.mark.parametrize("maximum", [0, -3])
def test_a_dim_below_one_is_refused(maximum):
    with pytest.raises(ValueError, match=rf"^Dim: maximum of 'rows' is {maximum}, expected at lea"):
        Dim("rows", maximum)


def test_axes_are_the_same_only_at_every_binding():
    rows, seqs = Dim("rows", 64), Dim("seqs", 64)
    assert same_axis(64, 64) and same_axis(rows, Dim("rows", 64))
    assert not same_axis(rows, seqs)
    assert not same_axis(rows, 64) and not same_axis(64, rows)
    assert not same_axis(rows, Dim("rows", 63))
    assert not same_axis(Dim("rows", 63) + 1, rows)  # both at most 64, one always longer


@given(st.integers(1, 100), st.integers(0, 3), st.data())
def test_a_bound_axis_is_the_size_plus_the_offset(maximum, offset, data):
    size = data.draw(st.integers(0, maximum))
    assert bind_axis(Dim("rows", maximum) + offset, {"rows": size}) == size + offset


def test_a_fixed_axis_is_itself_whatever_the_sizes():
    assert bind_axis(7, {"rows": 3}) == 7


@pytest.mark.parametrize("size", [-1, 65, 1000])
def test_binding_out_of_range_says_the_range(size):
    message = rf"^bind: axis 'rows' is {size}, expected 0 to 64; trace the program at a larger max"
    for axis in (Dim("rows", 64), Dim("rows", 64) + 1):
        with pytest.raises(ValueError, match=message):
            bind_axis(axis, {"rows": size})


def test_binding_without_a_size_names_the_axis():
    with pytest.raises(
        ValueError, match=r"^bind: no size is given for axis 'rows', expected rows<=6"
    ):
        bind_axis(Dim("rows", 64), {"seqs": 3})


# --- ArrayType


def test_bytes_and_text_of_a_type():
    # 64 rows of 3 bfloat16 of 2 bytes each
    type_ = ArrayType((Dim("rows", 64), 3), "bfloat16")
    assert type_.nbytes == 64 * 3 * 2
    assert str(type_) == "bfloat16[rows, 3]"
    assert type_.bind({"rows": 5}) == ArrayType((5, 3), "bfloat16")
    assert str(type_.bind({"rows": 5})) == "bfloat16[5, 3]"
    assert ArrayType((), "float64").nbytes == 8
    assert ArrayType((4, 0), F32).nbytes == 0


@pytest.mark.parametrize(
    ("name", "itemsize"),
    [
        *(("float64", 8), ("float32", 4), ("float16", 2), ("bfloat16", 2)),
        *(("int32", 4), ("uint32", 4), ("uint8", 1)),
    ],
)
def test_dtypes_have_their_known_sizes(name, itemsize):
    assert DTYPES[name].itemsize == itemsize and DTYPES[name].name == name


def test_only_float64_computes_in_float64():
    computed = {name: compute_dtype(dtype) for name, dtype in DTYPES.items()}
    assert computed.pop("float64") == np.float64
    assert set(computed.values()) == {np.dtype(np.float32)}


# --- Operand axes


@pytest.mark.parametrize(
    ("axis", "parsed"),
    [
        ("rows", (1, "rows", 0)),
        ("2*inter", (2, "inter", 0)),
        ("seqs+1", (1, "seqs", 1)),
        ("3*seqs+12", (3, "seqs", 12)),
    ],
)
def test_an_axis_is_scale_name_offset(axis, parsed):
    assert Operand("x", (axis,), "T").axes == (parsed,)


# --- the declaration itself


def test_operands_out_of_order_are_refused():
    write = Operand("out", ("n",), "T", Access.WRITE)
    update = Operand("state", ("n",), "T", Access.UPDATE)
    read = Operand("x", ("n",), "T")
    for wrong in ((read, write), (update, write), (read, update), (write, read, update)):
        with pytest.raises(
            ValueError, match=r"^k: operands are .* expected write before update be"
        ):
            kernel(*wrong)
    assert kernel(write, update, read).supplied == (update, read)
    assert kernel(write, update, read).produced == (write,)


def test_only_the_last_read_operands_are_optional():
    read = Operand("x", ("n",), "T")
    for wrong in (
        (Operand("out", ("n",), "T", Access.WRITE, optional=True), read),
        (Operand("bias", ("n",), "T", optional=True), read),
    ):
        with pytest.raises(ValueError, match=r"^k: only the last READ operands can be optional"):
            kernel(*wrong)


def test_an_unknown_dtype_is_refused():
    with pytest.raises(
        ValueError, match=r"^k: x has dtype 'float8', expected 'T' or one of float64"
    ):
        kernel(Operand("x", ("n",), "float8"))


def test_a_result_of_unknown_size_or_dtype_is_refused():
    x = Operand("x", ("n",), "int32")
    bias = Operand("bias", ("m",), "T", optional=True)
    for wrong in ("m", "2*m", "m+1"):
        message = r"^k: axis 'm' of out is not an axis of an operand that is passed, expected that"
        with pytest.raises(ValueError, match=message):
            kernel(Operand("out", (wrong,), "int32", Access.WRITE), x, bias)
    kernel(Operand("out", ("m",), "int32", Access.WRITE), x, reference=lambda x, *, m: ())
    with pytest.raises(
        ValueError, match=r"^k: out has dtype 'T', and no operand that is passed ha"
    ):
        kernel(Operand("out", ("n",), "T", Access.WRITE), x, bias)


# --- inference


def test_types_are_derived_from_the_operands():
    rows = Dim("rows", 64)
    x, weight = ArrayType((rows, 8), "bfloat16"), ArrayType((6, 8), "bfloat16")
    (out,), axes = LINEAR.infer([x, weight], {})
    assert str(out) == "bfloat16[rows, 6]"
    assert axes == {"tokens": 64, "in_features": 8, "out_features": 6}
    (with_bias,), _ = LINEAR.infer([x, weight, ArrayType((6,), "bfloat16")], {})
    assert with_bias == out


def test_a_scaled_axis_is_divided():
    produced, axes = SPLIT.infer([ArrayType((3, 10), F32)], {})
    assert produced == [ArrayType((3, 5), F32)] * 2
    assert axes == {"rows": 3, "width": 5}


def test_a_scaled_axis_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match=r"^split: x axis '2\*width' is 9, expected a fixed mul"):
        SPLIT.infer([ArrayType((3, 9), F32)], {})


def test_a_scaled_dim_is_refused_because_its_rows_would_be_frozen():
    half = kernel(Operand("out", ("n",), "T", Access.WRITE), Operand("x", ("2*n",), "T"))
    with pytest.raises(
        ValueError, match=r"^k: x axis '2\*n' is rows<=8, expected a fixed multiple"
    ):
        half.infer([ArrayType((Dim("rows", 8),), F32)], {})


def test_a_produced_axis_can_come_from_a_scalar():
    (out,), axes = MAKE.infer([ArrayType((3,), F32)], {"n": 70})
    assert out == ArrayType((70,), F32) and axes == {"m": 3, "n": 70}


@pytest.mark.parametrize("kernel_", [RMS_NORM, ROPE_APPEND, MAKE], ids=lambda k: k.name)
def test_a_scalar_that_is_missing_is_named(kernel_):
    name = {"rms_norm": "eps", "rope_append": "q_size", "make": "n"}[kernel_.name]
    types = [ArrayType((1,) * len(o.shape), F32) for o in kernel_.supplied]
    with pytest.raises(TypeError, match=rf"^{kernel_.name}: the scalar '{name}' is missing"):
        kernel_.infer(types, {})


def test_an_unknown_scalar_is_named():
    types = [ArrayType((2, 8), F32), ArrayType((8,), F32)]
    with pytest.raises(
        TypeError, match=r"^rms_norm: the scalar 'epsilon' is unknown, expected eps"
    ):
        RMS_NORM.infer(types, {"eps": 1e-5, "epsilon": 1e-5})
    with pytest.raises(TypeError, match=r"^add: the scalar 'eps' is unknown, expected none"):
        ADD.infer([types[0]] * 2, {"eps": 1e-5})


@pytest.mark.parametrize("count", [0, 1, 4])
def test_the_number_of_operands_is_checked(count):
    found = "1 operand" if count == 1 else f"{count} operands"
    message = rf"^linear: got {found}, expected 2 to 3 \(x, weight, bias\)"
    with pytest.raises(TypeError, match=message):
        LINEAR.infer([ArrayType((2, 2), F32)] * count, {})
    with pytest.raises(TypeError, match=r"^add: got 1 operand, expected 2 \(a, b\)"):
        ADD.infer([ArrayType((2, 2), F32)], {})


def test_axes_of_equal_maximum_and_other_name_are_refused():
    tokens, seqs = Dim("tokens", 8), Dim("seqs", 8)
    message = "^add: axis 'tokens' is seqs<=8 in b, expected tokens<=8 as in a"
    with pytest.raises(ValueError, match=message):
        ADD.infer([ArrayType((tokens, 4), F32), ArrayType((seqs, 4), F32)], {})
    with pytest.raises(
        ValueError, match=r"^add: axis 'tokens' is 8 in b, expected tokens<=8 as in a"
    ):
        ADD.infer([ArrayType((tokens, 4), F32), ArrayType((8, 4), F32)], {})


def prefill_types(starts: int, seqs: int, tokens: int = 16) -> list[ArrayType]:
    cache = ArrayType((5, 1, 4, 8), F32)
    return [
        *(ArrayType((tokens, 8), F32), cache, cache),
        ArrayType((9, 3), "int32"),
        *(ArrayType((seqs,), "int32"), ArrayType((seqs,), "int32")),
        ArrayType((starts,), "int32"),
    ]


def test_an_axis_that_is_one_longer_is_checked():
    seqs = Dim("seqs", 8)
    attrs = {"scale": 1.0}
    (out,), axes = PAGED_PREFILL_ATTENTION.infer(prefill_types(seqs + 1, seqs), attrs)
    assert str(axes["seqs"]) == "seqs" and out.shape == (16, 8)
    PAGED_PREFILL_ATTENTION.infer(prefill_types(9, 8), attrs)
    for wrong, found in ((seqs, "seqs"), (9, "8"), (seqs + 2, "seqs")):
        message = rf"^paged_prefill_attention: axis 'seqs' is {found}.* in query_start_loc, expect"
        with pytest.raises(ValueError, match=message):
            PAGED_PREFILL_ATTENTION.infer(prefill_types(wrong, seqs), attrs)


def test_operands_of_one_t_dtype():
    x = ArrayType((2, 4), "bfloat16")
    with pytest.raises(TypeError, match=r"^add: b is float32, expected bfloat16"):
        ADD.infer([x, ArrayType((2, 4), F32)], {})


def test_a_rank_that_differs_is_refused_with_the_axes():
    with pytest.raises(
        ValueError, match=r"^rms_norm: weight has shape \[1, 4\], expected axes \[hid"
    ):
        RMS_NORM.infer([ArrayType((2, 4), F32), ArrayType((1, 4), F32)], {"eps": 1e-5})


def test_the_kernels_own_check_runs_last():
    def check(axes, *, n: int) -> None:
        raise ValueError(f"k: n is {n}, m is {axes['m']}")

    checked = Kernel("k", MAKE.operands, MAKE.reference, free, check=check)
    with pytest.raises(ValueError, match=r"^k: n is 5, m is 3"):
        checked.infer([ArrayType((3,), F32)], {"n": 5})


def test_costs_add_up():
    assert Cost(3, 5) + Cost(10, 20) == Cost(13, 25)
