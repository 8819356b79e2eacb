"""The engine without `LLM`: requests that grow, end, are aborted and are taken back."""

import dataclasses
import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from model_runs import CheckpointRun
from tiny_model import BOS, END_OF_TURN, EOS, write_tiny_model

from cugraphs import SamplingParams
from cugraphs.engine import Engine
from cugraphs.json_file import read_json_object
from cugraphs.statistics import RequestClock, RequestTimes
from cugraphs.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def make_engine(folder, *, max_num_seqs=4, dtype="float32", **options):
    """Blocks of 4 tokens in a cache of NaN, sequences of up to 64 tokens."""
    run = CheckpointRun(
        folder, dtype=dtype, max_num_seqs=max_num_seqs, max_model_len=64, batch_invariant=True
    )
    files = [read_json_object(folder / f"{n}.json") for n in ("config", "generation_config")]
    tokenizer = Tokenizer.load(folder, *files)
    sizes = {"vocab_size": run.config.vocab_size, "max_num_seqs": max_num_seqs}
    return Engine(run.runner, tokenizer, **sizes, **options)


@pytest.fixture
def engine(folder):
    return make_engine(folder)


def run_all(engine):
    while engine.has_unfinished():
        engine.step()
        engine.blocks.check_invariant()
    engine.blocks.check_invariant()
    assert engine.blocks.num_free == engine.blocks.num_usable


def test_a_request_grows_by_one_token_a_step(engine):
    request = engine.add_request([BOS, 40, 50], GREEDY, "text")
    assert request.output().outputs[0].token_ids == ()
    for count in range(1, 6):
        found = engine.step()
        output = request.output()
        assert len(output.outputs[0].token_ids) == count
        assert output.finished == (count == 5)
        assert found == ([output] if count == 5 else [])
    assert (output.prompt, output.prompt_token_ids) == ("text", (BOS, 40, 50))
    assert not engine.has_unfinished()
    assert engine.step() == []


def test_an_output_does_not_change_afterwards(engine):
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=1)
    request = engine.add_request([BOS, 40], params)
    engine.step()
    first = request.output()
    run_all(engine)
    assert len(first.outputs[0].token_ids) == len(first.outputs[0].logprobs) == 1


def test_request_ids_rise(engine):
    ids = [engine.add_request([BOS], GREEDY).request_id for _ in range(3)]
    run_all(engine)
    assert ids == sorted(set(ids))
    assert engine.add_request([BOS], GREEDY).request_id > ids[-1]


def test_the_callers_prompt_is_copied(engine):
    prompt = [BOS, 40]
    request = engine.add_request(prompt, GREEDY)
    prompt.append(3)
    assert request.output().prompt_token_ids == (BOS, 40)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_abort_frees_at_once_and_spares_the_others(engine, steps):
    expected = make_expected(engine, [BOS, 50])
    dropped = engine.add_request([BOS, 40], SamplingParams(temperature=0, n=3, ignore_eos=True))
    kept = engine.add_request([BOS, 50], GREEDY)
    for _ in range(steps):
        engine.step()
    engine.abort(dropped)
    engine.abort(dropped)
    assert dropped.finished
    assert [c.finish_reason for c in dropped.output().outputs] == ["abort"] * 3
    assert [len(c.token_ids) for c in dropped.output().outputs] == [steps] * 3
    run_all(engine)
    assert kept.output().outputs[0].token_ids == expected


def make_expected(engine, prompt, params=GREEDY):
    request = engine.add_request(prompt, params)
    run_all(engine)
    return request.output().outputs[0].token_ids


def test_the_thread_of_the_text_ends_with_an_engine_that_has_work_left(folder):
    before = set(threading.enumerate())
    engine = make_engine(folder)
    (thread,) = set(threading.enumerate()) - before
    request = engine.add_request([BOS, 40], GREEDY)
    engine.step()
    del engine
    gc.collect()
    thread.join(timeout=5)
    assert not thread.is_alive()
    assert len(request.output().outputs[0].token_ids) == 1


def test_abort_of_a_finished_request_changes_nothing(engine):
    request = engine.add_request([BOS, 40], GREEDY)
    run_all(engine)
    before = request.output()
    engine.abort(request)
    assert request.output() == before


def test_abort_within_a_step_comes_after_it(engine, monkeypatch):
    """As when the garbage collector finds a stream that nobody holds any more."""
    request, other = (engine.add_request([BOS, 40], GREEDY) for _ in range(2))
    submit = engine._runner.submit

    def submit_and_abort(*step, **options):
        engine.abort(request)
        return submit(*step, **options)

    monkeypatch.setattr(engine._runner, "submit", submit_and_abort)
    engine.step()
    monkeypatch.undo()
    assert request.output().outputs[0].finish_reason == "abort"
    assert len(request.output().outputs[0].token_ids) == 1
    run_all(engine)
    assert len(other.output().outputs[0].token_ids) == 5


