"""What the tracer records, and what it refuses to record."""

import pytest
from tiny_kernels import ACCUMULATE, DOUBLE, MAKE, SPLIT

from cugraphs.kernel import Dim
from cugraphs.kernels import ADD, EMBEDDING, LINEAR, RMS_NORM, ROPE_APPEND
from cugraphs.program import Kind
from cugraphs.trace import Tracer

F32 = "float32"


@pytest.fixture
def t():
    return Tracer("step")


def test_a_call_becomes_an_op_and_a_temporary(t):
    rows = t.dim("rows", 64)
    x = t.input("x", (rows, 8), "bfloat16")
    weight = t.weight("w", (6, 8), "bfloat16")
    out = t.call(LINEAR, x, weight, batch_invariant=True)
    (op,) = t.program.ops
    assert op.kernel is LINEAR
    assert op.operands == (out, x, weight)
    assert op.written == (out,) and op.read == (x, weight)
    assert op.attrs == {"batch_invariant": True}
    assert op.axes == {"tokens": 64, "in_features": 8, "out_features": 6}
    assert out.kind is Kind.TEMP and out.name == "out"
    assert str(out.type) == "bfloat16[rows, 6]"
    assert t.program.buffers == [x, weight, out]
    assert [buffer.id for buffer in t.program.buffers] == [0, 1, 2]


def test_a_call_of_several_results_returns_them_in_order(t):
    left, right = t.call_tuple(SPLIT, t.input("x", (3, 10), F32))
    assert (left.name, right.name) == ("left", "right")
    assert left.type.shape == right.type.shape == (3, 5)
    with pytest.raises(TypeError, match=r"^split: writes 2 buffers; use call_tuple"):
        t.call(SPLIT, t.input("y", (3, 10), F32))


def test_an_updated_operand_is_passed_and_not_returned(t):
    total, x = t.state("total", (8,), F32), t.input("x", (2, 8), F32)
    out = t.call(ACCUMULATE, total, x)
    (op,) = t.program.ops
    assert op.written == (out,) and op.read == (total, x)


def test_the_same_weight_twice_is_one_buffer(t):
    first = t.weight("table", (10, 4), F32)
    assert t.weight("table", (10, 4), F32) is first
    assert t.program.buffers == [first]
    message = (
        r"^Tracer: weight 'table' is float32\[10, 5\], expected float32\[10, 4\] as declared before"
    )
    with pytest.raises(ValueError, match=message):
        t.weight("table", (10, 5), F32)


@pytest.mark.parametrize("kind", ["state", "input"])
def test_a_name_is_declared_once(t, kind):
    t.weight("w", (2,), F32)
    getattr(t, kind)("x", (2,), F32)
    for name in ("x", "w"):
        with pytest.raises(ValueError, match=rf"^Tracer: {kind} '{name}' is declared twice"):
            getattr(t, kind)(name, (2,), F32)
    with pytest.raises(ValueError, match=r"^Tracer: weight 'x' is declared twice"):
        t.weight("x", (2,), F32)


def test_an_axis_is_declared_once(t):
    t.dim("rows", 4)
    with pytest.raises(ValueError, match=r"^Tracer: axis 'rows' is declared twice"):
        t.dim("rows", 4)


def test_an_unknown_dtype_is_refused(t):
    with pytest.raises(
        ValueError, match=r"^Tracer: 'x' has dtype 'int7', expected one of \['float"
    ):
        t.input("x", (2,), "int7")


@pytest.mark.parametrize("shape", [(0,), (4, -1), (4, 0)])
def test_an_empty_or_negative_shape_is_refused(t, shape):
    with pytest.raises(ValueError, match=r"^Tracer: 'x' has shape .* expected sizes of at least 1"):
        t.input("x", shape, F32)


def test_a_dim_leads_an_input_of_its_own_trace(t):
    rows = t.dim("rows", 4)
    t.input("longer", (rows + 1,), F32)
    with pytest.raises(
        ValueError, match=r"^Tracer: 'x' has rows<=4 inside, expected it as first a"
    ):
        t.input("x", (2, rows), F32)
    for kind in ("weight", "state"):
        message = rf"^Tracer: {kind} 'x' has rows<=4, expected a fixed size"
        with pytest.raises(ValueError, match=message):
            getattr(t, kind)("x", (rows, 2), F32)
    for foreign in (Dim("rows", 5), Dim("seqs", 4), Dim("rows", 5) + 1):
        with pytest.raises(
            ValueError, match=r"^Tracer: 'x' has .*, which dim\(\) of this trace did"
        ):
            t.input("x", (foreign, 2), F32)


