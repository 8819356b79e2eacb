"""How a batch becomes the inputs of a step: values by hand, over whatever the last step left."""

import numpy as np
import pytest

from cugraphs.program import Kind
from cugraphs.step_state import (
    Chunk,
    declare_decode_inputs,
    declare_mixed_inputs,
    fill_decode,
    fill_mixed,
)
from cugraphs.trace import Tracer

BLOCK_SIZE = 4
STALE = 99  # what an earlier step left everywhere


def stale_arrays(tracer: Tracer, **sizes: int) -> dict[str, np.ndarray]:
    types = {b.name: b.type.bind(sizes) for b in tracer.program.of_kind(Kind.INPUT)}
    assert {type_.dtype for type_ in types.values()} == {"int32"}
    return {name: np.full(type_.shape, STALE, np.int32) for name, type_ in types.items()}


def as_lists(arrays: dict[str, np.ndarray]) -> dict[str, list]:
    return {name: array.tolist() for name, array in arrays.items()}


def test_a_decode_step_by_hand():
    t = Tracer()
    declare_decode_inputs(t, 8, 3)
    assert {name: str(dim) for name, dim in t.program.dims.items()} == {"rows": "rows"}
    inputs = stale_arrays(t, rows=4)
    chunks = [
        # Position 5 is offset 1 of the second block, 7: slot 7*4 + 1.
        Chunk(token_ids=[11], start=5, block_table=[3, 7], slot=2, num_logprobs=4),
        # Position 8 begins the third block, 1: slot 1*4.
        Chunk(token_ids=[12], start=8, block_table=[9, 2, 1], slot=0),
    ]
    fill_decode(inputs, chunks, BLOCK_SIZE)
    assert as_lists(inputs) == {
        "token_ids": [11, 12, 0, 0],
        "positions": [5, 8, 0, 0],
        "slot_mapping": [29, 4, -1, -1],
        "block_tables": [[3, 7, 0], [9, 2, 1], [0, 0, 0], [0, 0, 0]],
        "seq_lens": [6, 9, 0, 0],
        "row_ids": [2, 0, -1, -1],
        "sample_positions": [6, 9, 0, 0],
        "target_ids": [-1, -1, -1, -1],
        "num_logprobs": [4, -1, -1, -1],
    }


def test_a_mixed_step_by_hand():
    t = Tracer()
    declare_mixed_inputs(t, 16, 4, 8, 3)
    assert list(t.program.dims) == ["tokens", "seqs", "logits"]
    inputs = stale_arrays(t, tokens=6, seqs=3, logits=4)
    chunks = [
        # The first three tokens of a prompt, with the log-probabilities of its known tokens.
        Chunk(
            token_ids=[5, 6, 8],
            start=0,
            block_table=[2],
            slot=1,
            num_logprobs=2,
            prompt_targets=[6, 8],
            num_prompt_logprobs=3,
        ),
        # Its prompt goes on in a later step: nothing is sampled.
        Chunk(token_ids=[20, 21], start=3, block_table=[4, 6], slot=3, samples=False),
        Chunk(token_ids=[30], start=9, block_table=[1, 3, 5], slot=0),
    ]
    fill_mixed(inputs, chunks, BLOCK_SIZE)
    assert as_lists(inputs) == {
        "token_ids": [5, 6, 8, 20, 21, 30],
        "positions": [0, 1, 2, 3, 4, 9],
        "slot_mapping": [8, 9, 10, 19, 24, 21],
        "block_tables": [[2, 0, 0], [4, 6, 0], [1, 3, 5]],
        "seq_lens": [3, 5, 10],
        "query_start_loc": [0, 3, 5, 6],
        "logits_indices": [0, 1, 2, 5],
        "row_ids": [-1, -1, 1, 0],
        "sample_positions": [0, 0, 3, 10],
        "target_ids": [6, 8, -1, -1],
        "num_logprobs": [3, 3, 2, -1],
    }


@pytest.mark.parametrize(
    ("chunk", "num_logits", "is_decode"),
    [
        (Chunk([1], 4, [1]), 1, True),
        (Chunk([1], 4, [1], samples=False), 0, False),
        (Chunk([1, 2], 4, [1]), 1, False),
        (Chunk([1, 2], 4, [1], prompt_targets=[2]), 2, False),
        (Chunk([1, 2], 4, [1], prompt_targets=[2, 3], samples=False), 2, False),
    ],
)
def test_what_a_chunk_asks_for(chunk, num_logits, is_decode):
    assert chunk.num_logits == num_logits
    assert chunk.is_decode == is_decode
