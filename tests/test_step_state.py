"""How a batch becomes a step's inputs, and the state's changes: values by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.kernels import APPLY_CHANGES
from cugraphs.kernels.advance import append_tokens
from cugraphs.program import Kind
from cugraphs.sampling_params import SamplingParams
from cugraphs.sequence_state import SequenceState
from cugraphs.state_mirror import StateMirror, token_counts
from cugraphs.step_state import (
    MAX_CHANGES,
    Chunk,
    DecodeRows,
    begin_decode,
    begin_mixed,
    fill_decode,
    fill_launch,
    fill_mixed,
)
from cugraphs.token_ring import declare_ring
from cugraphs.trace import Tracer

STALE = 99  # what an earlier step left everywhere
STATE = SequenceState(4, 50, 3)


def stale_arrays(tracer: Tracer, **sizes: int) -> dict[str, np.ndarray]:
    types = {b.name: b.type.bind(sizes) for b in tracer.program.of_kind(Kind.INPUT)}
    assert {type_.dtype for type_ in types.values()} == {"int32"}
    assert types.pop("changes").shape == (MAX_CHANGES, 2)
    return {name: np.full(type_.shape, STALE, np.int32) for name, type_ in types.items()}


def as_lists(arrays: dict[str, np.ndarray]) -> dict[str, list]:
    return {name: array.tolist() for name, array in arrays.items()}


def test_a_decode_step_by_hand():
    t = Tracer()
    begin_decode(t, STATE.declare(t), declare_ring(t, 8), 8, 4)
    assert {name: str(dim) for name, dim in t.program.dims.items()} == {"rows": "rows"}
    inputs = stale_arrays(t, rows=4)
    fill_launch(inputs, 2**32 + 7, 3)
    fill_decode(inputs, np.int32([2, 0]))
    assert as_lists(inputs) == {"launch": [7, 3], "row_ids": [2, 0, -1, -1]}


def chunks_by_hand() -> list[Chunk]:
    return [
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


def test_a_mixed_step_by_hand():
    t = Tracer()
    sizes = {"max_tokens": 16, "max_seqs": 4, "max_logits": 8, "block_size": 4}
    begin_mixed(t, STATE.declare(t), declare_ring(t, 8), **sizes)
    assert list(t.program.dims) == ["tokens", "seqs", "logits"]
    inputs = stale_arrays(t, tokens=8, seqs=4, logits=6)
    fill_launch(inputs, 2**31)
    fill_mixed(inputs, chunks_by_hand())
    assert as_lists(inputs) == {
        "launch": [-(2**31), 1],
        "query_start_loc": [0, 3, 5, 6, 6],
        "slot_ids": [1, 3, 0, -1],
        "row_ids": [-1, -1, 1, 0, -1, -1],
        "sample_positions": [0, 0, 3, 10, 0, 0],
        "target_ids": [6, 8, -1, -1, -1, -1],
        "row_logprobs": [3, 3, 2, -1, -1, -1],
        "logits_indices": [0, 1, 2, 5, -1, -1],
        "new_token_ids": [5, 6, 8, 20, 21, 30, 0, 0],
    }


def test_decode_rows_go_before_the_chunks_of_a_mixed_step():
    t = Tracer()
    sizes = {"max_tokens": 16, "max_seqs": 4, "max_logits": 8, "block_size": 4}
    begin_mixed(t, STATE.declare(t), declare_ring(t, 8), **sizes)
    inputs = stale_arrays(t, tokens=9, seqs=4, logits=6)
    fill_launch(inputs, 1)
    rows = DecodeRows(np.int32([3, 0]), np.int32([7, 9]), np.int32([-1, 2]))
    fill_mixed(inputs, [Chunk([5, 6, 8], 0, slot=1), Chunk([9], 4, slot=2, samples=False)], rows)
    assert as_lists(inputs) == {
        "launch": [1, 1],
        "query_start_loc": [0, 1, 2, 5, 6],
        "slot_ids": [3, 0, 1, 2],
        "row_ids": [3, 0, 1, -1, -1, -1],
        "sample_positions": [7, 9, 3, 0, 0, 0],
        "target_ids": [-1] * 6,
        "row_logprobs": [-1, 2, -1, -1, -1, -1],
        "logits_indices": [0, 1, 4, -1, -1, -1],
        "new_token_ids": [-1, -1, 5, 6, 8, 9, 0, 0, 0],
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


class Pair:
    """A mirror, and a device's state that its changes are applied to."""

    def __init__(self):
        self.mirror = StateMirror(STATE)
        self.words = self.mirror.take_all().copy()
        self.fields = STATE.views(self.words)

    def send(self, room: int = 50) -> int:
        """Apply all changes, ``room`` at a time; how many there were."""
        count, left = 0, -1
        while left:
            changes = np.full((room, 2), STALE, np.int32)
            self.mirror.take(changes)
            count += int((changes[:, 0] >= 0).sum())
            first, none_yet = np.array([[1, 1], [0, 0]], np.int32)
            APPLY_CHANGES.reference(self.words, changes, first, none_yet[:1])
            left = self.mirror.num_changes
        for name, field in self.fields.items():
            np.testing.assert_array_equal(field, self.mirror.fields[name], err_msg=name)
        return count


