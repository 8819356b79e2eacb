"""When a run of ops becomes one launch, and that nothing changes but the launches."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_programs import (
    MAX_ROWS,
    Recipe,
    assert_same_bits,
    make_arrays,
    plain_run,
    recipes,
)
from tiny_kernels import DOUBLE, free

from cugraphs.fusion import fuse
from cugraphs.fusion_rules import RULES, Rule
from cugraphs.kernel import Access, Kernel, Operand, bind_axis
from cugraphs.kernels import ADD, ADD_RMS_NORM, LINEAR, LINEAR_RESIDUAL, RMS_NORM, SILU_AND_MUL
from cugraphs.kv_cache import KVCacheShape
from cugraphs.ladder import Ladder
from cugraphs.mixed_sizes import round_rows
from cugraphs.model_shapes import model_shape
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.program import Kind, Program
from cugraphs.step_plan import StepPlan
from cugraphs.trace import Tracer

F32 = "float32"


def names(program: Program) -> list[str]:
    return [op.kernel.name for op in program.ops]


def _norm_linear(x, weight, proj, *, eps: float, batch_invariant: bool = False):
    (normed,) = RMS_NORM.reference(x, weight, eps=eps)
    return LINEAR.reference(normed, proj, batch_invariant=batch_invariant)


# A fused kernel that does not write what lies between: the norm's result is gone.
NORM_LINEAR = Kernel(
    name="norm_linear",
    operands=(
        Operand("out", ("rows", "out_features"), "T", Access.WRITE),
        Operand("x", ("rows", "in_features"), "T"),
        Operand("weight", ("in_features",), "T"),
        Operand("proj", ("out_features", "in_features"), "T"),
    ),
    reference=_norm_linear,
    cost=free,
)
NORM_LINEAR_RULE = Rule(
    run=(RMS_NORM, LINEAR),
    fused=NORM_LINEAR,
    operands=((1, "out"), (0, "x"), (0, "weight"), (1, "weight")),
    links=(((0, "out"), (1, "x")),),
)


class Step:
    """A trace with an input of the width 8 and what the tests below need of calls."""

    def __init__(self) -> None:
        self.t = Tracer()
        self.rows = self.t.dim("rows", 16)
        self.x = self.t.input("x", (self.rows, 8), F32)
        self.weight = self.t.weight("norm", (8,), F32)
        self.proj = self.t.weight("proj", (8, 8), F32)

    def norm(self, x):
        return self.t.call(RMS_NORM, x, self.weight, eps=1e-5)

    def linear(self, x, *bias, **scalars):
        return self.t.call(LINEAR, x, self.proj, *bias, **scalars)

    def fused(self, *rules: Rule) -> Program:
        return fuse(self.t.program, rules or RULES)


@pytest.fixture
def step():
    return Step()


# --- the declaration of a rule


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"operands": ((1, "out"), (0, "x"), (0, "w"), (1, "weight"))},
            "takes 'w' of op 0, expect",
        ),
        ({"operands": ((2, "out"), (0, "x"), (0, "weight"), (1, "weight"))}, "takes 'out' of op 2"),
        (
            {"links": (((0, "out"), (1, "y")),)},
            "takes 'y' of op 1, expected one of out, x, weight, b",
        ),
        ({"operands": ((1, "out"), (0, "x"))}, "gets 2 operands, expected 4 to 4"),
    ],
)
def test_a_rule_that_could_never_hold_is_refused(changed, message):
    with pytest.raises(ValueError, match=f"^Rule: norm_linear {message}"):
        dataclasses.replace(NORM_LINEAR_RULE, **changed)


# --- the rule for residual addition and norm


def test_an_addition_and_its_norm_become_one_launch(step):
    total = step.t.call(ADD, step.x, step.x)
    normed = step.norm(total)
    step.t.output(step.t.call(ADD, total, normed))
    fused = step.fused()
    assert names(fused) == ["add_rms_norm", "add"]
    assert fused.ops[0].kernel is ADD_RMS_NORM
    assert fused.ops[0].operands == (total, normed, step.x, step.x, step.weight)
    assert fused.ops[0].attrs == {"eps": 1e-5}
    assert str(fused.ops[0].axes["tokens"]) == "rows"
    assert fused.dims == step.t.program.dims and fused.buffers == step.t.program.buffers


def test_results_that_are_outputs_are_still_written(step):
    total = step.t.output(step.t.call(ADD, step.x, step.x), "total")
    normed = step.t.output(step.norm(total), "normed")
    fused = step.fused()
    assert names(fused) == ["add_rms_norm"] and fused.ops[0].written == (total, normed)


def test_a_norm_of_another_buffer_is_left_alone(step):
    step.t.output(step.t.call(ADD, step.x, step.x), "total")
    step.t.output(step.norm(step.x), "normed")
    assert names(step.fused()) == ["add", "rms_norm"]


def test_ops_that_do_not_follow_each_other_are_left_alone(step):
    total = step.t.call(ADD, step.x, step.x)
    step.t.output(step.t.call(DOUBLE, total), "doubled")
    step.t.output(step.norm(total), "normed")
    assert names(step.fused()) == ["add", "double", "rms_norm"]


def test_every_pair_of_a_chain_is_fused(step):
    x = step.x
    for _ in range(3):
        x = step.norm(step.t.call(ADD, x, step.x))
    step.t.output(x)
    assert names(step.fused()) == ["add_rms_norm"] * 3


def test_a_program_without_a_match_is_the_same(step):
    step.t.output(step.t.call(DOUBLE, step.x))
    assert str(step.fused()) == str(step.t.program)
    assert str(fuse(step.t.program, ())) == str(step.t.program)
    assert fuse(Program("empty")).ops == []


# --- a rule whose intermediate is not written


def test_an_intermediate_that_lives_only_inside_is_dropped(step):
    normed = step.norm(step.x)
    out = step.t.output(step.linear(normed))
    fused = step.fused(NORM_LINEAR_RULE)
    assert names(fused) == ["norm_linear"]
    assert fused.ops[0].operands == (out, step.x, step.weight, step.proj)
    assert normed not in fused.buffers and out in fused.buffers
    assert normed in step.t.program.buffers  # the traced program is as it was


def test_an_intermediate_that_is_an_output_is_kept(step):
    normed = step.t.output(step.norm(step.x), "normed")
    step.t.output(step.linear(normed))
    assert names(step.fused(NORM_LINEAR_RULE)) == ["rms_norm", "linear"]


def test_an_intermediate_that_is_used_later_is_kept(step):
    normed = step.norm(step.x)
    step.t.output(step.t.call(ADD, step.linear(normed), normed))
    assert names(step.fused(NORM_LINEAR_RULE)) == ["rms_norm", "linear", "add"]


def test_an_operand_that_the_fused_kernel_lacks_is_not_dropped(step):
    bias = step.t.weight("bias", (8,), F32)
    step.t.output(step.linear(step.norm(step.x), bias))
    assert names(step.fused(NORM_LINEAR_RULE)) == ["rms_norm", "linear"]


def test_an_operand_that_the_rule_wants_and_the_run_lacks_is_no_match(step):
    biased = Rule(
        run=(RMS_NORM, LINEAR),
        fused=NORM_LINEAR,
        operands=((1, "out"), (0, "x"), (1, "bias"), (1, "weight")),
        links=(((0, "out"), (1, "x")),),
    )
    step.t.output(step.linear(step.norm(step.x)))
    assert names(step.fused(biased)) == ["rms_norm", "linear"]


def test_scalars_of_all_ops_are_passed_on(step):
    step.t.output(step.linear(step.norm(step.x), batch_invariant=True))
    (op,) = step.fused(NORM_LINEAR_RULE).ops
    assert op.attrs == {"eps": 1e-5, "batch_invariant": True}


def test_one_scalar_with_two_values_is_left_alone(step):
    two = Kernel("linear_linear", NORM_LINEAR.operands, _norm_linear, free)
    rule = Rule(
        run=(LINEAR, LINEAR),
        fused=two,
        operands=((1, "out"), (0, "x"), (0, "weight"), (1, "weight")),
        links=(((0, "out"), (1, "x")),),
    )
    step.t.output(step.linear(step.linear(step.x, batch_invariant=True), batch_invariant=False))
    assert names(step.fused(rule)) == ["linear", "linear"]


def test_a_fused_launch_never_reads_what_it_writes(step):
    """ADD and ADD to one three-way sum: not where the second adds the first's result to itself."""
    three = Kernel(
        name="add_three",
        operands=(
            Operand("sum", ("rows", "n"), "T", Access.WRITE),
            Operand("out", ("rows", "n"), "T", Access.WRITE),
            *(Operand(name, ("rows", "n"), "T") for name in "abc"),
        ),
        reference=lambda a, b, c: (a + b, a + b + c),
        cost=free,
    )
    rule = Rule(
        run=(ADD, ADD),
        fused=three,
        operands=((0, "out"), (1, "out"), (0, "a"), (0, "b"), (1, "b")),
        links=(((0, "out"), (1, "a")),),
    )
    total = step.t.call(ADD, step.x, step.x)
    step.t.output(step.t.call(ADD, total, total))
    assert names(step.fused(rule)) == ["add", "add"]
    other = Step()
    other.t.output(other.t.call(ADD, other.t.call(ADD, other.x, other.x), other.x))
    assert names(other.fused(rule)) == ["add_three"]


