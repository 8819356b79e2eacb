"""What a user of the API relies on: batches, sampling parameters, prompts, streams, bad input."""

import gc
import itertools
import json

import numpy as np
import pytest
from model_runs import CheckpointRun
from tiny_model import (
    ASSISTANT,
    BOS,
    END_OF_TURN,
    EOS,
    MAX_MODEL_LEN,
    write_tiny_model,
)

from cugraphs import LLM, SamplingParams
from cugraphs.kernels.philox import philox4x32_10, uniform

PROMPTS = ["", "The quick brown fox", "a", "Once upon a time there was a little girl", "dog " * 9]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def shared_llm(folder):
    return LLM(folder, device="cpu", max_num_seqs=8, batch_invariant=True)


@pytest.fixture
def llm(shared_llm):
    """The shared model, which every test must leave without a request and without a lost block."""
    yield shared_llm
    gc.collect()
    assert_idle(shared_llm)


@pytest.fixture(scope="module")
def run(folder):
    """The same weights through the runner alone."""
    return CheckpointRun(folder, max_num_seqs=96, max_model_len=96, poison=False)


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


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def continue_with(run, prompt, count, choose):
    """A plain loop: the whole text anew for every token; choose(logits, outputs) -> token."""
    outputs = []
    for _ in range(count):
        logits = logits_at_every_position(run, [*prompt, *outputs])[-1]
        outputs.append(int(choose(logits, outputs)))
    return outputs


# One request, whatever runs beside it


MIXED = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(seed=1, max_tokens=30),
    SamplingParams(temperature=1.3, top_k=20, seed=2, max_tokens=17, ignore_eos=True),
    SamplingParams(temperature=0.7, top_p=0.8, seed=3, max_tokens=40, frequency_penalty=0.5),
    SamplingParams(min_p=0.05, seed=4, max_tokens=9, repetition_penalty=1.3, logit_bias={7: 3}),
]


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"max_num_seqs": 8}, id="all_at_once"),
        pytest.param({"max_num_seqs": 3}, id="more_prompts_than_seqs"),
        pytest.param({"max_num_seqs": 1}, id="one_by_one"),
        pytest.param({"max_num_seqs": 8, "max_model_len": 80, "num_kv_blocks": 7}, id="preempted"),
        pytest.param({"max_num_seqs": 8, "budget": 8}, id="prompts_in_chunks"),
    ],
)
def test_a_batch_gives_every_prompt_what_it_gets_alone(folder, llm, monkeypatch, limits):
    expected = [alone(llm, prompt, p) for prompt, p in zip(PROMPTS, MIXED, strict=True)]
    monkeypatch.setattr("cugraphs.llm.MAX_NUM_BATCHED_TOKENS", limits.pop("budget", 2048))
    other = LLM(folder, device="cpu", batch_invariant=True, **limits)
    for _ in range(2):  # and the first batch leaves nothing that changes the second
        outputs = other.generate(PROMPTS, MIXED)
        assert [output.prompt for output in outputs] == PROMPTS
        assert [tokens_of(output) for output in outputs] == expected
        assert all(output.finished for output in outputs)
        assert_idle(other)
    assert (other.engine.scheduler.num_preemptions > 0) == ("num_kv_blocks" in limits)


def test_a_token_that_is_counted_before_a_preemption_is_counted_once(folder, llm):
    params = [
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, frequency_penalty=penalty)
        for penalty in (0.5, 1.0, 1.5, 2.0)
    ]
    prompts = PROMPTS[:4]
    expected = [alone(llm, prompt, p) for prompt, p in zip(prompts, params, strict=True)]
    tight = LLM(folder, max_num_seqs=4, max_model_len=80, num_kv_blocks=7, batch_invariant=True)
    assert [tokens_of(output) for output in tight.generate(prompts, params)] == expected
    assert tight.engine.scheduler.num_preemptions > 0


def test_the_default_mode_batches_too(folder, run):
    """Not bitwise, but where the two likeliest tokens are not close the tokens are the same."""
    llm = LLM(folder, device="cpu", max_num_seqs=4)
    for output in llm.generate(PROMPTS, GREEDY):
        tokens = [*output.prompt_token_ids, *tokens_of(output)]
        logits = logits_at_every_position(run, tokens[:-1])[len(output.prompt_token_ids) - 1 :]
        top = np.sort(logits, axis=-1)
        clear = top[:, -1] - top[:, -2] > 1e-4
        assert clear.mean() > 0.9
        assert (logits.argmax(-1) == tokens_of(output))[clear].all()


