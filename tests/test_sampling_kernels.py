"""SAMPLE, its adjusted logits and LOGPROBS against loops, brute force and known distributions."""

import inspect
import math
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.kernel import Access, ArrayType
from cugraphs.kernels.adjust_logits import PROMPT_BIT, adjust_logits
from cugraphs.kernels.logprobs import LOGPROBS
from cugraphs.kernels.sample import GREEDY_BELOW_TEMPERATURE, SAMPLE, uniforms
from cugraphs.sampling_params import GREEDY_BELOW_TEMPERATURE as GREEDY_BELOW_OF_PARAMS

KERNELS = (SAMPLE, LOGPROBS)
CASES = [(kernel, case) for kernel in KERNELS for case in kernel.cases]
DTYPES = ("float32", "bfloat16", "float16")
SEEDS = st.integers(0, 2**32 - 1)

every_case = pytest.mark.parametrize(
    ("kernel", "case"), CASES, ids=[f"{kernel.name}-{case.name}" for kernel, case in CASES]
)


def arrays_of(kernel, case, dtype, seed=0):
    return case.make(np.random.default_rng(seed), np.dtype(dtype))


def is_per_row(operand):
    return operand.shape[0] == "rows"


def rows_of(kernel, arrays):
    """All rows of a case's arrays."""
    pairs = zip(kernel.supplied, arrays, strict=True)
    return np.arange(next(len(array) for operand, array in pairs if is_per_row(operand)))


def run_rows(kernel, case, arrays, rows):
    """Results on the given rows alone, and the UPDATE arrays after it."""
    picked = [
        array[rows] if is_per_row(operand) else array.copy()
        for operand, array in zip(kernel.supplied, arrays, strict=True)
    ]
    with np.errstate(all="raise"):
        results = kernel.reference(*picked, **case.attrs)
    updated = [
        array
        for operand, array in zip(kernel.supplied, picked, strict=True)
        if operand.access is Access.UPDATE
    ]
    return results, updated


def assert_same_bits(left, right):
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert left.tobytes() == right.tobytes()


# Every case of the two declarations.


@every_case
@pytest.mark.parametrize("dtype", DTYPES)
def test_case_gives_the_declared_types_and_reads_only_what_it_says(kernel, case, dtype):
    arrays = arrays_of(kernel, case, dtype)
    before = [array.copy() for array in arrays]
    for operand, array in zip(kernel.supplied, arrays, strict=True):
        array.flags.writeable = operand.access is Access.UPDATE
    types, _ = kernel.infer([ArrayType(a.shape, str(a.dtype)) for a in arrays], case.attrs)
    with np.errstate(all="raise"):
        results = kernel.reference(*arrays, **case.attrs)
    assert [ArrayType(r.shape, str(r.dtype)) for r in results] == types
    for operand, array, old in zip(kernel.supplied, arrays, before, strict=True):
        if operand.access is Access.READ:
            assert_same_bits(array, old)


@every_case
def test_rows_do_not_influence_each_other(kernel, case):
    arrays = arrays_of(kernel, case, "float32")
    rows = rows_of(kernel, arrays)
    together, state = run_rows(kernel, case, arrays, rows)
    order = np.random.default_rng(1).permutation(rows)
    shuffled, shuffled_state = run_rows(kernel, case, arrays, order)
    for left, right in zip(together, shuffled, strict=True):
        assert_same_bits(left[order], right)
    for left, right in zip(state, shuffled_state, strict=True):
        assert_same_bits(left, right)
    for row in rows:
        alone, _ = run_rows(kernel, case, arrays, rows[row : row + 1])
        for left, right in zip(together, alone, strict=True):
            assert_same_bits(left[row : row + 1], right)


@every_case
def test_dead_rows_may_hold_anything(kernel, case):
    arrays = list(arrays_of(kernel, case, "float32"))
    names = [operand.name for operand in kernel.supplied]
    if kernel is LOGPROBS:
        dead = arrays[names.index("num_logprobs")] < 0
    else:
        dead = arrays[names.index("row_ids")] < 0
    rows = rows_of(kernel, arrays)
    expected, state = run_rows(kernel, case, arrays, rows)
    index = names.index("logits")
    arrays[index] = arrays[index].copy()
    arrays[index][dead] = np.float32(1e30)
    results, other_state = run_rows(kernel, case, arrays, rows)
    for left, right in zip((*expected, *state), (*results, *other_state), strict=True):
        assert_same_bits(left, right)
    for result in expected:
        assert np.isfinite(result[dead]).all()


