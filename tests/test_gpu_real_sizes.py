"""Real sizes on the GPU against transformers: a random 1B, and three layers of an 8B.

Here torch and transformers are the other side; where they are not installed there is nothing to
compare with. Three layers are as few as make one launch of a decode step's.
"""

import numpy as np
import pytest
from model_runs import ModelRun

from cugraphs.models.llama_config import LlamaConfig
from cugraphs.step_state import Chunk

pytestmark = pytest.mark.gpu
PROMPT_TOKENS, DECODE_STEPS = 4097, 64
LENGTHS = (1, 15, 16, 17, 8191)  # of whole prompts

SHAPES = {
    "llama_3_2_1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "three_layers_of_llama_3_1_8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 3,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
}


class TorchTensor:
    """A torch tensor as the checkpoint's interface."""

    def __init__(self, torch, tensor):
        self.shape = tuple(tensor.shape)
        self.dtype = str(tensor.dtype).removeprefix("torch.")
        host = tensor.detach().cpu().contiguous()
        if host.dtype == torch.bfloat16:
            host = host.view(torch.uint16)
        self._bytes = host.numpy().reshape(-1).view(np.uint8)

    def read(self, begin, buffer):
        buffer[:] = self._bytes[begin : begin + buffer.nbytes]

    def check_unchanged(self):
        pass


@pytest.fixture(scope="module", params=sorted(SHAPES))
def models(request):
    torch = pytest.importorskip("torch", reason="needs torch and transformers to compare with")
    transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128256,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        attn_implementation="sdpa",
        **SHAPES[request.param],
    )
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
            else:
                parameter.normal_(std=0.02)
            parameter.copy_(parameter.bfloat16().float())  # the same weights in both dtypes
    tokens = torch.randint(0, 128256, (1, max(LENGTHS)), device="cuda")
    wanted = [*range(PROMPT_TOKENS - 1, PROMPT_TOKENS + DECODE_STEPS)]
    wanted += [length - 1 for length in LENGTHS]
    logits = {}
    with torch.no_grad():
        hidden = model.model(tokens).last_hidden_state[0, wanted]
        logits["float32"] = model.lm_head(hidden).float().cpu().numpy()
        low = model.bfloat16()
        hidden = low.model(tokens).last_hidden_state[0, wanted]
        logits["bfloat16"] = low.lm_head(hidden).float().cpu().numpy()
    tensors = {name: TorchTensor(torch, t) for name, t in low.state_dict().items()}
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    hf_config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        **SHAPES[request.param],
    }
    return LlamaConfig.from_hf(hf_config), tensors, tokens[0].cpu().tolist(), logits


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def runs(models, request):
    from cugraphs.cuda_device import CudaDevice

    config, tensors, tokens, expected = models
    run = ModelRun(
        config,
        tensors,
        dtype=request.param,
        max_num_seqs=2,
        max_model_len=8192,
        max_num_batched_tokens=8192,
        block_size=16,
        poison=False,
        device=CudaDevice(),
    )
    return run, request.param, tokens, expected


def test_logits_after_4097_tokens_and_64_decode_steps(runs):
    """The prompt in chunks of 2,048 tokens."""
    run, dtype, tokens, expected = runs
    actual = []
    for start in range(0, PROMPT_TOKENS, 2048):
        stop = min(start + 2048, PROMPT_TOKENS)
        outputs = run.runner.run([Chunk(tokens[start:stop], start, run.block_tables[1], slot=1)])
        last = outputs["logits"][-1].astype(np.float32)
    actual.append(last)
    for position in range(PROMPT_TOKENS, PROMPT_TOKENS + DECODE_STEPS):
        chunk = Chunk(tokens[position : position + 1], position, run.block_tables[1], slot=1)
        actual.append(run.runner.run([chunk])["logits"][0].astype(np.float32))
    check_logits(actual, {name: rows[: -len(LENGTHS)] for name, rows in expected.items()}, dtype)


def test_logits_of_prompts_of_1_15_16_17_and_8191_tokens(runs):
    """Each prompt in one step."""
    run, dtype, tokens, expected = runs
    actual = []
    for length in LENGTHS:
        chunk = Chunk(tokens[:length], 0, run.block_tables[0], slot=0)
        actual.append(run.runner.run_mixed([chunk])["logits"][0].astype(np.float32))
    check_logits(actual, {name: rows[-len(LENGTHS) :] for name, rows in expected.items()}, dtype)


def check_logits(actual, expected, dtype):
    """Errors relative to the logits' own size, transformers in float32 being exact; bfloat16 must
    not be worse than transformers in bfloat16 is."""
    exact = expected["float32"]
    size = np.sqrt(np.mean(exact**2))
    errors = np.abs(np.stack(actual) - exact) / size
    if dtype == "float32":
        assert errors.max() < 2e-3
    else:
        plain = np.abs(expected["bfloat16"] - exact) / size
        assert np.sqrt(np.mean(errors**2)) <= 1.25 * np.sqrt(np.mean(plain**2))
        assert errors.max() <= 2 * plain.max()
