"""Whole models on the GPU: goldens of transformers, and the interpreter's tokens."""

from pathlib import Path

import numpy as np
import pytest
from model_runs import CheckpointRun
from test_goldens import GOLDENS, VARIANTS, golden

from cugraphs import LLM, SamplingParams
from cugraphs.kernel import DTYPES
from cugraphs.tolerance import check_close

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("variant", VARIANTS)
def test_goldens(variant, device):
    prompts, greedy, logits = golden(GOLDENS / variant)
    run = CheckpointRun(GOLDENS / variant, max_model_len=40, device=device)
    _, actual = run.prefill(greedy)
    for i, expected in enumerate(logits):
        np.testing.assert_allclose(actual[i], expected, atol=2e-4, rtol=0)
    run = CheckpointRun(GOLDENS / variant, max_model_len=40, device=device)
    assert run.greedy(prompts, len(greedy[0]) - len(prompts[0])) == greedy


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("variant", ["gqa", "head_dim", "rope_llama3", "both_biases"])
def test_low_precision_against_the_interpreter(variant, dtype, device):
    """``plain`` is the interpreter in the same dtype, ``exact`` the interpreter in float64."""
    _, greedy, _ = golden(GOLDENS / variant)
    logits = {}
    for name, kind, where in (
        ("exact", "float64", None),
        ("plain", dtype, None),
        ("gpu", dtype, device),
    ):
        run = CheckpointRun(GOLDENS / variant, max_model_len=40, dtype=kind, device=where)
        logits[name] = run.prefill(greedy)[1]
    for i in range(len(greedy)):
        check_close(logits["gpu"][i], logits["exact"][i], logits["plain"][i], DTYPES[dtype])


def test_sixteen_rows_over_permuted_blocks_equal_single_runs(device):
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, 80, rng.integers(1, 8)).tolist() for _ in range(16)]
    options = {"max_model_len": 48, "batch_invariant": True, "device": device}
    together = CheckpointRun(GOLDENS / "gqa", **options).greedy(prompts, 20)
    alone = CheckpointRun(GOLDENS / "gqa", **options)
    assert [alone.greedy([prompt], 20)[0] for prompt in prompts] == together


@pytest.mark.parametrize("model", ["stories260k", "demo"])
def test_llm_gives_the_interpreters_tokens(model, request):
    folder = request.getfixturevalue(model) if model == "stories260k" else model
    greedy = SamplingParams(temperature=0, max_tokens=200)
    prompts = ["Once upon a time", "One day", "The little dog", "Tom and Lily"]
    outputs = [
        LLM(folder, device=device, dtype="float32", max_num_seqs=3).generate(prompts, greedy)
        for device in ("cpu", "cuda")
    ]
    for on_cpu, on_gpu in zip(*outputs, strict=True):
        assert on_gpu.outputs[0].token_ids == on_cpu.outputs[0].token_ids
        assert on_gpu.outputs[0].text == on_cpu.outputs[0].text


def test_sampled_tokens_logprobs_and_penalties_equal_the_cpu(stories260k: Path):
    """Seeded draws, filters and penalties on float32 logits that differ in their last bits only."""
    params = SamplingParams(
        temperature=0.8,
        top_p=0.9,
        top_k=40,
        seed=7,
        max_tokens=60,
        presence_penalty=0.5,
        repetition_penalty=1.1,
        logit_bias={300: -2.0},
        logprobs=3,
        prompt_logprobs=2,
        min_tokens=5,
    )
    outputs = [
        LLM(stories260k, device=device, dtype="float32", max_num_seqs=2).generate("Lily", params)[0]
        for device in ("cpu", "cuda")
    ]
    on_cpu, on_gpu = outputs
    assert on_gpu.outputs[0].token_ids == on_cpu.outputs[0].token_ids
    found, expected = on_gpu.outputs[0].logprobs, on_cpu.outputs[0].logprobs
    found = [*found, *on_gpu.prompt_logprobs[1:]]
    expected = [*expected, *on_cpu.prompt_logprobs[1:]]
    for a, b in zip(found, expected, strict=True):
        assert a.keys() == b.keys()
        for token, logprob in a.items():
            assert logprob.rank == b[token].rank
            assert logprob.logprob == pytest.approx(b[token].logprob, abs=1e-3)
