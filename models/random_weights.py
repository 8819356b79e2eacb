"""Weights of a Llama that is not there: random, in the shapes that a config gives.

For benchmarks and tests of real sizes without a checkpoint. What such a model says is noise.
"""

from __future__ import annotations

from cugraphs.arena import allocate_arrays
from cugraphs.device import Device
from cugraphs.kernel import Array, ArrayType
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.rope import cos_sin_table
from cugraphs.models.weights import ROPE_COS_SIN, weight_table
from cugraphs.random_fill import fill_random

STD = 0.02  # of the matrices, as Llama's own are initialised


def random_weights(
    config: LlamaConfig, dtype: str, max_model_len: int, device: Device
) -> dict[str, Array]:
    """A random array of the device for every weight, and the RoPE table, in one allocation.

    Matrices and biases are normal around 0, the scales of norms around 1.

    Raises:
        MemoryError: they do not fit.
    """
    table = weight_table(config)
    types = {name: ArrayType(weight.shape, dtype) for name, weight in table.items()}
    rope = cos_sin_table(config.rope, config.head_dim, max_model_len)
    types[ROPE_COS_SIN] = ArrayType(rope.shape, "float32")
    weights = allocate_arrays(types, device.allocate_bytes)
    for name, weight in table.items():
        is_norm = len(weight.shape) == 1 and name.endswith(".weight")
        fill_random(device, weights[name], mean=1.0 if is_norm else 0.0, std=STD)
    device.write(weights[ROPE_COS_SIN], rope)
    return weights
