"""Damaged files of a model folder: refused in one line, or read as their header says."""

import contextlib
import json
import os

import pytest
from checkpoint_checks import GOOD, INDEX, SHARDED, assert_message, bounded_memory, check_refused
from hypothesis import given, settings
from hypothesis import strategies as st
from model_folders import bytes_by_header, file_bytes, header_of, tensors_bytes, write_folder

from cugraphs.checkpoint import Checkpoint, CheckpointError

VALID_TENSORS = {
    "embed": ("BF16", (2, 3), bytes(range(12))),
    "norm": ("F32", (3,), bytes(range(12, 24))),
    "scale": ("F16", (), b"\x01\x02"),
    "none": ("U8", (0, 4), b""),
}
VALID = tensors_bytes(VALID_TENSORS)
HEADER_END = len(VALID) - 26
numbers = st.integers() | st.floats() | st.sampled_from([2**31, 2**32, 2**53, 2**63, 2**64 - 1])
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
texts = st.sampled_from(["F32", "BF16", "F4", "F8_E4M3", "a", "norm", "", "../x", "\ud800", "\n"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("mutated"), GOOD)


@pytest.fixture(scope="module", autouse=True)
def memory_stays_bounded():
    with bounded_memory(limit_bytes=256 << 20):
        yield


def test_every_cut_is_refused(folder):
    for length in range(len(VALID)):
        assert not opens(folder, VALID[:length]), length


def test_every_flipped_bit_of_length_and_header(folder):
    opened = 0
    for position in range(HEADER_END):
        for bit in range(8):
            raw = bytearray(VALID)
            raw[position] ^= 1 << bit
            opened += opens(folder, bytes(raw))
    assert opened > 0  # letters of a name may change


@pytest.mark.parametrize(
    "length",
    [0, 1, HEADER_END - 9, HEADER_END - 7, 10**8, 10**8 + 1, 2**31, 2**32, 2**60, 2**64 - 1],
)
def test_any_header_length(folder, length):
    assert not opens(folder, length.to_bytes(8, "little") + VALID[8:])
    # And where the file is as long as it says, up to what can be made: all zeros are no JSON.
    if 8 <= length <= 2**32:
        path = folder / "model.safetensors"
        path.write_bytes(length.to_bytes(8, "little"))
        os.truncate(path, 8 + length)
        check_refused(folder, f"Checkpoint: {path} (…) is damaged or cut short: …")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_random_bytes_in_the_header(folder, data):
    raw = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, HEADER_END - 1))] = data.draw(st.integers(0, 255))
    opens(folder, bytes(raw))


@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_random_edits_of_the_header(folder, data):
    header = header_of({name: entry[:2] for name, entry in VALID_TENSORS.items()})
    for _ in range(data.draw(st.integers(1, 3))):
        edit(header, data.draw)
    body = data.draw(st.sampled_from([VALID[HEADER_END:], b"", bytes(100)]))
    opens(folder, file_bytes(header, body))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_random_edits_of_index_and_configs(tmp_path_factory, data):
    contents = {
        INDEX: {"metadata": {"total_size": 8}, "weight_map": dict(SHARDED[INDEX]["weight_map"])},
        "config.json": {"hidden_size": 2, "rope_scaling": {"type": "linear"}},
        "generation_config.json": {"eos_token_id": [1, 2]},
    }
    name = data.draw(st.sampled_from(list(contents)))
    if data.draw(st.booleans()):
        edit(contents[name], data.draw)
    else:
        raw = bytearray(json.dumps(contents[name]).encode())
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        contents[name] = bytes(raw)
    folder = write_folder(tmp_path_factory.getbasetemp() / "edited", {**SHARDED, **contents})
    with contextlib.suppress(CheckpointError), Checkpoint.open(folder) as checkpoint:
        plain = {name: json.loads((folder / name).read_bytes()) for name in contents}
        assert checkpoint.config == plain["config.json"]
        assert checkpoint.generation_config == plain["generation_config.json"]
        assert checkpoint.tensors.keys() == plain[INDEX]["weight_map"].keys()
        assert all(float(view.array()[0]) in (1, 2) for view in checkpoint.tensors.values())


def edit(tree, draw):
    """Change, remove or add one value somewhere in a tree of dicts and lists."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not keys or draw(st.integers(0, 3)) == 0:
            if isinstance(tree, dict):
                tree[draw(texts)] = draw(json_values | texts)
            else:
                tree.append(draw(numbers))
            return
        key = draw(st.sampled_from(keys))
        if not isinstance(tree[key], dict | list) or draw(st.integers(0, 3)) == 0:
            if draw(st.booleans()):
                del tree[key]
            else:
                tree[key] = draw(json_values | texts | numbers)
            return
        tree = tree[key]


def opens(folder, raw):
    """Whether a file opens, as model.safetensors; if so each view must be what its header says."""
    path = folder / "model.safetensors"
    path.unlink(missing_ok=True)
    path.write_bytes(raw)
    try:
        checkpoint = Checkpoint.open(folder)
    except CheckpointError as error:
        assert_message(str(error), folder)
        return False
    expected = bytes_by_header(raw)
    assert checkpoint.tensors.keys() == expected.keys()
    for name, view in checkpoint.tensors.items():
        assert view.data.tobytes() == expected[name]
        assert view.array().shape == view.shape
        assert view.array().nbytes == view.nbytes == len(expected[name])
    assert checkpoint.nbytes == sum(map(len, expected.values()))
    return True
