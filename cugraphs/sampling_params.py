"""How the tokens of one request are chosen, and when it ends: names and meaning as in vLLM.

Knows the parameters, their ranges and `generation_config.json`. Knows no tokenizer, no vocabulary
size and no arrays: whether a token id exists in the model is checked where the model is known.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

from cugraphs.counted import counted

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 512
MAX_STOP_TOKEN_IDS = 64

GREEDY_BELOW_TEMPERATURE = 1e-5
"""A temperature below this chooses greedily, as in vLLM: logits over it would overflow float32."""

_INT32_MAX = 2**31 - 1


class TokenBias(Mapping[int, float]):
    """Token id to bias, unchangeable and hashable: what `logit_bias` is held as."""

    __slots__ = ("_bias",)

    def __init__(self, bias: Mapping[int, float]) -> None:
        """Copy `bias`, ordered by token id."""
        self._bias = dict(sorted(bias.items()))

    def __getitem__(self, token_id: int) -> float:
        """Return the bias of one token."""
        return self._bias[token_id]

    def __iter__(self) -> Iterator[int]:
        """Iterate over the token ids, ascending."""
        return iter(self._bias)

    def __len__(self) -> int:
        """Return the number of biased tokens."""
        return len(self._bias)

    def __hash__(self) -> int:
        """Hash by content, so that `SamplingParams` is hashable."""
        return hash(tuple(self._bias.items()))

    def __repr__(self) -> str:
        """Show the mapping as a dict."""
        return repr(self._bias)


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when it ends; checked at construction.

    Args:
        n: completions per prompt, >= 1.
        max_tokens: most tokens to generate, >= 1; None is until EOS or the model's limit
            (vLLM's default is 16).
        min_tokens: tokens to generate before EOS, a stop token id or a stop string may end the
            request.
        temperature: 0 is greedy; at most 1000.
        top_k: keep the k likeliest tokens; 0 or -1 is off (held as 0), 1 is greedy.
        top_p: keep the smallest set of likeliest tokens whose probability reaches it, in (0, 1].
        min_p: drop tokens less likely than `min_p` times the likeliest, in [0, 1].
        repetition_penalty: divides positive and multiplies negative logits of tokens that are in
            the prompt or the output, in [0.001, 1000].
        presence_penalty: subtracted from the logit of tokens that are in the output, in [-2, 2].
        frequency_penalty: the same, once per occurrence, in [-2, 2].
        logit_bias: token id to a number in [-100, 100] added to its logit; at most 512 entries.
        seed: key of the random numbers, in [0, 2**64); None or -1 takes a random one.
        stop: strings that end the request; held as a tuple.
        stop_token_ids: tokens that end the request, at most 64; held as a tuple.
        ignore_eos: go on after EOS.
        logprobs: number of likeliest tokens to report per generated token, in [0, 20]; None is off.
        prompt_logprobs: the same per prompt token.
        include_stop_str_in_output: leave the stop string in the text.
        skip_special_tokens: leave special tokens out of the text.
        truncate_prompt_tokens: keep only the last so many tokens of the prompt, a BOS token counted
            as any other; -1 keeps as many as the model's length leaves room for; None refuses a
            prompt that is too long.

    Raises:
        ValueError: a value is out of its range.
        TypeError: a value has the wrong type, or a name does not exist.
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Refuse unknown names with the names that exist, before the generated `__init__` does."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in kwargs:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise TypeError(
                    f"SamplingParams: {name} is no parameter, "
                    f"expected one of {', '.join(names)}{hint}"
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check every value and hold it in one form: int, float, tuple or `TokenBias`."""
        count, real = _integer, _real
        checked: dict[str, object] = {
            "n": count("n", self.n, 1, _INT32_MAX, "1 <= n < 2**31"),
            "max_tokens": self.max_tokens,
            "min_tokens": count(
                "min_tokens", self.min_tokens, 0, _INT32_MAX, "0 <= min_tokens < 2**31"
            ),
            "temperature": real("temperature", self.temperature, 0, 1000),
            "top_k": count(
                "top_k", self.top_k, -1, _INT32_MAX, "1 <= top_k < 2**31, or 0 or -1 for off"
            ),
            "top_p": real("top_p", self.top_p, 0, 1, low_is_open=True),
            "min_p": real("min_p", self.min_p, 0, 1),
            # The two limits keep a float32 logit finite: inf * 0 would be NaN.
            "repetition_penalty": real("repetition_penalty", self.repetition_penalty, 0.001, 1000),
            "presence_penalty": real("presence_penalty", self.presence_penalty, -2, 2),
            "frequency_penalty": real("frequency_penalty", self.frequency_penalty, -2, 2),
            "logit_bias": _logit_bias(self.logit_bias),
            "seed": self.seed,
            "stop": _stop(self.stop),
            "stop_token_ids": _stop_token_ids(self.stop_token_ids),
            "logprobs": self.logprobs,
            "prompt_logprobs": self.prompt_logprobs,
        }
        if checked["top_k"] == -1:
            checked["top_k"] = 0
        if self.max_tokens is not None:
            expected = "1 <= max_tokens < 2**31, or None for no limit of its own"
            checked["max_tokens"] = count("max_tokens", self.max_tokens, 1, _INT32_MAX, expected)
        for name in ("logprobs", "prompt_logprobs"):
            if checked[name] is not None:
                checked[name] = count(name, checked[name], 0, MAX_LOGPROBS)
        if self.seed is not None:
            expected = "0 <= seed < 2**64, or None for a random one"
            checked["seed"] = count("seed", self.seed, -1, 2**64 - 1, expected)
        if checked["seed"] == -1:
            checked["seed"] = None
        if self.truncate_prompt_tokens is not None:
            expected = "1 <= truncate_prompt_tokens < 2**31, -1 for the model's limit, or None"
            kept = count(
                "truncate_prompt_tokens", self.truncate_prompt_tokens, -1, _INT32_MAX, expected
            )
            if kept == 0:
                raise ValueError(
                    f"SamplingParams: truncate_prompt_tokens is 0, expected {expected}"
                )
            checked["truncate_prompt_tokens"] = kept
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(f"SamplingParams: {name} is {value!r}, expected True or False")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"SamplingParams: min_tokens is {self.min_tokens}, expected 0 <= min_tokens <= "
                f"max_tokens = {self.max_tokens}"
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken without a random number."""
        return self.temperature < GREEDY_BELOW_TEMPERATURE or self.top_k == 1

    def truncate(self, prompt_token_ids: Sequence[int], limit: int) -> list[int]:
        """The part of a prompt that is kept, a new list.

        Args:
            prompt_token_ids: the whole prompt.
            limit: tokens of the longest prompt that the model can take.
        """
        token_ids = list(prompt_token_ids)
        if self.truncate_prompt_tokens is None:
            return token_ids
        kept = limit if self.truncate_prompt_tokens == -1 else self.truncate_prompt_tokens
        return token_ids[-kept:]

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, none or more."""
        return tuple(self.stop or ())


