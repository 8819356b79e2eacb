"""Tensor maps: what a declaration refuses, and what the driver is handed among the arguments."""

import ctypes
import math

import pytest

from cugraphs import launch
from cugraphs.kernel import Launch
from cugraphs.kernels import PAGED_PREFILL_ATTENTION
from cugraphs.tensor_map import TensorMap

WHOLE = {
    "operand": "k_cache",
    "dtype": "bfloat16",
    "shape": (64, 8, 2, 1000),
    "strides_bytes": (256, 128, 2048),
    "box": (64, 8, 2, 2),
}
AXES = {
    "tokens": 1000,
    "seqs": 1,
    "kv_heads": 2,
    "block_size": 16,
    "max_blocks": 64,
    "num_blocks": 70,
    "slots": 1,
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dtype": "float32"}, "dtype is float32, expected bfloat16 or float16"),
        ({"box": (32, 8, 2, 2)}, "a row of the box has 64 bytes, expected 128"),
        ({"box": (64, 8, 2, 257)}, "expected sizes from 1 on, of the box up to 256"),
        ({"shape": (64, 8, 2, 0)}, "expected sizes from 1 on"),
        ({"strides_bytes": (256, 120, 2048)}, "expected multiples of 16"),
    ],
)
def test_a_map_that_the_driver_would_refuse_is_refused(wrong, message):
    TensorMap(**WHOLE)
    with pytest.raises(ValueError, match=message):
        TensorMap(**{**WHOLE, **wrong})


def test_only_what_one_architecture_runs_may_have_maps():
    with pytest.raises(ValueError, match="has tensor maps and no arch, expected one that has them"):
        Launch("f", (1, 1, 1), 32, tensor_maps=(TensorMap(**WHOLE),))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_box_of_the_cache_is_16_keys_of_one_block_and_head(head_dim):
    axes = {**AXES, "head_dim": head_dim, "q_size": 4 * 2 * head_dim}
    (one,) = PAGED_PREFILL_ATTENTION.launches(axes, "bfloat16", scale=0.1)
    for tensor_map in one.tensor_maps:
        # The 16 rows of a box lie one after the other in memory, 64 columns at a time.
        elements = [*range(0, 16 * head_dim, 64)]
        found = [
            8 * rows8 * head_dim + row * head_dim + part * 64
            for rows8 in range(tensor_map.box[3])
            for part in range(tensor_map.box[2])
            for row in range(tensor_map.box[1])
        ]
        assert sorted(found) == elements
        assert tensor_map.strides_bytes == (2 * head_dim, 128, 2 * 8 * head_dim)
        assert math.prod(tensor_map.shape) == 70 * 2 * 16 * head_dim


def test_maps_follow_the_scalars_in_the_arguments(monkeypatch):
    pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings (extra dev)")
    monkeypatch.setattr(launch, "_function", lambda *args: 77)
    monkeypatch.setattr(launch, "device_arch", lambda: "sm_90")
    monkeypatch.setattr(
        launch, "encode_tensor_map", lambda tensor_map, address: (address, *range(15))
    )
    axes = {**AXES, "head_dim": 128, "q_size": 1024}
    (one,) = PAGED_PREFILL_ATTENTION.launches(axes, "bfloat16", scale=0.1)
    form = launch.LaunchForm(PAGED_PREFILL_ATTENTION, one, 5)
    pointers = [4096 * (i + 1) for i in range(len(form.operands))]
    prepared = launch.PreparedLaunch(form, pointers)
    count = len(pointers) + len(one.scalars) + 2
    where = (ctypes.c_uint64 * count).from_address(prepared._arguments)
    assert [ctypes.c_uint64.from_address(at).value for at in where[: len(pointers)]] == pointers
    assert ctypes.c_int32.from_address(where[count - 3]).value == one.scalars[-1]
    for at, operand in zip(where[-2:], ("k_cache", "v_cache"), strict=True):
        words = (ctypes.c_uint64 * 16).from_address(at)
        assert [*words] == [pointers[form.operands.index(operand)], *range(15)]