def test_no_rows_give_no_results():
    for kernel in KERNELS:
        case = kernel.cases[0]
        arrays = arrays_of(kernel, case, "float32")
        results, _ = run_rows(kernel, case, arrays, np.arange(0))
        assert [len(result) for result in results] == [0] * len(results)


def test_checks_name_the_axis():
    axes = {"vocab": 5, "max_bias": 1, "max_stop_ids": 1, "words": 2}
    SAMPLE.check(axes)
    for axis, size, message in (
        ("max_bias", 0, "'max_bias' is 0"),
        ("max_stop_ids", 0, "'max_stop_ids' is 0"),
        ("vocab", 0, "'vocab' is 0"),
        ("vocab", 256_001, "'vocab' is 256001"),
        ("words", 4, "'words' of seeds is 4, expected 2"),
    ):
        with pytest.raises(ValueError, match=message):
            SAMPLE.check({**axes, axis: size})
    with pytest.raises(ValueError, match="max_logprobs is 0"):
        LOGPROBS.check({"vocab": 5}, max_logprobs=0)
    with pytest.raises(ValueError, match="'vocab' is 0"):
        LOGPROBS.check({"vocab": 0}, max_logprobs=1)


def test_cost_reads_each_logit_once():
    axes = {"rows": 3, "vocab": 1000}
    assert SAMPLE.cost(axes, "bfloat16").bytes_accessed == 3 * (1000 * 2 + 64)
    assert LOGPROBS.cost(axes, "float16", max_logprobs=20).bytes_accessed == 3 * (2000 + 180)


# Adjusted logits.

ADJUST_NAMES = list(inspect.signature(adjust_logits).parameters)


def adjust_inputs(logits, *, slots=1, **given):
    """Neutral inputs for each row in the slot of its number, with what is given put in."""
    logits = np.asarray(logits)
    rows, vocab = logits.shape
    inputs = {
        "logits": logits,
        "row_ids": np.arange(rows) % slots,
        "sample_positions": np.full(rows, 10),
        "token_counts": np.zeros((slots, vocab)),
        "repetition_penalty": np.ones(slots, np.float32),
        "presence_penalty": np.zeros(slots, np.float32),
        "frequency_penalty": np.zeros(slots, np.float32),
        "bias_ids": np.full((slots, 4), -1),
        "bias_values": np.zeros((slots, 4), np.float32),
        "stop_ids": np.full((slots, 3), -1),
        "min_position": np.zeros(slots),
    }
    for name, value in given.items():
        assert name in inputs
        inputs[name] = value
    for name in ADJUST_NAMES[1:]:
        is_real = name.endswith(("penalty", "values"))
        inputs[name] = np.asarray(inputs[name], np.float32 if is_real else np.int32)
    return [inputs[name] for name in ADJUST_NAMES]


def adjust(logits, **given):
    return adjust_logits(*adjust_inputs(logits, **given))


def adjust_by_loop(
    logits,
    row_ids,
    positions,
    counts,
    repetition,
    presence,
    frequency,
    bias_ids,
    biases,
    stops,
    mins,
):
    """The definition, one float32 operation at a time."""
    f = np.float32
    out = np.zeros(logits.shape, f)
    for row, slot in enumerate(row_ids):
        if slot < 0:
            continue
        values = [f(value) for value in logits[row]]
        for token, bias in zip(bias_ids[slot], biases[slot], strict=True):
            if token >= 0:
                values[token] = f(values[token] + bias)
        if positions[row] < mins[slot]:
            for token in stops[slot]:
                if token >= 0:
                    values[token] = f(-math.inf)
        for token, count in enumerate(counts[slot]):
            in_prompt, times = count >= PROMPT_BIT, int(count) % PROMPT_BIT
            if in_prompt or times > 0:
                if values[token] > 0:
                    values[token] = f(values[token] / repetition[slot])
                else:
                    values[token] = f(values[token] * repetition[slot])
            values[token] = f(values[token] - f(frequency[slot] * f(times)))
            if times > 0:
                values[token] = f(values[token] - presence[slot])
        out[row] = values
    return out


def test_adjust_hand_computed():
    # Slot 0. Token 0: only bias. 1: banned, and a bias does not save it. 2: in the prompt only, so
    # only the repetition penalty. 3: generated twice. 4: both, negative. 5: untouched.
    adjusted = adjust(
        [[1.0, 5.0, 4.0, 4.0, -1.0, 0.25]],
        token_counts=[[0, 0, PROMPT_BIT, 2, PROMPT_BIT + 1, 0]],
        repetition_penalty=[2.0],
        presence_penalty=[0.5],
        frequency_penalty=[0.25],
        bias_ids=[[0, 1, 3, -1]],
        bias_values=[[10.0, 50.0, 2.0, 99.0]],
        stop_ids=[[1, -1, -1]],
        min_position=[11],
    )
    # 3: (4 + 2) / 2 - 2*0.25 - 0.5; 4: -1 * 2 - 0.25 - 0.5.
    assert adjusted.tolist() == [[11.0, -math.inf, 2.0, 2.0, -2.75, 0.25]]


