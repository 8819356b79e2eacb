"""A thousand requests through the demo model, too many for its cache: each text as it is alone."""

import numpy as np

from cugraphs import LLM, SamplingParams

COUNT = 1000
OPTIONS = {"device": "cpu", "batch_invariant": True, "max_model_len": 160}


def requests_of(vocab_size):
    """Prompts of 1 to 60 tokens, a third of them with a common beginning; 1 to 24 tokens each."""
    rng = np.random.default_rng(0)
    common = rng.integers(10, vocab_size, 40).tolist()
    prompts, params = [], []
    for number in range(COUNT):
        prompt = rng.integers(10, vocab_size, int(rng.integers(1, 60))).tolist()
        prompts.append(common + prompt[:20] if number % 3 == 0 else prompt)
        greedy = number % 2 == 0
        params.append(
            SamplingParams(
                temperature=0 if greedy else 1.0,
                seed=number,
                max_tokens=int(rng.integers(1, 25)),
                ignore_eos=number % 5 > 0,
            )
        )
    return prompts, params


def test_a_thousand_requests_equal_their_solo_runs():
    busy = LLM("demo", max_num_seqs=24, num_kv_blocks=60, **OPTIONS)
    prompts, params = requests_of(busy.config.vocab_size)
    together = busy.generate(prompts, params)
    stats = busy.stats()
    assert stats.preemptions > 10 and stats.cached_tokens > 10_000
    assert stats.requests_finished == COUNT and stats.requests_running == 0
    assert stats.kv_blocks_used == 0
    busy.engine.blocks.check_invariant()

    alone = LLM("demo", max_num_seqs=1, prefix_caching=False, **OPTIONS)
    for output, prompt, p in zip(together, prompts, params, strict=True):
        (solo,) = alone.generate([prompt], p)
        assert output.outputs == solo.outputs