def _integer(name: str, value: object, low: int, high: int, expected: str = "") -> int:
    """Return `value` as an int in [low, high], or raise with its name and range."""
    expected = expected or f"{low} <= {name} <= {high}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"SamplingParams: {name} is {value!r}, expected an integer, {expected}")
    number = int(value)
    if not low <= number <= high:
        raise ValueError(f"SamplingParams: {name} is {number}, expected {expected}")
    return number


def _real(name: str, value: object, low: float, high: float, *, low_is_open: bool = False) -> float:
    """Return `value` as a float in [low, high] or (low, high], or raise with name and range."""
    expected = f"{low} {'<' if low_is_open else '<='} {name} <= {high}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"SamplingParams: {name} is {value!r}, expected a number, {expected}")
    try:
        number = float(value)
    except OverflowError:  # an int beyond float64
        number = math.inf
    # Written so that NaN, which compares false with everything, is refused.
    if not low <= number <= high or (low_is_open and number == low):
        raise ValueError(f"SamplingParams: {name} is {value}, expected {expected}")
    return number


def _token_id(name: str, value: object) -> int:
    """Return a token id, or raise naming the parameter it stands in."""
    return _integer(f"a token id of {name}", value, 0, _INT32_MAX, "0 <= token id < 2**31")


def _logit_bias(value: object) -> TokenBias | None:
    """Return the biases as an immutable mapping; none are None."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(
            f"SamplingParams: logit_bias is {value!r}, expected a mapping of token ids to numbers"
        )
    if len(value) > MAX_LOGIT_BIAS:
        raise ValueError(
            f"SamplingParams: logit_bias has {counted(len(value), 'entry', 'entries')}, "
            f"expected at most {MAX_LOGIT_BIAS}"
        )
    bias = {
        _token_id("logit_bias", token): _real(f"logit_bias[{token}]", number, -100, 100)
        for token, number in value.items()
    }
    return TokenBias(bias) if bias else None


def _stop(value: object) -> tuple[str, ...]:
    """Return the stop strings as a tuple without duplicates."""
    if value is None:
        return ()
    stops = (value,) if isinstance(value, str) else value
    if not isinstance(stops, Sequence):
        raise TypeError(
            f"SamplingParams: stop is {value!r}, expected a string or a list of strings"
        )
    for stop in stops:
        if not isinstance(stop, str):
            raise TypeError(f"SamplingParams: stop holds {stop!r}, expected strings")
        if not stop:
            raise ValueError(
                "SamplingParams: stop holds '', expected strings of 1 character or more"
            )
    return tuple(dict.fromkeys(stops))


def _stop_token_ids(value: object) -> tuple[int, ...]:
    """Return the stop token ids as a tuple without duplicates."""
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | set | frozenset):
        raise TypeError(
            f"SamplingParams: stop_token_ids is {value!r}, expected a list of token ids"
        )
    token_ids = tuple(dict.fromkeys(_token_id("stop_token_ids", token) for token in value))
    if len(token_ids) > MAX_STOP_TOKEN_IDS:
        raise ValueError(
            f"SamplingParams: stop_token_ids has {counted(len(token_ids), 'id')}, "
            f"expected at most {MAX_STOP_TOKEN_IDS}"
        )
    return token_ids


_FROM_GENERATION_CONFIG = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "stop_strings": "stop",
}
"""Key of generation_config.json to the parameter of the same meaning."""

_ONLY_WHEN_SAMPLING = ("temperature", "top_k", "top_p", "min_p")

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "typical_p": (1,),
    "top_h": (),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "diversity_penalty": (0,),
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "max_time": (),
    "guidance_scale": (1,),
    "bad_words_ids": ([],),
    "force_words_ids": ([],),
    "constraints": ([],),
    "sequence_bias": ([], {}),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "forced_decoder_ids": ([],),
    "exponential_decay_length_penalty": (),
    "watermarking_config": (),
    "dola_layers": (),
}
"""Keys that change the tokens and are not offered, each with the values that leave them alone."""


def sampling_params_from_generation_config(
    generation_config: Mapping[str, object],
) -> SamplingParams:
    """Return the sampling that a model's `generation_config.json` asks for.

    `do_sample` that is false or absent is greedy, as in transformers. What is not in the file is
    off: transformers' own default of `top_k` 50 is not taken. `max_length` counts the prompt and is
    no sampling parameter; the model's limit stands in its place.

    Raises:
        ValueError: a value is out of its range, or a key asks for a sampling that is not offered.
        TypeError: a value has the wrong type.
    """
    for key, neutral in _NEUTRAL.items():
        value = generation_config.get(key)
        if value is not None and value not in neutral:
            wanted = (
                " or ".join(str(item) for item in (*neutral, None) if item is not None) or "null"
            )
            raise ValueError(
                f"generation_config.json: {key} is {value!r}, expected {wanted} because it is not "
                "supported; pass SamplingParams of your own"
            )
    do_sample = generation_config.get("do_sample")
    if do_sample is not None and not isinstance(do_sample, bool):
        raise TypeError(
            f"generation_config.json: do_sample is {do_sample!r}, expected true or false"
        )
    values: dict[str, Any] = {
        name: generation_config[key]
        for key, name in _FROM_GENERATION_CONFIG.items()
        if generation_config.get(key) is not None and (do_sample or key not in _ONLY_WHEN_SAMPLING)
    }
    if not do_sample:
        values["temperature"] = 0.0
    try:
        return SamplingParams(**values)
    except (TypeError, ValueError) as error:
        raise type(error)(f"generation_config.json: {error}") from None