def test_n_samples_follow_the_documented_random_numbers(llm, run):
    """Philox of (position, sample index, use 0, 0) under the seed; the first token, in order of
    id, whose cumulative weight exceeds u times the sum."""
    seed = 2**63 + 12345
    params = SamplingParams(n=3, seed=seed, temperature=0.8, max_tokens=12, ignore_eos=True)
    output = llm.generate("The dog", params)[0]
    prompt = list(output.prompt_token_ids)
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    for index in range(3):

        def draw(logits, outputs, index=index):
            counter = np.array([len(prompt) + len(outputs), index, 0, 0], np.uint32)
            u = float(uniform(philox4x32_10(counter, key)[0]))
            weights = np.exp((logits - logits.max()) / 0.8).cumsum()
            return np.searchsorted(weights, u * weights[-1], side="right")

        assert tokens_of(output, index) == continue_with(run, prompt, 12, draw)
    assert len({completion.token_ids for completion in output.outputs}) == 3


def test_seeds(folder, llm):
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    seeded = SamplingParams(max_tokens=20, ignore_eos=True, seed=5)
    assert alone(llm, "a", seeded) == alone(llm, "a", seeded)
    assert alone(llm, "a", seeded) != alone(llm, "a", SamplingParams(max_tokens=20, seed=6))
    assert alone(llm, "a", params) != alone(llm, "a", params)  # another random seed each time
    first, second, other = (LLM(folder, seed=seed) for seed in (1, 1, 2))
    same = [[tokens_of(o) for o in x.generate(["a", "a"], params)] for x in (first, second)]
    assert same[0] == same[1]
    assert same[0][0] != same[0][1]
    assert same[0] != [tokens_of(o) for o in other.generate(["a", "a"], params)]


# Sampling parameters


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 1.8},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 1.5},
        {"presence_penalty": -1.0, "frequency_penalty": -0.5},
        {"repetition_penalty": 0.8, "presence_penalty": 1.0, "frequency_penalty": 0.7},
        {"repetition_penalty": 1.2, "logit_bias": {40: 4.0, 50: -100.0, 3: 1.5}},
    ],
)
def test_penalties_and_biases_as_a_plain_loop(llm, run, penalties):
    prompt = list(llm.tokenizer.encode("The quick brown fox jumps over"))
    repetition = penalties.get("repetition_penalty", 1.0)
    presence = penalties.get("presence_penalty", 0.0)
    frequency = penalties.get("frequency_penalty", 0.0)

    def choose(logits, outputs):
        for token, bias in penalties.get("logit_bias", {}).items():
            logits[token] += bias
        for token in {*prompt, *outputs}:
            logits[token] *= 1 / repetition if logits[token] > 0 else repetition
        for token in set(outputs):
            logits[token] -= presence + frequency * outputs.count(token)
        return logits.argmax()

    plain = continue_with(run, prompt, 24, lambda logits, outputs: logits.argmax())
    expected = continue_with(run, prompt, 24, choose)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, **penalties)
    assert alone(llm, prompt, params) == expected
    assert alone(llm, prompt, GREEDY) == plain
    assert expected != plain


def test_logit_bias_forces_and_forbids(llm):
    params = SamplingParams(
        temperature=1, max_tokens=10, ignore_eos=True, logit_bias={70: 100}, seed=0
    )
    assert alone(llm, "x", params) == [70] * 10
    favourite = alone(llm, "", GREEDY)[0]
    banned = SamplingParams(temperature=0, max_tokens=10, logit_bias={favourite: -100})
    assert favourite not in alone(llm, "", banned)


def test_top_k_1_is_greedy(llm):
    params = SamplingParams(temperature=1.5, top_k=1, max_tokens=24, ignore_eos=True)
    assert alone(llm, "The", params) == alone(llm, "The", GREEDY)


@pytest.mark.parametrize("eos", [EOS, END_OF_TURN])
def test_every_eos_token_of_generation_config_ends_the_answer(llm, eos):
    params = SamplingParams(temperature=0, max_tokens=9, logit_bias={eos: 100})
    answer = llm.generate("x", params)[0].outputs[0]
    assert (answer.token_ids, answer.text) == ((eos,), "")
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)


def test_ignore_eos_goes_on(llm):
    params = SamplingParams(temperature=0, max_tokens=9, logit_bias={EOS: 100}, ignore_eos=True)
    answer = llm.generate("x", params)[0].outputs[0]
    assert (answer.token_ids, answer.finish_reason) == ((EOS,) * 9, "length")