def test_the_first_rule_that_holds_wins(step):
    step.t.output(step.linear(step.norm(step.t.call(ADD, step.x, step.x))))
    assert names(step.fused(*RULES, NORM_LINEAR_RULE)) == ["add_rms_norm", "linear"]
    assert names(step.fused(NORM_LINEAR_RULE, *RULES)) == ["add_rms_norm", "linear"]
    other = Step()
    other.t.output(other.linear(other.norm(other.x)))
    other.t.output(other.t.call(SILU_AND_MUL, other.x), "silu")
    assert names(other.fused(*RULES, NORM_LINEAR_RULE)) == ["norm_linear", "silu_and_mul"]


# --- what is remembered of like ops


class Lone(dict):
    """Scalars with a text of their own: an op that has them is like no other."""

    def __repr__(self):
        return str(id(self))


def assert_memory_changes_nothing(program: Program, *args, **options) -> None:
    """Fused op by op as each is, and as if no two were alike."""
    unlike = [dataclasses.replace(op, attrs=Lone(op.attrs)) for op in program.ops]
    found, expected = (
        fuse(each, *args, **options) for each in (program, dataclasses.replace(program, ops=unlike))
    )
    for ops in zip(found.ops, expected.ops, strict=True):
        left, right = (
            (op.kernel, op.operands, dict(op.attrs), {n: repr(size) for n, size in op.axes.items()})
            for op in ops
        )
        assert left == right
    assert found.buffers == expected.buffers and found.dims == expected.dims