def test_adjust_bans_stop_ids_only_before_min_position():
    logits = np.zeros((3, 4), np.float32)
    adjusted = adjust(logits, sample_positions=[6, 7, 8], stop_ids=[[3, 0, -1]], min_position=[7])
    assert np.isneginf(adjusted).tolist() == [[True, False, False, True], [False] * 4, [False] * 4]


@pytest.mark.parametrize("dtype", DTYPES)
def test_adjust_neutral_rows_keep_every_bit(dtype):
    special = [0.0, -0.0, 1e-6, -1e-6, math.inf, -math.inf, math.nan, 3.0]
    logits = np.array([special, special[::-1]]).astype(np.dtype(dtype))
    widened = logits.astype(np.float32)
    seen = np.full((2, 8), PROMPT_BIT + 7, np.int32)
    assert_same_bits(adjust(logits, slots=2, token_counts=seen), widened)
    # A neighbour that asks for something changes nothing, and no penalty is a neutral one: the
    # counts of a row without penalties are stale, and are not looked at.
    other = adjust(logits, slots=2, token_counts=seen, presence_penalty=[0.0, 1.0])
    assert_same_bits(other[0], widened[0])
    assert other[1, 0] == 2.0
    # Neutral members of a row that asks for another thing.
    biased = adjust(logits, slots=2, token_counts=seen, bias_ids=np.full((2, 4), [7, -1, -1, -1]))
    assert_same_bits(biased[0], widened[0])


def test_adjust_neutral_penalties_beside_an_active_one_change_nothing_else():
    logits = np.array([[1.5, -2.5, 0.0, 3.0]], np.float32)
    adjusted = adjust(logits, token_counts=[[PROMPT_BIT] * 4], presence_penalty=[2.0])
    assert_same_bits(adjusted, logits)


def test_adjust_dead_rows_are_zero_and_prompt_tokens_do_not_count_as_output():
    logits = np.full((2, 3), np.nan, np.float32)
    logits[1] = 1.0
    adjusted = adjust(
        logits,
        row_ids=[-1, 0],
        token_counts=[[PROMPT_BIT, 1, 0]],
        frequency_penalty=[0.5],
        presence_penalty=[0.25],
    )
    assert adjusted.tolist() == [[0.0, 0.0, 0.0], [1.0, 0.25, 1.0]]


@given(SEEDS, st.sampled_from(DTYPES))
def test_adjust_equals_a_plain_loop(seed, dtype):
    rng = np.random.default_rng(seed)
    slots, rows, vocab = 4, 5, int(rng.integers(1, 12))

    def maybe(neutral, values):
        return np.where(rng.random(len(values)) < 0.5, neutral, values).astype(np.float32)

    def ids(capacity):
        lists = np.full((slots, capacity), -1, np.int32)
        for slot in range(slots):
            used = int(rng.integers(min(capacity, vocab) + 1))
            lists[slot, :used] = rng.permutation(vocab)[:used]
        return lists

    counts = np.where(rng.random((slots, vocab)) < 0.5, 0, rng.integers(9, size=(slots, vocab)))
    counts += np.where(rng.random((slots, vocab)) < 0.5, PROMPT_BIT, 0)
    logits = rng.normal(scale=4, size=(rows, vocab))
    logits[rng.random((rows, vocab)) < 0.1] = -np.inf
    inputs = adjust_inputs(
        logits.astype(np.dtype(dtype)),
        slots=slots,
        row_ids=rng.integers(-1, slots, size=rows),
        sample_positions=rng.integers(6, size=rows),
        token_counts=counts,
        repetition_penalty=maybe(1, rng.uniform(0.5, 2, slots)),
        presence_penalty=maybe(0, rng.uniform(-2, 2, slots)),
        frequency_penalty=maybe(0, rng.uniform(-2, 2, slots)),
        bias_ids=ids(4),
        bias_values=rng.uniform(-100, 100, (slots, 4)),
        stop_ids=ids(3),
        min_position=rng.integers(6, size=slots),
    )
    np.testing.assert_array_equal(adjust_logits(*inputs), adjust_by_loop(*inputs))


# SAMPLE.