def test_min_tokens_holds_every_stop_back(llm):
    params = SamplingParams(
        temperature=0,
        max_tokens=20,
        min_tokens=5,
        stop_token_ids=[50],
        logit_bias={EOS: 100, END_OF_TURN: 80, 50: 60, 60: 40},
        stop=[llm.tokenizer.token(60)],
    )
    answer = llm.generate("x", params)[0].outputs[0]
    assert answer.token_ids == (60,) * 5 + (EOS,)
    assert answer.text == llm.tokenizer.token(60) * 5
    assert answer.finish_reason == "stop"


def test_min_tokens_does_not_hold_back_an_eos_that_is_ignored(llm):
    params = SamplingParams(
        temperature=0, max_tokens=4, min_tokens=3, ignore_eos=True, logit_bias={EOS: 100}
    )
    assert alone(llm, "x", params) == [EOS] * 4


def test_a_request_inherits_nothing_from_the_one_before(folder):
    """One slot serves both: what the first set there is gone."""
    llm = LLM(folder, max_num_seqs=1, batch_invariant=True)
    plain = SamplingParams(temperature=0, max_tokens=8, min_tokens=8)
    fresh = alone(llm, "The quick", plain)
    heavy = SamplingParams(
        temperature=1.5,
        seed=1,
        max_tokens=8,
        min_tokens=8,
        stop_token_ids=fresh,
        logit_bias={token: -100 for token in fresh},
        repetition_penalty=2.0,
        presence_penalty=2.0,
        frequency_penalty=2.0,
        top_k=5,
    )
    assert not set(alone(llm, "The quick", heavy)) & set(fresh)
    assert alone(llm, "The quick", plain) == fresh


def test_stop_token_ids(llm):
    free = alone(llm, "The quick", GREEDY)
    stop = free[7]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, stop_token_ids=[stop])
    answer = llm.generate("The quick", params)[0].outputs[0]
    expected = free[: free.index(stop) + 1]
    assert list(answer.token_ids) == expected
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
    assert answer.text == llm.tokenizer.decode(expected[:-1])
    kept = llm.generate(
        "The quick",
        SamplingParams(
            temperature=0,
            max_tokens=24,
            ignore_eos=True,
            stop_token_ids=[stop],
            include_stop_str_in_output=True,
        ),
    )[0].outputs[0]
    assert kept.text == llm.tokenizer.decode(expected)


def test_an_eos_token_among_stop_token_ids_stops_where_eos_does_not(llm):
    bias = {EOS: 100}
    for ignore_eos, reason in ((True, EOS), (False, None)):
        params = SamplingParams(
            temperature=0, stop_token_ids=[EOS], ignore_eos=ignore_eos, logit_bias=bias
        )
        answer = llm.generate("x", params)[0].outputs[0]
        assert (answer.token_ids, answer.stop_reason) == ((EOS,), reason)


def test_stop_strings_at_every_place_of_the_text(llm):
    """Each stop string that occurs in the text, over one or several tokens, cuts before it."""
    long = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    free = llm.generate("A little girl", long)[0].outputs[0]
    text = free.text
    assert len(text) > 20
    cases = [(i, length) for i in range(0, len(text) - 4, 2) for length in (1, 3, 4)]
    stops = [text[i : i + length] for i, length in cases]
    for include in (False, True):
        params = [
            SamplingParams(
                temperature=0,
                max_tokens=20,
                ignore_eos=True,
                stop=["never\0", stop],
                include_stop_str_in_output=include,
            )
            for stop in stops
        ]
        outputs = llm.generate(["A little girl"] * len(stops), params)
        for stop, output in zip(stops, outputs, strict=True):
            answer = output.outputs[0]
            at = text.find(stop)
            assert answer.text == text[: at + len(stop) * include]
            assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
            assert answer.token_ids == free.token_ids[: len(answer.token_ids)]
            # No token more than it takes to complete the stop string.
            shorter = llm.tokenizer.decode(answer.token_ids[:-1])
            assert stop not in shorter


def test_streaming_never_shows_a_part_of_a_stop_string(llm):
    free = llm.generate("A little girl", GREEDY)[0].outputs[0].text
    stop = free[10:14]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, stop=stop)
    stream = llm.stream("A little girl", params)
    assert "".join(stream) == free[: free.find(stop)]
    assert stream.output.outputs[0].stop_reason == stop


def test_characters_split_over_tokens_come_whole(llm):
    """The four bytes of an emoji are four tokens, or fewer; a rest is flushed as U+FFFD."""
    emoji = llm.tokenizer.encode("😀", add_bos=False)
    assert len(emoji) > 1
    params = SamplingParams(temperature=0, max_tokens=1, logit_bias={emoji[-1]: 100})
    prompt = [BOS, *emoji[:-1]]
    assert llm.generate(prompt, params)[0].outputs[0].text == "😀"
    broken = SamplingParams(temperature=0, max_tokens=1, logit_bias={emoji[0]: 100})
    assert llm.generate([BOS, 40], broken)[0].outputs[0].text == "\ufffd"


