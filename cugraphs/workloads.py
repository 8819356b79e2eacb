"""What a benchmark asks of an engine: how long prompts and answers are, and when requests come.

Everything is drawn from a seed, nothing is downloaded. Prompts are random token ids: what they say
does not matter to an engine. Knows no engine and no model but its vocabulary's size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Lengths = list[tuple[int, int]]  # (tokens of the prompt, tokens of the answer) of each request


@dataclass(frozen=True)
class Demand:
    """One request.

    Args:
        prompt_token_ids: never empty.
        output_tokens: to generate, no more and no fewer.
        arrival_s: when it comes, from the start of the run.
    """

    prompt_token_ids: tuple[int, ...]
    output_tokens: int
    arrival_s: float = 0.0


@dataclass(frozen=True)
class LogNormalLengths:
    """Lengths whose logarithm is normal, drawn anew where they are out of bounds.

    Args:
        mean: of the lengths, before any is out of bounds.
        sigma: standard deviation of the natural logarithm.
        least: tokens of the shortest.
        most: tokens of the longest.
    """

    mean: float
    sigma: float
    least: int
    most: int

    @property
    def mu(self) -> float:
        """Mean of the natural logarithm: of a log-normal, mean = exp(mu + sigma^2 / 2)."""
        return math.log(self.mean) - self.sigma**2 / 2

    def draw(self, count: int, random: np.random.Generator) -> list[int]:
        """So many lengths."""
        found: list[int] = []
        while len(found) < count:
            drawn = np.rint(random.lognormal(self.mu, self.sigma, count))
            found += drawn[(drawn >= self.least) & (drawn <= self.most)].astype(int).tolist()
        return found[:count]


# The means are those of ShareGPT in Kwon et al., Efficient Memory Management for Large Language
# Model Serving with PagedAttention (SOSP 2023), figure 11: 161.31 and 337.99 tokens. The paper
# shows long tails and gives no spread: that is chosen. vLLM's own benchmark leaves conversations
# out that have fewer than 4 tokens on a side, a prompt above 1,024, or more than 2,048 in all.
SHAREGPT_MOST = 1024
SHAREGPT_PROMPT = LogNormalLengths(mean=161.31, sigma=1.1, least=4, most=SHAREGPT_MOST)
SHAREGPT_OUTPUT = LogNormalLengths(mean=337.99, sigma=0.8, least=4, most=SHAREGPT_MOST)


def fixed_lengths(count: int, prompt_tokens: int, output_tokens: int) -> Lengths:
    """The same for all."""
    return [(prompt_tokens, output_tokens)] * count


def sharegpt_lengths(count: int, random: np.random.Generator, *, most: int) -> Lengths:
    """As of conversations with a chat model: short and long ones, answers longer than prompts.

    Args:
        count: requests.
        random: draws them.
        most: tokens of a prompt, and of an answer, where that is less than ``SHAREGPT_MOST``.
    """
    prompt, output = (
        dataclasses.replace(lengths, most=min(most, lengths.most))
        for lengths in (SHAREGPT_PROMPT, SHAREGPT_OUTPUT)
    )
    return list(zip(prompt.draw(count, random), output.draw(count, random), strict=True))


def random_prompts(
    lengths: Lengths, vocab_size: int, random: np.random.Generator
) -> list[tuple[int, ...]]:
    """A prompt of random tokens for each request; no two begin alike but by chance."""
    return [tuple(random.integers(0, vocab_size, tokens).tolist()) for tokens, _ in lengths]


def shared_prefix_prompts(
    lengths: Lengths,
    vocab_size: int,
    random: np.random.Generator,
    *,
    prefix_tokens: int,
    num_prefixes: int,
) -> list[tuple[int, ...]]:
    """Prompts that begin with one of some prefixes, as of one system prompt or document.

    Args:
        lengths: of the requests; of a prompt it is what follows the prefix.
        vocab_size: token ids are below it.
        random: draws tokens, and whose prefix is which.
        prefix_tokens: of each prefix.
        num_prefixes: each is as likely as any other.
    """
    prefixes = random_prompts([(prefix_tokens, 0)] * num_prefixes, vocab_size, random)
    own = random_prompts(lengths, vocab_size, random)
    chosen = random.integers(0, num_prefixes, len(lengths)).tolist()
    return [prefixes[which] + rest for which, rest in zip(chosen, own, strict=True)]


def poisson_arrivals(
    count: int, rate_per_s: float, random: np.random.Generator, *, burst: int = 1
) -> list[float]:
    """Seconds at which requests come, rising; the first ones come at 0.

    Bursts of ``burst`` requests come together, the bursts as a Poisson process of
    ``rate_per_s / burst``: so ``rate_per_s`` requests come a second in the mean, however they come.
    """
    bursts = -(-count // burst)
    gaps = random.exponential(burst / rate_per_s, bursts - 1)
    starts = [0.0, *np.cumsum(gaps).tolist()]
    return [start for start in starts for _ in range(burst)][:count]


def make_demands(
    prompts: Sequence[tuple[int, ...]],
    lengths: Lengths,
    arrivals_s: Sequence[float] | None = None,
) -> list[Demand]:
    """The requests, in order of arrival; without arrivals all come at once."""
    times = [0.0] * len(prompts) if arrivals_s is None else arrivals_s
    return [
        Demand(prompt, output_tokens, arrival_s)
        for prompt, (_, output_tokens), arrival_s in zip(prompts, lengths, times, strict=True)
    ]
