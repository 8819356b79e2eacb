"""Named shapes against the parameter counts that their publishers' checkpoints have."""

import pytest

from cugraphs.model_shapes import MODEL_SHAPES, model_shape
from cugraphs.models.llama_config import LlamaConfig

# Elements of all tensors in the safetensors files, a tied head counted once.
PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "mistral-7b-v0.3": 7_248_023_552,
    "tinyllama-1.1b": 1_100_048_384,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
}


@pytest.mark.parametrize("name", MODEL_SHAPES)
def test_a_shape_has_the_published_number_of_parameters(name):
    config = LlamaConfig.from_hf(model_shape(name))
    assert config.num_parameters == PARAMETERS[name]
    assert config.ignored_keys == () and config.dtype in ("bfloat16", "float16")


def test_a_shape_is_a_copy_that_may_be_changed():
    shape = model_shape("llama-3.1-8b")
    shape["rope_scaling"]["factor"] = 1.0
    assert model_shape("llama-3.1-8b")["rope_scaling"]["factor"] == 8.0


def test_an_unknown_shape_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"^shape: 'llama' is not known, .*llama-3\.1-8b, "):
        model_shape("llama")
