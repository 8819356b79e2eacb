"""Streamed text equals the full decode; stop strings are found as a naive search finds them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece_style import sentencepiece_style
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from cugraphs.detokenizer import IncrementalDetokenizer, StopStringMatcher
from cugraphs.tokenizer import Tokenizer

TEXT = [
    "Once upon a time there was a little girl. She liked to play in the park, don't you know?",
    "你好。世界。今天天气很好。 日本語のテキスト。 한국어 문장입니다.",
    "Émile naïve café 👩‍👩‍👧 🎉🎉 ok\n\n\ttabs  and   spaces",
]


def wrap(backend: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(backend, prefix=(), bos_token_id=None, eos_token_ids=frozenset())


@cache
def byte_level() -> Tokenizer:
    """Byte-level BPE as in GPT-2 and Llama 3, with special and plain added tokens."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT * 3, trainer)
    return wrap(backend)


@cache
def byte_fallback() -> Tokenizer:
    """SentencePiece-style BPE as in Llama 2: a space is `▁`, unknown characters are bytes."""
    pieces = ["▁", "a", "b", "c", "你", "好", ".", "▁a", "▁b", "ab", "▁ab", "▁▁", "\ufffd", "é"]
    merges = [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁a", "b"), ("▁", "▁")]
    return wrap(sentencepiece_style(pieces, merges, fuse_unk=True))


@cache
def with_added_tokens() -> Tokenizer:
    """The byte-level one plus added tokens, special and not, some of them beyond ASCII."""
    backend = tokenizers.Tokenizer.from_str(byte_level()._backend.to_str())
    backend.add_tokens([AddedToken("<think>", special=False), AddedToken("思考 🎉", special=False)])
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|图|>"])
    return wrap(backend)


@pytest.fixture(scope="module")
def stories(stories260k: Path) -> Tokenizer:
    config = json.loads((stories260k / "config.json").read_text(encoding="utf-8"))
    return Tokenizer.load(stories260k, config, {})


KINDS = [byte_level, byte_fallback, with_added_tokens]


def pieces_of(tokenizer, prompt, output, skip=True):
    """Stream `output`; return the pieces, the flushed tail last."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens=skip)
    pieces = [detokenizer.push(token_id) for token_id in output]
    pieces.append(detokenizer.flush())
    assert detokenizer.flush() == ""
    return pieces


def text_after(tokenizer, prompt, output, skip=True):
    """text(prompt + output) less what it has in common, from the start, with text(prompt)."""
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    whole = tokenizer.decode([*prompt, *output], skip_special_tokens=skip)
    common = 0
    while common < min(len(before), len(whole)) and before[common] == whole[common]:
        common += 1
    return whole[common:]


def random_ids(tokenizer, max_size):
    """Any ids, with many single bytes among them: that is where characters break."""
    any_id = st.integers(0, tokenizer.vocab_size - 1)
    if tokenizer.byte_values:
        by_byte = {byte: token_id for token_id, byte in tokenizer.byte_values.items()}
    else:
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        by_byte = dict(enumerate(tokenizer.token_id(letter) for letter in sorted(alphabet)))
    one_byte = st.sampled_from(sorted(by_byte.values()))
    return st.lists(st.one_of(any_id, one_byte), max_size=max_size)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("skip", [True, False], ids=["skip_special", "keep_special"])
@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_joined_pieces_equal_the_full_decode(kind, skip, data):
    tokenizer = kind()
    prompt = data.draw(random_ids(tokenizer, 8))
    output = data.draw(random_ids(tokenizer, 40))
    pieces = pieces_of(tokenizer, prompt, output, skip)
    assert "".join(pieces) == text_after(tokenizer, prompt, output, skip)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_piece_is_final_whatever_follows(kind, data):
    """What is out after a token is a prefix of the text of every continuation."""
    tokenizer = kind()
    output = data.draw(random_ids(tokenizer, 12))
    more = data.draw(random_ids(tokenizer, 6))
    detokenizer = IncrementalDetokenizer(tokenizer, [])
    given_out = "".join(detokenizer.push(token_id) for token_id in output)
    assert tokenizer.decode(output + more).startswith(given_out)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=150, deadline=None)
@given(
    text=st.text(
        st.sampled_from("ab c.é你好世界日本語한국어👩\u200d👧🎉🏳️\u0301\U0001f1e9\U0001f1ea\n"),
        max_size=30,
    )
)
def test_real_text_never_shows_a_replacement_character(kind, text):
    tokenizer = kind()
    ids = tokenizer.encode(text, add_bos=False)
    pieces = pieces_of(tokenizer, [], ids)
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) == tokenizer.decode(ids)


@pytest.mark.parametrize("character", ["é", "你", "🎉"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_character_comes_with_its_last_byte(kind, character):
    tokenizer = kind()
    letters = {byte: f"<0x{byte:02X}>" for byte in range(256)}
    if not tokenizer.byte_values:
        # GPT-2's published table: printable Latin-1 stands for itself, the rest from U+0100 on.
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        letters = {byte: chr(byte) for byte in printable}
        letters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    ids = [tokenizer.token_id(letters[byte]) for byte in character.encode()]
    detokenizer = IncrementalDetokenizer(tokenizer, [])
    assert [detokenizer.push(token_id) for token_id in ids[:-1]] == [""] * (len(ids) - 1)
    assert detokenizer.push(ids[-1]) == character
    assert detokenizer.flush() == ""


def fallback_ids(*tokens):
    return [byte_fallback().token_id(token) for token in tokens]


@pytest.mark.parametrize(
    ("prompt", "output", "pieces"),
    [
        # After a lone BOS the space of the first word goes; after a word it stays.
        (["<s>"], ["▁a", "▁b"], ["a", " b", ""]),
        (["<s>", "▁a"], ["▁b", "c"], [" b", "c", ""]),
        ([], ["▁", "▁a"], ["", " a", ""]),
        # A newline byte does not wait for the next token.
        (["▁a"], ["<0x0A>", "b"], ["\n", "b", ""]),
        # A bad byte breaks itself, not the character before it.
        ([], ["<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "a"], ["", "", "你", "\ufffd", "a", ""]),
        # A truncated tail is flushed once, U+FFFD for each byte as the full decode has it.
        (["▁a"], ["b", "<0xE4>", "<0xBD>"], ["b", "", "", "\ufffd\ufffd"]),
        # A special token in the middle leaves nothing, and a character goes on behind it.
        ([], ["<0xC3>", "</s>", "<0xA9>"], ["", "", "é", ""]),
        # U+FFFD that the model really wrote.
        ([], ["a", "\ufffd", "\ufffd", "b"], ["a", "\ufffd", "\ufffd", "b", ""]),
        # A character begun in the prompt is given whole.
        (["<0xE4>", "<0xBD>"], ["<0xA0>", "a"], ["你", "a", ""]),
    ],
)
def test_hand_computed_pieces(prompt, output, pieces):
    assert pieces_of(byte_fallback(), fallback_ids(*prompt), fallback_ids(*output)) == pieces


def test_byte_level_truncated_tail_is_one_replacement_character():
    tokenizer = byte_level()
    ids = [tokenizer.token_id(letter) for letter in "aðŁ"]  # a, then F0 9F: half of an emoji
    assert pieces_of(tokenizer, [], ids) == ["a", "", "", "\ufffd"]


def test_special_tokens_can_be_kept():
    ids = fallback_ids("a", "</s>")
    assert pieces_of(byte_fallback(), [], ids, skip=False) == ["a", "</s>", ""]
    assert pieces_of(byte_fallback(), [], ids, skip=True) == ["a", "", ""]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_work_per_token_does_not_grow_with_the_history(kind, monkeypatch):
    """Garbage for 2,000 tokens: no decode ever sees more than a handful of tokens."""
    tokenizer = kind()
    longest = 0
    decode = tokenizer.decode

    def counting(ids, **options):
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids, **options)

    monkeypatch.setattr(tokenizer, "decode", counting)
    bad = tokenizer.token_id("<0xE4>" if tokenizer.byte_values else "ä")
    word = tokenizer.token_id("a")
    pieces_of(tokenizer, [word] * 500, [bad] * 1000 + [word] * 500 + [bad, word] * 250)
    assert longest <= 12


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_stories260k_tokenizer(stories, data):
    tokenizer = stories
    prompt = [1, *data.draw(random_ids(tokenizer, 6))]
    output = data.draw(random_ids(tokenizer, 40))
    assert "".join(pieces_of(tokenizer, prompt, output)) == text_after(tokenizer, prompt, output)


def naive_stop(text, stops, include):
    """Extend the text character by character until some stop string is its suffix."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            longest = max(matches, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


small_text = st.text(st.sampled_from("ab你"), max_size=12)


@settings(max_examples=500, deadline=None)
@given(
    pieces=st.lists(small_text, max_size=8),
    stops=st.lists(st.text(st.sampled_from("ab你"), min_size=1, max_size=5), max_size=4),
    include=st.booleans(),
)
def test_stop_strings_against_a_naive_search(pieces, stops, include):
    matcher = StopStringMatcher(stops, include)
    out, seen, stopped = "", "", False
    for piece in pieces:
        text, stopped = matcher.push(piece)
        out += text
        seen += piece
        expected, matched = naive_stop(seen, stops, include)
        assert stopped == (matched is not None)
        if stopped:
            assert out == expected
        else:
            # Held back: the longest end of the text that begins a stop string, and no more.
            ends = [seen[start:] for start in range(len(seen) + 1)]
            held = next(end for end in ends if any(stop.startswith(end) for stop in [*stops, ""]))
            assert out + held == seen
    out += matcher.flush()
    expected, matched = naive_stop("".join(pieces), stops, include)
    assert (out, matcher.matched) == (expected, matched)
    assert matcher.flush() == ""


@pytest.mark.parametrize(
    ("stops", "pieces", "include", "expected"),
    [
        (["STOP"], ["a S", "T", "OP b"], False, [("a ", False), ("", False), ("", True)]),
        (["STOP"], ["a S", "T", "OP b"], True, [("a ", False), ("", False), ("STOP", True)]),
        (["STOP"], ["ST", "x"], False, [("", False), ("STx", False)]),
        # "bc" completes before "abcd" does, so it wins although it starts later.
        (["abcd", "bc"], ["xab", "cd"], False, [("x", False), ("a", True)]),
        # Both complete at the same character: the one that starts earliest.
        (["c", "abc"], ["ab", "c"], False, [("", False), ("", True)]),
        (["aab"], ["aa", "ab"], False, [("", False), ("a", True)]),
        (["\n"], ["a\nb", "c"], False, [("a", True), ("", True)]),
        ([], ["a", "b"], False, [("a", False), ("b", False)]),
    ],
)
def test_stop_strings_by_hand(stops, pieces, include, expected):
    matcher = StopStringMatcher(stops, include)
    assert [matcher.push(piece) for piece in pieces] == expected


@pytest.mark.parametrize("stops", ["STOP", ["a", ""]])
def test_bad_stop_strings_are_refused(stops):
    with pytest.raises(ValueError, match="StopStringMatcher: stops is"):
        StopStringMatcher(stops, False)


# Plain tokens


def test_plain_texts_by_hand():
    tokenizer = byte_fallback()
    ids = {piece: tokenizer.token_id(piece) for piece in ("▁", "a", "▁a", "▁▁", "你", "\ufffd")}
    texts = {piece: tokenizer.plain_text(token_id) for piece, token_id in ids.items()}
    # The first space of a text is dropped; these are the texts after others.
    assert texts == {"▁": " ", "a": "a", "▁a": " a", "▁▁": "  ", "你": "你", "\ufffd": None}
    assert tokenizer.plain_text(tokenizer.token_id("<0x41>")) is None
    assert tokenizer.plain_text(tokenizer.token_id("</s>")) == "</s>"


def test_bytes_of_a_character_are_not_plain():
    tokenizer = byte_level()
    whole = tokenizer.encode(" the", add_bos=False)
    assert next(map(tokenizer.plain_text, whole)).startswith(" t")
    first = tokenizer.token_id("ð")  # the byte F0, which begins an emoji
    assert tokenizer.plain_text(first) is None


def test_no_token_is_plain_where_the_decoder_looks_at_its_neighbours():
    backend = tokenizers.Tokenizer(models.WordPiece({"a": 0, "##b": 1, ".": 2, "[UNK]": 3}))
    backend.decoder = decoders.WordPiece()  # takes the space before a full stop away
    tokenizer = wrap(backend)
    assert [tokenizer.plain_text(token_id) for token_id in range(3)] == [None] * 3
    assert "".join(pieces_of(tokenizer, [0], [0, 2, 0, 1])) == " a. ab"


def test_a_long_run_of_plain_tokens_keeps_what_a_later_one_needs():
    tokenizer = byte_fallback()
    a, byte = tokenizer.token_id("a"), tokenizer.token_id("<0xE4>")
    output = [a] * 500 + [byte, byte, a]
    assert "".join(pieces_of(tokenizer, [a], output)) == "a" * 500 + "\ufffd\ufffda"
