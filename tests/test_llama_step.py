"""Steps of a tiny random Llama against a dense float64 forward pass without cache and blocks.

Every runner is poisoned, its caches hold noise wherever no token was written, and its block tables
are scattered; so whatever reads too far, too early or from another sequence shows.
"""

import dataclasses

import numpy as np
import pytest

from cugraphs.executable import input_bytes
from cugraphs.kernel import DTYPES
from cugraphs.kv_cache import KVCacheShape
from cugraphs.ladder import Ladder
from cugraphs.model_runner import ModelRunner
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.rope import RopeConfig, cos_sin_table
from cugraphs.models.weights import ROPE_COS_SIN, weight_table
from cugraphs.sampling_params import SamplingParams
from cugraphs.step_plan import StepPlan
from cugraphs.step_state import Chunk
from cugraphs.tolerance import check_close

VOCAB, BLOCK_SIZE, MAX_LEN, MAX_SEQS = 40, 4, 32, 12


def config(**changes) -> LlamaConfig:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 24,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": MAX_LEN,
        "rope": RopeConfig(theta=100.0),
    }
    return LlamaConfig(**(sizes | changes))


CONFIGS = {
    "gqa": config(),
    "mha_tied": config(num_key_value_heads=4, tie_word_embeddings=True),
    "mqa_wide_heads": config(num_key_value_heads=1, head_dim=10),
    "biases": config(attention_bias=True, mlp_bias=True),
}
DTYPE_NAMES = ("float64", "float32", "bfloat16", "float16")


def random_weights(c: LlamaConfig, dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    weights = {}
    for name, weight in weight_table(c).items():
        values = rng.standard_normal(weight.shape)
        if name.endswith("norm.weight"):
            values = 1 + 0.2 * values
        elif not name.endswith("embed_tokens.weight"):
            values *= weight.shape[-1] ** -0.5
        weights[name] = values.astype(DTYPES[dtype])
    weights[ROPE_COS_SIN] = cos_sin_table(c.rope, c.head_dim, MAX_LEN)
    return weights


def dense_logits(c: LlamaConfig, weights, token_ids, store=None) -> np.ndarray:
    """Logits of every position, float64 [tokens, vocab], as the paper's formulas have it.

    With ``store``, a dtype, they are computed in float32 and every intermediate result is rounded
    to it: the error of the formats alone.
    """
    wide = np.float64 if store is None else np.float32

    def rounded(x):
        assert x.dtype == wide
        return x if store is None else x.astype(DTYPES[store]).astype(wide)

    w = {name: array.astype(wide) for name, array in weights.items()}

    def norm(x, name):
        mean_square = (x**2).mean(axis=-1, keepdims=True)
        return rounded(x / np.sqrt(mean_square + c.rms_norm_eps) * w[f"{name}.weight"])

    def linear(x, name):
        return rounded(x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0))

    count, half = len(token_ids), c.head_dim // 2
    frequencies = c.rope.theta ** (-np.arange(half) / half)
    angles = np.arange(count)[:, None, None] * frequencies
    # The table is float32 in every model dtype.
    cos, sin = (f(angles).astype(np.float32).astype(wide) for f in (np.cos, np.sin))

    def rotated(x):
        a, b = x[..., :half], x[..., half:]
        return rounded(np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1))

    future = np.triu(np.ones((count, count), bool), k=1)
    hidden = w["model.embed_tokens.weight"][token_ids]
    for i in range(c.num_hidden_layers):
        layer = f"model.layers.{i}"
        qkv = linear(norm(hidden, f"{layer}.input_layernorm"), f"{layer}.self_attn.qkv_proj")
        heads = qkv.reshape(count, -1, c.head_dim)
        q, k, v = np.split(heads, np.cumsum([c.num_attention_heads, c.num_key_value_heads]), axis=1)
        q, k = rotated(q), rotated(k)
        out = np.empty_like(q)
        for head in range(c.num_attention_heads):
            shared = head * c.num_key_value_heads // c.num_attention_heads
            scores = q[:, head] @ k[:, shared].T / c.head_dim**0.5
            scores[future] = -np.inf
            share = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, head] = share / share.sum(axis=-1, keepdims=True) @ v[:, shared]
        out = linear(rounded(out.reshape(count, -1)), f"{layer}.self_attn.o_proj")
        hidden = rounded(hidden + out)
        x = norm(hidden, f"{layer}.post_attention_layernorm")
        gate, up = np.split(linear(x, f"{layer}.mlp.gate_up_proj"), 2, axis=1)
        x = rounded(gate / (1 + np.exp(-gate)) * up)
        hidden = rounded(hidden + linear(x, f"{layer}.mlp.down_proj"))
    head = "model.embed_tokens" if c.tie_word_embeddings else "lm_head"
    return linear(norm(hidden, "model.norm"), head)


