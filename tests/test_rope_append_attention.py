"""Decode attention that rotates and appends: when it is fused, what it refuses and launches."""

import pytest

from cugraphs.cuda_device import is_settled
from cugraphs.fusion import fuse
from cugraphs.kernels import (
    ATTENTION_PARTS,
    LINEAR,
    PAGED_DECODE_ATTENTION,
    ROPE_APPEND,
    ROPE_APPEND_ATTENTION,
)
from cugraphs.kernels.attention_parts import PART_WORDS
from cugraphs.trace import Tracer


def decode(rows=16, dtype="bfloat16", *, heads=8, head_dim=64, block_size=16, invariant=False):
    """The ops of a layer from its product on, of two KV heads; the program, fused."""
    t = Tracer()
    dim = t.dim("rows", rows)
    q_size, kv_size = heads * head_dim, 2 * head_dim
    caches = [t.state(name, (9, 2, block_size, head_dim), dtype) for name in ("k", "v")]
    x = t.input("x", (dim, 256), dtype)
    words = [t.input(name, (dim,), "int32") for name in ("positions", "slots", "ids", "lengths")]
    positions, slots, row_ids, seq_lens = words
    tables = t.state("tables", (rows, 4), "int32")
    of_heads = {"heads": heads, "kv_heads": 2, "part_words": PART_WORDS}
    parts, arrivals = t.call_tuple(
        ATTENTION_PARTS, row_ids, seq_lens, **of_heads, batch_invariant=invariant
    )
    weight = t.weight("qkv", (q_size + 2 * kv_size, 256), dtype)
    qkv = t.call(LINEAR, x, weight, batch_invariant=invariant)
    cos_sin = t.weight("cos_sin", (64, head_dim), "float32")
    q = t.call(ROPE_APPEND, *caches, qkv, cos_sin, positions, slots, q_size=q_size)
    where = (tables, row_ids, seq_lens, parts)
    attrs = {"scale": 0.125, "batch_invariant": invariant}
    t.output(t.call(PAGED_DECODE_ATTENTION, arrivals, q, *caches, *where, **attrs), "out")
    return fuse(t.program)


def kernels(program):
    return [op.kernel for op in program.ops[2:]]


@pytest.mark.parametrize("rows", [9, 16, 17, 64])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rotation_and_attention_become_one_launch(rows, head_dim, dtype):
    program = decode(rows, dtype, head_dim=head_dim)
    assert kernels(program) == [ROPE_APPEND_ATTENTION]
    assert program.ops[2].attrs == {"q_size": 8 * head_dim, "scale": 0.125}


@pytest.mark.parametrize(
    "how",
    [
        {"rows": 8},  # others are better at few rows
        {"rows": 65},  # and at many
        {"dtype": "float32"},
        {"invariant": True},
        {"head_dim": 80},
        {"head_dim": 32},
        {"heads": 18},
        {"block_size": 8},
    ],
    ids=str,
)
def test_what_it_is_not_for_stays_two_launches(how):
    assert kernels(decode(**how)) == [ROPE_APPEND, PAGED_DECODE_ATTENTION]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"head_dim": 80, "q_size": 640, "qkv_size": 960}, "head_dim is 80, query heads of a KV"),
        ({"q_size": 1152, "heads": 18, "qkv_size": 1408}, "head_dim is 64, .* head 9, block_size"),
        ({"block_size": 24}, "head_dim is 64, .* block_size 24, expected 64 or 128, at most 8"),
    ],
)
def test_sizes_that_are_refused(sizes, message):
    axes = {"rows": 9, "heads": 8, "kv_heads": 2, "head_dim": 64, "block_size": 16}
    axes |= {"q_size": 512, "qkv_size": 768, **sizes}
    with pytest.raises(ValueError, match=f"^rope_append_attention: {message}"):
        ROPE_APPEND_ATTENTION.check(axes, q_size=axes["q_size"], scale=1.0)


@pytest.mark.parametrize("rows", [9, 64])
def test_what_lies_in_the_cache_may_be_read_while_the_product_runs(rows):
    """The product lets attention begin after its own wait, and writes nothing that is settled."""
    program = decode(rows, head_dim=128)
    product, attention = program.ops[1:]
    axes = {name: int(size) for name, size in product.axes.items()}
    (launch,) = product.kernel.launches(axes, "bfloat16", **product.attrs)
    assert launch.arch == "sm_90a" and launch.settles
    pairs = zip(attention.kernel.operands, attention.operands, strict=True)
    early = {operand.name for operand, buffer in pairs if operand.settled}
    assert early == {
        *("k_cache", "v_cache", "positions", "slot_mapping", "block_tables", "parts"),
    }
    pairs = zip(attention.kernel.operands, attention.operands, strict=True)
    assert all(is_settled(buffer, product) for operand, buffer in pairs if operand.settled)
