"""Rotary position embedding: its parameters, its frequencies, and the cos/sin table kernels read.

All arithmetic is float64 on NumPy; the table is rounded to float32 once. Does not know how
config.json spells the parameters (`hf_rope` does) nor how long a sequence may be
(`LlamaConfig.check_max_model_len` does), and rotates nothing (kernels do).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from cugraphs.models.config_checks import (
    check_bool,
    check_choice,
    check_integer,
    check_number,
    same,
    shown,
)

# Which parameters each type reads, beside rope_type and theta.
ROPE_PARAMETERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", "original_max_position_embeddings"),
    "llama3": (
        "factor",
        "original_max_position_embeddings",
        "low_freq_factor",
        "high_freq_factor",
    ),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
}
# Ranges far outside any real model, inside which no formula below overflows.
_RANGES: dict[str, tuple[float, float]] = {
    "factor": (1.0, 1e6),
    "low_freq_factor": (1e-6, 1e6),
    "high_freq_factor": (1e-6, 1e6),
    "attention_factor": (1e-6, 1e6),
    "beta_fast": (1e-6, 1e6),
    "beta_slow": (1e-6, 1e6),
    "mscale": (0.0, 1e6),
    "mscale_all_dim": (0.0, 1e6),
}
THETA_RANGE = (1.0 + 1e-6, 1e15)
MAX_POSITIONS = 2**30
CHUNK_POSITIONS = 2048  # 2 MiB of complex128 at head_dim 128


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """One kind of rotary embedding, with transformers' parameter names.

    A parameter that the type does not read must be left at its default.

    Args:
        rope_type: `default`, `linear`, `dynamic`, `llama3` or `yarn`.
        theta: Base of the geometric series of wavelengths (`rope_theta`).
        factor: How many times longer than the original context the model reads.
        original_max_position_embeddings: Original context in tokens; llama3, yarn and dynamic.
        low_freq_factor: llama3: wavelengths above original / this are divided by `factor`.
        high_freq_factor: llama3: wavelengths below original / this are kept.
        attention_factor: yarn: factor of cos and sin; None derives it from `factor`.
        beta_fast: yarn: dimensions that turn more often than this over the original context are
            kept.
        beta_slow: yarn: dimensions that turn less often than this are divided by `factor`.
        mscale: yarn: numerator's weight in the derived attention factor, with `mscale_all_dim`.
        mscale_all_dim: yarn: denominator's weight; None or 0 leaves both out.
        truncate: yarn: round the ends of the ramp outwards to whole dimensions.
    """

    rope_type: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        """Refuse a parameter out of range, and one that the type would silently not read."""
        check_choice("RopeConfig: rope_type", self.rope_type, tuple(ROPE_PARAMETERS))
        check_number("RopeConfig: theta", self.theta, *THETA_RANGE)
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            where = f"RopeConfig: {name}"
            if name in ("rope_type", "theta"):
                continue
            if name not in ROPE_PARAMETERS[self.rope_type]:
                if not same(value, field.default):
                    raise ValueError(
                        f"{where} is {shown(value)}, expected none for rope_type {self.rope_type}"
                    )
            elif name == "truncate":
                check_bool(where, value)
            elif name == "original_max_position_embeddings":
                check_integer(where, value, MAX_POSITIONS)
            elif value is not None or field.default is not None:
                check_number(where, value, *_RANGES[name])
        if not self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"RopeConfig: high_freq_factor is {shown(self.high_freq_factor)}, "
                f"expected more than low_freq_factor, {shown(self.low_freq_factor)}"
            )
        if not self.beta_slow <= self.beta_fast:
            raise ValueError(
                f"RopeConfig: beta_fast is {shown(self.beta_fast)}, "
                f"expected at least beta_slow, {shown(self.beta_slow)}"
            )


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[npt.NDArray[np.float64], float]:
    """Radians per token of each rotated pair, and the factor of cos and sin (1 except in yarn).

    `default`: theta ** (-2i / head_dim). `linear`: the same divided by factor. `dynamic`: the same
    as `default`, which is what it is up to the original context; longer sequences are refused
    before they come here.

    Args:
        rope: The rotary embedding.
        head_dim: Even; pair i is dimensions i and i + head_dim / 2.

    Returns:
        float64 [head_dim / 2], and the attention scaling.

    Raises:
        ValueError: head_dim is odd or below 2.

    Source: RoFormer, arXiv:2104.09864, section 3.2.2; position interpolation, arXiv:2306.15595.
    """
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"inverse_frequencies: head_dim is {head_dim}, expected an even number")
    extrapolated = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.rope_type == "linear":
        return extrapolated / rope.factor, 1.0
    if rope.rope_type == "llama3":
        return _llama3(rope, extrapolated), 1.0
    if rope.rope_type == "yarn":
        return _yarn(rope, extrapolated), _yarn_attention_factor(rope)
    return extrapolated, 1.0


def _llama3(rope: RopeConfig, extrapolated: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Short wavelengths kept, long ones divided by factor, linear in turns in between.

    Source: `apply_scaling` of Meta's Llama 3.1 reference code, whose three branches are one clip
    here: it is 1 in the branch that keeps, 0 in the branch that divides.
    """
    assert rope.original_max_position_embeddings is not None
    turns = rope.original_max_position_embeddings * extrapolated / (2 * math.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    return extrapolated * (kept + (1.0 - kept) / rope.factor)


def _yarn(rope: RopeConfig, extrapolated: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Fast dimensions kept, slow ones divided by factor, linear in the dimension in between.

    Source: YaRN, arXiv:2309.00071, section 3.2 ("NTK-by-parts"). The ramp is the authors' code's
    and transformers': between the paper's two ends, alpha = beta_slow and beta = beta_fast turns,
    it is linear in the dimension, where the paper's text has it linear in the turns.
    """
    original = rope.original_max_position_embeddings
    assert original is not None
    head_dim = 2 * len(extrapolated)

    def dimension_that_turns(turns: float) -> float:
        """The (fractional) pair that makes `turns` turns over the original context."""
        radians_per_token = turns * 2 * math.pi / original
        return -head_dim * math.log(radians_per_token) / (2 * math.log(rope.theta))

    low, high = dimension_that_turns(rope.beta_fast), dimension_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    interpolated = (np.arange(len(extrapolated), dtype=np.float64) - low) / (high - low)
    interpolated = np.clip(interpolated, 0.0, 1.0)
    return extrapolated * (1.0 - interpolated + interpolated / rope.factor)


def _yarn_attention_factor(rope: RopeConfig) -> float:
    """0.1 ln(factor) + 1, unless the config gives it or weighs it with mscale.

    Source: YaRN, arXiv:2309.00071, equation 22 (there as a factor of the logits, which see cos and
    sin twice); mscale as in DeepSeek-V2's code and in transformers.
    """
    if rope.attention_factor is not None:
        return rope.attention_factor

    def scale(weight: float) -> float:
        """The paper's factor with its slope times `weight`."""
        return 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)


def cos_sin_table(
    rope: RopeConfig, head_dim: int, num_positions: int, *, first: int = 0
) -> npt.NDArray[np.float32]:
    """Cosine and sine of every position and pair, times the attention scaling.

    Angles, cos, sin and scaling are float64 and rounded to float32 once: a float32 angle at
    position 100,000 would be off by up to 0.004 radians.

    Args:
        rope: The rotary embedding.
        head_dim: Even.
        num_positions: How many positions, in tokens.
        first: The first of them, a multiple of ``CHUNK_POSITIONS``; then each entry has the bits
            that it has in a whole table.

    Returns:
        float32 [num_positions, head_dim], the first half of a row cos, the second half sin.

    Raises:
        ValueError: there is no position, ``first`` is within a chunk, or head_dim is odd or below
            2.
    """
    if num_positions < 1:
        raise ValueError(f"cos_sin_table: num_positions is {num_positions}, expected 1 or more")
    if first % CHUNK_POSITIONS:
        raise ValueError(
            f"cos_sin_table: first is {first}, expected a multiple of {CHUNK_POSITIONS}"
        )
    frequencies, scaling = inverse_frequencies(rope, head_dim)
    half = head_dim // 2
    table = np.empty((num_positions, head_dim), np.float32)
    # exp(i (start + offset) f) = exp(i start f) exp(i offset f): one complex product an entry in
    # place of a cosine and a sine, ten times quicker at 131,072 positions and as exact.
    offsets = np.exp(1j * np.arange(CHUNK_POSITIONS)[:, np.newaxis] * frequencies)
    for start in range(0, num_positions, CHUNK_POSITIONS):
        chunk = table[start : start + CHUNK_POSITIONS]
        turned = offsets[: len(chunk)] * (scaling * np.exp(1j * (first + start) * frequencies))
        chunk[:, :half] = turned.real
        chunk[:, half:] = turned.imag
    return table