def no_adjustments(slots):
    """Neutral penalties, no biases, and no stop ids that come too early."""
    return (
        np.ones(slots, np.float32),
        np.zeros(slots, np.float32),
        np.zeros(slots, np.float32),
        np.full((slots, 1), -1, np.int32),
        np.zeros((slots, 1), np.float32),
        np.full((slots, 1), -1, np.int32),
        np.zeros(slots, np.int32),
    )


def sample(
    logits,
    *,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    positions=None,
    seed=(1, 2),
    sample_index=0,
    row_ids=None,
    counts=None,
    count_tokens=0,
):
    """Tokens of rows that all belong to slot 0."""
    logits = np.asarray(logits, np.float32)
    rows, vocab = logits.shape
    counts = np.zeros((1, vocab), np.int32) if counts is None else counts
    (token_ids,) = SAMPLE.reference(
        counts,
        logits,
        np.zeros(rows, np.int32) if row_ids is None else np.array(row_ids, np.int32),
        np.arange(rows, dtype=np.int32) if positions is None else np.array(positions, np.int32),
        *no_adjustments(1),
        np.array([temperature], np.float32),
        np.array([top_k], np.int32),
        np.array([top_p], np.float32),
        np.array([min_p], np.float32),
        np.array([seed], np.uint32),
        np.array([sample_index], np.int32),
        np.array([count_tokens], np.int32),
    )
    return token_ids


def softmax(values):
    peak = max(values)
    weights = [math.exp(value - peak) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def kept_probabilities(logits, temperature, top_k, top_p, min_p):
    """Token to probability after vLLM's filters in vLLM's order, in float64 and without tricks."""
    probabilities = softmax([float(logit) / temperature for logit in logits])
    ranking = sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))
    limit = min_p * max(probabilities)
    kept = [token for token in ranking if probabilities[token] >= limit]
    if top_k > 0:
        kept = kept[:top_k]
    total = math.fsum(probabilities[token] for token in kept)
    if top_p < 1:
        nucleus, reached = [], 0.0
        for token in kept:
            nucleus.append(token)
            reached += probabilities[token] / total
            if reached >= top_p:
                break
        kept = nucleus
        total = math.fsum(probabilities[token] for token in kept)
    return {token: probabilities[token] / total for token in sorted(kept)}


def inverse_cdf(probabilities, u):
    reached = 0.0
    token = None
    for candidate, probability in probabilities.items():
        if probability > 0:
            token = candidate
            reached += probability
            if reached > u:
                break
    return token


def chi_square_is_plausible(observed, expected):
    """Whether chi-square is below its 1 - 1e-5 quantile (Wilson and Hilferty's approximation)."""
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    freedom = len(expected) - 1
    if freedom == 0:
        return statistic < 1e-9
    spread = 2 / (9 * freedom)
    return statistic < freedom * (1 - spread + 4.265 * math.sqrt(spread)) ** 3


LOGITS = (1.0, -0.5, 2.0, 0.0, 2.0, 1.3, -3.0, 0.7)


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 3},
        {"top_k": 1000},
        {"top_p": 0.7},
        {"top_p": 0.99},
        {"min_p": 0.3},
        {"min_p": 1.0},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.8, "min_p": 0.1},
    ],
    ids=str,
)
def test_sampled_tokens_follow_the_filtered_distribution(filters):
    draws = 10_000
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **filters}
    probabilities = kept_probabilities(LOGITS, **full)
    tokens = sample(np.broadcast_to(np.float32(LOGITS), (draws, len(LOGITS))), **full)
    observed = np.bincount(tokens, minlength=len(LOGITS))
    assert set(np.flatnonzero(observed)) <= set(probabilities)
    expected = [probability * draws for probability in probabilities.values()]
    assert chi_square_is_plausible([observed[token] for token in probabilities], expected)


def test_the_chi_square_test_notices_a_wrong_distribution():
    draws = 10_000
    probabilities = kept_probabilities(LOGITS, 1.15, 0, 1.0, 0.0)
    tokens = sample(np.broadcast_to(np.float32(LOGITS), (draws, len(LOGITS))))
    expected = [probability * draws for probability in probabilities.values()]
    assert not chi_square_is_plausible(np.bincount(tokens, minlength=8), expected)


