"""All layers of a decode step of one row in one launch, which only sm_90a has."""

from __future__ import annotations

from collections.abc import Mapping

from decode_layers import emulated, give_places, layers_of

from cugraphs.emulation import emulate
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernel import Array
from cugraphs.testing import case_arrays
from emulated_identities.identity import (
    Identity,
    Kernels,
    assert_right_on_sm_90,
    assert_same_bits,
    case_named,
)

LAYERS = 6  # twice as many as places, so that the next step finds the first one clear


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
        layers, clear = layers_of(case, LAYERS)
        places = places or clear
        give_places(layers, places)
        found = emulated(layers, case.attrs, kernel, checked=True)
        apart, _ = layers_of(case, LAYERS)
        x = apart[0]["x"]
        for layer in apart:
            x = emulated([{**layer, "x": x}], case.attrs, kernel)
        what = f"decode_layer {name}"
        assert_same_bits(what, [found], [x])
        for one, other in zip(layers, apart, strict=True):
            caches = ("k_cache", "v_cache")
            assert_same_bits(what, [one[c] for c in caches], [other[c] for c in caches])


IDENTITIES: Mapping[str, tuple[Identity, ...]] = {
    "decode_layer": (
        layers_are_right,
        tables_end_with_the_row,
        stacked_layers_are_one_after_the_other,
        smaller_cards_are_right,
    ),
}