class Steps:
    """A poisoned runner and scattered block tables; slot s is sequence s."""

    def __init__(
        self,
        c: LlamaConfig = CONFIGS["gqa"],
        dtype: str = "float32",
        *,
        batch_invariant: bool = False,
        noise: float = np.nan,
        seed: int = 0,
        max_seqs: int = MAX_SEQS,
    ) -> None:
        per_seq = MAX_LEN // BLOCK_SIZE
        num_blocks = 1 + MAX_SEQS * per_seq + 3
        cache = KVCacheShape(
            num_layers=c.num_hidden_layers,
            num_blocks=num_blocks,
            num_kv_heads=c.num_key_value_heads,
            block_size=BLOCK_SIZE,
            head_dim=c.head_dim,
            dtype=dtype,
            max_model_len=MAX_LEN,
        )
        plan = StepPlan(
            Llama(c, dtype, batch_invariant=batch_invariant),
            cache,
            vocab_size=c.vocab_size,
            max_num_seqs=max_seqs,
            max_num_batched_tokens=MAX_SEQS * MAX_LEN,
            output_logits=True,
        )
        self.runner = ModelRunner(plan, random_weights(c, dtype), poison=True)
        self.caches = {n: a for n, a in self.runner.state.items() if n.endswith("_cache")}
        with np.errstate(over="ignore"):  # 1e30 is infinite in float16
            for array in self.caches.values():
                array[...] = noise
        blocks = np.random.default_rng(seed).permutation(num_blocks - 1) + 1
        self.tables = blocks[: MAX_SEQS * per_seq].reshape(MAX_SEQS, per_seq).tolist()
        for slot in range(max_seqs):
            self.runner.write_slot(
                slot,
                SamplingParams(temperature=0),
                seed=0,
                sample_index=0,
                stop_token_ids=(),
                prompt_token_ids=(1,),
                output_token_ids=(),
            )

    def chunk(self, slot: int, tokens, start: int = 0, *, all_logits: bool = True) -> Chunk:
        """The tokens from ``start`` on, with a table that is no longer than they need."""
        blocks = -(-len(tokens) // BLOCK_SIZE)
        return Chunk(
            token_ids=list(tokens[start:]),
            start=start,
            block_table=self.tables[slot][:blocks],
            slot=slot,
            prompt_targets=list(tokens[start + 1 :]) if all_logits else (),
        )

    def run(self, *chunks: Chunk) -> list[np.ndarray]:
        """One step; the logits of each chunk's rows."""
        outputs = self.runner.run(chunks)
        ends = np.cumsum([chunk.num_logits for chunk in chunks])
        return np.split(outputs["logits"].copy(), ends[:-1])

    def prefill(self, *sequences) -> list[np.ndarray]:
        return self.run(*(self.chunk(slot, tokens) for slot, tokens in enumerate(sequences)))

    def decode(self, *sequences) -> np.ndarray:
        """One decode step over the newest token of each sequence; its logits [seqs, vocab]."""
        chunks = [self.chunk(s, tokens, len(tokens) - 1) for s, tokens in enumerate(sequences)]
        assert all(chunk.is_decode for chunk in chunks)
        return np.concatenate(self.run(*chunks))


def tokens_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(100 + seed).integers(0, VOCAB, length).tolist()


def sequences_of(*lengths: int) -> list[list[int]]:
    return [tokens_of(length, seed) for seed, length in enumerate(lengths)]


def check_logits(c: LlamaConfig, dtype: str, token_ids, actual: np.ndarray, rows) -> None:
    weights = random_weights(c, dtype)
    exact = dense_logits(c, weights, token_ids)[rows]
    plain = dense_logits(c, weights, token_ids, dtype)[rows]
    if dtype == "float64":
        np.testing.assert_allclose(actual, exact, rtol=0, atol=1e-12)
    else:
        check_close(actual, exact, plain, DTYPES[dtype])


# --- the numbers


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_gives_the_dense_logits(name, dtype):
    c, sequences = CONFIGS[name], sequences_of(19, 1, 4, 9)
    for tokens, logits in zip(sequences, Steps(c, dtype).prefill(*sequences), strict=True):
        check_logits(c, dtype, tokens, logits, slice(None))


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("name", CONFIGS)
def test_decode_from_the_first_token_gives_the_dense_logits(name, dtype):
    c, sequences = CONFIGS[name], sequences_of(14, 14, 14)
    steps = Steps(c, dtype)
    rows = [steps.decode(*(tokens[:n] for tokens in sequences)) for n in range(1, 15)]
    for slot, tokens in enumerate(sequences):
        check_logits(c, dtype, tokens, np.stack([row[slot] for row in rows]), slice(None))


@pytest.mark.parametrize("live", range(1, MAX_SEQS + 1))
def test_decode_at_every_batch_size_with_its_padding_rows(live):
    """Sequences of all lengths; the rungs are 1, 2, 4, 8 and 12."""
    c, sequences = CONFIGS["gqa"], sequences_of(*range(3, 3 + 2 * live, 2))
    steps = Steps(c, "float64")
    for slot, tokens in enumerate(sequences):
        steps.run(steps.chunk(slot, tokens[:-1]))
    logits = steps.decode(*sequences)
    rung = next(rung for rung in (1, 2, 4, 8, 12) if rung >= live)
    assert steps.runner.counts.padding_rows == rung - live
    for tokens, row in zip(sequences, logits, strict=True):
        check_logits(c, "float64", tokens, row, -1)


def test_greedy_tokens_are_the_dense_argmax():
    c, sequences = CONFIGS["gqa"], sequences_of(5, 11, 1)
    steps, weights = Steps(c, "float64"), random_weights(CONFIGS["gqa"], "float64")
    chunks = [steps.chunk(s, tokens, all_logits=False) for s, tokens in enumerate(sequences)]
    for _ in range(6):
        found = steps.runner.run(chunks)["token_ids"].tolist()
        expected = [int(dense_logits(c, weights, tokens)[-1].argmax()) for tokens in sequences]
        assert found == expected
        for tokens, token in zip(sequences, found, strict=True):
            tokens.append(token)
        chunks = [steps.chunk(s, t, len(t) - 1) for s, t in enumerate(sequences)]


# --- what must not matter: noise, blocks, padding, earlier steps


def scenario(steps: Steps) -> list[np.ndarray]:
    """Prefill, decode and both mixed; every logit that comes out."""
    a, b, c = sequences_of(9, 17, 6)
    found = steps.prefill(a[:7], b[:13])
    found.append(steps.decode(a[:8], b[:14]))
    mixed = (steps.chunk(0, a[:9], 8), steps.chunk(2, c[:5]), steps.chunk(1, b[:17], 14))
    found += steps.run(*mixed)
    found.append(steps.decode(a, b[:17], c))
    return found


def assert_same(found, expected) -> None:
    for array, other in zip(found, expected, strict=True):
        assert np.isfinite(other.astype(np.float64)).all()
        assert array.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("noise", [np.nan, 1e30, -np.inf, -1e30])
def test_noise_where_no_token_was_written_changes_no_bit(noise, dtype):
    assert_same(scenario(Steps(dtype=dtype, noise=noise)), scenario(Steps(dtype=dtype, noise=0.0)))


@pytest.mark.parametrize("seed", [1, 2])
def test_permuted_block_tables_change_no_bit(seed):
    assert Steps(seed=seed).tables != Steps(seed=0).tables
    assert_same(scenario(Steps(seed=seed)), scenario(Steps(seed=0)))


def test_only_the_slots_of_live_tokens_are_written():
    steps = Steps(noise=7.5)
    sequences = sequences_of(6, 3)
    steps.prefill(*(tokens[:-1] for tokens in sequences))
    steps.decode(*sequences, tokens_of(1, 2))  # 3 rows in the rung of 4: one dead row
    for array in steps.caches.values():
        untouched = (array == 7.5).all(axis=(1, 3))  # [blocks, offsets]
        for slot, length in ((0, 6), (1, 3), (2, 1)):
            for position in range(length):
                block = steps.tables[slot][position // BLOCK_SIZE]
                assert not untouched[block, position % BLOCK_SIZE]
        assert np.count_nonzero(~untouched) == 6 + 3 + 1


@pytest.mark.parametrize("name", ["gqa", "biases"])
def test_earlier_steps_leave_no_trace(name):
    """Large, small, large: each step equals the first step of a fresh runner."""
    c = CONFIGS[name]
    steps = Steps(c)
    large, small = sequences_of(*range(8, 8 + MAX_SEQS)), sequences_of(2)
    for sequences in (large, small, large, small):
        for array in steps.caches.values():
            array[...] = np.nan
        fresh = Steps(c)
        for run in (steps, fresh):
            for slot, tokens in enumerate(sequences):
                run.run(run.chunk(slot, tokens[:-1], all_logits=False))
        assert_same([steps.decode(*sequences)], [fresh.decode(*sequences)])
        assert_same(
            steps.run(steps.chunk(0, sequences[0])), fresh.run(fresh.chunk(0, sequences[0]))
        )


# --- the same tokens in other steps


@pytest.mark.parametrize("split", range(1, 18))
def test_prefill_in_two_chunks(split):
    tokens = tokens_of(18)
    for batch_invariant, dtype in ((False, "float64"), (False, "float32"), (True, "float32")):
        whole, cut = (Steps(dtype=dtype, batch_invariant=batch_invariant) for _ in range(2))
        (expected,) = whole.prefill(tokens)
        (first,) = cut.run(cut.chunk(0, tokens[:split]))
        (second,) = cut.run(cut.chunk(0, tokens, split))
        found = np.concatenate([first, second])
        if batch_invariant:
            assert_same([found], [expected])
        else:
            check_logits(CONFIGS["gqa"], dtype, tokens, found, slice(None))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_batch_invariant_rows_have_the_same_bits_in_any_step(dtype):
    sequences = sequences_of(*(13,) * MAX_SEQS)
    whole = np.stack(
        [*Steps(dtype=dtype, batch_invariant=True).prefill(*sequences[:4])]
    )  # [seqs, tokens, vocab]
    alone, together, mixed = (Steps(dtype=dtype, batch_invariant=True) for _ in range(3))
    for n in range(1, 14):
        assert_same([alone.decode(sequences[0][:n])], [whole[:1, n - 1]])
        # All rungs in turn: what is beside a row, dead or alive, must not matter.
        live = 1 + (5 * n) % MAX_SEQS
        for slot in range(live, MAX_SEQS):
            together.run(together.chunk(slot, sequences[slot][:n], n - 1))
        found = together.decode(*(tokens[:n] for tokens in sequences[:live]))
        assert_same([found[: min(live, 4)]], [whole[: min(live, 4), n - 1]])
        beside = mixed.chunk(5, sequences[5][: n + 1])  # a prefill beside one decoded row
        assert_same(
            mixed.run(beside, mixed.chunk(0, sequences[0][:n], n - 1))[1:], [whole[:1, n - 1]]
        )


def test_a_chunk_without_logits():
    steps, tokens = Steps(dtype="float64"), tokens_of(12)
    first = Chunk(token_ids=tokens[:7], start=0, block_table=steps.tables[0], samples=False)
    (nothing,) = steps.run(first)
    assert nothing.shape == (0, VOCAB)
    (logits,) = steps.run(steps.chunk(0, tokens, 7))
    check_logits(CONFIGS["gqa"], "float64", tokens, logits, slice(7, None))


def test_the_longest_sequence_and_the_fullest_step():
    c, sequences = CONFIGS["gqa"], sequences_of(*(MAX_LEN,) * MAX_SEQS)
    steps = Steps(c, "float64")
    chunks = [steps.chunk(s, tokens, all_logits=False) for s, tokens in enumerate(sequences)]
    assert sum(len(chunk.token_ids) for chunk in chunks) == steps.runner.plan.max_num_batched_tokens
    for tokens, logits in zip(sequences, steps.run(*chunks), strict=True):
        check_logits(c, "float64", tokens, logits, slice(-1, None))


# --- the programs


def test_every_residual_addition_is_fused_with_its_norm():
    plan = Steps().runner.plan
    layers = CONFIGS["gqa"].num_hidden_layers
    assert list(plan.decode) == [1, 2, 8, 12]
    for planned in (*plan.decode.values(), plan.mixed):
        names = [op.kernel.name for op in planned.program.ops]
        assert names.count("add_rms_norm") == 2 * layers
        assert names.count("add") == 0 and names.count("rms_norm") == 1


def test_a_mixed_step_computes_what_follows_the_last_attention_for_sampled_rows_alone():
    plan = Steps().runner.plan
    after = {"logits": 0, "tokens": 0}
    for op in reversed(plan.mixed.program.ops):
        if op.kernel.is_attention:
            break
        if op.kernel.name in ("linear", "silu_and_mul"):
            after[op.axes["tokens"].name] += 1
    # o_proj, gate_up_proj, its activation, down_proj and the head.
    assert after == {"logits": 5, "tokens": 0}


def test_all_programs_share_one_arena():
    plan = Steps().runner.plan
    arena = plan.arena()
    temporaries = arena.regions["temporaries"].nbytes
    assert temporaries == max(planned.assignment.arena_bytes for planned in plan.programs)
    assert arena.nbytes < sum(planned.assignment.total_bytes for planned in plan.programs)


def test_one_sequence_needs_one_rung():
    steps = Steps(dtype="float64", max_seqs=1)
    assert steps.runner.plan.ladder.rungs == (1,)
    tokens = tokens_of(5)
    steps.run(steps.chunk(0, tokens[:4]))
    check_logits(CONFIGS["gqa"], "float64", tokens, steps.decode(tokens)[0], -1)


@pytest.mark.parametrize("rungs", ["latency", "throughput", "vllm", [3, 7, 12], [*range(1, 13)]])
def test_more_rungs_add_no_byte_to_the_arena(rungs):
    def arena_bytes(ladder: Ladder) -> int:
        c = CONFIGS["gqa"]
        plan = StepPlan(
            Llama(c, "float32"),
            Steps().runner.plan.cache,
            vocab_size=VOCAB,
            max_num_seqs=MAX_SEQS,
            max_num_batched_tokens=64,
            ladder=ladder,
        )
        return plan.arena(workspace=True).nbytes

    assert arena_bytes(Ladder(MAX_SEQS, rungs)) == arena_bytes(Ladder(MAX_SEQS, [MAX_SEQS]))


def test_a_decode_step_of_256_rows_sends_at_most_64_kib():
    c = CONFIGS["gqa"]
    cache = dataclasses.replace(Steps().runner.plan.cache, max_model_len=131_072)
    plan = StepPlan(
        Llama(c, "float32"),
        cache,
        vocab_size=VOCAB,
        max_num_seqs=256,
        max_num_batched_tokens=256,
    )
    assert max(input_bytes(planned.program) for planned in plan.decode.values()) <= 64 << 10