@pytest.mark.parametrize("wanted", [0, 1, 5, 20])
def test_logprobs_against_float64(llm, run, wanted):
    params = SamplingParams(
        seed=3, temperature=1.4, max_tokens=12, ignore_eos=True, logprobs=wanted
    )
    output = llm.generate("The cat", params)[0]
    answer = output.outputs[0]
    tokens = [*output.prompt_token_ids, *answer.token_ids]
    expected = log_softmax(logits_at_every_position(run, tokens))
    expected = expected[len(output.prompt_token_ids) - 1 : -1]
    assert len(answer.logprobs) == len(answer.token_ids) == 12
    assert output.prompt_logprobs is None
    for row, token, found in zip(expected, answer.token_ids, answer.logprobs, strict=True):
        check_logprobs(llm, row, token, found, wanted)


@pytest.mark.parametrize("length", [1, 2, 64, 65, 66, 90])
@pytest.mark.parametrize("wanted", [0, 3])
def test_prompt_logprobs_against_float64(llm, run, length, wanted):
    prompt = [BOS, *np.random.default_rng(length).integers(5, 160, length - 1).tolist()]
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=wanted, n=2)
    output = llm.generate([prompt], params)[0]
    check_prompt_logprobs(llm, run, prompt, output, wanted)
    assert output.outputs[0].logprobs is None
    assert output.outputs[0].token_ids == output.outputs[1].token_ids


def test_prompt_logprobs_under_preemption_and_beside_others(folder, run):
    """Long prompts in chunks, thrown out of a small cache on the way: still once per token."""
    tight = LLM(folder, max_num_seqs=6, max_model_len=96, num_kv_blocks=14, batch_invariant=True)
    rng = np.random.default_rng(0)
    prompts = [[BOS, *rng.integers(5, 160, size).tolist()] for size in (75, 20, 70, 33, 50, 9)]
    params = [
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, prompt_logprobs=1),
        GREEDY,
    ]
    outputs = tight.generate(prompts, params * 3)
    assert tight.engine.scheduler.num_preemptions > 0
    for prompt, output, p in zip(prompts, outputs, params * 3, strict=True):
        if p.prompt_logprobs is None:
            assert output.prompt_logprobs is None
        else:
            check_prompt_logprobs(tight, run, prompt, output, 1)


def check_prompt_logprobs(llm, run, prompt, output, wanted):
    expected = log_softmax(logits_at_every_position(run, prompt))
    assert len(output.prompt_logprobs) == len(prompt)
    assert output.prompt_logprobs[0] is None
    for row, token, found in zip(expected, prompt[1:], output.prompt_logprobs[1:], strict=False):
        check_logprobs(llm, row, token, found, wanted)


def check_logprobs(llm, expected, token, found, wanted):
    """The `wanted` likeliest and the token itself, with the values of `expected` [vocab]."""
    assert wanted <= len(found) <= wanted + 1
    assert token in found
    ranks = [entry.rank for token_id, entry in found.items() if token_id != token]
    assert set(ranks) | {found[token].rank} >= set(range(1, wanted + 1))
    for token_id, entry in found.items():
        assert entry.logprob == pytest.approx(expected[token_id], abs=2e-4)
        value = expected[token_id]
        assert (expected > value + 1e-4).sum() < entry.rank <= (expected > value - 1e-4).sum()
        assert entry.decoded_token == llm.tokenizer.decode([token_id], skip_special_tokens=False)


# Prompts and lengths


@pytest.mark.parametrize(
    "prompt",
    [
        [BOS, 40, 50],
        (BOS, 40, 50),
        np.array([BOS, 40, 50]),
        np.array([BOS, 40, 50], np.int32),
        [np.int64(BOS), np.int32(40), np.uint8(50)],
        range(BOS, 3),
    ],
    ids=["list", "tuple", "int64", "int32", "numpy_ints", "range"],
)
def test_token_ids_as_a_prompt(llm, prompt):
    expected = alone(llm, [int(token) for token in prompt], GREEDY)
    for prompts in (prompt, [prompt]):
        (output,) = llm.generate(prompts, GREEDY)
        assert tokens_of(output) == expected
        assert output.prompt is None
        assert output.prompt_token_ids == tuple(int(token) for token in prompt)
        assert all(type(token) is int for token in output.prompt_token_ids)
    assert list(llm.stream(prompt, GREEDY))