def test_ops_of_equal_sizes_are_not_alike_where_one_has_a_dim(step):
    fixed = step.t.weight("fixed", (16, 8), F32)
    for x in (step.x, fixed, step.x):
        total = step.t.call(ADD, x, x)
        step.t.output(step.norm(total), f"normed_{len(step.t.program.ops)}")
    fused = step.fused()
    assert names(fused) == ["add_rms_norm"] * 3
    assert [repr(op.axes["tokens"]) for op in fused.ops] == ["rows<=16", "16", "rows<=16"]


def test_ops_of_other_scalars_are_not_alike(step):
    for eps in (1e-5, 1e-6, 1e-5):
        total = step.t.call(ADD, step.x, step.x)
        step.t.output(step.t.call(RMS_NORM, total, step.weight, eps=eps), f"normed_{total.id}")
    assert [op.attrs for op in step.fused().ops] == [{"eps": 1e-5}, {"eps": 1e-6}, {"eps": 1e-5}]


def test_like_ops_whose_buffers_are_linked_otherwise_are_left_alone(step):
    for x in (None, step.x, None):
        total = step.t.call(ADD, step.x, step.x)
        step.t.output(step.norm(total if x is None else x), f"normed_{total.id}")
    assert names(step.fused()) == ["add_rms_norm", "add", "rms_norm", "add_rms_norm"]