@given(
    SEEDS,
    st.sampled_from([1, 2, 3, 33, 300]),
    st.sampled_from([1e-3, 0.3, 1.0, 2.0, 10.0]),
    st.sampled_from([0, 2, 3, 17, 33, 300, 301, 2**31 - 1]),
    st.one_of(st.sampled_from([1.0, 1e-6, 0.5, 0.999999]), st.floats(2**-20, 1.0, width=32)),
    st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0.0, 1.0, width=32)),
    st.booleans(),
)
def test_token_is_what_brute_force_in_float64_chooses(
    seed, vocab, temperature, top_k, top_p, min_p, has_ties
):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=3, size=(1, vocab)).astype(np.float32)
    if has_ties:
        logits = rng.integers(4, size=(1, vocab)).astype(np.float32)
    logits[rng.random((1, vocab)) < 0.1] = -np.inf
    logits[0, rng.integers(vocab)] = 2.0
    key, position, index = rng.integers(2**32, size=2), int(rng.integers(2**31)), 3
    temperature, top_p, min_p = np.array([temperature, top_p, min_p], np.float32).tolist()
    (token,) = sample(
        logits,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        positions=[position],
        seed=key,
        sample_index=index,
    )
    u = float(uniforms(np.array([key], np.uint32), np.array([position]), np.array([index]))[0])
    # Where u or a threshold is within 1e-6 of a cumulative probability, rounding decides.
    acceptable = set()
    for du, dp, dm in product((-1e-6, 0, 1e-6), (-1e-6, 0, 1e-6), (-1e-9, 0, 1e-9)):
        limit = min_p * (1 + dm) if min_p < 1 else 1.0
        p = top_p if top_p == 1 else min(max(top_p + dp, 1e-12), 1 - 1e-12)
        kept = kept_probabilities(logits[0], temperature, top_k, p, limit)
        acceptable.add(inverse_cdf(kept, min(max(u + du, 0.0), 1 - 1e-12)))
    assert token in acceptable


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [0.9, 1.0])
def test_large_vocabulary_is_within_a_millionth_of_float64(scale, top_p):
    rng = np.random.default_rng(5)
    vocab, rows = 128_256, 8
    logits = (rng.normal(size=(rows, vocab)) * scale).astype(np.float32)
    tokens = sample(logits, top_p=top_p, seed=(11, 12))
    draws = uniforms(
        np.broadcast_to(np.uint32([11, 12]), (rows, 2)), np.arange(rows), np.zeros(rows)
    )
    for row, token in enumerate(tokens):
        weights = np.exp(logits[row].astype(np.float64) - logits[row].max())
        kept = np.ones(vocab, bool)
        if top_p < 1:
            order = np.lexsort((np.arange(vocab), -logits[row]))
            cumulative = np.cumsum(weights[order])
            kept[order[np.searchsorted(cumulative, top_p * cumulative[-1]) + 1 :]] = False
        cumulative = np.cumsum(np.where(kept, weights, 0))
        cumulative /= cumulative[-1]
        assert kept[token]
        assert cumulative[token] > draws[row] - 1e-6
        assert (cumulative[token - 1] if token else 0.0) < draws[row] + 1e-6


@given(SEEDS, st.integers(1, 40), st.integers(1, 5))
def test_top_k_of_one_is_temperature_zero_and_ties_go_to_the_lowest_id(seed, vocab, levels):
    rng = np.random.default_rng(seed)
    tied = rng.integers(levels, size=(3, vocab))
    logits = np.concatenate([tied, rng.normal(size=(3, vocab))]).astype(np.float32)
    greedy = sample(logits, temperature=0.0)
    assert greedy.tolist() == [row.tolist().index(row.max()) for row in logits]
    assert greedy.tolist() == sample(logits, temperature=1.5, top_k=1).tolist()
    assert greedy.tolist() == sample(logits, temperature=9e-6, top_p=0.5).tolist()
    # As greedy: a set that only the first of the order is in.
    assert greedy.tolist() == sample(logits, temperature=1.0, top_p=1e-6).tolist()


def test_temperature_limits():
    assert GREEDY_BELOW_TEMPERATURE == GREEDY_BELOW_OF_PARAMS
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(200, 50)).astype(np.float32)
    logits[np.arange(200), rng.integers(50, size=200)] = 5.0
    greedy = sample(logits, temperature=0.0).tolist()
    assert sample(logits, temperature=1e-3).tolist() == greedy
    assert sample(logits, temperature=1e-5).tolist() == greedy
    # Infinite temperature is a fair choice, -inf excepted.
    logits[:, 25:] = -np.inf
    logits[:, 0] = 0.0
    observed = np.bincount(sample(np.tile(logits, (20, 1)), temperature=1e30), minlength=50)
    assert not observed[25:].any()
    assert chi_square_is_plausible(observed[:25], [160.0] * 25)