def test_a_list_of_strings_and_of_token_ids(llm):
    outputs = llm.generate(["a", [BOS, 40], "b"], GREEDY)
    assert [output.prompt for output in outputs] == ["a", None, "b"]
    assert [tokens_of(o) for o in outputs] == [alone(llm, p, GREEDY) for p in ("a", [BOS, 40], "b")]


def test_no_prompts_give_no_outputs(llm):
    assert llm.generate([]) == []
    assert llm.generate((), []) == []


def test_an_empty_prompt_is_the_bos_token(llm):
    assert llm.generate("", GREEDY)[0].prompt_token_ids == (BOS,)


def test_the_longest_prompt_gets_one_token(llm):
    prompt = [BOS] + [40] * (MAX_MODEL_LEN - 2)
    output = llm.generate(prompt, SamplingParams(temperature=0, ignore_eos=True))[0]
    assert len(tokens_of(output)) == 1
    assert output.outputs[0].finish_reason == "length"


LONG = [BOS, *(40 + i % 97 for i in range(MAX_MODEL_LEN + 20))]


@pytest.mark.parametrize(
    ("length", "asked", "kept"),
    [
        (MAX_MODEL_LEN - 1, None, MAX_MODEL_LEN - 1),
        (MAX_MODEL_LEN - 1, -1, MAX_MODEL_LEN - 1),
        (MAX_MODEL_LEN, -1, MAX_MODEL_LEN - 1),
        (MAX_MODEL_LEN + 20, -1, MAX_MODEL_LEN - 1),
        (MAX_MODEL_LEN, MAX_MODEL_LEN - 1, MAX_MODEL_LEN - 1),
        (MAX_MODEL_LEN + 20, 5, 5),
        (5, 6, 5),
        (5, MAX_MODEL_LEN + 99, 5),
        (2, 1, 1),
    ],
)
def test_a_prompt_is_cut_to_its_last_tokens_where_that_is_asked(llm, length, asked, kept):
    prompt = LONG[:length]
    greedy = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
    params = SamplingParams(**greedy, truncate_prompt_tokens=asked)
    (output,) = llm.generate([prompt], params)
    assert output.prompt_token_ids == tuple(prompt[-kept:])
    (same,) = llm.generate([prompt[-kept:]], SamplingParams(**greedy))
    assert output.outputs == same.outputs
    assert len(tokens_of(output)) == min(4, MAX_MODEL_LEN - kept)
    stream = llm.stream(prompt, params)
    assert "".join(stream) == output.outputs[0].text


@pytest.mark.parametrize("asked", [None, MAX_MODEL_LEN, MAX_MODEL_LEN + 5])
def test_a_prompt_that_is_too_long_once_it_is_cut_is_refused(llm, asked):
    for length in (MAX_MODEL_LEN, MAX_MODEL_LEN + 20):
        found = length if asked is None else min(asked, length)
        with pytest.raises(ValueError) as caught:
            llm.generate([LONG[:length]], SamplingParams(truncate_prompt_tokens=asked))
        assert f"the prompt has {found} tokens, expected at most 255" in str(caught.value)
        assert "or set truncate_prompt_tokens" in str(caught.value)


def test_what_follows_a_cut_prompt_sees_only_what_is_left(llm):
    """Penalties, log-probabilities and text are those of the last tokens alone."""
    prompt = llm.tokenizer.encode("The quick brown fox jumps over the dog")
    asked = {"temperature": 0, "max_tokens": 6, "repetition_penalty": 1.7, "prompt_logprobs": 2}
    (cut,) = llm.generate([prompt], SamplingParams(**asked, truncate_prompt_tokens=4))
    (short,) = llm.generate([prompt[-4:]], SamplingParams(**asked))
    assert cut.outputs == short.outputs and cut.prompt_logprobs == short.prompt_logprobs
    assert len(cut.prompt_logprobs) == 4
    text = "The quick brown fox"
    (whole,) = llm.generate(text, SamplingParams(truncate_prompt_tokens=2, max_tokens=1))
    assert whole.prompt == text and len(whole.prompt_token_ids) == 2


def test_max_tokens_none_ends_at_the_models_limit(llm):
    output = llm.generate("a", SamplingParams(temperature=0, ignore_eos=True))[0]
    assert len(output.prompt_token_ids) + len(tokens_of(output)) == MAX_MODEL_LEN
    assert output.outputs[0].finish_reason == "length"
    more = SamplingParams(temperature=0, ignore_eos=True, max_tokens=10_000)
    assert tokens_of(llm.generate("a", more)[0]) == tokens_of(output)


