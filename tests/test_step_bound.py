"""The least time of a step and the price of padding, against arithmetic done by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.gpu_specs import gpu_spec
from cugraphs.step_bound import StepWork, bound_step, price_launches, price_padding

# 1 GB of weights, 1 GFLOP a row, 1 MB a token, on a card of 1 TB/s and 100 TFLOP/s:
# 1 ms to read the weights, 0.01 ms a row, 0.001 ms a token. Compute is the bound above 100 rows.
GPU = gpu_spec("l4").with_figures("round", read_bytes_per_s=1e12, flops_per_s=1e14)
WORK = StepWork(10**9, 10**9, 10**6, launches=250)

# Llama-3.1-8B, every parameter counted: 8,030,261,248 of them in bf16; K and V of 32 layers,
# 8 heads of 128.
LLAMA_8B = StepWork(2 * 8_030_261_248, 2 * 8_030_261_248, 2 * 32 * 8 * 128 * 2, launches=394)


def test_llama_3_1_8b_on_an_h100():
    """257 rows padded to 272 at context 1,024, worked out by hand."""
    bound = bound_step(LLAMA_8B, gpu_spec("h100"), rows=257, rung=272, context=1024)
    assert bound.weight_ms == pytest.approx(4.794, abs=5e-4)
    assert bound.linear_ms == pytest.approx(4.417, abs=5e-4)
    assert bound.kv_ms == pytest.approx(10.297, abs=5e-4)
    assert bound.total_ms == pytest.approx(15.091, abs=5e-4)
    padding = price_padding(LLAMA_8B, gpu_spec("h100"), rows=257, rung=272, context=1024)
    assert padding.compute_ms == pytest.approx(0.244, abs=5e-4)
    assert padding.share == pytest.approx(0.055, abs=5e-4)
    assert padding.added_ms == 0  # reading the weights takes longer than either


@pytest.mark.parametrize(
    ("rows", "rung", "total_ms", "added_ms"),
    [
        (1, 1, 1.001, 0.0),
        (50, 64, 1.05, 0.0),  # both read the weights in 1 ms
        (90, 128, 1.28 + 0.09, 0.28),  # the rung is bound by compute, the batch is not
        (150, 160, 1.6 + 0.15, 0.1),
    ],
)
def test_the_longer_of_weights_and_compute_bounds_the_linear_layers(rows, rung, total_ms, added_ms):
    bound = bound_step(WORK, GPU, rows=rows, rung=rung, context=1)
    assert bound.total_ms == pytest.approx(total_ms)
    assert price_padding(WORK, GPU, rows=rows, rung=rung, context=1).added_ms == pytest.approx(
        added_ms
    )


def test_padding_regime_by_regime():
    price = price_padding(WORK, GPU, rows=120, rung=150, context=10)
    assert price.share == pytest.approx(0.2)
    assert (price.compute_ms, price.added_ms) == (pytest.approx(0.3), pytest.approx(0.3))
    assert price.compute_bound_from_rows == 101
    assert price.kv_ms == 0
    assert price.kv_if_read_ms == pytest.approx(0.3)
    tiles = {tile.tile_rows: (tile.rows, tile.rung_rows, tile.added_ms) for tile in price.tiles}
    assert tiles[8] == (120, 152, pytest.approx(0.32))
    assert tiles[64] == (128, 192, pytest.approx(0.64))
    assert tiles[128] == (128, 256, pytest.approx(1.28))


@given(
    rows=st.integers(1, 1000),
    extra=st.integers(0, 1000),
    context=st.integers(1, 200_000),
    work=st.builds(
        StepWork,
        st.integers(1, 10**12),
        st.integers(1, 10**12),
        st.integers(1, 10**7),
        st.integers(1, 5000),
    ),
)
def test_padding_costs_at_most_its_own_compute(rows, extra, context, work):
    price = price_padding(work, GPU, rows=rows, rung=rows + extra, context=context)
    slack = 1e-9 * bound_step(work, GPU, rows=rows, rung=rows + extra, context=context).total_ms
    assert -slack <= price.added_ms <= price.compute_ms + slack
    if rows + extra < price.compute_bound_from_rows:
        assert price.added_ms == 0
    for tile in price.tiles:
        assert tile.rows >= rows and tile.rung_rows >= rows + extra
        assert tile.rows % tile.tile_rows == tile.rung_rows % tile.tile_rows == 0
        assert (tile.added_ms == 0) == (tile.rows == tile.rung_rows)


def launches(work, rows=1, rung=1, context=1):
    exact, padded = (
        bound_step(work, GPU, rows=rows, rung=one, context=context) for one in (rows, rung)
    )
    return price_launches(work, GPU, exact, padded, launch_us=4, graph_launch_us=5)


def test_launches_beside_a_step():
    """250 launches of 4 us: 1 ms, as long as the weights take; 5% of what takes 20 ms."""
    price = launches(WORK, context=1000)
    assert price.total_ms == 1
    assert price.share == pytest.approx(1 / 2)
    assert price.hidden_from_weight_bytes == 10**9
    assert price.negligible_from_weight_bytes == 20 * 10**9
    # 19 ms beside the weights' 1 ms
    assert price.negligible_from_kv_tokens == 19_000
    assert price.saved_ms == (pytest.approx(0), pytest.approx(0.995))


def test_what_a_graph_saves_is_what_shows():
    """A step of 0.1 ms hides a tenth of 1 ms of launches; its graph still takes those 0.1 ms."""
    small = StepWork(10**8, 10**5, 1, launches=250)
    assert launches(small).saved_ms == (pytest.approx(0.9), pytest.approx(0.995))
    # ... and a graph's own launch where that takes longer.
    tiny = StepWork(10**6, 10**5, 1, launches=250)
    assert launches(tiny).saved_ms[0] == pytest.approx(0.995)


def test_padding_may_cost_more_than_launches():
    low, high = launches(WORK, rows=129, rung=256, context=1000).saved_ms
    assert low == pytest.approx(-1.27)
    assert high == pytest.approx(0.995 - 1.27)
