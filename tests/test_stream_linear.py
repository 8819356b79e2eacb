"""How few rows share a weight: every result once, loads that fit, and when it is fused."""

import itertools

import numpy as np
import pytest
from conftest import needs_compiler
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.emulation import emulate
from cugraphs.fusion import fuse
from cugraphs.kernel import DTYPES, WORKSPACE, ArrayType, MatrixProduct
from cugraphs.kernels import (
    ADD,
    LINEAR,
    LINEAR_ADD,
    LINEAR_SWIGLU,
    NORM_LINEAR,
    NORM_SWIGLU,
    RMS_NORM,
    ROPE_APPEND,
    SILU_AND_MUL,
    held_rows,
    stream_linear,
)
from cugraphs.kernels.linear_add_rms_norm import LINEAR_ADD_RMS_NORM
from cugraphs.kernels.stream_linear import (
    MAX_NORM_BYTES,
    MAX_ROWS,
    Teams,
    check_streams,
    normalised_bytes,
    stream_shape,
    streams,
)
from cugraphs.ladder import Ladder
from cugraphs.nvrtc import ARCHITECTURES, MAX_SHARED_BYTES, compile_cubin
from cugraphs.testing import compile_launch
from cugraphs.tolerance import check_close
from cugraphs.trace import Tracer

TOKENS = st.integers(1, MAX_ROWS)
IN_FEATURES = st.integers(1, 600).map(lambda steps: 64 * steps)
SIZES = (2048, 4096, 8192, 14336)


