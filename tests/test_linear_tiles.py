"""How batch-invariant products are cut: what decides their bits knows nothing of the rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.kernel import Launch, MatrixProduct
from cugraphs.kernels import LINEAR
from cugraphs.kernels.linear_tiles import parts_of, tile_launches, workspace_bytes
from cugraphs.nvrtc import ARCHITECTURES, MAX_SHARED_BYTES
from cugraphs.testing import compile_launch

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
    assert {int(launch.scalars[-1]) for launch in tile_launches(axes, dtype)} == {parts}


@given(AXES, DTYPES)
def test_every_token_is_computed_once(axes, dtype):
    *products, last = tile_launches(axes, dtype)
    if last.function.startswith("linear_sum<"):
        assert len(products) == 1 and last.programmatic
    else:
        products.append(last)
    done = 0
    for launch in products:
        first, count = (int(scalar) for scalar in launch.scalars[:2])
        assert first == done
        done += count
    assert done == axes["tokens"]


@given(AXES, DTYPES, st.integers(20, 25).map(lambda power: 2**power))
def test_sums_of_parts_have_room(axes, dtype, limit_bytes):
    """And the workspace is never smaller for more rows."""
    launches = list(tile_launches(axes, dtype, limit_bytes=limit_bytes))
    room = workspace_bytes(axes, dtype, limit_bytes=limit_bytes)
    parts, in_turns = parts_of(axes, dtype), launches[0].function.endswith("true>")
    if parts == 1:
        assert room == 0
    elif in_turns:  # 4 bytes for each result of a tile
        sizes = launches[0].function.split("<")[1].split(", ")
        assert room >= 4 * launches[0].grid[0] * int(sizes[1]) * int(sizes[2])
    else:
        assert room == 4 * parts * axes["tokens"] * axes["out_features"]
    fewer = {**axes, "tokens": max(1, axes["tokens"] * 2 // 3)}
    assert workspace_bytes(fewer, dtype, limit_bytes=limit_bytes) <= room
    assert workspace_bytes(axes, dtype) <= MatrixProduct.workspace_bytes


@given(AXES, DTYPES)
def test_launches_fit_every_card(axes, dtype):
    for launch in tile_launches(axes, dtype):
        assert launch.shared_bytes <= min(MAX_SHARED_BYTES.values())
        assert launch.grid[0] < 2**31 and launch.grid[1] <= 4


@pytest.mark.parametrize(
    ("dtype", "in_features"),
    [("float32", 4096), ("float16", 4096), ("bfloat16", 4096), ("bfloat16", 4100)],
)
def test_many_tokens_compile_for_every_architecture_without_spills(dtype, in_features):
    """No case has so many tokens that parts take turns."""
    axes = {"tokens": 5000, "in_features": in_features, "out_features": 4096}
    launches = LINEAR.launches(axes, dtype, batch_invariant=True)
    assert len(launches) > 1
    for launch in launches[:1]:
        assert isinstance(launch, Launch) and launch.function.endswith("true>")
        for arch in ARCHITECTURES:
            compile_launch(LINEAR, launch, arch)


def test_the_declaration_takes_its_workspace_from_here():
    for tokens in (1, 100, 5000):
        axes = {"tokens": tokens, "in_features": 4096, "out_features": 4096}
        found = LINEAR.workspace_bytes(axes, "bfloat16", {"batch_invariant": True})
        assert found == workspace_bytes(axes, "bfloat16") > 0
