"""Batch invariance on the GPU: rows of matrix products, and whole models served in any company."""

from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from invariant_serving import Limits, Server, assert_same_as_alone, limits_for, requests_of
from tiny_model import write_tiny_model

from cugraphs.kernel import DTYPES
from cugraphs.kernels import LINEAR, PAGED_DECODE_ATTENTION, PAGED_PREFILL_ATTENTION
from cugraphs.kernels.paged_cases import Heads, prefill_case, with_parts

pytestmark = pytest.mark.gpu

DEMO = Path(__file__).resolve().parent.parent / "models" / "demo"
COUNT, LONGEST = 9, 90
BUDGETS = (1, 5, 16, 17, 64, 130, 300)  # tokens of a step: tiles of every height

# in_features, out_features: parts and none, edges of tiles, a row of no multiple of 16 bytes, and
# an 8B's o_proj and down_proj.
WEIGHTS = [(64, 128), (136, 65), (77, 40), (1304, 129), (2600, 1000), (4096, 4096), (14336, 4096)]
ROWS = (1, 3, 16, 17, 64, 130, 300)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("in_features", "out_features"), WEIGHTS)
def test_rows_of_a_matrix_product(in_features, out_features, dtype):
    from cugraphs.gpu_runs import run_on_gpu

    def product(rows):
        arrays = [array.astype(DTYPES[dtype]) for array in (rows, weight, bias)]
        return run_on_gpu(LINEAR, arrays, {"batch_invariant": True})[0]

    rng = np.random.default_rng(in_features)
    x = rng.standard_normal((max(ROWS), in_features), np.float32)
    weight = rng.standard_normal((out_features, in_features), np.float32) * in_features**-0.5
    bias = rng.standard_normal(out_features, np.float32)
    whole = product(x)
    for count in ROWS:
        first = int(rng.integers(0, max(ROWS) - count + 1))
        part = product(x[first : first + count])
        expected = whole[first : first + count]
        assert part.tobytes() == expected.tobytes(), f"{count} rows from {first}"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_of_a_product_in_several_launches(dtype):
    """Sums of parts of 2,300 tokens do not fit into the workspace at once."""
    from cugraphs.gpu_runs import run_on_gpu

    axes = {"tokens": 2300, "in_features": 4096, "out_features": 4096}
    attrs = {"batch_invariant": True}
    assert len(LINEAR.launches(axes, dtype, **attrs)) > 2
    rng = np.random.default_rng(0)
    x, weight, bias = (
        rng.standard_normal(shape, np.float32).astype(DTYPES[dtype])
        for shape in ((2300, 4096), (4096, 4096), (4096,))
    )
    (whole,) = run_on_gpu(LINEAR, [x, weight, bias], attrs)
    for first, count in ((0, 1), (2299, 1), (1016, 16), (2000, 64), (70, 1200)):
        rows = slice(first, first + count)
        (part,) = run_on_gpu(LINEAR, [x[rows], weight, bias], attrs)
        assert part.tobytes() == whole[rows].tobytes(), f"{count} rows from {first}"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rows_of_attention(dtype):
    """A token has the same bits in a chunk, in a decode batch, and alone: in 1 to 32 parts."""
    from cugraphs.gpu_runs import run_on_gpu

    chunks = [(9000, 3), (300, 2), (64, 64), (2049, 1)]
    case = prefill_case("", Heads(8, 2, 128), chunks, batch_invariant=True)
    arrays = case.make(np.random.default_rng(0), DTYPES[dtype])
    q, *cache, slot_ids, seq_lens, starts = arrays
    (prefilled,) = run_on_gpu(PAGED_PREFILL_ATTENTION, arrays, case.attrs)
    owner = np.repeat(np.arange(len(chunks)), np.diff(starts))
    row_ids = slot_ids[owner]
    lengths = seq_lens[owner] - starts[owner + 1] + np.arange(len(q), dtype=np.int32) + 1
    given = with_parts([q, *cache, row_ids, lengths], batch_invariant=True)
    (decoded,) = run_on_gpu(PAGED_DECODE_ATTENTION, given, case.attrs)
    assert decoded.tobytes() == prefilled.tobytes()
    for row in (0, 2, 3, 5, 40, 69):
        one = slice(row, row + 1)
        given = with_parts([q[one], *cache, row_ids[one], lengths[one]], batch_invariant=True)
        (alone,) = run_on_gpu(PAGED_DECODE_ATTENTION, given, case.attrs)
        assert alone.tobytes() == decoded[one].tobytes(), f"row {row} of {lengths[row]} tokens"


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def demo(request, device):
    return started(Server(DEMO, request.param, max_model_len=128, device=device, mode="full"))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def wide(request, device, tmp_path_factory):
    """Random, 6 query heads on 2 KV heads, and long enough rows to be cut into parts."""
    config = {
        "hidden_size": 96,
        "intermediate_size": 2056,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    }
    folder = write_tiny_model(tmp_path_factory.mktemp("invariance") / "wide", config=config)
    return started(Server(folder, request.param, max_model_len=128, device=device))


def started(server):
    asked = requests_of(server, LONGEST, COUNT)
    return server, asked, server.alone(asked)


@hypothesis.settings(max_examples=6)
@hypothesis.given(st.data())
def test_a_random_model(wide, data):
    server, asked, alone = wide
    limits = data.draw(limits_for(server, COUNT, BUDGETS))
    assert_same_as_alone(server.serve(asked, limits)[0], alone, str(limits))


@hypothesis.settings(max_examples=4)
@hypothesis.given(st.data())
def test_the_demo_model(demo, data):
    server, asked, alone = demo
    limits = data.draw(limits_for(server, COUNT, BUDGETS))
    assert_same_as_alone(server.serve(asked, limits)[0], alone, str(limits))


@pytest.mark.parametrize("budget", BUDGETS[1:])
def test_all_at_once_and_preempted(wide, budget):
    server, asked, alone = wide
    at_once = tuple((0, number) for number in range(COUNT))
    limits = Limits(COUNT, max(budget, COUNT), server.fewest_blocks, at_once)
    served, engine = server.serve(asked, limits)
    assert engine.scheduler.num_preemptions > 0
    assert_same_as_alone(served, alone, str(limits))