def test_one_params_per_prompt(llm):
    params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=n) for n in (3, 1, 2)]
    outputs = llm.generate(["a", "b", "c"], params)
    assert [len(tokens_of(output)) for output in outputs] == [3, 1, 2]


BAD_CALLS = [
    (
        ([BOS] + [40] * (MAX_MODEL_LEN - 1),),
        ValueError,
        "the prompt has 256 tokens, expected at most 255: max_model_len is 256",
    ),
    (([BOS, 163],), ValueError, "a prompt token id is 163, expected 0 to 162"),
    (([BOS, -1],), ValueError, "a prompt token id is -1, expected 0 to 162"),
    (([[]],), ValueError, "the prompt has 0 tokens, expected at least 1"),
    ((None,), TypeError, "prompts is None (NoneType), expected a string, a list of token ids"),
    ((5,), TypeError, "prompts is 5 (int), expected a string"),
    ((b"abc",), TypeError, "prompts is b'abc' (bytes), expected a string"),
    (({"prompt": "a"},), TypeError, "prompts is {'prompt': 'a'} (dict), expected a string"),
    ((["a", None],), TypeError, "prompts[1] is None (NoneType), expected a string or a list"),
    ((["a", 5],), TypeError, "prompts[1] is 5 (int), expected a string or a list of token ids"),
    (([b"a"],), TypeError, "prompts[0] is b'a' (bytes), expected a string or a list of token ids"),
    (([[BOS, 1.5]],), TypeError, "prompts[0] holds 1.5 (float), expected token ids, all integers"),
    (([[BOS, True]],), TypeError, "prompts[0] holds True (bool), expected token ids, all integers"),
    (([[BOS, "a"]],), TypeError, "prompts[0] holds 'a' (str), expected token ids, all integers"),
    ((np.zeros((2, 2)),), TypeError, "(float64), expected token ids, all integers"),
    (("\ud800",), ValueError, "text holds a lone surrogate, expected Unicode"),
    (
        ("a", [GREEDY, GREEDY]),
        ValueError,
        "params has 2 SamplingParams for 1 prompts, expected one, or one per prompt",
    ),
    ((["a", "b"], [GREEDY]), ValueError, "params has 1 SamplingParams for 2 prompts"),
    (("a", {"temperature": 0}), TypeError, "params is {'temperature': 0} (dict), expected"),
    (("a", 5), TypeError, "params is 5 (int), expected SamplingParams, one or one per prompt"),
    (("a", [None]), TypeError, "params is None (NoneType), expected SamplingParams"),
    (
        ("a", SamplingParams(logit_bias={163: 1})),
        ValueError,
        "a token id of logit_bias is 163, expected 0 to 162",
    ),
    (
        ("a", SamplingParams(stop_token_ids=[4000])),
        ValueError,
        "a token id of stop_token_ids is 4000, expected 0 to 162",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "error", "message"), BAD_CALLS, ids=[message[:50] for *_, message in BAD_CALLS]
)
def test_a_bad_call_says_what_is_wrong_and_runs_nothing(llm, arguments, error, message):
    before = llm.stats().steps
    with pytest.raises(error) as caught:
        llm.generate(*arguments)
    assert message in str(caught.value)
    prompts, *params = arguments
    if isinstance(prompts, list) and not isinstance(prompts[0], int):
        with pytest.raises(error, match=rf"prompts\[{len(prompts)}\]|params"):
            llm.generate(["fine first", *prompts], *params)
    assert_idle(llm)
    assert llm.stats().steps == before


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None,), TypeError, "the prompt is None (NoneType), expected a string or a list"),
        ((["a", "b"],), TypeError, "the prompt holds 'a' (str), expected token ids, all integers"),
        (("a", SamplingParams(n=2)), ValueError, "LLM.stream: n is 2, expected 1; use generate"),
        (("a", [GREEDY, GREEDY]), ValueError, "params has 2 SamplingParams for 1 prompts"),
        (([BOS] * MAX_MODEL_LEN,), ValueError, "the prompt has 256 tokens, expected at most 255"),
    ],
)
def test_a_bad_stream_says_so_at_the_call(llm, arguments, error, message):
    with pytest.raises(error) as caught:
        llm.stream(*arguments)
    assert message in str(caught.value)


