"""The engine on the CPU where each layer of a step of one row is an op: it says what it said."""

import contextlib
from dataclasses import replace
from functools import partial

import pytest
from test_interrupts import Interrupter
from tiny_model import write_tiny_model

from cugraphs import LLM, SamplingParams, compiler
from cugraphs.fusion import fuse
from cugraphs.fusion_rules import RULES
from cugraphs.kernels import DECODE_LAYER

CONFIG = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
PROMPTS = ["The quick brown fox", "over the", "Once upon a time there was a little girl"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    SamplingParams(seed=1, max_tokens=12, n=2),
    SamplingParams(seed=2, max_tokens=40, presence_penalty=1.0, ignore_eos=True),
]
WAYS = {
    "sync": {},
    "loops": {"num_scheduler_steps": 8, "step_loops": True, "async_scheduling": True},
}
# Whatever the sizes, and in float32, in which the CPU computes.
ONE_ROW = [
    replace(rule, worth=None, dtypes=()) if rule.fused is DECODE_LAYER else rule for rule in RULES
]


def told(llm):
    """What is said to all, of whom the longest-lived end alone; and to each alone."""
    together = [output.outputs for output in llm.generate(PROMPTS, PARAMS)]
    alone = [llm.generate(p, q)[0].outputs for p, q in zip(PROMPTS, PARAMS, strict=True)]
    return together, alone


@pytest.mark.parametrize("way", WAYS)
def test_the_engine_says_the_same_and_interrupts_change_nothing(tmp_path, monkeypatch, way):
    folder = write_tiny_model(tmp_path / "model", config=CONFIG)
    how = {"device": "cpu", "max_num_seqs": 3, "max_model_len": 96}
    expected = told(LLM(folder, **how))
    monkeypatch.setattr(compiler, "fuse", partial(fuse, rules=ONE_ROW))
    llm = LLM(folder, **how, **WAYS[way])
    program = llm.runner.plan.decode[1].program
    assert sum(op.kernel is DECODE_LAYER for op in program.ops) == CONFIG["num_hidden_layers"]
    assert told(llm) == expected
    with Interrupter() as counted:
        llm.generate(PROMPTS, PARAMS)
    for at in range(counted.lines // 8, counted.lines, counted.lines // 4):
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at):
            llm.generate(PROMPTS, PARAMS)
        assert told(llm) == expected