def kept_in(draws, vocab, **filters):
    """Which tokens turn up in many draws from equal logits."""
    return set(sample(np.zeros((draws, vocab), np.float32), **filters).tolist())


def test_ties_are_kept_from_the_lowest_id():
    assert kept_in(200, 10, top_k=3) == {0, 1, 2}
    assert kept_in(200, 10, top_k=10) == set(range(10))
    # 4 of 8 equal tokens have exactly half of the probability.
    assert kept_in(200, 8, top_p=0.5) == {0, 1, 2, 3}
    assert kept_in(200, 8, top_p=0.501) == {0, 1, 2, 3, 4}
    assert kept_in(400, 8, top_p=1.0) == set(range(8))
    assert kept_in(20, 8, top_p=1e-6) == {0}
    assert kept_in(400, 8, min_p=1.0) == set(range(8))
    # top_p acts on what top_k left: half of 4.
    assert kept_in(200, 8, top_k=4, top_p=0.5) == {0, 1}
    # top_p acts on what min_p left: 3 of the 4 likely ones; of all, 0.6 would be 4.
    logits = np.tile(np.float32([1, 1, 1, 1, 0, 0, 0, 0]), (300, 1))
    assert set(sample(logits, min_p=0.5, top_p=0.6).tolist()) == {0, 1, 2}
    assert set(sample(logits, top_p=0.6).tolist()) == {0, 1, 2, 3}


def test_top_k_is_exact_where_the_temperature_makes_logits_collapse():
    # Over 1e6, these two logits differ by less than float32 can tell; their order still counts.
    logits = np.tile(np.float32([1.0, 1.0000001, 1.0000002]), (50, 1))
    assert set(sample(logits, temperature=1e6, top_k=2).tolist()) == {1, 2}


def test_min_p_keeps_a_token_exactly_on_its_threshold():
    # At temperature 1 / ln 2, one logit less is half the probability.
    logits = np.tile(np.float32([3.0, 2.0, 1.0]), (200, 1))
    half = 1 / math.log(2)
    assert set(sample(logits, temperature=half, min_p=0.5 + 1e-6).tolist()) == {0}
    assert set(sample(logits, temperature=half, min_p=0.5 - 1e-6).tolist()) == {0, 1}


def test_min_p_compares_with_a_threshold_between_two_floats():
    # The lower of two logits is the float32 nearest to the threshold: at most one of the roundings
    # down and up may keep it.
    outcomes = set()
    for min_p in np.linspace(0.3, 0.9, 20, dtype=np.float32).tolist():
        threshold = 5.0 + math.log(min_p)
        lower = np.float32(threshold)
        logits = np.tile(np.array([lower, 5.0], np.float32), (60, 1))
        is_kept = 0 in sample(logits, min_p=min_p)
        assert is_kept == (float(lower) >= threshold)
        outcomes.add(is_kept)
    assert outcomes == {True, False}


def with_uniform(monkeypatch, u):
    """Make every draw use the number u."""
    monkeypatch.setattr(
        "cugraphs.kernels.sample.uniforms", lambda seeds, *_: np.full(len(seeds), u, np.float32)
    )


def test_a_random_number_on_an_edge_belongs_to_the_next_token(monkeypatch):
    with_uniform(monkeypatch, 0.5)
    assert sample([[0.0, 0.0]]).tolist() == [1]
    assert sample([[0.0, -np.inf, 0.0]]).tolist() == [2]
    with_uniform(monkeypatch, 0.0)
    assert sample([[0.0, 0.0]]).tolist() == [0]
    assert sample([[-np.inf, -200.0, 0.0]]).tolist() == [2]


def test_the_largest_random_number_still_has_a_token(monkeypatch):
    with_uniform(monkeypatch, 1 - 2**-24)
    logits = np.random.default_rng(0).normal(size=(300, 200)).astype(np.float32)
    logits[:, 190:] = -np.inf
    for filters in ({}, {"top_p": 0.9}, {"top_k": 100}):
        tokens = sample(logits, **filters)
        assert np.isfinite(logits[np.arange(300), tokens]).all()
    # The last token that weighs anything, save for the rounding of the sums.
    assert sample(logits).min() >= 188


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_no_distribution_give_minus_one_and_are_not_counted(temperature):
    logits = np.zeros((6, 4), np.float32)
    logits[0, 3] = np.nan
    logits[1, 0] = np.nan
    logits[2, 1] = np.inf
    logits[3] = -np.inf
    logits[4, :3] = -np.inf
    counts = np.zeros((1, 4), np.int32)
    tokens = sample(
        logits,
        temperature=temperature,
        row_ids=[0, 0, 0, 0, 0, -1],
        counts=counts,
        count_tokens=1,
    )
    assert tokens.tolist() == [-1, -1, -1, -1, 3, 0]
    assert counts.tolist() == [[0, 0, 0, 1]]


