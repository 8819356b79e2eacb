"""Samples of one prompt: one computes it, others take its blocks and copy the one they write to."""

import dataclasses

import numpy as np
import pytest
from step_ways import WAYS, finish, make_engine
from tiny_model import BOS

from cugraphs import LLM, SamplingParams
from cugraphs.step_state import MAX_COPIES

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
SAMPLED = SamplingParams(n=4, temperature=1.0, seed=3, max_tokens=6, ignore_eos=True)
PROMPT = [BOS, *range(20, 42)]  # 23 tokens: five blocks of 4, and three tokens


def tables_of(engine, request):
    return [engine.blocks.block_table(c.sequence.slot) for c in request.completions]


def several_samples():
    """Prompts around the edges of a block, ends of every kind."""
    rng = np.random.default_rng(6)
    kinds = [
        {"n": 2, "max_tokens": 9, "ignore_eos": True},
        {"n": 4, "max_tokens": 1},
        {"n": 3, "max_tokens": 30},
        {"n": 5, "max_tokens": 20, "stop": ["e", "o"]},
        {"n": 2, "max_tokens": 12, "logprobs": 2, "ignore_eos": True},
        {"n": 3, "max_tokens": 9, "prompt_logprobs": 1},
        {"n": 2, "max_tokens": 17, "presence_penalty": 1.5, "ignore_eos": True},
        {"n": 1, "max_tokens": 20, "ignore_eos": True},
    ]
    lengths = [8, 9, 5, 24, 12, 13, 4, 7]
    return [
        ([BOS, *rng.integers(5, 150, length - 1).tolist()], SamplingParams(seed=i, **kind))
        for i, (length, kind) in enumerate(zip(lengths, kinds, strict=True))
    ]


@pytest.fixture(scope="module")
def expected(folder):
    """What each gets where its samples run one after the other, and no block is shared."""
    outputs = []
    for prompt, params in several_samples():
        engine = make_engine(folder, max_num_seqs=1, prefix_caching=False)
        request = engine.add_request(prompt, params)
        finish(engine)
        assert engine.stats().forks == 0
        outputs.append(request.output())
    return outputs


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_fork_by_hand(folder, prefix_caching):
    engine = make_engine(folder, prefix_caching=prefix_caching)
    request = engine.add_request(PROMPT, SAMPLED)
    engine.step()
    assert len(engine.scheduler.running) == 1 and len(engine.scheduler.waiting) == 3
    engine.step()
    first, *others = tables_of(engine, request)
    assert len(first) == 6
    assert all(table[:5] == first[:5] for table in others)
    assert len({first[5], *(table[5] for table in others)}) == 4
    state = engine._runner.state
    caches = [array for name, array in state.items() if "cache" in name]
    assert len(caches) == 4  # K and V of two layers
    for cache in caches:
        for table in others:  # the last prompt token is each one's own, the two before are copied
            np.testing.assert_array_equal(cache[table[5], :, :2], cache[first[5], :, :2])
            assert not np.isnan(cache[table[5], :, :2]).any()
    stats = engine.stats()
    assert stats.prompt_tokens == 23 + 3
    assert (stats.forks, stats.forked_tokens, stats.copied_blocks) == (3, 3 * 22, 3)
    finish(engine)
    assert len({c.token_ids for c in request.output().outputs}) > 1


def test_a_prompt_of_whole_blocks_has_its_last_one_copied_too(folder):
    """Its last token is computed for every sample, so each writes in that block."""
    engine = make_engine(folder, prefix_caching=False)
    request = engine.add_request(PROMPT[:20], SAMPLED)
    engine.step()
    engine.step()
    tables = tables_of(engine, request)
    assert {tuple(table[:4]) for table in tables} == {tuple(tables[0][:4])}
    assert len({table[4] for table in tables}) == 4
    assert (engine.stats().forked_tokens, engine.stats().copied_blocks) == (3 * 19, 3)
    finish(engine)


def test_a_prompt_one_token_longer_than_its_blocks_needs_no_copy(folder):
    engine = make_engine(folder, prefix_caching=False)
    engine.add_request(PROMPT[:21], SAMPLED)
    finish(engine)
    assert (engine.stats().forks, engine.stats().copied_blocks) == (3, 0)


def test_a_prompt_within_one_block_is_computed_by_all_at_once(folder):
    engine = make_engine(folder)
    engine.add_request(PROMPT[:4], SAMPLED)
    engine.step()
    assert len(engine.scheduler.running) == 4
    finish(engine)
    assert engine.stats().forks == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_blocks", [None, 20], ids=["roomy", "tight"])
