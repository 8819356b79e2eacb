"""Engines whose decode steps of one row have all layers in one launch, whose blocks meet.

Two of them on one card, by turns and at once, beside others' kernels, give what each gives alone.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from busy_card import busy_card
from test_interrupts import Interrupter
from tiny_model import write_tiny_model

from cugraphs import LLM, SamplingParams
from cugraphs.kernel import MAX_STACK
from cugraphs.kernels import DECODE_LAYER

pytestmark = pytest.mark.gpu

# Small ones that are worth one launch; its blocks fill an H200.
CONFIG = {
    "hidden_size": 1536,
    "intermediate_size": 1536,
    "num_hidden_layers": 3,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16",
}
PROMPTS = ["The quick brown fox", "Once upon a time there was a little girl who had a cat"]
LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
SIZES = {
    "device": "cuda",
    "dtype": "bfloat16",
    "max_num_seqs": 2,
    "max_model_len": 512,
    "num_kv_blocks": 40,
    "prefix_caching": False,  # a prompt that is in the cache gets other roundings
}
WAYS = {
    "replayed": {},
    "loops": {"num_scheduler_steps": 8, "step_loops": True, "async_scheduling": True},
    "eager": {"graph_mode": "none"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("one_row") / "model", config=CONFIG)


@pytest.fixture(scope="module", params=WAYS)
def engines(folder, request):
    """Two in one process, each with a stream of its own."""
    both = [LLM(folder, **SIZES, **WAYS[request.param]) for _ in range(2)]
    assert fused_layers(both[0]) == CONFIG["num_hidden_layers"]
    return both


def fused_layers(engine):
    program = engine.runner.plan.decode[1].program
    return sum(op.kernel is DECODE_LAYER for op in program.ops)


def tokens(outputs):
    return [answer.token_ids for output in outputs for answer in output.outputs]


def alone(engine, prompt, params=LONG):
    return tokens(engine.generate([prompt], params))


def each_alone(engines):
    """What each says to its prompt, twice."""
    first, again = (
        [alone(engine, prompt) for engine, prompt in zip(engines, PROMPTS, strict=True)]
        for _ in range(2)
    )
    assert first == again
    return first


def test_two_engines_by_turns(engines):
    expected = each_alone(engines)
    streams = [engine.stream(p, LONG) for engine, p in zip(engines, PROMPTS, strict=True)]
    for _ in zip(*streams, strict=False):
        pass
    for stream in streams:
        for _ in stream:
            pass
    assert [tokens([stream.output]) for stream in streams] == expected


def test_two_engines_at_once_beside_others_kernels(engines):
    """Whose blocks lie beside a step's on multiprocessors, or in the way of a launch of it."""
    expected = each_alone(engines)
    with busy_card(), ThreadPoolExecutor(2) as pool:
        for _ in range(4):
            found = list(pool.map(alone, engines, PROMPTS))
            assert found == expected


def test_an_interrupt_leaves_nothing_behind(engines):
    engine, _ = engines
    expected = alone(engine, PROMPTS[0], SHORT)
    with Interrupter() as counted:
        engine.generate([PROMPTS[0]], SHORT)
    for at in range(counted.lines // 12, counted.lines, counted.lines // 6):
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at):
            engine.generate([PROMPTS[0]], SHORT)
        assert alone(engine, PROMPTS[0], SHORT) == expected


def test_more_layers_than_one_launch_takes(tmp_path):
    """Two launches of blocks that meet, one behind the other: eager, in a replay, in a loop."""
    config = {**CONFIG, "num_hidden_layers": MAX_STACK + 3}
    folder = write_tiny_model(tmp_path / "model", config=config)
    found = set()
    for how in WAYS.values():
        engine = LLM(folder, **SIZES, **how)
        assert fused_layers(engine) == MAX_STACK + 3
        found |= {tuple(alone(engine, PROMPTS[0])[0]) for _ in range(3)}
    assert len(found) == 1
