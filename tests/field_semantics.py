"""What each field of ``SamplingParams`` does to tokens and texts of a tiny model, on any device.

``CHECKS`` has a function for each field; it takes a model and a number of samples, and states what
follows from the field's meaning alone.
"""

import math

from tiny_model import END_OF_TURN, EOS, MAX_MODEL_LEN, USER

from cugraphs import SamplingParams

PROMPT = "The quick brown fox"
LONG = {"max_tokens": 24, "ignore_eos": True}


def answers(llm, n, prompt=PROMPT, **fields):
    """The ``n`` answers to one prompt, greedy unless a temperature is given."""
    params = SamplingParams(**{"temperature": 0.0, "n": n, **fields})
    (output,) = llm.generate([prompt] if isinstance(prompt, list) else prompt, params)
    assert output.finished and [a.index for a in output.outputs] == list(range(n))
    return output.outputs


def sampled(llm, n, **fields):
    """Answers of seeded samples whose tokens come with the 20 likeliest at each place."""
    return answers(llm, n, **{"temperature": 1.0, "seed": 5, "logprobs": 20, **LONG, **fields})


def ranks(found):
    """Of every token of every answer among all tokens at its place: 1 is the likeliest."""
    return [
        entry[token].rank
        for answer in found
        for token, entry in zip(answer.token_ids, answer.logprobs, strict=True)
    ]


def check_n(llm, n):
    drawn = answers(llm, n, temperature=1.0, seed=3, **LONG)
    more = answers(llm, n + 2, temperature=1.0, seed=3, **LONG)
    assert more[:n] == drawn  # a sample's draws are its own, however many there are
    assert len({answer.token_ids for answer in more}) == n + 2
    assert len({answer.text for answer in answers(llm, n + 2, **LONG)}) == 1


def check_max_tokens(llm, n):
    for count in (1, 7):
        found = answers(llm, n, max_tokens=count, ignore_eos=True)
        assert all(len(a.token_ids) == count and a.finish_reason == "length" for a in found)
    prompt = [10] * (MAX_MODEL_LEN - 5)
    for count in (None, 5, 6):  # the model's limit, where it comes first
        found = answers(llm, n, prompt, max_tokens=count, ignore_eos=True)
        assert all(len(a.token_ids) == 5 and a.finish_reason == "length" for a in found)


def check_min_tokens(llm, n):
    bias = {EOS: 100, 60: 40}
    for least in (0, 1, 5):
        for found in answers(llm, n, min_tokens=least, max_tokens=9, logit_bias=bias):
            assert found.token_ids == (60,) * least + (EOS,) and found.finish_reason == "stop"


def check_temperature(llm, n):
    assert set(ranks(sampled(llm, n, temperature=0.0))) == {1}
    assert set(ranks(sampled(llm, n, temperature=0.01))) == {1}  # weights of e^(100 * difference)
    hot = ranks(sampled(llm, n, temperature=100.0, max_tokens=60))
    assert sum(hot) / len(hot) > 40  # nearly uniform over 163 tokens: 82 in the mean


def check_top_k(llm, n):
    found = ranks(sampled(llm, n, top_k=3, temperature=100.0, max_tokens=60))
    assert set(found) == {1, 2, 3}
    assert set(ranks(sampled(llm, n, top_k=1, temperature=100.0))) == {1}
    assert max(ranks(sampled(llm, n, top_k=-1, temperature=100.0))) > 20


def check_top_p(llm, n):
    """The tokens that are likelier than the chosen one do not reach ``top_p`` by themselves."""
    for answer in sampled(llm, n, top_p=0.6, max_tokens=60):
        for token, entry in zip(answer.token_ids, answer.logprobs, strict=True):
            likelier = [e for e in entry.values() if e.rank < entry[token].rank]
            assert len(likelier) == entry[token].rank - 1
            assert sum(math.exp(e.logprob) for e in likelier) < 0.6
    assert set(ranks(sampled(llm, n, top_p=1e-6))) == {1}


def check_min_p(llm, n):
    found = sampled(llm, n, min_p=0.2, max_tokens=60)
    for answer in found:
        for token, entry in zip(answer.token_ids, answer.logprobs, strict=True):
            best = max(e.logprob for e in entry.values())
            assert entry[token].logprob >= best + math.log(0.2) - 1e-4
    assert max(ranks(found)) > 1
    assert set(ranks(sampled(llm, n, min_p=1.0))) == {1}


def check_repetition_penalty(llm, n):
    """At 1000 a token that was there has a logit near 0 or far below: none comes again."""
    prompt = llm.tokenizer.encode(PROMPT)
    for answer in answers(llm, n, repetition_penalty=1000.0, **LONG):
        assert len({*prompt, *answer.token_ids}) == len(set(prompt)) + len(answer.token_ids)
    plain = answers(llm, n, **LONG)
    assert any(len(set(answer.token_ids)) < len(answer.token_ids) for answer in plain)


def check_presence_penalty(llm, n):
    for strength in (2.0, -1.5):
        _check_subtracted(llm, n, lambda count, s=strength: s * (count > 0), strength, "presence")


def check_frequency_penalty(llm, n):
    for strength in (1.5, -0.5):
        _check_subtracted(llm, n, lambda count, s=strength: s * count, strength, "frequency")


def _check_subtracted(llm, n, penalty, strength, kind):
    """Each token is the likeliest once ``penalty(times that it was there)`` is subtracted."""
    fields = {f"{kind}_penalty": strength, "logprobs": 20, **LONG}
    changed = False
    for answer in answers(llm, n, **fields):
        before = []
        for token, entry in zip(answer.token_ids, answer.logprobs, strict=True):
            adjusted = {t: e.logprob - penalty(before.count(t)) for t, e in entry.items()}
            assert adjusted[token] >= max(adjusted.values()) - 1e-4
            changed = changed or entry[token].rank > 1
            before.append(token)
        if strength < 0:  # tokens outside of the 20 may be lifted too, but no new one comes
            changed = changed or len(set(before)) < len(before)
    assert changed