def test_the_changes_make_the_device_equal():
    pair = Pair()
    pair.send()
    assert (pair.fields["stop_ids"] == -1).all() and (pair.fields["bias_ids"] == -1).all()
    params = SamplingParams(
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        min_p=0.125,
        min_tokens=3,
        logprobs=2,
        logit_bias={4: -1.5, 9: 2.0},
        repetition_penalty=1.5,
    )
    seed = (7 << 32) | 0xFFFFFFFF
    pair.mirror.write_slot(
        2,
        params,
        seed=seed,
        sample_index=1,
        stop_token_ids=[6, 8],
        prompt_length=10,
        end_position=40,
    )
    pair.send()
    at = {name: field[2].tolist() for name, field in pair.fields.items()}
    assert at["temperature"] == 0.5 and at["top_k"] == 7 and at["top_p"] == 0.25
    assert at["min_p"] == 0.125 and at["repetition_penalty"] == 1.5 and at["count_tokens"] == 1
    assert at["seeds"] == [0xFFFFFFFF, 7] and at["sample_index"] == 1
    assert at["stop_ids"][:3] == [6, 8, -1] and at["min_position"] == 13
    assert at["end_position"] == 40 and at["num_logprobs"] == 2 and at["done"] == 0
    assert at["bias_ids"][:3] == [4, 9, -1] and at["bias_values"][:3] == [-1.5, 2.0, 0.0]
    others = {name: np.delete(field, 2, axis=0) for name, field in pair.fields.items()}
    assert not others["temperature"].any() and (others["bias_ids"] == -1).all()


def test_only_what_differs_is_sent():
    pair = Pair()
    pair.send()
    pair.mirror.set("top_k", 1, 5)
    assert pair.send() == 1
    pair.mirror.set("top_k", 1, 5)
    assert pair.send() == 0
    pair.mirror.begin_chunk(Chunk([1, 2], 5, slot=2))
    assert pair.send() == 1  # num_computed, which steps have moved
    pair.mirror.begin_chunk(Chunk([1, 2], 5, slot=2))
    assert pair.send() == 1
    pair.mirror.write_table(2, [3, 7])
    assert pair.send() == 2 and pair.fields["block_tables"][2].tolist() == [3, 7, 0]
    pair.mirror.set_blocks(np.int32([2, 0]), np.int32([2, 1]), np.int32([9, 4]))
    assert pair.send() == 2 and pair.fields["block_tables"][2].tolist() == [3, 7, 9]
    assert pair.fields["block_tables"][0].tolist() == [0, 4, 0]
    # A shorter table of another sequence clears what it does not use.
    pair.mirror.write_table(2, [3])
    assert pair.send() == 2 and pair.fields["block_tables"][2].tolist() == [3, 0, 0]


def test_a_chunk_by_hand_brings_all_that_its_slot_holds_of_it():
    pair = Pair()
    pair.send()
    pair.mirror.place(Chunk([11], 5, [3, 7], slot=2, num_logprobs=4))
    pair.send()
    at = {name: field[2].tolist() for name, field in pair.fields.items()}
    assert at["block_tables"] == [3, 7, 0] and at["num_logprobs"] == 4
    assert (at["last_token"], at["num_computed"], at["done"]) == (11, 5, 0)


def test_what_the_steps_move_is_sent_whatever_the_mirror_holds():
    """A sequence ended early and the device stands elsewhere; a new one takes its slot."""
    pair = Pair()
    pair.send()
    pair.mirror.set("num_computed", 2, 30)
    pair.send()
    pair.fields["num_computed"][2], pair.fields["done"][2] = 20, 1
    defaults = {"seed": 0, "sample_index": 0, "stop_token_ids": (), "prompt_length": 3}
    pair.mirror.write_slot(2, SamplingParams(), **defaults)
    pair.mirror.set("num_computed", 2, 30)
    pair.send()
    assert (pair.fields["num_computed"][2], pair.fields["done"][2]) == (30, 0)


@given(data=st.data())
def test_the_mirror_knows_who_is_done_as_the_kernel_does(data):
    slots = data.draw(st.permutations(range(4)))[: data.draw(st.integers(0, 4))]
    mirror = StateMirror(STATE)
    for slot in range(4):
        stops = data.draw(st.lists(st.integers(0, 3), max_size=3))
        params = SamplingParams(min_tokens=data.draw(st.integers(0, 3)), max_tokens=9)
        limit = data.draw(st.integers(0, 9))
        sizes = {"prompt_length": 2, "stop_token_ids": stops, "end_position": limit}
        mirror.write_slot(slot, params, seed=0, sample_index=0, **sizes)
    draw = st.lists(st.integers(0, 8), min_size=len(slots), max_size=len(slots))
    rows, token_ids, positions = (np.int32(x) for x in (slots, data.draw(draw), data.draw(draw)))
    state = STATE.views(mirror._words.copy())
    moved = (state["last_token"], state["num_computed"], state["done"])
    rules = (state["stop_ids"], state["min_position"], state["end_position"])
    append_tokens(*moved, token_ids, rows, positions, *rules)
    found = mirror.ends(rows, token_ids, positions)
    assert found.dtype == bool and found.tolist() == (state["done"][rows] == 1).tolist()


def test_token_counts_by_hand():
    counts = token_counts(6, [1, 1, 3], [3, 4, 4])
    assert (counts & 0xFFFF).tolist() == [0, 0, 0, 1, 2, 0]
    assert (counts >> 30).tolist() == [0, 1, 0, 1, 0, 0]
