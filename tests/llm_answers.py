"""What the tests of ``LLM`` share: prompts, answers of a request alone, a plain loop beside it."""

import numpy as np

from cugraphs import SamplingParams

PROMPTS = ["", "The quick brown fox", "a", "Once upon a time there was a little girl", "dog " * 9]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def assert_idle(llm):
    engine = llm.engine
    engine.blocks.check_invariant()
    assert not engine.has_unfinished()
    assert engine.blocks.num_free == engine.blocks.num_usable
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting
    assert not engine._requests


def tokens_of(output, index=0):
    return list(output.outputs[index].token_ids)


def alone(llm, prompt, params):
    return tokens_of(llm.generate(prompt, params)[0])


def logits_at_every_position(run, tokens):
    """[tokens, vocab] in float64; row i is what follows tokens[: i + 1]."""
    return run.prefill([list(tokens)])[1][0].astype(np.float64)


def continue_with(run, prompt, count, choose):
    """A plain loop: the whole text anew for every token; choose(logits, outputs) -> token."""
    outputs = []
    for _ in range(count):
        logits = logits_at_every_position(run, [*prompt, *outputs])[-1]
        outputs.append(int(choose(logits, outputs)))
    return outputs
