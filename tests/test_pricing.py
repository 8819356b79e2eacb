"""The price of a step: launches, bytes and flops by kernel, and the weights it streams."""

import dataclasses
import math
from pathlib import Path

import pytest

from cugraphs.kernel import Cost, Launch, MatrixProduct
from cugraphs.kernels import (
    ADD,
    ATTENTION_PARTS,
    EMBEDDING,
    LINEAR,
    PAGED_DECODE_ATTENTION,
    RMS_NORM,
    ROPE_APPEND,
)
from cugraphs.kv_cache import KVCacheShape
from cugraphs.model_shapes import model_shape
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.pricing import price_step
from cugraphs.program import Program
from cugraphs.step_plan import StepPlan
from cugraphs.trace import Tracer

VOCAB, HIDDEN = 1000, 8


def step(*, tied: bool) -> Program:
    """Embed, two layers of one matrix and an addition, and the head; float32."""
    t = Tracer()
    rows = t.dim("rows", 4096)
    table = t.weight("table", (VOCAB, HIDDEN), "float32")
    x = t.call(EMBEDDING, t.input("token_ids", (rows,), "int32"), table)
    for layer in range(2):
        y = t.call(LINEAR, x, t.weight(f"w{layer}", (HIDDEN, HIDDEN), "float32"))
        x = t.call(ADD, x, y)
    head = table if tied else t.weight("head", (VOCAB, HIDDEN), "float32")
    t.output(t.call(LINEAR, x, head))
    return t.program


def test_prices_by_kernel_in_order_of_first_launch():
    rows = 2
    price = price_step(step(tied=False), {"rows": rows}, context=1)
    assert [(kernel.name, kernel.launches) for kernel in price.kernels] == [
        ("embedding", 1),
        ("linear", 3),
        ("add", 2),
    ]
    embedding, linear, add = (kernel.cost for kernel in price.kernels)
    assert embedding == Cost(2 * rows * HIDDEN * 4 + 4 * rows, 0)
    layers = 2 * Cost(4 * (2 * rows * HIDDEN + HIDDEN * HIDDEN), 0).bytes_accessed
    head = 4 * (rows * HIDDEN + VOCAB * HIDDEN + rows * VOCAB)
    assert linear.bytes_accessed == layers + head
    assert linear.flops == 2 * rows * (2 * HIDDEN * HIDDEN + VOCAB * HIDDEN)
    assert add == Cost(2 * 3 * rows * HIDDEN * 4, 2 * rows * HIDDEN)
    assert price.launches == 6
    total = Cost(0, 0)
    for kernel in price.kernels:
        total += kernel.cost
    assert price.total == total == step(tied=False).cost({"rows": rows})


@pytest.mark.parametrize("rows", [1, 16, 4096])  # also where more rows are gathered than exist
@pytest.mark.parametrize("tied", [False, True])
def test_the_weights_that_are_streamed(rows, tied):
    """The embedding is gathered, and streamed only where it is the head too; each once."""
    price = price_step(step(tied=tied), {"rows": rows}, context=1)
    assert price.weight_bytes == 4 * (2 * HIDDEN * HIDDEN + VOCAB * HIDDEN)


def test_the_rope_table_is_gathered():
    t = Tracer()
    rows = t.dim("rows", 64)
    caches = [t.state(name, (9, 1, 4, 4), "float32") for name in ("k", "v")]
    table = t.weight("rope", (8, 4), "float32")
    where = t.input("positions", (rows,), "int32"), t.input("slots", (rows,), "int32")
    qkv = t.input("qkv", (rows, 12), "float32")
    t.output(t.call(ROPE_APPEND, *caches, qkv, table, *where, q_size=4))
    assert price_step(t.program, {"rows": 64}, context=1).weight_bytes == 0