# --- any program

FUSIBLE = ("add_norm", "norm_linear", "add", "rms_norm", "linear", "output", "silu", "rope_append")


@given(
    recipes(FUSIBLE, ("float32", "bfloat16", "float64")),
    st.integers(1, MAX_ROWS),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_a_fused_program_gives_the_same_bits(recipe: Recipe, rows, seqs, seed):
    program = recipe.trace(MAX_ROWS, 4)
    bound = make_arrays(program, rows, seqs, seed)
    expected = plain_run(program, bound)
    for rules in (RULES, (*RULES, NORM_LINEAR_RULE), (NORM_LINEAR_RULE, *RULES)):
        fused = fuse(program, rules)
        assert_memory_changes_nothing(program, rules)
        assert len(fused.ops) <= len(program.ops)
        assert_needed_buffers_are_kept(program, fused)
        found = plain_run(fused, bound)
        for buffer in program.of_kind(Kind.OUTPUT, Kind.STATE):
            assert_same_bits(found[buffer], expected[buffer], buffer)
        assert names(fuse(fused, rules)) == names(fused)  # nothing is left to fuse


def assert_needed_buffers_are_kept(program: Program, fused: Program) -> None:
    """Everything but temporaries stays; a temporary that is read has been written before."""
    assert set(fused.buffers) >= {b for b in program.buffers if b.kind is not Kind.TEMP}
    assert set(fused.buffers) <= set(program.buffers)
    written = set()
    for op in fused.ops:
        assert set(op.operands) <= set(fused.buffers)
        assert all(b in written for b in op.read if b.kind in (Kind.TEMP, Kind.OUTPUT))
        written.update(op.written)
    assert written >= set(fused.of_kind(Kind.TEMP, Kind.OUTPUT))


def test_the_random_programs_do_fuse():
    recipe = Recipe((("add_norm", 0, 0), ("norm_linear", 0, 2)), F32)
    program = recipe.trace(4, 1)
    assert names(program) == ["add", "rms_norm", "rms_norm", "linear"]
    assert names(fuse(program, (*RULES, NORM_LINEAR_RULE))) == ["add_rms_norm", "norm_linear"]
    found = plain_run(program, make_arrays(program, 3, 1, 0))
    assert all(np.isfinite(found[buffer]).all() for buffer in program.of_kind(Kind.OUTPUT))


def test_a_product_adds_the_residual_where_steps_may_have_many_rows():
    def program(max_rows, **scalars):
        t = Tracer()
        rows = t.dim("rows", max_rows)
        x = t.input("x", (rows, 8), F32)
        product = t.call(LINEAR, x, t.weight("proj", (8, 8), F32), **scalars)
        total = t.call(ADD, x, product)
        t.output(total, "total")
        t.output(t.call(RMS_NORM, total, t.weight("norm", (8,), F32), eps=1e-5), "out")
        return fuse(t.program)

    assert names(program(2048)) == ["linear_residual", "rms_norm"]
    assert names(program(2047)) == ["linear", "add_rms_norm"]
    assert names(program(4096, batch_invariant=True)) == ["linear", "add_rms_norm"]


@given(
    st.sampled_from([32, 40, 64, 136, 192, 256, 576]),
    st.sampled_from([8, 24, 45, 64, 172, 256]),
    st.sampled_from([1, 2, 3, 8, 9, 16, 17, 40, 64, 65]),
)
def test_what_is_fused_is_launched_at_all_sizes_that_it_may_be_bound_at(hidden, inter, max_rows):
    t = Tracer()
    rows = t.dim("rows", max_rows)

    def linear(x, out_features, in_features):
        weight = t.weight(f"proj_{len(t.program.ops)}", (out_features, in_features), "bfloat16")
        return t.call(LINEAR, x, weight, batch_invariant=False)

    def norm(x):
        return t.call(RMS_NORM, x, t.weight("norm", (hidden,), "bfloat16"), eps=1e-5)

    residual, x = (t.input(name, (rows, hidden), "bfloat16") for name in ("residual", "x"))
    residual = t.call(ADD, residual, linear(x, hidden, hidden))
    x = t.call(SILU_AND_MUL, linear(norm(residual), 2 * inter, hidden))
    residual = t.call(ADD, residual, linear(x, hidden, inter))
    t.output(linear(norm(residual), inter, hidden), "out")
    for op in fuse(t.program).ops:
        for size in range(1, max_rows + 1):
            axes = {name: bind_axis(axis, {"rows": size}) for name, axis in op.axes.items()}
            if op.kernel.check is not None:
                op.kernel.check(axes, **op.attrs)
            assert op.kernel.launches(axes, "bfloat16", **op.attrs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_that_adds_has_the_bits_of_the_plain_ops(dtype):
    rng = np.random.default_rng(0)
    residual, x, weight = (
        rng.standard_normal(shape).astype(dtype) for shape in ((5, 7), (5, 9), (7, 9))
    )
    (product,) = LINEAR.reference(x, weight)
    (expected,) = ADD.reference(residual, product)
    (found,) = LINEAR_RESIDUAL.reference(residual, x, weight)
    assert found.tobytes() == expected.tobytes()


def plan_of(name, layers, **options):
    """Steps of a model of these published sizes, with so many layers, in bfloat16."""
    config = LlamaConfig.from_hf({**model_shape(name), "num_hidden_layers": layers}, name)
    sizes = (layers, 40, config.num_key_value_heads, 16, config.head_dim)
    return StepPlan(
        Llama(config, "bfloat16"),
        KVCacheShape(*sizes, "bfloat16", 64),
        vocab_size=config.vocab_size,
        max_num_batched_tokens=300,
        **options,
    )


@pytest.mark.parametrize(
    "name", ["llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"]
)
@pytest.mark.parametrize("seqs", [8, 64, 192, 256])
def test_fused_steps_of_real_models_take_every_number_of_rows(name, seqs):
    plan = plan_of(name, 2, max_num_seqs=seqs, ladder=Ladder(seqs, "vllm"))
    programs = [(plan.decode[plan.ladder.class_for(r)], {"rows": r}) for r in plan.ladder.rungs]
    programs += [
        (plan.mixed, {"tokens": 300, "seqs": min(rows, seqs), "logits": rows})
        for rows in sorted({round_rows(n, plan.ring_rows) for n in range(1, plan.ring_rows + 1)})
    ]
    programs += [(plan.mixed, {"tokens": n, "seqs": 1, "logits": 1}) for n in (1, 9, 16, 64, 65)]
    for planned, sizes in programs:
        for op in planned.program.ops:
            read = [buffer.type.bind(sizes) for buffer in op.operands[len(op.kernel.produced) :]]
            op.kernel.infer(read, op.attrs)


@pytest.mark.parametrize("max_rows", [2, 8, 16, 64, 256])
def test_fused_layers_of_a_real_model_are_those_of_lone_layers(max_rows):
    plan = plan_of("llama-3.1-8b", 3, max_num_seqs=max_rows)
    for record in (partial(plan.record_decode, rows=max_rows), plan.record_mixed):
        tracer = Tracer()
        record(tracer)
        assert_memory_changes_nothing(tracer.program)
