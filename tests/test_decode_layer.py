"""All layers of a decode step of one row in one launch, on the CPU.

What is stacked is compared with a launch a layer, bit for bit, and that with the reference.
"""

from dataclasses import replace

import numpy as np
import pytest
from conftest import needs_compiler
from decode_layers import PLACES, emulated, layers_of, plain_layers
from emulated_identities.identity import case_named

from cugraphs.emulation import emulate
from cugraphs.expected_results import ExpectedResults
from cugraphs.fusion import fuse
from cugraphs.fusion_rules import RULES
from cugraphs.interpreter import interpret
from cugraphs.joined_ops import queued_launches
from cugraphs.kernels import ATTENTION_PARTS
from cugraphs.kernels.decode_layer import DECODE_LAYER as KERNEL
from cugraphs.kv_cache import KVCacheShape
from cugraphs.ladder import Ladder
from cugraphs.model_shapes import model_shape
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.program import Kind
from cugraphs.step_plan import StepPlan
from cugraphs.testing import case_arrays

# Whatever the sizes: cases are smaller than what it is worth it for.
ONE_ROW = replace(next(rule for rule in RULES if rule.fused is KERNEL), worth=None)


@needs_compiler
@pytest.mark.parametrize("case", KERNEL.cases, ids=lambda case: case.name)
def test_every_case_is_within_the_tolerance(case):
    """In bfloat16, and checked, it is an identity (`layers_are_right`)."""
    arrays = case_arrays(KERNEL, case, "float16")
    given = [array.copy() for array in arrays]
    found = emulate(KERNEL, given, case.attrs, arch="sm_90", order="random", seed=1)
    verdict = ExpectedResults(KERNEL, arrays, case.attrs).judge(found, given)
    assert not verdict.problem, verdict.problem


@needs_compiler
@pytest.mark.parametrize("case", KERNEL.cases, ids=lambda case: case.name)
def test_roundings_are_those_of_the_launches_elsewhere(case):
    """Sums in another order seldom round to another number."""
    results = []
    for arch in ("", "sm_90"):
        given = [array.copy() for array in case_arrays(KERNEL, case, "bfloat16")]
        (out,) = emulate(KERNEL, given, case.attrs, arch=arch)
        results.append([out, *given[:2]])
    for found, expected in zip(*results, strict=True):
        assert (found.view(np.uint16) != expected.view(np.uint16)).mean() < 0.05


@needs_compiler
@pytest.mark.parametrize("name", ["one_row", "three_parts", "dead_row", "head_dim_128"])
@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
def test_layers_in_one_launch_have_the_bits_of_a_launch_a_layer(name, checked):
    case, count = case_named(KERNEL, name), 5
    together, places = layers_of(case, count)
    found = emulated(together, case.attrs, checked=checked, order="random")
    apart, _ = layers_of(case, count)
    x = apart[0]["x"]
    for layer in apart:
        x = emulated([{**layer, "x": x}], case.attrs)
        assert (layer["next_place"] == -1).all()
    np.testing.assert_array_equal(found, x)
    for one, other in zip(together, apart, strict=True):
        assert one["k_cache"].tobytes() == other["k_cache"].tobytes()
        assert one["v_cache"].tobytes() == other["v_cache"].tobytes()
    assert (places[count % PLACES] == -1).all()


@needs_compiler
def test_the_order_of_threads_changes_no_bit():
    case = case_named(KERNEL, "three_parts")
    results = set()
    for order in ("forward", "reverse", "random"):
        layers, _ = layers_of(case, 2)
        results.add(emulated(layers, case.attrs, order=order, seed=7).tobytes())
    assert len(results) == 1


def test_fused_layers_interpret_to_the_bits_of_the_plain_ops():
    case = case_named(KERNEL, "three_parts")
    results = []
    for fused in (False, True):
        layers, _ = layers_of(case, 3)
        program, bound = plain_layers(layers, case.attrs)
        if fused:
            program = fuse(program, [ONE_ROW])
            assert [op.kernel for op in program.ops] == [ATTENTION_PARTS, *[KERNEL] * 3]
        for buffer in program.of_kind(Kind.STATE):
            if buffer not in bound:
                bound[buffer] = np.full(buffer.type.shape, -1, np.int32)
        (out,) = interpret(program, bound, sizes={"rows": 1}).values()
        results.append((out.tobytes(), layers[2]["k_cache"].tobytes()))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("name", "rows", "dtype", "tokens", "is_fused"),
    [
        ("llama-3.2-1b", 1, "bfloat16", 131072, True),
        ("llama-3.2-1b", 1, "float16", 512, True),
        ("llama-3.2-1b", 1, "float32", 512, False),
        ("llama-3.2-1b", 2, "bfloat16", 512, False),
        ("llama-3.1-8b", 1, "bfloat16", 131072, True),
        ("llama-3.1-8b", 1, "float16", 512, True),
        ("mistral-7b-v0.3", 1, "bfloat16", 4096, True),
        ("smollm2-1.7b", 1, "bfloat16", 8192, True),
        ("llama-3.2-3b", 1, "bfloat16", 512, False),  # pieces are too small
        ("tinyllama-1.1b", 1, "bfloat16", 512, False),
        ("llama-2-7b", 1, "float16", 512, False),
        ("smollm2-135m", 1, "bfloat16", 512, False),  # rows are of no whole steps of a warp
        ("llama-3.1-70b", 1, "bfloat16", 512, False),  # a row takes too many registers
    ],
)
def test_all_layers_of_one_row_are_one_launch_where_it_is_worth_it(
    name, rows, dtype, tokens, is_fused
):
    config = LlamaConfig.from_hf({**model_shape(name), "num_hidden_layers": 5}, name)
    cache = KVCacheShape(5, 40, config.num_key_value_heads, 16, config.head_dim, dtype, tokens)
    sizes = {"vocab_size": config.vocab_size, "max_num_seqs": 2, "max_num_batched_tokens": 64}
    plan = StepPlan(Llama(config, dtype), cache, ladder=Ladder(2, "vllm"), **sizes)
    program = plan.decode[plan.ladder.class_for(rows)].program
    fused = [index for index, op in enumerate(program.ops) if op.kernel is KERNEL]
    assert len(fused) == (5 if is_fused else 0)
    if is_fused:
        queued = queued_launches(program, {"rows": rows}, "sm_90", 132)
        assert [len(queued[index]) for index in fused] == [1, 0, 0, 0, 0]
        assert queued[fused[0]][0].meets
        smaller = queued_launches(program, {"rows": rows}, "sm_90", 114)
        assert [len(smaller[index]) for index in fused] == [5] * 5