def test_samples_of_one_request_end_one_by_one(engine):
    params = SamplingParams(n=4, seed=3, max_tokens=30, logit_bias={EOS: 4})
    request = engine.add_request([BOS, 40], params)
    run_all(engine)
    lengths = [len(c.token_ids) for c in request.output().outputs]
    assert len(set(lengths)) > 1
    for answer in request.output().outputs:
        ended = answer.token_ids[-1] in (EOS, END_OF_TURN)
        assert answer.finish_reason == ("stop" if ended else "length")
        assert ended or len(answer.token_ids) == 30


def test_a_failed_step_is_taken_back(engine, monkeypatch):
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, presence_penalty=2.0)
    expected = make_expected(engine, [BOS, 40, 50], params)
    request = engine.add_request([BOS, 40, 50], params)
    collect = engine._runner.collect
    for failing in (True, False) * 9:

        def fails(ticket):
            collect(ticket)
            raise OSError("the device is gone")

        if failing:
            monkeypatch.setattr(engine._runner, "collect", fails)
            with pytest.raises(OSError, match="gone"):
                engine.step()
            monkeypatch.undo()
            assert engine.blocks.num_free == engine.blocks.num_usable
        else:
            engine.step()
    assert request.output().outputs[0].token_ids == expected
    run_all(engine)


def test_prompt_logprobs_of_a_prompt_that_starts_over(folder, monkeypatch):
    """Preempted between its chunks, a prompt is computed again and reported once."""
    monkeypatch.setattr("cugraphs.engine.PROMPT_LOGITS_ROWS", 8)
    engine = make_engine(folder)
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, prompt_logprobs=1)
    prompt = [BOS, *range(40, 69)]
    request = engine.add_request(prompt, params)
    run_all(engine)
    expected = request.output()
    assert len(expected.prompt_logprobs) == len(prompt)
    request = engine.add_request(prompt, params)
    for steps in (1, 2, 3):
        for _ in range(steps):
            assert engine.step() == []
        while engine.scheduler.running:
            engine.scheduler._preempt_last()
    run_all(engine)
    assert request.output().outputs == expected.outputs
    assert request.output().prompt_logprobs == expected.prompt_logprobs


def test_a_cache_too_small_for_one_sequence_is_refused(engine):
    cache = dataclasses.replace(engine._runner.plan.cache, num_blocks=16)
    plan = SimpleNamespace(cache=cache, max_num_batched_tokens=64)
    with pytest.raises(ValueError) as caught:
        Engine(
            SimpleNamespace(plan=plan, num_kv_blocks=cache.num_blocks),
            engine._tokenizer,
            vocab_size=163,
            max_num_seqs=4,
        )
    assert "has 15 usable blocks of 4 tokens, expected at least 16" in str(caught.value)
    assert "raise num_kv_blocks to 17 or lower max_model_len" in str(caught.value)


