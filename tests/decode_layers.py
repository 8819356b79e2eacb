"""Layers of a decode step of one row: the operands of several, and a program of plain ops."""

import numpy as np

from cugraphs.emulation import emulate
from cugraphs.kernel import DTYPES
from cugraphs.kernels import (
    ADD,
    ATTENTION_PARTS,
    LINEAR,
    PAGED_DECODE_ATTENTION,
    RMS_NORM,
    ROPE_APPEND,
    SILU_AND_MUL,
)
from cugraphs.kernels.attention_parts import PART_WORDS
from cugraphs.kernels.decode_layer import DECODE_LAYER as KERNEL
from cugraphs.kernels.decode_layer import STACK
from cugraphs.trace import Tracer

PLACES = 3
NAMES = [operand.name for operand in KERNEL.supplied]


def layers_of(case, count, dtype="bfloat16"):
    """Operands of so many layers of one step, and their places; the rest of it is common to all."""
    common = dict(zip(NAMES, case.make(np.random.default_rng(0), DTYPES[dtype]), strict=True))
    layers = []
    for i in range(count):
        own = {name: np.roll(common[name], i, axis=0) for name in STACK}
        # The same tables for all: only what is in the cache differs.
        for name in ("k_cache", "v_cache"):
            own[name] = (common[name].astype(np.float32) * (1 + i / 8)).astype(DTYPES[dtype])
        layers.append({**common, **own})
    places = [common["here"].copy() for _ in range(PLACES)]
    give_places(layers, places)
    return layers, places


def give_places(layers, places):
    """Layers use them by turns."""
    for i, layer in enumerate(layers):
        layer |= {"here": places[i % PLACES], "next_place": places[(i + 1) % PLACES]}


def emulated(layers, attrs, kernel=KERNEL, **how):
    """What layers give, emulated in one launch."""
    first = [layers[0][name] for name in NAMES]
    stacked = [{name: layer[name] for name in STACK} for layer in layers[1:]]
    return emulate(kernel, first, attrs, arch="sm_90", stacked=stacked, **how)[0]


def plain_layers(arrays, attrs):
    """Layers of plain ops, and the array of each buffer."""
    t, bound = Tracer("layers"), {}
    rows = t.dim("rows", 1)

    def given(kind, name, array, is_row=False):
        shape = (rows, *array.shape[1:]) if is_row else array.shape
        name_of = {value: key for key, value in DTYPES.items()}[array.dtype]
        buffer = getattr(t, kind)(name, shape, name_of)
        bound[buffer] = array
        return buffer

    common = arrays[0]
    x = given("input", "x", common["x"], is_row=True)
    own_rows = ("positions", "slot_mapping", "row_ids", "seq_lens")
    row = {name: given("input", name, common[name], is_row=True) for name in own_rows}
    _, kv_heads, _, head_dim = common["k_cache"].shape
    heads = {"heads": attrs["q_size"] // head_dim, "kv_heads": kv_heads, "part_words": PART_WORDS}
    parts, arrivals = t.call_tuple(ATTENTION_PARTS, row["row_ids"], row["seq_lens"], **heads)
    tables = given("state", "tables", common["block_tables"])
    cos_sin = given("weight", "cos_sin", common["cos_sin"])
    for i, layer in enumerate(arrays):
        w = {
            name: given("weight", f"{name}.{i}", layer[name])
            for name in ("gain", "qkv", "o", "gain2", "gate_up", "down")
        }
        kv = [given("state", f"{name}.{i}", layer[name]) for name in ("k_cache", "v_cache")]
        y = t.call(LINEAR, t.call(RMS_NORM, x, w["gain"], eps=attrs["eps"]), w["qkv"])
        where = (cos_sin, row["positions"], row["slot_mapping"])
        q = t.call(ROPE_APPEND, *kv, y, *where, q_size=attrs["q_size"])
        of_row = (tables, row["row_ids"], row["seq_lens"], parts)
        scale = attrs["scale"]
        y = t.call(PAGED_DECODE_ATTENTION, arrivals, q, *kv, *of_row, scale=scale)
        x = t.call(ADD, x, t.call(LINEAR, y, w["o"]))
        y = t.call(LINEAR, t.call(RMS_NORM, x, w["gain2"], eps=attrs["eps"]), w["gate_up"])
        x = t.call(ADD, x, t.call(LINEAR, t.call(SILU_AND_MUL, y), w["down"]))
    t.output(x, "out")
    return t.program, bound