BAD_ARGUMENTS = [
    ({"device": "tpu"}, "device is 'tpu', expected 'auto', 'cpu' or 'cuda'"),
    ({"dtype": "int8"}, "dtype is 'int8', expected one of auto, float32, float16, bfloat16"),
    ({"max_model_len": 0}, "max_model_len is 0, expected"),
    ({"max_model_len": 1}, "max_model_len is 1, expected"),
    ({"max_model_len": 257}, "max_model_len is 257, expected at most 256"),
    ({"max_model_len": "9"}, "max_model_len is '9', expected"),
    ({"max_num_seqs": 0}, "max_num_seqs is 0, expected an integer of at least 1"),
    ({"max_num_seqs": True}, "max_num_seqs is True, expected an integer of at least 1"),
    ({"max_num_seqs": 2.5}, "max_num_seqs is 2.5, expected an integer of at least 1"),
    ({"num_kv_blocks": 16}, "num_kv_blocks is 16, expected at least 17: 16 for max_model_len 256"),
    ({"seed": -1}, "seed is -1, expected 0 <= seed < 2**64, or None"),
    ({"seed": "x"}, "seed is 'x', expected 0 <= seed < 2**64, or None"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD_ARGUMENTS, ids=[message[:40] for _, message in BAD_ARGUMENTS]
)
def test_a_bad_argument_of_llm_says_what_is_expected(folder, arguments, message):
    with pytest.raises(ValueError) as caught:
        LLM(folder, **arguments)
    assert message in str(caught.value)


def test_an_unknown_argument_is_refused(folder):
    with pytest.raises(TypeError, match="tensor_parallel_size"):
        LLM(folder, tensor_parallel_size=2)


def test_num_kv_blocks_of_one_sequence_are_enough(folder):
    llm = LLM(folder, num_kv_blocks=17, max_num_seqs=2)
    outputs = llm.generate(["a", "b"], SamplingParams(temperature=0, ignore_eos=True))
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "length"]
    assert all(len(o.prompt_token_ids) + len(tokens_of(o)) == MAX_MODEL_LEN for o in outputs)


# generation_config.json


def test_params_none_takes_generation_config(tmp_path):
    sampling = {"do_sample": True, "temperature": 0.6, "top_k": 9, "max_new_tokens": 7}
    folder = write_tiny_model(tmp_path / "m", generation_config=sampling)
    llm = LLM(folder, seed=0)
    expected = SamplingParams(temperature=0.6, top_k=9, max_tokens=7)
    assert llm.default_params() == expected
    same = LLM(folder, seed=0)
    assert tokens_of(llm.generate("a")[0]) == tokens_of(same.generate("a", expected)[0])
    assert "".join(llm.stream("a")) == "".join(same.stream("a", expected))


def test_without_do_sample_params_none_is_greedy(llm):
    assert llm.default_params().is_greedy
    greedy = SamplingParams(temperature=0)
    assert llm.generate("a")[0].outputs == llm.generate("a", greedy)[0].outputs


def test_eos_is_the_union_of_both_configs(tmp_path):
    folder = write_tiny_model(
        tmp_path / "m", config={"eos_token_id": [EOS, 9]}, generation_config={"eos_token_id": 11}
    )
    llm = LLM(folder)
    for token, ends in ((EOS, True), (9, True), (11, True), (END_OF_TURN, False)):
        params = SamplingParams(temperature=0, max_tokens=4, logit_bias={token: 100})
        answer = llm.generate("x", params)[0].outputs[0]
        assert (answer.finish_reason == "stop") == ends
        assert answer.token_ids == ((token,) if ends else (token,) * 4)


def test_too_many_eos_tokens_are_refused(tmp_path):
    folder = write_tiny_model(tmp_path / "m", generation_config={"eos_token_id": list(range(20))})
    with pytest.raises(ValueError, match="the model has 20 EOS tokens, expected at most 16"):
        LLM(folder)


# Broken numbers


def test_weights_that_hold_nan_are_said_to(tmp_path):
    weights = {"model.norm.weight": np.full(32, np.nan, np.float32)}
    llm = LLM(write_tiny_model(tmp_path / "m", weights=weights))
    with pytest.raises(FloatingPointError) as caught:
        llm.generate(["a", "b"], GREEDY)
    assert "position 2 hold NaN or infinity, expected numbers; the weights are damaged" in str(
        caught.value
    )
    assert_idle(llm)
    stream = llm.stream("a", GREEDY)
    with pytest.raises(FloatingPointError):
        next(stream)
    assert list(stream) == []
    assert_idle(llm)


# Streams, interrupts


def test_a_stream_is_the_text_in_pieces(llm):
    stream = llm.stream("The quick", GREEDY)
    assert stream.output.outputs[0].text == ""
    pieces = list(stream)
    expected = llm.generate("The quick", GREEDY)[0].outputs[0]
    assert "".join(pieces) == expected.text
    assert all(pieces)
    assert len(pieces) > 1
    assert stream.output.outputs[0] == expected
    assert list(stream) == []