def test_norms_and_biases_are_streamed():
    t = Tracer()
    x = t.input("x", (t.dim("rows", 64), 8), "float32")
    x = t.call(RMS_NORM, x, t.weight("norm", (8,), "float32"), eps=1e-5)
    weights = t.weight("w", (6, 8), "float32"), t.weight("bias", (6,), "float32")
    t.output(t.call(LINEAR, x, *weights))
    assert price_step(t.program, {"rows": 1}, context=1).weight_bytes == 4 * (8 + 6 * 8 + 6)


def test_the_context_prices_the_cache():
    t = Tracer()
    rows = t.dim("rows", 4)
    caches = [t.state(name, (9, 1, 4, 4), "float32") for name in ("k", "v")]
    tables = [t.input("tables", (4, 5), "int32")]
    tables += [t.input(name, (rows,), "int32") for name in ("ids", "lens")]
    q = t.input("q", (rows, 8), "float32")
    sizes = {"heads": 2, "kv_heads": 1, "part_words": 8}
    parts, arrivals = t.call_tuple(ATTENTION_PARTS, *tables[1:], **sizes)
    t.output(t.call(PAGED_DECODE_ATTENTION, arrivals, q, *caches, *tables, parts, scale=1.0))
    short, long = (price_step(t.program, {"rows": 3}, context=n).total for n in (4, 12))
    # 8 more tokens of K and V, of one head of 4 numbers; and 2 more entries of the block table
    assert long.bytes_accessed - short.bytes_accessed == 3 * (8 * 2 * 4 * 4 + 2 * 4)
    assert long.flops == 3 * short.flops
    assert price_step(t.program, {"rows": 3}, context=4).weight_bytes == 0


def test_an_empty_program_is_free():
    price = price_step(Program("empty"), {}, context=1)
    assert (price.launches, price.total, price.weight_bytes) == (0, Cost(0, 0), 0)


def test_linear_flops_are_those_of_the_matrices():
    price = price_step(step(tied=False), {"rows": 5}, context=1)
    assert price.linear_flops == 2 * 5 * (2 * HIDDEN * HIDDEN + VOCAB * HIDDEN)
    assert price.linear_flops < price.total.flops


def launch(function, **options):
    return Launch(function, (1, 1, 1), 32, **options)


@pytest.mark.parametrize(("arch", "count"), [("", 3), ("sm_80", 3), ("sm_90", 2)])
def test_an_op_counts_what_the_gpu_launches(arch, count):
    """One launch on sm_90a, two on other GPUs, and one more by cuBLASLt on all."""
    elsewhere = (launch("part"), launch("combine"))
    launches = (launch("whole", arch="sm_90a", elsewhere=elsewhere), MatrixProduct())
    kernel = dataclasses.replace(
        ADD, launches=lambda axes, dtype: launches, source=Path("add.cu"), cases=()
    )
    t = Tracer()
    x = t.input("x", (t.dim("rows", 4), 8), "float32")
    t.output(t.call(kernel, x, x))
    assert price_step(t.program, {"rows": 2}, context=1, arch=arch).launches == count


@pytest.mark.parametrize("rows", [1, 8, 16, 64])
def test_fused_kernels_stream_the_same_weights(rows):
    """Each matrix and norm once, whatever kernels take them; the embedding is gathered."""
    config = LlamaConfig.from_hf(model_shape("llama-3.1-8b"), "8b")
    model = Llama(config, "bfloat16")
    cache = KVCacheShape(config.num_hidden_layers, 9, 8, 16, 128, "bfloat16", 128)
    plan = StepPlan(
        model, cache, vocab_size=config.vocab_size, max_num_seqs=64, max_num_batched_tokens=64
    )
    program = plan.decode[plan.ladder.class_for(rows)].program
    expected = sum(
        2 * math.prod(weight.shape)
        for name, weight in model.weights.items()
        if name != "model.embed_tokens.weight"
    )
    assert price_step(program, {"rows": rows}, context=1).weight_bytes == expected