def test_activations_that_overflow_in_float16_are_said_to(tmp_path):
    """A product above 65,504 in the second layer: fine in float32, infinity in float16."""
    rng = np.random.default_rng(0)
    shapes = {"gate": (48, 32), "up": (48, 32), "down": (32, 48)}
    large = {
        f"model.layers.1.mlp.{name}_proj.weight": rng.normal(0, 100, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    folder = write_tiny_model(tmp_path / "m", weights=large)
    assert len(make_expected(make_engine(folder), [BOS, 40])) == 5
    engine = make_engine(folder, dtype="float16")
    request = engine.add_request([BOS, 40], GREEDY)
    run_all(engine)
    output = request.output()
    assert output.error.startswith("the logits at position 2 hold NaN or infinity")
    assert output.error.endswith("overflow in this dtype")
    assert output.outputs[0].finish_reason == "error" and output.outputs[0].token_ids == ()


@pytest.mark.parametrize("steps_between", [0, 1])
def test_rows_of_a_step_meet_their_own_requests(engine, folder, steps_between):
    """Prompts in chunks, prompt_logprobs rows and decodes in one step do not mix up their rows."""
    run = CheckpointRun(folder, max_num_seqs=64, max_model_len=64, poison=False)
    rng = np.random.default_rng(5)
    prompts = [[BOS, *rng.integers(5, 150, size).tolist()] for size in (50, 3, 40, 20, 30, 1)]
    wanted = [None, 2, 0, None, 5, 1]
    requests = []
    for prompt, count in zip(prompts, wanted, strict=True):
        params = SamplingParams(
            temperature=0, max_tokens=4, ignore_eos=True, logprobs=0, prompt_logprobs=count
        )
        requests.append(engine.add_request(prompt, params))
        for _ in range(steps_between):
            engine.step()
    run_all(engine)
    for prompt, count, request in zip(prompts, wanted, requests, strict=True):
        output = request.output()
        tokens = [*prompt, *output.outputs[0].token_ids]
        logits = run.prefill([tokens[:-1]])[1][0].astype(np.float64)
        assert logits.argmax(-1)[len(prompt) - 1 :].tolist() == tokens[len(prompt) :]
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        found = [*(output.prompt_logprobs or [None] * len(prompt)), *output.outputs[0].logprobs]
        for i, entry in enumerate(found):
            if entry is not None:
                assert entry[tokens[i]].logprob == pytest.approx(
                    logprobs[i - 1, tokens[i]], abs=2e-4
                )
        assert (output.prompt_logprobs is None) == (count is None)
        for entry in (output.prompt_logprobs or [])[1:]:
            assert count <= len(entry) <= count + 1


def test_the_mirror_is_the_devices_state_after_every_step(engine):
    """Requests with ends of every kind: what the device knows, and when it calls them done."""
    rng = np.random.default_rng(8)
    options = ({}, {"stop_token_ids": [7, 8, 9]}, {"min_tokens": 6}, {"presence_penalty": 0.5})
    requests = []
    for i in range(12):
        prompt = [BOS, *rng.integers(5, 150, int(rng.integers(1, 30))).tolist()]
        params = SamplingParams(
            temperature=1.0, seed=i, max_tokens=int(rng.integers(1, 12)), **options[i % 4]
        )
        requests.append(engine.add_request(prompt, params))
    runner = engine._runner
    while engine.has_unfinished():
        running = {sequence: sequence.slot for sequence in engine.scheduler.running}
        engine.step()
        pending = runner.mirror.num_changes
        assert pending == 0
        for name, field in runner.mirror.fields.items():
            if name not in ("last_token", "num_computed", "done"):
                np.testing.assert_array_equal(runner.state[name], field, err_msg=name)
        for sequence, slot in running.items():
            assert bool(runner.state["done"][slot]) == sequence.ended
            if sequence in sequence.holders:
                token_ids = engine.scheduler.slots.known_tokens(slot)
                assert runner.state["last_token"][slot] == token_ids[-1]
                assert runner.state["num_computed"][slot] == len(token_ids) - 1
    assert {r.output().outputs[0].finish_reason for r in requests} == {"stop", "length"}


def test_a_cache_hit_gives_what_a_cold_run_gives(folder):
    """Prompts with common beginnings of all lengths, while others run and after they have ended."""
    rng = np.random.default_rng(2)
    base = [BOS, *rng.integers(5, 150, 40).tolist()]
    prompts = [base[:n] + rng.integers(5, 150, 3).tolist() for n in (40, 8, 9, 21, 40, 33, 4, 40)]
    params = SamplingParams(temperature=0.9, seed=5, max_tokens=6, ignore_eos=True)
    warm, cold = (make_engine(folder, prefix_caching=caching) for caching in (True, False))
    found = []
    for engine in (warm, cold):
        requests = []
        for prompt in prompts:
            requests.append(engine.add_request(prompt, params))
            engine.step()
            engine.step()
            engine.blocks.check_invariant()
        run_all(engine)
        found.append([r.output().outputs[0].token_ids for r in requests])
    assert found[0] == found[1]
    assert warm.blocks.num_cached_tokens > 100 and cold.blocks.num_cached_tokens == 0


def test_samples_of_a_request_share_its_prompt(folder):
    engine = make_engine(folder)
    prompt = [BOS, *range(20, 42)]  # five blocks of 4, and three tokens
    params = SamplingParams(n=4, temperature=1.0, seed=3, max_tokens=4, ignore_eos=True)
    request = engine.add_request(prompt, params)
    engine.step()
    engine.step()
    tables = [engine.blocks.block_table(c.sequence.slot)[:5] for c in request.completions]
    assert all(table == tables[0] for table in tables) and len(tables[0]) == 5
    run_all(engine)
    other = make_engine(folder, prefix_caching=False)
    expected = other.add_request(prompt, params)
    run_all(other)
    texts = [[c.token_ids for c in r.output().outputs] for r in (request, expected)]
    assert texts[0] == texts[1] and len(set(texts[0])) > 1


def test_prompt_logprobs_are_computed_and_not_found(folder):
    engine = make_engine(folder)
    prompt = [BOS, *range(20, 42)]
    run = []
    for _ in range(2):
        params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=0)
        request = engine.add_request(prompt, params)
        run_all(engine)
        run.append(request.output().prompt_logprobs)
    assert run[0] == run[1] and engine.blocks.num_cached_tokens == 0
    assert len(run[0]) == len(prompt) and None not in run[0][1:]


def test_a_lower_priority_number_goes_first(folder):
    engine = make_engine(folder, max_num_seqs=1)
    late = [engine.add_request([BOS, 40 + i], GREEDY, priority=1) for i in range(2)]
    first = engine.add_request([BOS, 50], GREEDY, priority=-1)
    engine.step()
    assert [len(r.output().outputs[0].token_ids) for r in (*late, first)] == [0, 0, 1]
    run_all(engine)
    assert all(r.finished for r in (*late, first))


def test_statistics_of_requests_by_hand(engine):
    prompt = [BOS, *range(20, 29)]
    first = engine.add_request(prompt, GREEDY)
    run_all(engine)
    second = engine.add_request([*prompt, 60], dataclasses.replace(GREEDY, n=2))
    dropped = engine.add_request([BOS, 50], GREEDY)
    engine.step()
    assert engine.stats().requests_running == 2  # the second sample waits
    engine.abort(dropped)
    run_all(engine)
    stats = engine.stats()
    assert (stats.requests_waiting, stats.requests_running, stats.requests_finished) == (0, 0, 3)
    assert stats.generated_tokens == 5 + 2 * 5 + 1
    # The second sample has 10 of its 11 tokens from the first one, 2 of them in a block of its own.
    assert stats.cached_tokens == 8 and stats.prompt_tokens == 10 + 3 + 1 + 2
    assert (stats.forks, stats.forked_tokens, stats.copied_blocks) == (1, 10, 1)
    assert stats.kv_blocks_used == 0 and stats.kv_blocks_cached > 0 and stats.preemptions == 0
    assert all(seconds > 0 for seconds in stats.host_seconds.values())
    assert "generated" in str(stats)
    for request, cached in ((first, 0), (second, 8 + 10)):
        times = request.output().times
        assert 0 <= times.queue_s <= times.time_to_first_token_s <= times.total_s
        assert 0 < times.time_per_output_token_s < times.total_s and times.cached_tokens == cached
    assert dropped.output().times.total_s > 0


def test_what_a_preempted_prompt_finds_of_itself_is_not_counted_again(folder):
    engine = make_engine(folder)
    prompt = [BOS, *range(20, 42)]
    engine.add_request(prompt, GREEDY)
    run_all(engine)
    request = engine.add_request([*prompt, 60], GREEDY)
    for _ in range(3):
        engine.step()
    engine.scheduler._preempt_last()
    run_all(engine)
    assert request.output().times.cached_tokens == 20
    assert engine.stats().cached_tokens == 20 + 24


def test_time_per_output_token_by_hand():
    clock = RequestClock(arrival_s=10.0)
    assert clock.times.queue_s is None and clock.times.time_to_first_token_s is None
    clock.begin(11.0, cached_tokens=4)
    clock.first_token(13.0)
    clock.first_token(14.0)
    clock.end([4, 0, 4])
    clock.end_s = 19.0
    assert clock.times == RequestTimes(1.0, 3.0, 2.0, 9.0, 4)


def test_one_thread_at_a_time(engine, monkeypatch):
    """Another one that comes within a step is told so, and does no harm; it may abort."""
    within, goes_on = threading.Event(), threading.Event()
    collect = engine._runner.collect

    def collects_slowly(ticket):
        within.set()
        assert goes_on.wait(20)
        return collect(ticket)

    kept, dropped = (engine.add_request([BOS, 40 + i], GREEDY) for i in range(2))
    monkeypatch.setattr(engine._runner, "collect", collects_slowly)
    thread = threading.Thread(target=run_all, args=(engine,))
    thread.start()
    try:
        assert within.wait(20)
        for call in (engine.step, lambda: engine.add_request([BOS, 50], GREEDY)):
            with pytest.raises(RuntimeError, match="another thread is within a call, expected one"):
                call()
        engine.abort(dropped)  # which that thread does, after the step
    finally:
        goes_on.set()
        thread.join(20)
    assert len(kept.output().outputs[0].token_ids) == 5
    assert dropped.output().outputs[0].finish_reason == "abort"
    assert engine.stats().requests_finished == 2 and not engine.has_unfinished()
    later = engine.add_request([BOS, 50], GREEDY)
    run_all(engine)
    assert len(later.output().outputs[0].token_ids) == 5


def test_a_request_that_cannot_be_queued_leaves_nothing_behind(engine, monkeypatch):
    other = engine.add_request([BOS, 40], GREEDY)
    add, calls = engine.scheduler.add, []

    def fails_at_the_second(sequence):
        add(sequence)
        calls.append(sequence)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(engine.scheduler, "add", fails_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        engine.add_request([BOS, 41], dataclasses.replace(GREEDY, n=3))
    assert engine.stats().requests_waiting == 1
    run_all(engine)
    assert len(other.output().outputs[0].token_ids) == 5
