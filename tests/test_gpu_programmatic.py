"""Programmatic launches on a GPU: a build that sleeps wherever they meet gives the same bits.

Where a kernel does not wait for the one before, that one sleeps, and is read from too early.
"""

from pathlib import Path

import numpy as np
import pytest

from cugraphs.decode_bench import BenchModel, RandomCacheRunner, time_rung
from cugraphs.kernel import Access, Cost, Kernel, Launch, Operand
from cugraphs.kernels import wgmma_rows
from cugraphs.ladder import Ladder
from cugraphs.launch import DELAYED, prepare, queue
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.random_weights import random_weights

pytestmark = pytest.mark.gpu

REPLAYS = 1000


def config_of(heads):
    """A small Llama with so many query heads, four to a KV head: of 128 columns, or 64."""
    folder = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 1000,
        "hidden_size": 2048,
        "intermediate_size": 4096,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 4,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "hidden_act": "silu",
    }
    return LlamaConfig.from_hf(folder, "small")


def device_of(build=()):
    from cugraphs.cuda_device import CudaDevice

    return CudaDevice(build=build)


def cache_after(build, rows, config):
    """K and V of all layers after so many replays, a token each: what every step leaves behind."""
    device = device_of(build)
    length = REPLAYS + 64
    weights = random_weights(config, "bfloat16", length, device)
    model = Llama(config, "bfloat16")
    bench = BenchModel(
        "small", model, config, config.vocab_size, "bfloat16", length, weights, device
    )
    runner = RandomCacheRunner(bench, bench.plan(Ladder(rows, [rows]), length=length), "full")
    assert runner.decode.captured == (rows,)
    time_rung(runner, rows, rows=rows, prompt_tokens=20, replays=REPLAYS)
    names = [*runner.plan.cache.types, "last_token", "num_computed"]
    return {name: device.read(runner.state[name]).copy() for name in names}


@pytest.mark.parametrize(("rows", "heads"), [(1, 16), (12, 16), (40, 16), (1, 32)])
def test_a_thousand_replays_give_the_same_bits_when_kernels_sleep(rows, heads):
    assert_the_same_when_kernels_sleep(rows, config_of(heads))


def test_products_of_many_rows_give_the_same_bits_when_kernels_sleep(monkeypatch):
    """Their form, which only wide gates would get."""
    monkeypatch.setattr(wgmma_rows, "LEAST_SHARE", 0)
    assert_the_same_when_kernels_sleep(200, config_of(16))


def assert_the_same_when_kernels_sleep(rows, config):
    plain, delayed = cache_after((), rows, config), cache_after((DELAYED,), rows, config)
    assert (plain["num_computed"][:rows] >= 20 + REPLAYS).all()
    for name, array in plain.items():
        assert array.tobytes() == delayed[name].tobytes(), name


def reader_of(function):
    return Kernel(
        "copies",
        (Operand("out", ("n",), "int32", Access.WRITE), Operand("x", ("n",), "int32")),
        reference=lambda x: (x,),
        cost=lambda axes, dtype: Cost(0, 0),
        source=Path(__file__).with_name("programmatic_kernels.cu"),
        launches=lambda axes, dtype: (Launch(function, (1, 1, 1), 64, programmatic=True),),
    )


@pytest.mark.parametrize(("function", "seen"), [("copies", 6), ("copies_without_waiting", 5)])
def test_the_build_that_sleeps_shows_a_missing_wait(function, seen):
    device = device_of((DELAYED,))
    x, made, out = (device.zero_bytes(256).view(np.int32) for _ in range(3))
    device.write(x, np.full(64, 5, np.int32))

    def launches(kernel, *arrays):
        options = {"stream": int(device.stream.ptr), "cublaslt": None, "workspace": None}
        return prepare(kernel, arrays, {}, build=(DELAYED,), **options)

    both = [*launches(reader_of("one_more"), made, x), *launches(reader_of(function), out, made)]
    device.write(made, np.full(64, 5, np.int32))
    queue(both)  # loads the functions
    device.stream.synchronize()
    for run in (lambda: queue(both), device.capture(lambda: queue(both)).launch):
        device.write(made, np.full(64, 5, np.int32))
        device.stream.synchronize()
        run()
        assert set(device.read(out).tolist()) == {seen}
        assert set(device.read(made).tolist()) == {6}
