"""The engine on a GPU: crowded, preempted and hit from the cache, every text is as it is alone."""

from pathlib import Path

import numpy as np
import pytest
from test_serving import requests_of

from cugraphs import LLM, SamplingParams

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parent.parent
COUNT = 120
OPTIONS = {"device": "cuda", "batch_invariant": True, "max_model_len": 160}


@pytest.fixture(params=["demo", "stories260k"])
def model(request):
    return request.param if request.param == "demo" else request.getfixturevalue(request.param)


@pytest.mark.parametrize("mode", ["full_and_piecewise", "none"])
def test_many_requests_through_a_small_cache_equal_their_solo_runs(model, mode):
    busy = LLM(model, max_num_seqs=24, num_kv_blocks=60, graph_mode=mode, **OPTIONS)
    prompts, params = (every[:COUNT] for every in requests_of(busy.config.vocab_size))
    together = busy.generate(prompts, params)
    stats = busy.stats()
    assert stats.preemptions > 0 and stats.cached_tokens > 500
    assert stats.requests_finished == COUNT and stats.requests_running == stats.kv_blocks_used == 0
    assert bool(stats.replays) == (mode != "none")
    busy.engine.blocks.check_invariant()

    alone = LLM(model, max_num_seqs=1, prefix_caching=False, **OPTIONS)
    for output, prompt, p in zip(together, prompts, params, strict=True):
        (solo,) = alone.generate([prompt], p)
        assert output.outputs == solo.outputs


def test_a_hit_in_the_cache_equals_a_cold_run(model):
    llm = LLM(model, max_num_seqs=16, **OPTIONS)  # all at once: samples find the first one running
    cold = LLM(model, max_num_seqs=8, prefix_caching=False, **OPTIONS)
    rng = np.random.default_rng(2)
    prompts = [rng.integers(10, llm.config.vocab_size, n).tolist() for n in (33, 64, 65, 120)]
    for params in (
        SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=2),
        SamplingParams(n=3, seed=4, max_tokens=20, ignore_eos=True),
    ):
        expected = cold.generate(prompts, params)
        for _ in range(2):  # the second time every full block but the last token's is there
            found = llm.generate(prompts, params)
            assert [o.outputs for o in found] == [o.outputs for o in expected]
    # The other samples have all but the last token of the first one.
    cached = [32 + 2 * 32, 48 + 2 * 63, 64 + 2 * 64, 112 + 2 * 119]
    assert [output.times.cached_tokens for output in found] == cached
    assert cold.stats().cached_tokens == 0 and cold.stats().forks > 0


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_samples_that_share_their_prompt_equal_those_that_do_not(model, prefix_caching):
    """Alone, one after the other, each computes its prompt; together all but the first take it."""
    busy = LLM(model, max_num_seqs=16, prefix_caching=prefix_caching, **OPTIONS)
    alone = LLM(model, max_num_seqs=1, prefix_caching=False, **OPTIONS)
    rng = np.random.default_rng(3)
    prompts = [rng.integers(10, busy.config.vocab_size, n).tolist() for n in (17, 31, 32, 33, 100)]
    params = SamplingParams(n=4, seed=4, max_tokens=20, ignore_eos=True, logprobs=1)
    found, expected = busy.generate(prompts, params), alone.generate(prompts, params)
    assert [output.outputs for output in found] == [output.outputs for output in expected]
    stats = busy.stats()
    assert stats.forks >= 4 and stats.copied_blocks > 0 and stats.kv_blocks_used == 0
    assert alone.stats().forks == 0


@pytest.mark.parametrize("ways", [[], ["--num-scheduler-steps", "4", "--step-loops"]])
def test_random_traffic_with_aborts(model, ways, monkeypatch, capsys):
    """Some seconds of what scripts/soak.py does for minutes.

    On a card that others use a second is a few steps, in which not everything is met.
    """
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import soak

    arguments = [str(model), "--device", "cuda", "--minutes", "0.06", "--requests", "40"]
    code = soak.main([*arguments, "--steps", "500", "--shared-gpu", *ways])
    assert code == 0, capsys.readouterr().out
