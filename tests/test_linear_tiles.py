"""How batch-invariant products are cut: what decides their bits knows nothing of the rows."""

import numpy as np
import pytest
from conftest import needs_compiler
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.emulation import emulate
from cugraphs.kernel import DTYPES as NUMPY_DTYPES
from cugraphs.kernel import MatrixProduct
from cugraphs.kernels import LINEAR
from cugraphs.kernels.linear_tiles import parts_of, tile_launches, workspace_bytes
from cugraphs.nvrtc import MAX_SHARED_BYTES

AXES = st.fixed_dictionaries(
    {
        "tokens": st.integers(1, 20_000),
        "in_features": st.integers(1, 20_000),
        "out_features": st.integers(1, 200_000),
    }
)
DTYPES = st.sampled_from(["float32", "float16", "bfloat16"])


@given(AXES, DTYPES, st.integers(1, 20_000))
def test_parts_follow_from_the_weight_alone(axes, dtype, tokens):
    parts = parts_of(axes, dtype)
    assert parts_of({**axes, "tokens": tokens}, dtype) == parts
    for launch in tile_launches(axes, dtype):
        is_sum = launch.function.startswith("linear_sum<")
        assert (launch.scalars[-1] if is_sum else launch.grid[1]) == parts


@given(AXES, DTYPES)
def test_every_token_is_computed_once_in_a_workspace_that_holds_it(axes, dtype):
    launches = list(tile_launches(axes, dtype))
    parts, workspace, done = parts_of(axes, dtype), workspace_bytes(axes, dtype), 0
    for i, launch in enumerate(launches):
        first, count = (int(scalar) for scalar in launch.scalars[:2])
        if parts > 1 and i % 2:  # the sum over what the launch before it has made
            assert (first, count) == tuple(map(int, launches[i - 1].scalars[:2]))
            assert launch.programmatic
            continue
        assert first == done
        done += count
        if parts > 1:
            assert 4 * parts * count * axes["out_features"] <= workspace
    assert done == axes["tokens"]
    assert workspace <= MatrixProduct.workspace_bytes
    fewer = {**axes, "tokens": max(1, axes["tokens"] // 2)}
    assert workspace_bytes(fewer, dtype) <= workspace


@given(AXES, DTYPES)
def test_launches_fit_every_card(axes, dtype):
    for launch in tile_launches(axes, dtype):
        assert launch.shared_bytes <= min(MAX_SHARED_BYTES.values())
        assert launch.grid[0] < 2**31 and launch.grid[1] <= 4


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_small_workspace_does_not_change_the_bits(dtype, monkeypatch):
    rng = np.random.default_rng(0)
    shapes = ((300, 1032), (10, 1032), (10,))
    arrays = [rng.standard_normal(s, np.float32).astype(NUMPY_DTYPES[dtype]) for s in shapes]
    attrs = {"batch_invariant": True}
    axes = {"tokens": 300, "in_features": 1032, "out_features": 10}
    (whole,) = emulate(LINEAR, arrays, attrs)
    assert len(LINEAR.launches(axes, dtype, **attrs)) == 2
    monkeypatch.setattr(MatrixProduct, "workspace_bytes", 10_000)
    assert len(LINEAR.launches(axes, dtype, **attrs)) == 6  # 128, 128 and 44 tokens
    (in_turns,) = emulate(LINEAR, arrays, attrs)
    assert in_turns.tobytes() == whole.tobytes()
