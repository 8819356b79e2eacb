"""Engines that submit their steps in every way there is, and requests of every kind for them."""

import numpy as np
from model_runs import CheckpointRun
from tiny_model import BOS

from cugraphs import SamplingParams
from cugraphs.engine import Engine
from cugraphs.json_file import read_json_object
from cugraphs.tokenizer import Tokenizer

WAYS = {  # num_scheduler_steps, steps_ahead, loops
    "sync": (1, 0, False),
    "async": (1, 1, False),
    "4 at once": (4, 0, False),
    "4 at once, async": (4, 1, False),
    "8 at once, async": (8, 1, False),
    "16 at once, async": (16, 1, False),
    "loops of 4": (4, 1, True),
    "loops of 16": (16, 1, True),
    "loops of 64": (64, 1, True),
}
OTHERS = [way for way in WAYS if way != "sync"]


def make_engine(folder, way="sync", *, num_blocks=None, max_model_len=64, **options):
    """Blocks of 4 tokens; what is computed of a sequence does not depend on the others."""
    num_steps, ahead, loops = WAYS[way]
    prefix_caching = options.pop("prefix_caching", True)
    options = {"max_num_seqs": 4, "batch_invariant": True, "loops": loops, **options}
    run = CheckpointRun(folder, max_model_len=max_model_len, **options)
    if num_blocks is not None:
        run.runner.num_kv_blocks = num_blocks
    files = [read_json_object(folder / f"{n}.json") for n in ("config", "generation_config")]
    return Engine(
        run.runner,
        Tokenizer.load(folder, *files),
        vocab_size=run.config.vocab_size,
        max_num_seqs=options["max_num_seqs"],
        num_scheduler_steps=num_steps,
        steps_ahead=ahead,
        prefix_caching=prefix_caching,
    )


def finish(engine):
    """Run until nothing is left, of requests, blocks and steps."""
    while engine.has_unfinished():
        engine.step()
        engine.blocks.check_invariant()
    assert engine.blocks.num_free == engine.blocks.num_usable
    assert engine.scheduler.num_in_flight == 0


def requests_of_every_kind():
    """Prompts and parameters: ends of every kind, at different steps, greedy and drawn."""
    rng = np.random.default_rng(4)
    kinds = [
        {"max_tokens": 1},
        {"max_tokens": 23, "ignore_eos": True},
        {"max_tokens": 30},
        {"max_tokens": 40, "stop": ["e", "o"]},
        {"max_tokens": 40, "stop": ["a"], "min_tokens": 6, "include_stop_str_in_output": True},
        {"max_tokens": 40, "stop_token_ids": [7, 8, 9, 30, 31, 32], "min_tokens": 4},
        {"max_tokens": 12, "logprobs": 2, "ignore_eos": True},
        {"max_tokens": 9, "prompt_logprobs": 1},
        {"max_tokens": 17, "presence_penalty": 1.5, "ignore_eos": True},
        {"max_tokens": 14, "n": 2},
    ]
    asked = []
    for number, kind in enumerate(kinds * 2):
        prompt = [BOS, *rng.integers(5, 150, int(rng.integers(1, 20))).tolist()]
        temperature = 0.0 if number % 2 and "n" not in kind else 1.0
        asked.append((prompt, SamplingParams(temperature=temperature, seed=number, **kind)))
    return asked