def test_answers_are_those_of_samples_alone(folder, expected, way, prefix_caching, num_blocks):
    engine = make_engine(folder, way, num_blocks=num_blocks, prefix_caching=prefix_caching)
    requests = []
    for prompt, params in several_samples():
        requests.append(engine.add_request(prompt, params))
        engine.step()
        engine.blocks.check_invariant()
    finish(engine)
    for request, wanted in zip(requests, expected, strict=True):
        output = request.output()
        assert output.outputs == wanted.outputs and output.prompt_logprobs == wanted.prompt_logprobs
    stats = engine.stats()
    assert stats.forks > 3 and stats.copied_blocks > 0
    assert (stats.preemptions > 0) == (num_blocks is not None)


def test_a_prompt_in_chunks_is_taken_once_it_is_whole(folder, expected):
    engine = make_engine(folder, max_num_batched_tokens=5, prefix_caching=False)
    prompt, params = several_samples()[3]
    request = engine.add_request(prompt, params)
    for _ in range(4):
        engine.step()
        assert engine.stats().forks == 0 and len(engine.scheduler.running) == 1
    finish(engine)
    assert request.output().outputs == expected[3].outputs
    assert engine.stats().forks >= 3


def test_while_a_step_is_queued_the_next_one_may_take_its_blocks(folder):
    """The copy is behind the step that writes what it copies, on the device's own time."""
    engine = make_engine(folder, "async", prefix_caching=False)
    engine.add_request(PROMPT, SAMPLED)
    engine.step()
    assert engine.stats().steps == 1 and engine.scheduler.num_in_flight == 1
    assert engine.stats().forks == 3  # in the step in flight
    finish(engine)


def test_a_sample_that_was_preempted_takes_the_prompt_of_one_that_runs(folder):
    engine = make_engine(folder, prefix_caching=False, max_num_seqs=2)
    params = dataclasses.replace(SAMPLED, n=2, max_tokens=12)
    request = engine.add_request(PROMPT, params)
    for _ in range(4):
        engine.step()
    assert engine.stats().forks == 1
    engine.scheduler._preempt_last()
    engine.step()
    stats = engine.stats()
    assert (stats.forks, stats.forked_tokens, stats.copied_blocks) == (2, 22 + 23, 2)
    assert stats.prompt_tokens == 23 + 1 + 3  # and the three tokens that it had
    finish(engine)
    alone = make_engine(folder, max_num_seqs=1, prefix_caching=False)
    wanted = alone.add_request(PROMPT, params)
    finish(alone)
    assert request.output().outputs == wanted.output().outputs


def test_an_abort_lets_go_of_all_blocks(folder):
    engine = make_engine(folder, "async", prefix_caching=False)
    dropped, kept = (engine.add_request(PROMPT, SAMPLED) for _ in range(2))
    for _ in range(3):
        engine.step()
    engine.abort(dropped)
    engine.blocks.check_invariant()
    finish(engine)
    assert all(len(c.token_ids) == 6 for c in kept.output().outputs)


@pytest.mark.parametrize("way", ["sync", "async", "loops of 4"])
def test_a_copy_that_fails_is_taken_back(folder, expected, way, monkeypatch):
    engine = make_engine(folder, way)
    # All of them twice: of one, only two or three blocks are copied, as stop strings are found.
    requests = [engine.add_request(*asked) for asked in several_samples() * 2]
    copy_blocks, failures = engine._runner.copy_blocks, []

    def fails_at_first(pairs):
        copy_blocks(pairs)
        if pairs and len(failures) < 3:
            failures.append(pairs)
            raise OSError("planted")

    monkeypatch.setattr(engine._runner, "copy_blocks", fails_at_first)
    for _ in range(200):
        try:
            engine.step()
        except OSError:
            assert engine.blocks.num_free == engine.blocks.num_usable
        engine.blocks.check_invariant()
    assert len(failures) == 3
    finish(engine)
    assert [r.output().outputs for r in requests] == 2 * [e.outputs for e in expected]


def test_any_number_of_blocks_is_copied(folder):
    runner = make_engine(folder, max_num_seqs=12)._runner
    count, caches = MAX_COPIES + 3, {n: a for n, a in runner.state.items() if "cache" in n}
    rng = np.random.default_rng(0)
    for array in caches.values():
        array[:] = rng.normal(size=array.shape)
    before = {name: array.copy() for name, array in caches.items()}
    sources = np.arange(1, count + 1)
    runner.copy_blocks([(source, source + count) for source in sources.tolist()])
    for name, array in caches.items():
        np.testing.assert_array_equal(array[sources + count], before[name][sources])
        array[sources + count] = before[name][sources + count]
        np.testing.assert_array_equal(array, before[name])


def test_llm_tells_of_forks(folder):
    llm = LLM(folder, device="cpu", max_num_seqs=8, max_model_len=64, prefix_caching=False)
    llm.generate([[BOS, *range(20, 55)]], dataclasses.replace(SAMPLED, n=8))
    stats = llm.stats()
    assert (stats.forks, stats.forked_tokens, stats.copied_blocks) == (7, 7 * 35, 7)
    assert "245 of another sample in 7 forks" in str(stats)
