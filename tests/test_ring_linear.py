"""Rings of one and two rows: what fits a block, and which blocks fit a multiprocessor together."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.kernels import LINEAR_ADD, NORM_LINEAR, NORM_ROPE_APPEND, NORM_SWIGLU
from cugraphs.kernels.ring_linear import WARPS, ring_shape
from cugraphs.testing import compile_launch

MULTIPROCESSOR_BYTES = 228 << 10  # of shared memory, by NVIDIA's tuning guide for Hopper
RESERVED_BYTES = 1 << 10  # of each block, by the same
REGISTERS = 64 << 10
EPS = {"eps": 1e-5}


@given(st.integers(1, 3), st.integers(1, 200), st.booleans(), st.booleans())
def test_a_ring_and_the_rows_fit_the_block(tokens, steps, pairs, normalised):
    in_features = 256 * steps
    shape = ring_shape(tokens, in_features, pairs=pairs, normalised=normalised)
    if shape is None:
        assert tokens > 2 or 2 * tokens * in_features > 60 << 10
        return
    assert in_features % shape.piece == 0 and shape.piece % 256 == 0
    rings = WARPS * shape.stages * (2 * shape.piece + 8)
    assert rings + 2 * tokens * in_features <= shape.shared_bytes


def test_rows_of_no_whole_steps_have_none():
    assert ring_shape(1, 4096 + 128, pairs=False, normalised=True) is None


def launches(tokens):
    """Those of a layer of Llama's 1B and 8B, and of the logits; qkv first."""
    for hidden, heads, head_dim, inter in ((2048, 32, 64, 8192), (4096, 32, 128, 14336)):
        axes = {"tokens": tokens, "in_features": hidden, "kv_heads": 8, "head_dim": head_dim}
        sizes = {"block_size": 16, "qkv_size": (heads + 16) * head_dim}
        qkv = NORM_ROPE_APPEND.launches(axes | sizes, "bfloat16", q_size=heads * head_dim, **EPS)
        o, down = (
            LINEAR_ADD.launches(axes | {"in_features": size, "out_features": hidden}, "bfloat16")
            for size in (heads * head_dim, inter)
        )
        gate_up = NORM_SWIGLU.launches(axes | {"inter": inter}, "bfloat16", **EPS)
        logits = NORM_LINEAR.launches(axes | {"out_features": 128256}, "bfloat16", **EPS)
        kernels = (NORM_ROPE_APPEND, LINEAR_ADD, NORM_SWIGLU, LINEAR_ADD, NORM_LINEAR)
        yield from zip(kernels, (qkv, o, gate_up, down, logits), strict=True)


@pytest.mark.parametrize("tokens", [1, 2])
def test_blocks_of_llamas_lie_one_of_each_kind_on_a_multiprocessor(tokens):
    """Large and small take turns; beside a large one there is room for one small one exactly."""
    taken = {"small": set(), "large": set()}
    for kernel, (launch,) in launches(tokens):
        cubin = compile_launch(kernel, launch, "sm_90")
        assert launch.arch == "sm_90a" and launch.beside
        assert 2 * cubin.registers * launch.block <= REGISTERS
        nbytes = cubin.shared_bytes + launch.shared_bytes + RESERVED_BYTES
        taken["large" if kernel is LINEAR_ADD else "small"].add(nbytes)
    assert all(2 * nbytes > MULTIPROCESSOR_BYTES for nbytes in taken["large"])
    for large, small in itertools.product(taken["large"], taken["small"]):
        assert large + small <= MULTIPROCESSOR_BYTES < large + 2 * small
