"""All layers of a decode step of one row in one launch, which only sm_90a has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cugraphs.emulation import emulate
from cugraphs.emulation.emulate import bind_launches
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernel import Array, Case, Kernel, Launch
from cugraphs.testing import case_arrays
from emulated_identities.identity import (
    Identity,
    Kernels,
    assert_right_on_sm_90,
    assert_same_bits,
    case_named,
)

PLACES, LAYERS = 3, 6  # so that the next step finds the first place clear


def layers_are_right(kernels: Kernels) -> None:
    """A layer alone is within the tolerance of the reference."""
    kernel = kernels["decode_layer"]
    for case in kernel.cases:
        assert_right_on_sm_90(kernel, case, case_arrays(kernel, case, "bfloat16"))


def smaller_cards_are_right(kernels: Kernels) -> None:
    """On a card that has no room for all blocks, launches that it stands for are right too.

    Not checked: attention reads early what an op before would have to settle, and does so here
    behind the launch before it in the same op.
    """
    kernel = kernels["decode_layer"]
    for name in ("one_row", "three_parts", "dead_row", "head_dim_128"):
        case = case_named(kernel, name)
        arrays = case_arrays(kernel, case, "bfloat16")
        expected = ExpectedResults(kernel, arrays, case.attrs)
        for order in ("forward", "reverse"):
            given = [array.copy() for array in arrays]
            how = {"arch": "sm_90", "multiprocessors": 1, "order": order}
            problem = expected.judge(emulate(kernel, given, case.attrs, **how), given).problem
            assert not problem, f"decode_layer {name} on one multiprocessor, {order}: {problem}"


def tables_end_with_the_row(kernels: Kernels) -> None:
    """Nothing is read behind the last block of a row, where its table and its slot are the last."""
    kernel = kernels["decode_layer"]
    names = [operand.name for operand in kernel.supplied]
    lengths = {"one_row": 37, "two_parts": 128, "three_parts": 256, "block_size_32": 128}
    for name, length in lengths.items():
        case = case_named(kernel, name)
        arrays = dict(zip(names, case_arrays(kernel, case, "bfloat16"), strict=True))
        block_size = arrays["k_cache"].shape[2]
        table = arrays["block_tables"][arrays["row_ids"][0]][: -(-length // block_size)].copy()
        newest = int(table[-1]) * block_size + (length - 1) % block_size
        row = {"row_ids": 0, "positions": length - 1, "slot_mapping": newest, "seq_lens": length}
        for key, value in row.items():
            arrays[key][:] = value
        arrays["block_tables"] = table[None]
        assert_right_on_sm_90(kernel, case, tuple(arrays.values()))


def stacked_layers_are_one_after_the_other(kernels: Kernels) -> None:
    """Layers in one launch have the bits of a launch a layer, step after step on the same places.

    Rows are of several parts, of one, and of several again.
    """
    kernel = kernels["decode_layer"]
    places: list[Array] = []
    for name in ("three_parts", "one_row", "three_parts"):
        case = case_named(kernel, name)
        layers, apart = _layers(kernel, case), _layers(kernel, case)
        places = places or [layers[0]["here"] for _ in range(PLACES)]
        places = [place.copy() for place in places]
        found = _launched(kernel, case, _with_places(layers, places), checked=True)
        x = apart[0]["x"]
        for layer in _with_places(apart, [np.full_like(place, -1) for place in places]):
            x = _launched(kernel, case, [{**layer, "x": x}])
        what = f"decode_layer {name}"
        assert_same_bits(what, [found], [x])
        for one, other in zip(layers, apart, strict=True):
            caches = ("k_cache", "v_cache")
            assert_same_bits(what, [one[c] for c in caches], [other[c] for c in caches])


def _layers(kernel: Kernel, case: Case) -> list[dict[str, Array]]:
    """Operands by name; each layer has weights and caches of its own."""
    arrays = case_arrays(kernel, case, "bfloat16")
    _, (launch,) = bind_launches(kernel, arrays, case.attrs)
    assert isinstance(launch, Launch)
    common = dict(zip([operand.name for operand in kernel.supplied], arrays, strict=True))
    layers = []
    for number in range(LAYERS):
        own = {
            name: (common[name].astype(np.float32) * (1 + number / 16)).astype(common[name].dtype)
            for name in launch.stack
            if common[name].dtype != np.int32
        }
        layers.append({**common, **own})
    return layers


def _with_places(
    layers: Sequence[dict[str, Array]], places: Sequence[Array]
) -> Sequence[dict[str, Array]]:
    for number, layer in enumerate(layers):
        layer["here"] = places[number % PLACES]
        layer["next_place"] = places[(number + 1) % PLACES]
    return layers


def _launched(
    kernel: Kernel, case: Case, layers: Sequence[Mapping[str, Array]], **how: Any
) -> Array:
    """What layers in one launch give."""
    arrays = [layers[0][operand.name] for operand in kernel.supplied]
    _, (launch,) = bind_launches(kernel, arrays, case.attrs)
    assert isinstance(launch, Launch)
    stacked = [{name: layer[name] for name in launch.stack} for layer in layers[1:]]
    (found,) = emulate(kernel, arrays, case.attrs, arch="sm_90", stacked=stacked, **how)
    return found


IDENTITIES: Mapping[str, tuple[Identity, ...]] = {
    "decode_layer": (
        layers_are_right,
        tables_end_with_the_row,
        stacked_layers_are_one_after_the_other,
        smaller_cards_are_right,
    ),
}