@given(TOKENS, IN_FEATURES, st.integers(1, 200_000))
def test_a_shape_divides_the_row_and_its_fragments_hold_the_rows(tokens, in_features, columns):
    assert streams(tokens, in_features, "bfloat16") or tokens > 8
    shape = stream_shape(tokens, in_features, columns)
    teams = shape.teams
    assert in_features % (32 * shape.segments * teams.depth_warps * teams.ahead) == 0
    assert 16 * shape.fragments >= tokens * shape.segments
    assert shape.threads <= 512
    assert shape.blocks >= 1
    # No team is without a unit where blocks are fewer than the most.
    units = -(-columns // (teams.groups * 8 // shape.segments))
    assert shape.blocks * teams.row_teams < units + teams.row_teams


@pytest.mark.parametrize("in_features", SIZES)
@pytest.mark.parametrize("tokens", range(1, MAX_ROWS + 1))
def test_enough_loads_are_under_way_for_the_rows_of_llamas(in_features, tokens):
    """Two blocks have 32 KB under way: what a multiprocessor's share of memory delivers in 1 us."""
    teams = stream_shape(tokens, in_features, 4096).teams
    warps = teams.row_teams * teams.depth_warps
    assert 2 * warps * teams.groups * teams.ahead * 512 >= 32 << 10


@needs_compiler
@pytest.mark.parametrize(
    ("tokens", "in_features", "columns", "teams"),
    [
        (2, 2048, 300, (8, 2, 2, 4)),
        (4, 4096, 45, (1, 8, 2, 4)),
        (8, 1024, 90, (2, 4, 2, 4)),
        (13, 512, 300, (4, 4, 4, 2)),
        (16, 1024, 40, (1, 8, 4, 2)),
    ],
)
def test_shapes_of_large_matrices_give_the_same_results(
    tokens, in_features, columns, teams, monkeypatch
):
    """On a card of two multiprocessors a small matrix is a large one."""
    monkeypatch.setattr(stream_linear, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(stream_linear, "_LARGE", 256)
    shape = stream_shape(tokens, in_features, columns)
    assert shape.teams == Teams(*teams) and shape.blocks <= 4
    rng = np.random.default_rng(0)
    bf16 = DTYPES["bfloat16"]
    x = rng.standard_normal((tokens, in_features)).astype(bf16)
    weight = (rng.standard_normal((columns, in_features)) * in_features**-0.5).astype(bf16)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    for checked in (False, True):
        (out,) = emulate(LINEAR, [x.copy(), weight.copy()], {}, checked=checked)
        check_close(out, exact, exact.astype(bf16), bf16)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_shapes_of_llamas_compile_for_every_architecture_without_spills(arch):
    seen = set()
    for tokens, in_features, columns in itertools.product(
        (1, 4, 8, 16), SIZES, (2048, 4096, 28672, 128256)
    ):
        if not streams(tokens, in_features, "bfloat16"):
            continue
        axes = {"tokens": tokens, "in_features": in_features, "out_features": columns}
        (launch,) = LINEAR.launches(axes, "bfloat16")
        (launch,) = launch.elsewhere or (launch,)
        if launch.function not in seen:
            seen.add(launch.function)
            compile_launch(LINEAR, launch, arch)
    assert len(seen) >= 6


def test_what_streams():
    assert streams(1, 256, "bfloat16") and streams(16, 64, "float16")
    assert not streams(1, 256, "float32")  # no tensor core for it
    assert streams(1, 64, "bfloat16")  # 2 pieces, where a row has no 8
    assert not streams(1, 96, "bfloat16")  # a step and a half
    assert streams(16, 4096, "bfloat16") and streams(8, 14336, "bfloat16")
    assert not streams(16, 14336, "bfloat16")  # more rows than the L1 cache holds
    assert not streams(MAX_ROWS + 1, 4096, "bfloat16")
    assert not streams(1, 0, "bfloat16")


@pytest.mark.parametrize(
    ("axes", "normalised", "message"),
    [
        ((9, 4096), False, "tokens is 9, expected at most 8; use the kernels"),
        ((2, 352), False, "in_features is 352, expected a multiple of 64"),
        ((8, 8192), True, "in_features is 8192, expected at most 6016, which a block can hold"),
        ((1, 16384), True, "in_features is 16384, expected at most 8192, which"),
    ],
)
def test_sizes_that_are_refused(axes, normalised, message):
    named = dict(zip(("tokens", "in_features"), axes, strict=True))
    with pytest.raises(ValueError, match=f"^toy: {message}"):
        check_streams("toy", named, max_rows=8, normalised=normalised)


@pytest.mark.parametrize("kernel", [NORM_LINEAR, NORM_SWIGLU], ids=lambda kernel: kernel.name)
def test_the_rows_that_a_block_normalises_fit_every_card(kernel):
    axes = {"tokens": 8, "in_features": 5888, "out_features": 64, "inter": 32}
    kernel.check(axes, eps=1e-5)
    (launch,) = kernel.launches(axes, "bfloat16", eps=1e-5)
    assert launch.shared_bytes == normalised_bytes(8, 5888)
    beside = compile_cubin(kernel.source, launch.function, "sm_86").shared_bytes
    assert MAX_NORM_BYTES + beside <= min(MAX_SHARED_BYTES.values())


# --- when it is fused


def layer(rows, dtype, hidden=256, *, batch_invariant=False, bias=False):
    """The ops of a layer that have to do with products, over at most ``rows`` rows."""
    t = Tracer()
    tokens = t.dim("rows", rows)
    linear = {"batch_invariant": batch_invariant}

    def weight(name, *shape):
        return t.weight(name, shape, dtype)

    def project(x, name, out):
        biases = [weight(f"{name}.bias", out)] if bias else []
        return t.call(LINEAR, x, weight(name, out, x.type.shape[1]), *biases, **linear)

    x = t.input("x", (tokens, hidden), dtype)
    caches = [t.state(name, (4, 2, 16, 64), dtype) for name in ("k", "v")]
    tables = (
        t.weight("cos_sin", (64, 64), "float32"),
        t.input("positions", (tokens,), "int32"),
        t.input("slot_mapping", (tokens,), "int32"),
    )
    normed = t.call(RMS_NORM, x, weight("norm", hidden), eps=1e-5)
    q = t.call(ROPE_APPEND, *caches, project(normed, "qkv", 512), *tables, q_size=256)
    total = t.call(ADD, x, project(q, "o", hidden))
    normed = t.call(RMS_NORM, total, weight("post_norm", hidden), eps=1e-5)
    up = t.call(LINEAR, normed, weight("gate_up", 1024, hidden), **linear)
    down = project(t.call(SILU_AND_MUL, up), "down", hidden)
    total = t.call(ADD, total, down)
    normed = t.call(RMS_NORM, total, weight("last_norm", hidden), eps=1e-5)
    t.output(t.call(LINEAR, normed, weight("head", 128, hidden), **linear), "logits")
    return [op.kernel.name for op in fuse(t.program).ops]


FEWEST = ["norm_rope_append", "linear_add", "norm_swiglu", "linear_add", "norm_linear"]
FEWER = [
    *("rms_norm", "linear", "rope_append", "linear_add"),
    *("rms_norm", "linear_swiglu", "linear_add", "rms_norm", "linear"),
]
FEW = [
    *("rms_norm", "linear", "rope_append", "linear_add_rms_norm"),
    *("linear_swiglu", "linear_add_rms_norm", "linear"),
]
HELD = [
    *("rms_norm", "linear_rope_append", "linear_add_rms_norm"),
    *("linear_swiglu", "linear_add_rms_norm", "linear"),
]
MORE = [
    *("rms_norm", "linear", "rope_append", "linear", "add_rms_norm"),
    *("linear_swiglu", "linear", "add_rms_norm", "linear"),
]
MANY = [
    *("rms_norm", "linear", "rope_append", "linear", "add_rms_norm"),
    *("linear", "silu_and_mul", "linear", "add_rms_norm", "linear"),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        *((1, FEWEST), (2, FEWEST), (3, FEWER), (8, FEWER)),
        *((9, FEW), (16, FEW), (17, FEW), (64, FEW), (65, MORE), (256, MORE), (257, MANY)),
    ],
)
def test_a_layer_is_fused_as_its_rows_allow(rows, expected, dtype, bias):
    assert layer(rows, dtype, bias=bias) == expected


@pytest.mark.parametrize("rows", [9, 16])
def test_rows_too_long_to_be_streamed_are_fused_like_more_rows(rows):
    assert not streams(rows, 16384, "bfloat16")
    assert layer(rows, "bfloat16", hidden=16384) == FEW
    axes = {"tokens": rows, "in_features": 16384, "inter": 53248}
    (launch,) = LINEAR_SWIGLU.launches(axes, "bfloat16")
    assert launch.arch == "sm_90a"
    product, gated = launch.elsewhere
    assert product == MatrixProduct(to_workspace=True)
    assert gated.operands == ("out", WORKSPACE)
    result_bytes = MatrixProduct.result_bytes(rows, 2 * 53248, "bfloat16")
    assert LINEAR_SWIGLU.workspace(axes, "bfloat16") >= result_bytes


@pytest.mark.parametrize("rows", [3, 8])
def test_large_layers_of_few_rows_are_fused_more(rows, monkeypatch):
    """Where rows are held in registers, what is done at a product's end is free."""
    monkeypatch.setattr(held_rows, "_LARGE", 256)  # what is large then
    assert layer(rows, "bfloat16") == HELD


def test_every_rung_is_fused_as_its_own_rows_allow():
    """A program is shared by the rungs of a class, and traced at the largest of them."""
    ladder = Ladder(64)
    for rows in ladder.rungs:
        assert layer(ladder.class_for(rows), "bfloat16") == layer(rows, "bfloat16"), rows


@pytest.mark.parametrize("rows", [1, 16, 64])
def test_other_dtypes_sizes_and_invariant_batches_are_left_alone(rows):
    assert layer(rows, "float32") == MANY
    assert layer(rows, "float64") == MANY
    assert layer(rows, "bfloat16", batch_invariant=True) == MANY
    assert layer(rows, "bfloat16", hidden=264)[:2] == MANY[:2]


def test_a_fused_kernel_takes_no_more_rows_than_it_is_for():
    shapes = ((9, 32), (9, 256), (32, 256))
    with pytest.raises(ValueError, match=r"^linear_add: tokens is 9, expected at most 8"):
        LINEAR_ADD.infer([ArrayType(shape, "bfloat16") for shape in shapes], {})
    shapes = ((65, 32), (65, 256), (32, 256), (32,))
    with pytest.raises(
        ValueError, match=r"^linear_add_rms_norm: tokens is 65, expected at most 64"
    ):
        LINEAR_ADD_RMS_NORM.infer([ArrayType(s, "bfloat16") for s in shapes], {"eps": 1e-5})
    shapes = ((9, 32), (9, 100), (32, 100), (32,))
    with pytest.raises(ValueError, match=r"^linear_add_rms_norm: in_features is 100, expected"):
        LINEAR_ADD_RMS_NORM.infer([ArrayType(s, "bfloat16") for s in shapes], {"eps": 1e-5})


def test_a_program_of_eight_rows_is_bound_to_fewer():
    """What a rule allows at the most rows of a class holds at each smaller number of them."""
    for kernel in (LINEAR_ADD, NORM_LINEAR, NORM_SWIGLU):
        for in_features in (64, 192, 576, 960, 2560, 3136, 4096):
            for tokens in range(1, 9):
                axes = {"tokens": tokens, "in_features": in_features}
                attrs = {} if kernel is LINEAR_ADD else {"eps": 1e-5}
                axes |= {"out_features": 40, "inter": 20}
                kernel.check(axes, **attrs)
                (launch,) = kernel.launches(axes, "bfloat16", **attrs)
                assert launch.grid[0] >= 1


def test_costs_by_hand():
    axes = {"tokens": 2, "in_features": 256, "out_features": 32}
    product = (2 * 256 + 256 * 32 + 2 * 32) * 2
    cost = LINEAR_ADD.cost(axes, "bfloat16")
    assert cost.bytes_accessed == product + 2 * 32 * 2
    assert cost.flops == 2 * 2 * 256 * 32 + 2 * 32
    cost = LINEAR_ADD_RMS_NORM.cost(axes, "bfloat16", eps=1e-5)
    assert cost.bytes_accessed == product + (2 * 2 * 32 + 32) * 2
    cost = NORM_LINEAR.cost(axes, "bfloat16", eps=1e-5)
    assert cost.bytes_accessed == product + 256 * 2
    cost = NORM_SWIGLU.cost({"tokens": 2, "in_features": 256, "inter": 16}, "bfloat16", eps=1e-5)
    assert cost.bytes_accessed == (2 * 256 + 256 + 32 * 256 + 2 * 16) * 2
    assert np.isclose(cost.flops, 2 * 2 * 256 * 32, rtol=0.1)