@pytest.mark.parametrize("filters", [{}, {"top_k": 50}, {"top_p": 0.999}, {"min_p": 1e-6}], ids=str)
def test_tokens_of_minus_infinity_are_never_sampled(filters):
    logits = np.full((500, 60), -np.inf, np.float32)
    logits[:, [7, 40]] = 0.0
    assert set(sample(logits, temperature=2.0, **filters).tolist()) == {7, 40}


def test_counts_go_up_where_they_are_kept_and_the_prompt_bit_stays():
    logits = np.array([[0, 1, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]], np.float32)
    counts = np.array([[0, PROMPT_BIT + 4, 0], [5, 5, 5], [0, 0, PROMPT_BIT]], np.int32)
    one = np.ones(3, np.float32)
    (tokens,) = SAMPLE.reference(
        counts,
        logits,
        np.array([0, 2, 1, -1], np.int32),
        np.arange(4, dtype=np.int32),
        *no_adjustments(3),
        0 * one,
        np.zeros(3, np.int32),
        one,
        0 * one,
        np.zeros((3, 2), np.uint32),
        np.zeros(3, np.int32),
        np.array([1, 0, 1], np.int32),
    )
    assert tokens.tolist() == [1, 2, 1, 0]
    assert counts.tolist() == [[0, PROMPT_BIT + 5, 0], [5, 5, 5], [0, 0, PROMPT_BIT + 1]]


def test_draws_depend_on_seed_position_and_sample_index_alone():
    logits = np.zeros((1, 1000), np.float32)
    for row_count in (1, 5):
        tokens = sample(np.tile(logits, (row_count, 1)), positions=[9] * row_count, seed=(3, 4))
        assert set(tokens.tolist()) == {int(sample(logits, positions=[9], seed=(3, 4))[0])}
    # The cumulative probability is (token + 1) / 1000, so the token is the draw's first digits.
    u = uniforms(np.array([[3, 4]], np.uint32), np.array([9]), np.array([0]))[0]
    assert sample(logits, positions=[9], seed=(3, 4))[0] == int(u * 1000)


def test_draws_are_uniform_and_independent_along_every_coordinate():
    count = 4096
    steps, same = np.arange(count), np.full(count, 5)
    seeds = np.tile(np.uint32([7, 8]), (count, 1))
    neighbours, high = seeds.copy(), seeds.copy()
    neighbours[:, 0] = steps
    high[:, 1] = steps
    streams = [
        uniforms(seeds, steps, same),
        uniforms(seeds, steps, same + 1),
        uniforms(seeds, same, steps),
        uniforms(neighbours, same, same),
        uniforms(high, same, same),
    ]
    for stream in streams:
        assert stream.dtype == np.float32
        assert 0 <= stream.min() <= stream.max() < 1
        observed = np.bincount((stream * 64).astype(int), minlength=64)
        assert chi_square_is_plausible(observed, [count / 64] * 64)
        # Successive draws: correlation of independent ones has a standard deviation of 1/64.
        assert abs(np.corrcoef(stream[:-1], stream[1:])[0, 1]) < 4.5 / 64
    correlations = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(correlations).max() < 4.5 / 64


@given(SEEDS, st.sampled_from(DTYPES))
def test_sampling_adjusts_the_logits_and_then_draws(seed, dtype):
    rng = np.random.default_rng(seed)
    case = next(case for case in SAMPLE.cases if case.name == "everything")
    counts, logits, row_ids, positions, *asked = case.make(rng, np.dtype(dtype))
    adjusted = adjust_logits(logits, row_ids, positions, counts, *asked[:7])
    neutral = no_adjustments(len(counts))
    expected_counts = counts.copy()
    expected = SAMPLE.reference(expected_counts, adjusted, row_ids, positions, *neutral, *asked[7:])
    found = SAMPLE.reference(counts, logits, row_ids, positions, *asked)
    assert_same_bits(found[0], expected[0])
    assert_same_bits(counts, expected_counts)


# LOGPROBS.


def logprobs(logits, token_ids, *, targets=None, wanted=0, columns=20):
    logits = np.asarray(logits)
    rows = len(logits)
    return LOGPROBS.reference(
        logits,
        np.array(token_ids, np.int32),
        np.full(rows, -1, np.int32) if targets is None else np.array(targets, np.int32),
        np.broadcast_to(np.array(wanted, np.int32), (rows,)),
        max_logprobs=columns,
    )