def check_logit_bias(llm, n):
    for answer in answers(llm, n, temperature=1.0, logit_bias={70: 100}, max_tokens=8):
        assert answer.token_ids == (70,) * 8
    banned = {answer.token_ids[0] for answer in answers(llm, n, **LONG)}
    for answer in answers(llm, n, logit_bias={token: -100 for token in banned}, **LONG):
        assert not banned & set(answer.token_ids)


def check_seed(llm, n):
    drawn = [answers(llm, n, temperature=1.0, seed=seed, **LONG) for seed in (1, 1, 2, 2**64 - 1)]
    assert drawn[0] == drawn[1]
    texts = [answer.token_ids for found in drawn[1:] for answer in found]
    assert len(set(texts)) == len(texts)
    free = [answers(llm, n, temperature=1.0, seed=None, **LONG) for _ in range(2)]
    assert free[0] != free[1]


def check_stop(llm, n):
    (free, *_) = answers(llm, 1, **LONG)
    stop = free.text[7:10]
    at = free.text.find(stop)
    for found in answers(llm, n, stop=["never\0", stop], **LONG):
        assert (found.text, found.finish_reason, found.stop_reason) == (
            *(free.text[:at], "stop", stop),
        )
        assert found.token_ids == free.token_ids[: len(found.token_ids)]
        assert stop not in llm.tokenizer.decode(found.token_ids[:-1])


def check_stop_token_ids(llm, n):
    (free, *_) = answers(llm, 1, **LONG)
    stop = free.token_ids[7]
    end = free.token_ids.index(stop) + 1
    for found in answers(llm, n, stop_token_ids=[stop, 3], **LONG):
        assert found.token_ids == free.token_ids[:end]
        assert (found.finish_reason, found.stop_reason) == ("stop", stop)
        assert found.text == llm.tokenizer.decode(found.token_ids[:-1])


def check_ignore_eos(llm, n):
    for eos in (EOS, END_OF_TURN):
        for ignored, tokens, reason in ((False, 1, "stop"), (True, 6, "length")):
            bias = {eos: 100}
            for found in answers(llm, n, ignore_eos=ignored, max_tokens=6, logit_bias=bias):
                assert found.token_ids == (eos,) * tokens
                assert (found.finish_reason, found.stop_reason) == (reason, None)


def check_logprobs(llm, n):
    for wanted in (0, 1, 20):
        for answer in answers(llm, n, temperature=1.4, seed=3, logprobs=wanted, **LONG):
            assert len(answer.logprobs) == len(answer.token_ids)
            for token, entry in zip(answer.token_ids, answer.logprobs, strict=True):
                assert token in entry and wanted <= len(entry) <= wanted + 1
                found = sorted(e.rank for t, e in entry.items() if t != token)
                assert {*found, entry[token].rank} >= set(range(1, wanted + 1))
                assert sum(math.exp(e.logprob) for e in entry.values()) <= 1 + 1e-5
                falling = [e.logprob for e in sorted(entry.values(), key=lambda e: e.rank)]
                assert falling == sorted(falling, reverse=True)
    assert all(answer.logprobs is None for answer in answers(llm, n, max_tokens=2))


def check_prompt_logprobs(llm, n):
    """What the prompt's tokens got is what they get as an answer to the tokens before them."""
    (free, *_) = answers(llm, 1, logprobs=2, **LONG)
    prompt = [*llm.tokenizer.encode(PROMPT), *free.token_ids]
    params = SamplingParams(temperature=0, n=n, max_tokens=1, prompt_logprobs=2)
    (output,) = llm.generate([prompt], params)
    assert len(output.prompt_logprobs) == len(prompt) and output.prompt_logprobs[0] is None
    told = output.prompt_logprobs[-len(free.token_ids) :]
    for found, expected in zip(told, free.logprobs, strict=True):
        assert found.keys() == expected.keys()
        for token, entry in found.items():
            assert entry.rank == expected[token].rank
            assert abs(entry.logprob - expected[token].logprob) < 1e-4


def check_include_stop_str_in_output(llm, n):
    (free, *_) = answers(llm, 1, **LONG)
    stop = free.text[7:10]
    end = free.text.find(stop) + len(stop)
    for found in answers(llm, n, stop=stop, include_stop_str_in_output=True, **LONG):
        assert found.text == free.text[:end]
    token = free.token_ids[7]
    for found in answers(llm, n, stop_token_ids=[token], include_stop_str_in_output=True, **LONG):
        assert found.text == llm.tokenizer.decode(found.token_ids)


def check_skip_special_tokens(llm, n):
    for skip, text in ((True, ""), (False, "<|user|>" * 3)):
        fields = {"max_tokens": 3, "logit_bias": {USER: 100}, "skip_special_tokens": skip}
        assert all(found.text == text for found in answers(llm, n, **fields))


def check_truncate_prompt_tokens(llm, n):
    prompt = [40 + i % 60 for i in range(MAX_MODEL_LEN + 9)]
    for asked, kept in ((-1, MAX_MODEL_LEN - 1), (MAX_MODEL_LEN - 1, MAX_MODEL_LEN - 1), (3, 3)):
        cut = answers(llm, n, prompt, truncate_prompt_tokens=asked, max_tokens=4)
        assert cut == answers(llm, n, prompt[-kept:], max_tokens=4)


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}
