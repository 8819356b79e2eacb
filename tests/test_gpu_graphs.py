"""Captured steps on the GPU: bit for bit what the same step gives eagerly, whatever ran before."""

import logging
import weakref

import numpy as np
import pytest
from model_runs import CheckpointRun
from test_goldens import GOLDENS, golden

from cugraphs import LLM, SamplingParams
from cugraphs.arena import POISON
from cugraphs.ladder import Ladder
from cugraphs.step_state import Chunk

pytestmark = pytest.mark.gpu

RUNGS = Ladder(20).rungs
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def run_of(device, mode, variant="gqa", **options):
    return CheckpointRun(GOLDENS / variant, device=device, mode=mode, **options)


def prompts_of(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 80, int(rng.integers(1, 5))).tolist() for _ in range(count)]


def decode_steps(run, prompts, count):
    """Logits of ``count`` decode steps after the prompts, [steps, rows, vocab]."""
    tokens, _ = run.prefill(prompts)
    sequences = [[*p, t] for p, t in zip(prompts, tokens, strict=True)]
    found = []
    for _ in range(count):
        tokens, logits = run.decode(sequences)
        found.append(logits)
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append(token)
    return np.stack(found)


@pytest.mark.parametrize("poison", [True, False], ids=["poisoned", "plain"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_replay_of_every_rung_has_the_bits_of_the_eager_step(device, dtype, poison):
    eager, graphs = (run_of(device, m, dtype=dtype, poison=poison) for m in ("none", "full"))
    assert graphs.runner.decode.captured == RUNGS and eager.runner.decode.captured == ()
    for rows in (*RUNGS, 3, 13, 1, 20, 5):  # the last ones also after larger and smaller batches
        prompts = prompts_of(rows, rows)
        expected = decode_steps(eager, prompts, 3)
        found = decode_steps(graphs, prompts, 3)
        assert found.tobytes() == expected.tobytes(), f"{rows} rows"
    counts = graphs.runner.counts
    assert counts.captures == len(RUNGS) and sum(counts.replays.values()) == 3 * (len(RUNGS) + 5)
    assert set(counts.eager_steps) == {"a step with prompt tokens"}


def test_replays_are_the_goldens(device):
    prompts, greedy, _ = golden(GOLDENS / "rope_llama3")
    run = run_of(device, "full_and_piecewise", "rope_llama3", max_model_len=40)
    assert run.greedy(prompts, len(greedy[0]) - len(prompts[0])) == greedy


def test_what_the_arena_holds_between_replays_does_not_matter(device):
    graphs, fresh = (run_of(device, "full", poison=False) for _ in range(2))
    prompts = prompts_of(7)
    expected = decode_steps(fresh, prompts, 4)
    tokens, _ = graphs.prefill(prompts)
    sequences = [[*p, t] for p, t in zip(prompts, tokens, strict=True)]
    for step in range(4):
        for name in ("temporaries", "workspace", "outputs/logits"):
            region = graphs.runner.arena.regions[name]
            memory = graphs.runner.arena._memory[region.offset : region.offset + region.nbytes]
            memory.data.memset_async(POISON, region.nbytes, device.stream)
        tokens, logits = graphs.decode(sequences)
        assert logits.tobytes() == expected[step].tobytes()
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append(token)


def test_large_small_large_batches_equal_a_fresh_engine(device):
    used = run_of(device, "full")
    for rows in (20, 1, 16, 2, 20):
        prompts = prompts_of(rows, 7 + rows)
        expected = decode_steps(run_of(device, "full"), prompts, 2)
        assert decode_steps(used, prompts, 2).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pieces_have_the_bits_of_the_eager_step(device, dtype):
    """One prompt and several, at as many rows as an eager step is rounded up to, and at fewer."""
    eager, pieces = (run_of(device, m, dtype=dtype) for m in ("none", "piecewise"))
    assert pieces.runner.counts.captures > 10
    tokens = np.random.default_rng(9).integers(3, 80, 32).tolist()
    steps = [prompts_of(rows, seed) for seed, rows in enumerate((1, 2, 5, 10))]
    steps += [[tokens], [tokens[first : first + 4] for first in range(0, 32, 4)]]
    for prompts in steps:
        expected, found = (run.prefill(prompts) for run in (eager, pieces))
        assert found[0] == expected[0]
        for e, f in zip(expected[1], found[1], strict=True):
            if sum(map(len, prompts)) == 32:
                assert f.tobytes() == e.tobytes()
            # Another row count may choose other kernels, with other sums.
            np.testing.assert_allclose(f, e, rtol=0, atol=2e-4 if dtype == "float32" else 0.1)
    assert "a step with prompt tokens" not in pieces.runner.counts.eager_steps


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_step_of_one_prompt_is_a_graph_with_the_bits_of_the_eager_step(device, dtype):
    eager, pieces = (run_of(device, m, dtype=dtype) for m in ("none", "piecewise"))
    whole = pieces.runner.mixed.executable.bind({"tokens": 32, "seqs": 1, "logits": 1})
    assert len(whole.pieces) == 1 and whole.graph is not None
    tokens = np.random.default_rng(9).integers(3, 80, 32).tolist()
    for length in (32, 7, 1, 32):
        chunk = [Chunk(tokens[:length], 0, table, slot=0) for table in eager.block_tables[:1]]
        expected, found = (run.runner.run_mixed(chunk)["logits"].copy() for run in (eager, pieces))
        if length == 32:  # at 1 and 7 tokens the eager step has 32 rows too, and other kernels
            assert found.tobytes() == expected.tobytes()
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=2e-4 if dtype == "float32" else 0.1
        )


def test_graphs_hold_no_allocations_and_no_pageable_copies(device):
    run = run_of(device, "full", poison=False)
    for rung in RUNGS:
        graph = run.runner.decode.graph(rung)
        kinds = graph.node_kinds()
        assert set(kinds) <= {"kernel", "memset"}, kinds
        assert graph.pageable_copies() == 0
    assert "digraph" in run.runner.decode.graph(1).dot()


@pytest.mark.parametrize("off_ladder", ["split", "eager"])
def test_a_batch_above_the_ladder(device, off_ladder, caplog):
    ladder = Ladder(20, max_capture_size=8, off_ladder=off_ladder)
    run = run_of(device, "full", ladder=ladder, batch_invariant=True)
    plain = run_of(device, "none", batch_invariant=True)
    prompts = prompts_of(19)
    with caplog.at_level(logging.WARNING, "cugraphs"):
        found = decode_steps(run, prompts, 3)
    assert found.tobytes() == decode_steps(plain, prompts, 3).tobytes()
    counts = run.runner.counts
    assert counts.off_ladder_steps == 3 and len(caplog.records) == 1
    if off_ladder == "split":
        assert counts.replays == {8: 6, 4: 3}
    else:
        assert counts.eager_steps["above the ladder"] == 3


def test_a_batch_above_the_ladder_can_be_an_error(device):
    ladder = Ladder(20, max_capture_size=8, off_ladder="error")
    run = run_of(device, "full", ladder=ladder)
    prompts = prompts_of(9)
    tokens, _ = run.prefill(prompts)
    with pytest.raises(ValueError, match=r"a batch has 9 rows, expected at most 8; raise"):
        run.decode([[*p, t] for p, t in zip(prompts, tokens, strict=True)])


@pytest.mark.parametrize("max_num_seqs", [1, 20, 33])
def test_llm_with_graphs_gives_the_tokens_of_eager_steps(max_num_seqs):
    prompts = [f"Once upon a time there was {who}" for who in ("a dog", "a cat", "Tom", "Lily")] * 9
    options = {"device": "cuda", "dtype": "float32", "max_num_seqs": max_num_seqs}
    outputs = {}
    for mode in ("none", "piecewise", "full", "full_and_piecewise"):
        llm = LLM("demo", graph_mode=mode, **options)
        outputs[mode] = [o.outputs[0].token_ids for o in llm.generate(prompts, GREEDY)]
        captured = llm.runner.decode.captured
        assert captured == (llm.runner.plan.ladder.rungs if "full" in mode else ())
    assert all(found == outputs["none"] for found in outputs.values())


def test_memory_is_divided_before_the_first_request():
    options = {"device": "cuda", "max_num_seqs": 8}
    llm = LLM("demo", gpu_memory_utilization=0.98, **options)
    per_sequence = llm.runner.plan.cache.max_blocks
    assert llm.runner.num_kv_blocks == 1 + 8 * per_sequence  # a small model: all can be long
    assert llm.generate(["One day"], GREEDY)[0].outputs[0].token_ids
    blocks = LLM("demo", num_kv_blocks=per_sequence + 5, **options).runner.num_kv_blocks
    assert blocks == per_sequence + 5
    with pytest.raises(ValueError, match=r"^LLM: kv_cache_bytes is 0, expected at least"):
        LLM("demo", kv_cache_bytes=0, **options)
    with pytest.raises(MemoryError, match=r"^cuda: .* bytes are left for the KV cache, expected"):
        LLM("demo", gpu_memory_utilization=1e-6, **options)


def test_a_ladder_with_duplicates_is_captured_once_each():
    llm = LLM("demo", device="cuda", max_num_seqs=8, capture_sizes=[4, 2, 4, 8, 2])
    assert llm.runner.decode.captured == (2, 4, 8) and llm.runner.counts.captures >= 3


def test_an_engine_closes_its_memory(held):
    """What it allocated, its graphs and its KV cache are gone with it."""
    import gc

    llm = LLM("demo", device="cuda", max_num_seqs=8)
    llm.generate(["One day"], GREEDY)
    runner = llm.runner
    parts = [runner, runner.decode.graph(1), runner._kv_pool._range]
    left = weakref.WeakSet(parts)
    assert held and len(left) == len(parts)
    del llm, runner, parts
    gc.collect()
    assert not held and not left