def test_logprobs_hand_computed():
    # Probabilities 1/2, 1/8, 1/4, 1/8.
    logits = np.log(np.array([[4.0, 1.0, 2.0, 1.0]], np.float32)) + 3
    value, rank, ids, values = logprobs(logits, [3], wanted=4, columns=5)
    np.testing.assert_allclose(value, np.log([1 / 8]), rtol=1e-6)
    assert rank.tolist() == [4]
    assert ids.tolist() == [[0, 2, 1, 3, -1]]
    np.testing.assert_allclose(values, [[*np.log([1 / 2, 1 / 4, 1 / 8, 1 / 8]), 0]], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", *DTYPES])
@given(seed=SEEDS)
def test_logprobs_equal_float64_and_brute_force_ranks(dtype, seed):
    rng = np.random.default_rng(seed)
    rows, vocab = 4, int(rng.integers(1, 60))
    logits = rng.normal(scale=rng.choice([1e-3, 1.0, 30.0]), size=(rows, vocab))
    if rng.random() < 0.5:
        logits = rng.integers(4, size=(rows, vocab)).astype(np.float64)
    logits[rng.random((rows, vocab)) < 0.1] = -np.inf
    logits[:, 0] = 0.5
    logits = logits.astype(np.dtype(dtype))
    sampled, given_targets = rng.integers(vocab, size=rows), rng.integers(-1, vocab, size=rows)
    wanted = rng.integers(0, 21, size=rows)
    value, rank, ids, values = logprobs(logits, sampled, targets=given_targets, wanted=wanted)
    for row in range(rows):
        exact = logits[row].astype(np.float64)
        exact = exact - exact.max()
        exact = exact - math.log(math.fsum(np.exp(exact)))
        ranking = sorted(range(vocab), key=lambda token: (-exact[token], token))
        target = given_targets[row] if given_targets[row] >= 0 else sampled[row]
        np.testing.assert_allclose(value[row], exact[target], rtol=1e-6, atol=1e-6)
        assert ranking[rank[row] - 1] == target
        count = min(wanted[row], vocab)
        assert ids[row].tolist() == ranking[:count] + [-1] * (20 - count)
        np.testing.assert_allclose(
            values[row, :count], exact[ranking[:count]], rtol=1e-6, atol=1e-6
        )
        assert not values[row, count:].any()


def test_logprobs_of_a_large_vocabulary_sum_to_one():
    logits = np.random.default_rng(0).normal(size=(1, 128_256)).astype(np.float32)
    exact = logits[0].astype(np.float64)
    exact -= np.log(np.sum(np.exp(exact)))
    for token in (0, 77, 128_255):
        value, rank, _, _ = logprobs(logits, [token])
        np.testing.assert_allclose(value, exact[token], rtol=1e-6)
        assert rank[0] == 1 + np.count_nonzero(exact > exact[token])


def test_logprobs_of_rows_that_want_none_or_have_no_target():
    logits = np.array([[0.0, 1.0], [np.nan, 1.0], [0.0, 1.0]], np.float32)
    value, rank, ids, values = logprobs(logits, [1, 1, -1], wanted=[-1, -1, 2], columns=2)
    assert value.tolist() == [0.0] * 3
    assert rank.tolist() == [0] * 3
    assert ids.tolist() == [[-1, -1]] * 3
    assert values.tolist() == [[0.0, 0.0]] * 3
    # A given target needs no sampled token, and may be one that cannot be sampled.
    value, rank, _, _ = logprobs([[0.0, -np.inf]], [-1], targets=[1])
    assert value.tolist() == [-math.inf]
    assert rank.tolist() == [2]


def test_logprobs_of_rows_that_are_no_distribution_are_nan():
    logits = np.array([[0.0, np.nan], [np.inf, 0.0], [-np.inf, -np.inf], [0.0, 0.0]], np.float32)
    value, rank, ids, values = logprobs(logits, [0] * 4, wanted=1, columns=1)
    np.testing.assert_allclose(value, [math.nan, math.nan, math.nan, math.log(0.5)], rtol=1e-6)
    assert rank.tolist() == [0, 0, 0, 1]
    assert ids.tolist() == [[-1], [-1], [-1], [0]]
    assert values[:3].tolist() == [[0.0]] * 3


def test_bfloat16_logits_are_widened_not_rounded_again():
    logits = np.array([[0.0, 1.0, 2.0]], ml_dtypes.bfloat16)
    value, _, _, _ = logprobs(logits, [1])
    assert value[0] == pytest.approx(1 - math.log(1 + math.e + math.e**2), rel=1e-6)