def test_a_buffer_of_another_trace_is_refused(t):
    other = Tracer("other")
    foreign = other.input("x", (2, 4), F32)
    made = other.call(DOUBLE, foreign)
    ours = t.input("x", (2, 4), F32)
    for buffer in (foreign, made):
        with pytest.raises(ValueError, match=r"^add: %\d:\w+ belongs to another trace"):
            t.call(ADD, ours, buffer)
    with pytest.raises(ValueError, match=r"^output: %1:out belongs to another trace"):
        t.output(made)


@pytest.mark.parametrize("kind", ["weight", "input"])
def test_only_state_and_temporaries_are_updated(t, kind):
    x = t.input("x", (2, 8), F32)
    fixed = getattr(t, kind)("fixed", (8,), F32)
    message = rf"^accumulate: total is the {kind} 'fixed', expected a buffer that may be updated"
    with pytest.raises(ValueError, match=message):
        t.call(ACCUMULATE, fixed, x)
    t.call(ACCUMULATE, t.call(MAKE, fixed, n=8), x)


def test_an_updated_buffer_is_no_other_operand(t):
    cache = t.state("cache", (3, 1, 4, 4), F32)
    rest = (
        *(t.input("qkv", (2, 12), F32), t.weight("rope", (9, 4), F32)),
        *(t.input("positions", (2,), "int32"), t.input("slots", (2,), "int32")),
    )
    message = r"^rope_append: k_cache is %0:cache, which is another operand too, expected an updat"
    with pytest.raises(ValueError, match=message):
        t.call(ROPE_APPEND, cache, cache, *rest, q_size=4)


def test_a_buffer_may_be_read_twice(t):
    x = t.input("x", (2, 8), F32)
    assert t.call(ADD, x, x).type == x.type


def test_a_refused_call_leaves_the_program_as_it_was(t):
    x, y = t.input("x", (2, 8), F32), t.input("y", (3, 8), F32)
    state = t.state("total", (8,), F32)
    before = str(t.program)
    for wrong in (
        lambda: t.call(ADD, x, y),
        lambda: t.call(ADD, x),
        lambda: t.call(ADD, x, x, x),
        lambda: t.call(RMS_NORM, x, state, epsilon=1e-5),
        lambda: t.call(ACCUMULATE, t.program.buffers[0], x),
        lambda: t.call(SPLIT, x),
        lambda: t.output(x),
    ):
        with pytest.raises((TypeError, ValueError)):
            wrong()
        assert str(t.program) == before


def test_an_output_keeps_its_buffer_and_may_take_a_name(t):
    x = t.input("x", (2, 8), F32)
    first, second = t.call(DOUBLE, x), t.call(DOUBLE, x)
    assert t.output(first) is first and first.kind is Kind.OUTPUT and first.name == "out"
    assert t.output(second, "twice").name == "twice"
    later = t.call(DOUBLE, first)  # an output may still be read
    assert t.program.ops[-1].read == (first,) and later.kind is Kind.TEMP


def test_two_outputs_of_one_name_are_refused_because_they_would_share_memory(t):
    x = t.input("x", (2, 8), F32)
    t.output(t.call(DOUBLE, x))
    with pytest.raises(
        ValueError, match=r"^Tracer: output 'out' is declared twice; give it another"
    ):
        t.output(t.call(DOUBLE, x))


def test_only_results_become_outputs_once(t):
    x = t.input("x", (2, 8), F32)
    out = t.output(t.call(DOUBLE, x))
    for buffer, kind in ((x, "input"), (out, "output"), (t.weight("w", (1,), F32), "weight")):
        with pytest.raises(ValueError, match=rf"^Tracer: output %.* is {kind}, expected temp"):
            t.output(buffer)


def test_rows_gathered_by_another_axis_have_that_axis(t):
    tokens, seqs = t.dim("tokens", 8), t.dim("seqs", 8)
    hidden = t.input("hidden", (tokens, 4), F32)
    last = t.call(EMBEDDING, t.input("indices", (seqs,), "int32"), hidden)
    assert str(last.type) == "float32[seqs, 4]"
    message = r"^add: axis 'tokens' is seqs<=8 in b, expected tokens<=8 as in a"
    with pytest.raises(ValueError, match=message):
        t.call(ADD, hidden, last)
