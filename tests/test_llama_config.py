"""config.json of real models, of bad ones with their messages, and of random mutations."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.models.config_keys import _UNSUPPORTED
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.rope import RopeConfig, inverse_frequencies


def hf(
    hidden,
    intermediate,
    layers,
    heads,
    kv_heads,
    vocab,
    positions,
    eps=1e-5,
    architecture="LlamaForCausalLM",
    **more,
):
    """A config.json with the keys that transformers 4 writes."""
    return {
        "architectures": [architecture],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": intermediate,
        "max_position_embeddings": positions,
        "model_type": "llama" if architecture == "LlamaForCausalLM" else "mistral",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": eps,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0",
        "use_cache": True,
        "vocab_size": vocab,
        **more,
    }


def llama3_rope(factor):
    return {
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }


MISTRAL = "MistralForCausalLM"
BIASES = {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}

# Published configs, reduced to keys that matter: config, parameters, head_dim, rope type, theta.
MODELS = {
    "Llama-2-7b": (
        # Llama 2's first files have no rope_theta.
        hf(4096, 11008, 32, 32, 32, 32000, 4096, rope_scaling=None, torch_dtype="float16"),
        (6_738_415_616, 128, "default", 1e4),
    ),
    "Llama-3-8B": (
        hf(4096, 14336, 32, 32, 8, 128256, 8192, rope_theta=500000.0, **BIASES),
        (8_030_261_248, 128, "default", 5e5),
    ),
    "Llama-3.1-8B": (
        hf(
            *(4096, 14336, 32, 32, 8, 128256, 131072),
            rope_theta=500000.0,
            rope_scaling=llama3_rope(8.0),
            eos_token_id=[128001, 128008, 128009],
        ),
        (8_030_261_248, 128, "llama3", 5e5),
    ),
    "Llama-3.2-1B": (
        hf(
            *(2048, 8192, 16, 32, 8, 128256, 131072),
            rope_theta=500000.0,
            rope_scaling=llama3_rope(32.0),
            tie_word_embeddings=True,
            head_dim=64,
        ),
        (1_235_814_400, 64, "llama3", 5e5),
    ),
    "Llama-3.3-70B": (
        hf(
            *(8192, 28672, 80, 64, 8, 128256, 131072),
            rope_theta=500000.0,
            rope_scaling=llama3_rope(8.0),
        ),
        (70_553_706_496, 128, "llama3", 5e5),
    ),
    "Llama-3.1-405B": (
        hf(
            *(16384, 53248, 126, 128, 8, 128256, 131072),
            rope_theta=500000.0,
            rope_scaling=llama3_rope(8.0),
        ),
        (405_853_388_800, 128, "llama3", 5e5),
    ),
    "CodeLlama-7b": (
        hf(4096, 11008, 32, 32, 32, 32016, 16384, rope_theta=1000000, rope_scaling=None),
        (6_738_546_688, 128, "default", 1e6),
    ),
    "TinyLlama-1.1B": (
        hf(2048, 5632, 22, 32, 4, 32000, 2048, rope_theta=10000.0, torch_dtype="float32"),
        (1_100_048_384, 64, "default", 1e4),
    ),
    "vicuna-7b-v1.5": (
        hf(4096, 11008, 32, 32, 32, 32000, 4096, pad_token_id=0, rope_scaling=None),
        (6_738_415_616, 128, "default", 1e4),
    ),
    "SmolLM2-135M": (
        hf(
            *(576, 1536, 30, 9, 3, 49152, 8192),
            rope_theta=100000,
            tie_word_embeddings=True,
            is_llama_config=True,
            rope_interleaved=False,
        ),
        (134_515_008, 64, "default", 1e5),
    ),
    "Yi-6B": (
        hf(4096, 11008, 32, 32, 4, 64000, 4096, rope_theta=5000000.0),
        (6_061_035_520, 128, "default", 5e6),
    ),
    "deepseek-llm-7b": (
        hf(4096, 11008, 30, 32, 32, 102400, 4096, eps=1e-6, rope_theta=10000.0),
        (6_910_365_696, 128, "default", 1e4),
    ),
    "deepseek-coder-6.7b": (
        hf(
            *(4096, 11008, 32, 32, 32, 32256, 16384),
            eps=1e-6,
            rope_theta=100000,
            rope_scaling={"factor": 4.0, "type": "linear"},
        ),
        (6_740_512_768, 128, "linear", 1e5),
    ),
    "Yarn-Llama-2-7b-64k": (
        hf(
            *(4096, 11008, 32, 32, 32, 32000, 65536),
            rope_scaling={
                "factor": 16.0,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
                "finetuned": True,
            },
        ),
        (6_738_415_616, 128, "yarn", 1e4),
    ),
    "Mistral-7B-v0.1": (
        hf(
            *(4096, 14336, 32, 32, 8, 32000, 32768),
            architecture=MISTRAL,
            sliding_window=4096,
            rope_theta=10000.0,
        ),
        (7_241_732_096, 128, "default", 1e4),
    ),
    "Mistral-7B-v0.3": (
        hf(
            *(4096, 14336, 32, 32, 8, 32768, 32768),
            architecture=MISTRAL,
            sliding_window=None,
            rope_theta=1000000.0,
        ),
        (7_248_023_552, 128, "default", 1e6),
    ),
}

SMALL = hf(32, 40, 2, 4, 2, 81, 64, rope_theta=10000.0, rope_scaling=None, **BIASES)


def small(**changes):
    """A valid config with some keys set, and those set to `...` removed."""
    return {k: v for k, v in {**SMALL, **changes}.items() if v is not ...}


@pytest.mark.parametrize("name", MODELS)
def test_published_models(name):
    file, (parameters, head_dim, rope_type, theta) = MODELS[name]
    config = LlamaConfig.from_hf(json.loads(json.dumps(file)))
    for key in (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps"),
        "tie_word_embeddings",
    ):
        assert getattr(config, key) == file[key], key
    assert config.num_parameters == parameters
    assert config.head_dim == head_dim
    assert config.q_size == file["num_attention_heads"] * head_dim
    assert config.kv_size == file["num_key_value_heads"] * head_dim
    assert (config.rope.rope_type, config.rope.theta) == (rope_type, theta)
    assert config.architecture == file["architectures"][0]
    assert config.dtype == file["torch_dtype"]
    assert config.sliding_window == file.get("sliding_window")
    assert not config.attention_bias
    assert not config.mlp_bias
    assert config.ignored_keys == ()


def test_llama_1_file_with_little_in_it_takes_transformers_defaults():
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    file = {k: SMALL[k] for k in (*sizes, "vocab_size", "architectures")}
    config = LlamaConfig.from_hf(file)
    assert config == LlamaConfig(
        vocab_size=81,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        rms_norm_eps=1e-6,
        max_position_embeddings=2048,
        rope=RopeConfig(theta=10000.0),
    )
    mistral = LlamaConfig.from_hf(
        {**file, "architectures": [MISTRAL], "num_attention_heads": 16, "hidden_size": 64}
    )
    assert mistral.num_key_value_heads == 8
    assert mistral.sliding_window == 4096
    assert mistral.max_position_embeddings == 131072


def test_null_is_not_absent_for_mistral():
    """Null turns the window off and gives every query head its own K and V."""
    file = small(architectures=[MISTRAL], model_type="mistral", attention_bias=..., mlp_bias=...)
    config = LlamaConfig.from_hf({**file, "sliding_window": None, "num_key_value_heads": None})
    assert config.sliding_window is None
    assert config.num_key_value_heads == 4


def test_transformers_5_spelling_means_the_same_as_4():
    rope = llama3_rope(8.0)
    four = small(rope_scaling=rope, rope_theta=500000.0, torch_dtype="float16")
    five = small(
        rope_scaling=...,
        rope_theta=...,
        torch_dtype=...,
        dtype="float16",
        rope_parameters={**rope, "rope_theta": 500000.0},
    )
    both = {**four, **five}
    older = small(
        rope_theta=500000.0,
        torch_dtype="torch.float16",
        rope_scaling={"type": "llama3", **{k: v for k, v in rope.items() if k != "rope_type"}},
    )
    expected = LlamaConfig.from_hf(four)
    assert expected.rope.rope_type == "llama3"
    assert expected.dtype == "float16"
    for file in (five, both, older):
        assert LlamaConfig.from_hf(file) == expected


def test_model_type_stands_in_for_absent_architectures():
    file = small(architectures=...)
    assert LlamaConfig.from_hf(file).architecture == "LlamaForCausalLM"
    file = small(architectures=[], model_type="mistral")
    assert LlamaConfig.from_hf(file).architecture == MISTRAL


def test_head_dim_of_its_own_and_biases_are_counted():
    """3 heads of 10 beside a hidden size of 32, every projection with a bias, by hand."""
    config = LlamaConfig.from_hf(
        small(
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=10,
            attention_bias=True,
            mlp_bias=True,
        )
    )
    q, k, v, o = 32 * 30 + 30, 32 * 10 + 10, 32 * 10 + 10, 30 * 32 + 32
    gate, up, down = 32 * 40 + 40, 32 * 40 + 40, 40 * 32 + 32
    norms = 2 * 32
    assert config.num_embedding_parameters == 81 * 32
    layers = 2 * (q + k + v + o + gate + up + down + norms)
    assert config.num_parameters == 2 * 81 * 32 + layers + 32


def test_golden_checkpoints_hold_the_parameters_that_their_config_promises(goldens):
    """Elements in model.safetensors as num_parameters; all folders with one file."""
    import safetensors

    folders = [f.parent for f in sorted(goldens.glob("*/model.safetensors"))]
    assert folders
    for folder in folders:
        config = LlamaConfig.from_hf(json.loads((folder / "config.json").read_text()))
        with safetensors.safe_open(folder / "model.safetensors", framework="np") as file:
            shapes = {k: tuple(file.get_slice(k).get_shape()) for k in file.offset_keys()}
        # Llama 1 stored the frequencies, which are no parameters.
        shapes = {k: v for k, v in shapes.items() if not k.endswith("rotary_emb.inv_freq")}
        if config.tie_word_embeddings and "model.embed_tokens.weight" in shapes:
            shapes.pop("lm_head.weight", None)
        counted = sum(math.prod(shape) for shape in shapes.values())
        assert config.num_parameters == counted, folder.name


def test_neutral_values_of_unsupported_keys_pass_and_are_not_listed():
    for key, neutral in _UNSUPPORTED.items():
        for value in (None, *neutral):
            assert LlamaConfig.from_hf(small(**{key: value})).ignored_keys == (), key
    config = LlamaConfig.from_hf(
        small(
            layer_types=["full_attention"] * 2,
            no_rope_layers=[1, 1],
            hidden_act="swish",
            rope_scaling={"rope_type": "default", "partial_rotary_factor": 1.0},
        )
    )
    assert config == LlamaConfig.from_hf(SMALL)


def test_unknown_keys_are_listed_in_the_files_order():
    file = small(unsloth_version="2024.9", auto_map={"AutoConfig": "x"}, max_sequence_length=2)
    expected = ("unsloth_version", "auto_map", "max_sequence_length")
    assert LlamaConfig.from_hf(file).ignored_keys == expected


def test_use_sliding_window_false_turns_the_window_off():
    assert LlamaConfig.from_hf(small(sliding_window=16)).sliding_window == 16
    file = small(sliding_window=16, use_sliding_window=True)
    assert LlamaConfig.from_hf(file).sliding_window == 16
    file = small(sliding_window=16, use_sliding_window=False)
    assert LlamaConfig.from_hf(file).sliding_window is None


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {k: v for k, v in llama3_rope(8.0).items() if k != "original_max_position_embeddings"}


def test_original_context_beside_or_inside_the_rope_section():
    outer = small(rope_scaling=LLAMA3, original_max_position_embeddings=32)
    inner = small(rope_scaling={**LLAMA3, "original_max_position_embeddings": 32})
    assert LlamaConfig.from_hf(outer) == LlamaConfig.from_hf(inner)
    # dynamic and yarn without one take max_position_embeddings, as transformers does
    for section in ({"type": "dynamic", "factor": 2.0}, {"type": "yarn", "factor": 2.0}):
        rope = LlamaConfig.from_hf(small(rope_scaling=section)).rope
        assert rope.original_max_position_embeddings == 64


def test_yarn_factor_that_is_null_is_the_ratio_of_contexts():
    rope = LlamaConfig.from_hf(small(rope_scaling={**YARN, "factor": None})).rope
    assert rope.factor == 64 / 16


SUPPORTED = "LlamaForCausalLM or MistralForCausalLM"
CHANGES = "it changes the computation and is not supported"
LONG = "x" * 1000
# What is wrong: changes of a valid file, and the message after "config.json: ".
BAD = [
    # which model
    (
        {"architectures": ["Qwen2ForCausalLM"]},
        f'architectures is "Qwen2ForCausalLM", expected {SUPPORTED}',
    ),
    (
        {"architectures": ..., "model_type": ...},
        f"architectures is missing, expected {SUPPORTED}",
    ),
    (
        {"architectures": None, "model_type": "qwen2"},
        f'architectures is missing and model_type "qwen2", expected {SUPPORTED}',
    ),
    (
        {"architectures": "LlamaForCausalLM"},
        f'architectures is "LlamaForCausalLM", expected a list with {SUPPORTED}',
    ),
    ({"architectures": [{}]}, f"architectures is an empty object, expected {SUPPORTED}"),
    (
        {"model_type": "gemma"},
        'model_type is "gemma", expected "llama" beside LlamaForCausalLM',
    ),
    # sizes
    ({"hidden_size": ...}, "hidden_size is missing, expected a positive integer"),
    ({"vocab_size": None}, "vocab_size is null, expected a positive integer"),
    ({"num_attention_heads": "x"}, 'num_attention_heads is "x", expected a positive integer'),
    ({"num_hidden_layers": True}, "num_hidden_layers is true, expected a positive integer"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected a positive integer"),
    ({"num_hidden_layers": -1}, "num_hidden_layers is -1, expected a positive integer"),
    ({"hidden_size": 32.0}, "hidden_size is 32.0, expected a positive integer"),
    ({"hidden_size": math.nan}, "hidden_size is nan, expected a positive integer"),
    ({"intermediate_size": [40]}, "intermediate_size is a list, expected a positive integer"),
    (
        {"intermediate_size": LONG},
        f'intermediate_size is "{LONG[:60]}..., expected a positive integer',
    ),
    ({"vocab_size": "a\nb"}, r'vocab_size is "a\nb", expected a positive integer'),
    ({"vocab_size": 2**31}, "vocab_size is 2147483648, expected at most 16,777,216"),
    (
        {"hidden_size": 10**4000},
        "hidden_size is an integer of 13288 bits, expected at most 262,144",
    ),
    (
        {
            "hidden_size": 2**18,
            "head_dim": 8,
            "num_hidden_layers": 2**12,
            "intermediate_size": 2**20,
        },
        "num_hidden_layers x hidden_size is 4096 x 262144, which makes 3.38e+15 parameters, "
        "expected at most 2.2e+12",
    ),
    (
        {"num_key_value_heads": 3},
        "num_attention_heads is 4, expected a multiple of num_key_value_heads, 3",
    ),
    (
        {"num_key_value_heads": 8},
        "num_attention_heads is 4, expected a multiple of num_key_value_heads, 8",
    ),
    ({"num_key_value_heads": 0}, "num_key_value_heads is 0, expected a positive integer"),
    (
        {"num_attention_heads": 5, "num_key_value_heads": 5},
        "hidden_size is 32, expected a multiple of num_attention_heads, 5, where head_dim is "
        "not given",
    ),
    (
        {"head_dim": 7},
        "head_dim is 7, expected an even number, as rotary embedding turns pairs",
    ),
    ({"head_dim": {}}, "head_dim is an empty object, expected a positive integer"),
    (
        {"max_position_embeddings": 1e5},
        "max_position_embeddings is 100000.0, expected a positive integer",
    ),
    # constants and switches
    ({"rms_norm_eps": 0}, "rms_norm_eps is 0, expected a number from 1e-12 to 1"),
    ({"rms_norm_eps": math.inf}, "rms_norm_eps is inf, expected a number from 1e-12 to 1"),
    ({"rms_norm_eps": "1e-5"}, 'rms_norm_eps is "1e-5", expected a number from 1e-12 to 1'),
    (
        {"tie_word_embeddings": "false"},
        'tie_word_embeddings is "false", expected true or false',
    ),
    ({"attention_bias": 1}, "attention_bias is 1, expected true or false"),
    ({"mlp_bias": []}, "mlp_bias is an empty list, expected true or false"),
    (
        {"architectures": [MISTRAL], "model_type": "mistral", "attention_bias": True},
        "attention_bias is true, expected false: Mistral has no biases",
    ),
    (
        {"torch_dtype": "int8"},
        'torch_dtype is "int8", expected one of bfloat16, float16, float32',
    ),
    ({"dtype": {}}, "dtype is an empty object, expected one of bfloat16, float16, float32"),
    ({"sliding_window": 0}, "sliding_window is 0, expected a positive integer"),
    ({"use_sliding_window": 1}, "use_sliding_window is 1, expected true or false"),
    # what changes the computation
    (
        {"quantization_config": {"quant_method": "gptq"}},
        f"quantization_config is an object, expected null: {CHANGES}",
    ),
    ({"rope_interleaved": True}, f"rope_interleaved is true, expected null or false: {CHANGES}"),
    (
        {"partial_rotary_factor": 0.5},
        f"partial_rotary_factor is 0.5, expected null or 1: {CHANGES}",
    ),
    (
        {"attention_multiplier": 0.015625},
        f"attention_multiplier is 0.015625, expected null: {CHANGES}",
    ),
    (
        {"residual_multiplier": 0.22},
        f"residual_multiplier is 0.22, expected null or 1: {CHANGES}",
    ),
    ({"logits_scaling": True}, f"logits_scaling is true, expected null or 1: {CHANGES}"),
    ({"logit_scale": math.nan}, f"logit_scale is nan, expected null or 1: {CHANGES}"),
    (
        {"final_logit_softcapping": 30.0},
        f"final_logit_softcapping is 30.0, expected null: {CHANGES}",
    ),
    ({"num_local_experts": 8}, f"num_local_experts is 8, expected null or 0: {CHANGES}"),
    ({"qk_norm": True}, f"qk_norm is true, expected null or false: {CHANGES}"),
    ({"hidden_act": "gelu"}, f'hidden_act is "gelu", expected "silu": {CHANGES}'),
    ({"hidden_act": ["silu"]}, f'hidden_act is a list, expected "silu": {CHANGES}'),
    (
        {"layer_types": ["full_attention", "sliding_attention"]},
        f'layer_types is "sliding_attention", expected a list of "full_attention": {CHANGES}',
    ),
    (
        {"layer_types": "full_attention"},
        f'layer_types is "full_attention", expected a list of "full_attention": {CHANGES}',
    ),
    (
        {"no_rope_layers": [1, 0]},
        f"no_rope_layers is 0, expected a list of 1 (rope in every layer): {CHANGES}",
    ),
    # rotary embedding
    ({"rope_theta": "1e4"}, 'rope_theta is "1e4", expected a number from 1 to 1e+15'),
    ({"rope_theta": 0}, "rope_theta is 0, expected a number from 1 to 1e+15"),
    ({"rope_scaling": [1]}, "rope_scaling is a list, expected an object"),
    ({"rope_scaling": []}, "rope_scaling is an empty list, expected an object"),
    (
        {"rope_scaling": {"rope_type": "longrope"}},
        'rope_scaling.rope_type is "longrope", expected one of default, linear, dynamic, '
        "llama3, yarn",
    ),
    (
        {"rope_scaling": {"type": "su"}},
        'rope_scaling.type is "su", expected one of default, linear, dynamic, llama3, yarn',
    ),
    (
        {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}},
        'rope_scaling.type is "linear", expected "yarn" as rope_type says',
    ),
    (
        {"rope_scaling": {"type": "linear"}},
        "rope_scaling.factor is missing, expected a number, as rope_type linear needs it",
    ),
    (
        {"rope_scaling": {"type": "linear", "factor": "2"}},
        'rope_scaling.factor is "2", expected a number from 1 to 1e+06',
    ),
    (
        {"rope_scaling": LLAMA3},
        "rope_scaling.original_max_position_embeddings is missing, expected a positive "
        "integer, as rope_type llama3 needs it",
    ),
    (
        {"rope_scaling": {**YARN, "low_freq_factor": 1.0}},
        "rope_scaling.low_freq_factor is 1.0, expected none: rope_type yarn with it is not "
        "supported",
    ),
    (
        {"rope_scaling": {"mrope_section": [1, 1, 2]}},
        "rope_scaling.mrope_section is a list, expected none: rope_type default with it is "
        "not supported",
    ),
    (
        {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
        "rope_parameters.full_attention is an object, expected none: rope_type default with "
        "it is not supported",
    ),
    (
        {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "rope_scaling.partial_rotary_factor is 0.5, expected none: rope_type default with it "
        "is not supported",
    ),
    (
        {"rope_scaling": {"a key\nof two lines": 1}},
        r'rope_scaling."a key\nof two lines" is 1, expected none: rope_type default with it '
        "is not supported",
    ),
    (
        {"rope_scaling": {**YARN, "beta_fast": 0.5}},
        "rope_scaling.beta_fast is 0.5, expected at least beta_slow, 1.0",
    ),
    (
        {"rope_scaling": {**YARN, "original_max_position_embeddings": 0, "factor": None}},
        "rope_scaling.original_max_position_embeddings is 0, expected a positive integer",
    ),
    (
        {"rope_scaling": YARN, "original_max_position_embeddings": 32},
        "rope_scaling.original_max_position_embeddings is 16, expected 32 as "
        "original_max_position_embeddings beside it says",
    ),
    (
        {"rope_parameters": {"rope_theta": 5e5}},
        "rope_parameters.rope_theta is 500000.0, expected 10000.0 as rope_theta beside it says",
    ),
    (
        {"rope_parameters": {"rope_type": "default"}, "rope_scaling": YARN},
        "rope_scaling is different from rope_parameters, expected the same rotary embedding "
        "in both; remove the one that does not belong to the model",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[m.split(",")[0] for _, m in BAD])
def test_bad_configs_and_their_messages(changes, message):
    with pytest.raises(ValueError) as error:
        LlamaConfig.from_hf(small(**changes))
    assert str(error.value) == f"config.json: {message}"


@pytest.mark.parametrize("value", [[], None, "x", 3])
def test_a_file_that_is_no_object_is_refused(value):
    with pytest.raises(ValueError, match=r"^a/config\.json: the top level is .*, expected an obj"):
        LlamaConfig.from_hf(value, source="a/config.json")


def test_a_config_made_by_hand_is_checked_too():
    with pytest.raises(ValueError, match=r"^LlamaConfig: hidden_size is 0, expected a positive"):
        LlamaConfig(81, 0, 40, 2, 4, 4, 8, 1e-5, 64, RopeConfig())


DYNAMIC = {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("changes", "longest", "message"),
    [
        ({}, 64, "at most 64: max_position_embeddings is 64; pass max_model_len=64 or less"),
        (
            {"sliding_window": 16},
            16,
            "at most 16: sliding_window is 16, and attention over a window shorter than the "
            "sequence is not supported; pass max_model_len=16 or less",
        ),
        (
            {"rope_scaling": DYNAMIC},
            16,
            "at most 16: rope_type is dynamic and the original context 16, beyond which its "
            "frequencies would change with the length, which is not supported; "
            "pass max_model_len=16 or less",
        ),
    ],
)
def test_max_model_len_up_to_what_is_computed_as_the_model_was_made(changes, longest, message):
    config = LlamaConfig.from_hf(small(**changes))
    assert config.longest_max_model_len == longest
    config.check_max_model_len(1)
    config.check_max_model_len(longest)
    with pytest.raises(ValueError) as error:
        config.check_max_model_len(longest + 1)
    expected = f"LlamaConfig: max_model_len is {longest + 1}, expected {message}"
    assert str(error.value) == expected
    for value in (0, True, 8.0, "8"):
        with pytest.raises(ValueError, match=r"max_model_len is .*, expected a positive integer"):
            config.check_max_model_len(value)


def test_window_as_long_as_the_context_does_not_limit_it():
    config = LlamaConfig.from_hf(small(sliding_window=64))
    config.check_max_model_len(64)
    assert config.longest_max_model_len == 64


SECTIONS = [None, YARN, llama3_rope(8.0), DYNAMIC, {"type": "linear", "factor": 2.0}]
ROPE_KEYS = sorted({key for section in SECTIONS[1:] for key in section} | {"mscale", "truncate"})
CONFIG_KEYS = sorted(
    {*SMALL, *_UNSUPPORTED, "head_dim", "dtype", "sliding_window", "use_sliding_window"}
    | {"layer_types", "no_rope_layers", "rope_parameters", "original_max_position_embeddings"}
)
NASTY = st.sampled_from(
    [
        *(None, True, 0, 1, -1, 2**31, 10**400, 0.5, 1e308, math.nan, -math.inf, "", "8", [], {}),
        *([None], {"rope_type": "linear", "factor": 1e999}, "bfloat16", "llama3"),
        ["full_attention"],
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(
    section=st.sampled_from(SECTIONS),
    rope_changes=st.dictionaries(st.sampled_from(ROPE_KEYS), NASTY | JSON, max_size=2),
    changes=st.dictionaries(st.sampled_from(CONFIG_KEYS) | st.text(), NASTY | JSON, max_size=3),
    removed=st.sets(st.sampled_from(sorted(SMALL)), max_size=2),
)
def test_a_mutated_config_loads_or_is_refused_in_one_line(section, rope_changes, changes, removed):
    file = {**SMALL, "rope_scaling": {**(section or {}), **rope_changes}, **changes}
    file = {key: value for key, value in file.items() if key not in removed}
    try:
        config = LlamaConfig.from_hf(file)
    except ValueError as error:
        message = str(error)
        assert message.startswith("config.json: ")
        assert message.isprintable()
        assert len(message) < 400
        named = message.removeprefix("config.json: ").split(" ")[0].split(".")[0]
        assert named in {*CONFIG_KEYS, "architectures", "model_type"}
    else:
        frequencies, scaling = inverse_frequencies(config.rope, config.head_dim)
        assert np.all((frequencies >= 0) & (frequencies <= 1))
        assert math.isfinite(scaling)
        config.check_max_model_len(config.longest_max_model_len)
