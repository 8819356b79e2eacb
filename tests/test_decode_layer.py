"""All layers of a decode step of one row in one launch, on the CPU: of any case, and of several layers.

What is stacked is compared with a launch a layer, bit for bit, and that with the reference.
"""

import numpy as np
import pytest
from conftest import needs_compiler

from cugraphs.emulation import emulate
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernels.decode_layer import DECODE_LAYER as KERNEL
from cugraphs.kernels.decode_layer import STACK
from cugraphs.testing import case_arrays

HOW = {"bfloat16": {"checked": True}, "float16": {"order": "random", "seed": 1}}
CASES = [
    pytest.param(case, dtype, id=f"{case.name}-{dtype}") for case in KERNEL.cases for dtype in HOW
]
PLACES = 3
NAMES = [operand.name for operand in KERNEL.supplied]


def case_of(name):
    return next(case for case in KERNEL.cases if case.name == name)


def named(case, dtype="bfloat16", seed=0):
    """The operands of a case by name; another seed gives other weights and another cache."""
    rng = np.random.default_rng(seed)
    return dict(zip(NAMES, case.make(rng, case_arrays(KERNEL, case, dtype)[0].dtype), strict=True))


def layers_of(case, count, dtype="bfloat16"):
    """Operands of so many layers of one step; they have all but their stack in common."""
    places = [named(case, dtype)["here"] for _ in range(PLACES)]
    common = named(case, dtype)
    layers = []
    for i in range(count):
        own = named(case, dtype, seed=i)
        own = {name: own[name] for name in STACK}
        # The same tables for all: only what is in the cache differs.
        for name in ("k_cache", "v_cache"):
            own[name] = (common[name].astype(np.float32) * (1 + i / 8)).astype(own[name].dtype)
        own |= {"here": places[i % PLACES], "next_place": places[(i + 1) % PLACES]}
        layers.append({**common, **own})
    return layers, places


def run(layers, attrs, **how):
    """The layers in one launch."""
    first = [layers[0][name] for name in NAMES]
    stacked = [{name: layer[name] for name in STACK} for layer in layers[1:]]
    return emulate(KERNEL, first, attrs, arch="sm_90", stacked=stacked, **how)[0]


@needs_compiler
@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_every_case_is_within_the_tolerance(case, dtype):
    arrays = case_arrays(KERNEL, case, dtype)
    given = [array.copy() for array in arrays]
    found = emulate(KERNEL, given, case.attrs, arch="sm_90", **HOW[dtype])
    verdict = ExpectedResults(KERNEL, arrays, case.attrs).judge(found, given)
    assert not verdict.problem, verdict.problem


@needs_compiler
@pytest.mark.parametrize("name", ["one_row", "three_parts", "dead_row", "head_dim_128"])
@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
def test_layers_in_one_launch_have_the_bits_of_a_launch_a_layer(name, checked):
    case, count = case_of(name), 5
    together, places = layers_of(case, count)
    found = run(together, case.attrs, checked=checked, order="random")
    apart, _ = layers_of(case, count)
    x = apart[0]["x"]
    for layer in apart:
        x = run([{**layer, "x": x}], case.attrs)
        assert (layer["next_place"] == -1).all()
    np.testing.assert_array_equal(found, x)
    for one, other in zip(together, apart, strict=True):
        assert one["k_cache"].tobytes() == other["k_cache"].tobytes()
        assert one["v_cache"].tobytes() == other["v_cache"].tobytes()
    assert (places[count % PLACES] == -1).all()


@needs_compiler
def test_a_longer_row_finds_no_part_of_an_earlier_step():
    """A row of many parts, one of a single part, then of many again, on the same places."""
    places = None
    for name in ("three_parts", "one_row", "three_parts"):
        case = case_of(name)
        layers, fresh = layers_of(case, 3)
        places = places or fresh
        for i, layer in enumerate(layers):
            layer |= {"here": places[i % PLACES], "next_place": places[(i + 1) % PLACES]}
        found = run(layers, case.attrs, checked=True)
        alone, _ = layers_of(case, 3)
        np.testing.assert_array_equal(found, run(alone, case.attrs))


@needs_compiler
def test_the_order_of_threads_changes_no_bit():
    case = case_of("three_parts")
    results = set()
    for order in ("forward", "reverse", "random"):
        layers, _ = layers_of(case, 2)
        results.add(run(layers, case.attrs, order=order, seed=7).tobytes())
    assert len(results) == 1