def test_interleaved_streams_with_a_generate_in_between(llm):
    expected = [llm.generate(prompt, GREEDY)[0].outputs[0].text for prompt in PROMPTS[:3]]
    first, second = (llm.stream(prompt, GREEDY) for prompt in PROMPTS[:2])
    pieces = [[next(first), next(first)], [next(second)]]
    assert llm.generate(PROMPTS[2], GREEDY)[0].outputs[0].text == expected[2]
    for a, b in itertools.zip_longest(first, second, fillvalue=""):
        pieces[0].append(a)
        pieces[1].append(b)
    assert ["".join(p) for p in pieces] == expected[:2]


def test_a_closed_stream_frees_its_blocks(llm):
    stream = llm.stream("The quick", GREEDY)
    first = next(stream)
    assert llm.engine.has_unfinished()
    stream.close()
    assert_idle(llm)
    assert stream.output.outputs[0].finish_reason == "abort"
    assert stream.output.outputs[0].text.startswith(first)
    assert list(stream) == []
    stream.close()


def test_a_stream_that_nobody_holds_frees_its_blocks(llm):
    for piece in llm.stream("The quick", GREEDY):
        assert piece
        break
    gc.collect()
    assert llm.engine.step() == []
    assert_idle(llm)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_generate_leaves_no_trace(llm, monkeypatch, error, when):
    """Neither in itself nor in a stream that was under way, although its tokens are counted."""
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, frequency_penalty=1.0)
    expected = llm.generate("The quick", params)[0].outputs[0]
    stream = llm.stream("The quick", params)
    pieces = [next(stream), next(stream)]
    submit, calls = llm.runner.submit, itertools.count()

    def interrupted(*step, **options):
        call = next(calls)
        if call == 5 and when == "before":
            raise error
        ticket = submit(*step, **options)
        if call == 5:
            raise error
        return ticket

    monkeypatch.setattr(llm.runner, "submit", interrupted)
    with pytest.raises(error):
        llm.generate(PROMPTS, GREEDY)
    monkeypatch.undo()
    assert len(llm.engine._requests) == 1  # the stream's
    pieces += stream
    assert "".join(pieces) == expected.text
    assert stream.output.outputs[0] == expected
    assert llm.generate("The quick", params)[0].outputs[0] == expected


def test_an_error_ends_the_stream_that_met_it(llm, monkeypatch):
    stream = llm.stream("The quick", GREEDY)
    next(stream)

    def interrupted(*step, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.runner, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    monkeypatch.undo()
    assert_idle(llm)
    assert list(stream) == []


# Chat


def test_chat_answers_the_rendered_conversation(llm):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    text = llm.render_chat(messages)
    assert text == "<|bos|><|system|>Be brief.<|end|><|user|>Hello<|end|><|assistant|>"
    output = llm.chat(messages, GREEDY)
    assert output.prompt_token_ids[0] == BOS  # once
    assert BOS not in output.prompt_token_ids[1:]
    assert output.prompt_token_ids[-1] == ASSISTANT
    assert output.outputs == llm.generate(text, GREEDY)[0].outputs
    assert "".join(llm.chat(messages, GREEDY, stream=True)) == output.outputs[0].text


def test_bad_messages(llm):
    with pytest.raises(ValueError, match="no such role"):
        llm.chat([{"role": "cat", "content": "miaow"}])
    with pytest.raises(ValueError, match=r"messages\[0\]: content is missing"):
        llm.chat([{"role": "user"}])


def test_a_model_without_a_template_says_where_one_is_expected(tmp_path):
    llm = LLM(write_tiny_model(tmp_path / "m", chat_template=None))
    with pytest.raises(ValueError, match=r"no chat template, expected chat_template\.jinja"):
        llm.chat([{"role": "user", "content": "a"}])


# Loading


def test_progress_counts_every_byte(folder):
    calls = []
    LLM(folder, progress=lambda done, total: calls.append((done, total)))
    index = json.loads((folder / "model.safetensors").read_bytes()[8:].split(b"}}")[0] + b"}}")
    stored = max(entry["data_offsets"][1] for name, entry in index.items() if name[0] != "_")
    assert calls[-1] == (stored, stored)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_device_and_dtype_are_said(folder, caplog):
    with caplog.at_level("INFO", "cugraphs"):
        LLM(folder, dtype="bfloat16")
    assert "device cpu" in caplog.text
    assert "float32, not in bfloat16" in caplog.text
