"""How 3 to 8 rows share a weight on sm_90a: every result once, what fits, and which sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.kernels import LINEAR, LINEAR_ADD_RMS_NORM, LINEAR_ROPE_APPEND, LINEAR_SWIGLU
from cugraphs.kernels.held_rows import (
    MAX_PARTS,
    MAX_ROWS,
    MIN_ROWS,
    held_shape,
)
from cugraphs.nvrtc import MAX_SHARED_BYTES
from cugraphs.testing import compile_launch

TOKENS = st.integers(MIN_ROWS, MAX_ROWS)


@given(TOKENS, st.integers(16, 80), st.integers(4096, 200_000), st.integers(1, MAX_PARTS))
def test_a_shape_covers_the_row_and_fits_a_multiprocessor(tokens, steps, columns, max_parts):
    in_features = 256 * steps
    shape = held_shape(tokens, in_features, columns, "bfloat16", max_parts=max_parts)
    if shape is None:
        assert in_features > 4096  # no row of two whole stages is refused
        return
    assert shape.parts * shape.depths * shape.steps * 256 == in_features
    assert shape.parts <= max_parts
    assert 1 <= shape.blocks * shape.parts <= 132
    assert shape.blocks <= -(-columns // 8)  # none is without a unit
    assert shape.stages >= 2


def test_no_two_blocks_share_a_multiprocessor_where_products_are_large():
    """So they lie evenly, however early they are placed."""
    for launch in launches_of_an_8b(8):
        if launch.arch and "held" in launch.function:
            assert 2 * launch.shared_bytes > MAX_SHARED_BYTES["sm_90"], launch.function


@pytest.mark.parametrize(
    ("tokens", "in_features", "dtype"),
    [
        *[(2, 4096, "bfloat16"), (9, 4096, "bfloat16"), (8, 2048, "bfloat16")],
        *[(8, 4096, "float32"), (8, 4160, "float16")],
    ],
)
def test_sizes_that_other_forms_take(tokens, in_features, dtype):
    assert held_shape(tokens, in_features, 8192, dtype) is None


def launches_of_an_8b(tokens):
    hidden, inter = 4096, 14336
    sizes = {"tokens": tokens, "in_features": hidden}
    yield from LINEAR.launches(sizes | {"out_features": 128256}, "bfloat16")
    yield from LINEAR_SWIGLU.launches(sizes | {"inter": inter}, "bfloat16")
    heads = {"qkv_size": 6144, "kv_heads": 8, "head_dim": 128, "block_size": 16}
    yield from LINEAR_ROPE_APPEND.launches(sizes | heads, "bfloat16", q_size=4096)
    for in_features in (hidden, inter):
        axes = {"tokens": tokens, "in_features": in_features, "out_features": hidden}
        yield from LINEAR_ADD_RMS_NORM.launches(axes, "bfloat16", eps=1e-5)


@pytest.mark.parametrize("tokens", [3, 8])
def test_all_products_of_an_8b_hold_rows_and_compile_without_spills(tokens):
    kernels = {
        kernel.name: kernel
        for kernel in (LINEAR, LINEAR_SWIGLU, LINEAR_ROPE_APPEND, LINEAR_ADD_RMS_NORM)
    }
    held = [launch for launch in launches_of_an_8b(tokens) if "HeldRows<" in launch.function]
    assert len(held) == 5
    for launch in held:
        name = launch.function.split("<")[0].removesuffix("_stream")
        kernel = kernels.get(name, LINEAR_ADD_RMS_NORM)
        assert launch.arch == "sm_90a"
        compile_launch(kernel, launch, "sm_90")
