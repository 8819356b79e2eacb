"""Model folders: what is read is what the bytes say, and every bad folder has its message."""

import contextlib
import errno
import gc
import json
import math
import mmap
import os
import resource
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from model_folders import (
    CONFIG,
    bytes_by_header,
    file_bytes,
    header_of,
    tensors_bytes,
    write_folder,
)

from cugraphs.checkpoint import Checkpoint, CheckpointError
from cugraphs.safetensors_file import TensorView

ONE = tensors_bytes({"a": ("F32", (1,), b"\0\0\x80\x3f")})  # a = [1.0]
TWO = tensors_bytes({"b": ("F32", (1,), b"\0\0\0\x40")})  # b = [2.0]
INDEX = "model.safetensors.index.json"
SHARDED = {
    INDEX: {"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}},
    "one.safetensors": ONE,
    "two.safetensors": TWO,
}


# ---- what is read


@pytest.mark.parametrize(
    ("stored", "dtype", "data", "values"),
    [
        ("F64", np.float64, "000000000000f0bf", [-1.0]),
        ("F32", np.float32, "0000803f000000c0", [1.0, -2.0]),
        ("F16", np.float16, "003cff7b", [1.0, 65504.0]),
        ("BF16", ml_dtypes.bfloat16, "803f0040807f", [1.0, 2.0, math.inf]),
        ("I64", np.int64, "feffffffffffffff", [-2]),
        ("U64", np.uint64, "feffffffffffffff", [2**64 - 2]),
        ("I32", np.int32, "0000008001000000", [-(2**31), 1]),
        ("U32", np.uint32, "00000080", [2**31]),
        ("I16", np.int16, "0080", [-(2**15)]),
        ("U16", np.uint16, "0080", [2**15]),
        ("I8", np.int8, "80ff", [-128, -1]),
        ("U8", np.uint8, "80ff", [128, 255]),
        ("BOOL", np.bool_, "0001", [False, True]),
    ],
)
def test_values_are_the_bit_patterns(tmp_path, stored, dtype, data, values):
    raw = tensors_bytes({"x": (stored, (len(values),), bytes.fromhex(data))})
    view = Checkpoint.open(write_folder(tmp_path, {"model.safetensors": raw})).tensors["x"]
    assert view.dtype == np.dtype(dtype).name
    assert view.array().dtype == dtype
    assert view.nbytes == len(data) // 2
    np.testing.assert_array_equal(view.array(), np.array(values, dtype))


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        ("F8_E4M3", "float8_e4m3fn"),
        ("F8_E5M2", "float8_e5m2"),
        ("F8_E8M0", "float8_e8m0fnu"),
    ],
)
def test_fp8_is_raw_bytes_of_its_shape(tmp_path, stored, dtype):
    raw = tensors_bytes({"x": (stored, (2, 3), bytes(range(6)))})
    view = Checkpoint.open(write_folder(tmp_path, {"model.safetensors": raw})).tensors["x"]
    assert view.dtype == dtype
    assert ml_dtypes.finfo(dtype).bits == 8  # a name that ml_dtypes knows
    assert view.array().dtype == np.uint8
    np.testing.assert_array_equal(view.array(), [[0, 1, 2], [3, 4, 5]])


def test_odd_offsets_scalars_and_empty_tensors(tmp_path):
    raw = tensors_bytes(
        {
            "odd": ("U8", (1,), b"\x07"),
            "empty": ("BF16", (3, 0, 2), b""),
            "scalar": ("F32", (), b"\0\0\x80\x3f"),
            "matrix": ("F32", (2, 2), np.array([1, 2, 3, 4], "<f4").tobytes()),
            "last": ("F64", (0,), b""),
        }
    )
    # The data must begin at an odd address for this to test anything: pad the header with a space.
    length = int.from_bytes(raw[:8], "little")
    pad = b" " * (length % 2)
    raw = file_bytes(raw[8 : 8 + length] + pad, raw[8 + length :])
    tensors = Checkpoint.open(write_folder(tmp_path, {"model.safetensors": raw})).tensors
    assert list(tensors) == ["odd", "empty", "scalar", "matrix", "last"]
    assert not tensors["matrix"].array().flags.aligned
    np.testing.assert_array_equal(tensors["matrix"].array(), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(tensors["matrix"].array() @ np.ones(2, np.float32), [3, 7])
    assert tensors["scalar"].array().shape == () and tensors["scalar"].array() == 1.0
    assert tensors["empty"].array().shape == (3, 0, 2) and tensors["empty"].nbytes == 0
    assert tensors["last"].array().shape == (0,)


def test_what_the_safetensors_library_wrote_is_read_back(tmp_path):
    random = np.random.default_rng(0)
    written = {
        f"layer.{i}": random.standard_normal((3, i)).astype(dtype)
        for i, dtype in enumerate([np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
    }
    write_folder(tmp_path, {})
    safetensors.numpy.save_file(written, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.tensors.keys() == written.keys()
        for name, expected in written.items():
            array = checkpoint.tensors[name].array()
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected)
        assert checkpoint.nbytes == sum(array.nbytes for array in written.values())


def test_arrays_are_read_only_views_of_the_file(tmp_path):
    view = Checkpoint.open(write_folder(tmp_path, {"model.safetensors": ONE})).tensors["a"]
    assert np.shares_memory(view.array(), view.data)
    assert view.file == tmp_path / "model.safetensors"
    for array in (view.data, view.array()):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        with pytest.raises(ValueError):
            array.flags.writeable = True
    # The map is the file itself: bytes written to the file show in the view.
    with open(view.file, "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\x40")
    assert view.array()[0] == 2.0


def test_shards_are_one_mapping(tmp_path):
    checkpoint = Checkpoint.open(str(write_folder(tmp_path, SHARDED)))
    assert checkpoint.folder == tmp_path
    assert {name: float(view.array()[0]) for name, view in checkpoint.tensors.items()} == {
        "a": 1.0,
        "b": 2.0,
    }
    assert checkpoint.files == (tmp_path / "one.safetensors", tmp_path / "two.safetensors")
    assert checkpoint.tensors["b"].file == tmp_path / "two.safetensors"
    assert checkpoint.nbytes == 8


def test_one_file_wins_over_an_index_and_other_layouts_are_ignored(tmp_path):
    others = {
        "model.safetensors": ONE,
        INDEX: "broken",
        "consolidated.safetensors": b"broken",
        "pytorch_model.bin": b"pickle",
        "model.gguf": b"GGUF",
    }
    assert list(Checkpoint.open(write_folder(tmp_path, others)).tensors) == ["a"]


def test_links_are_followed_as_in_the_hub_cache(tmp_path):
    write_folder(tmp_path / "blobs", {"0123": ONE})
    snapshot = write_folder(tmp_path / "snapshot", {})
    (snapshot / "model.safetensors").symlink_to("../blobs/0123")
    assert list(Checkpoint.open(snapshot).tensors) == ["a"]


def test_configs_are_read_and_a_byte_order_mark_is_harmless(tmp_path):
    files = {"model.safetensors": ONE, "config.json": b"\xef\xbb\xbf" + json.dumps(CONFIG).encode()}
    checkpoint = Checkpoint.open(write_folder(tmp_path, files))
    assert checkpoint.config == CONFIG
    assert checkpoint.generation_config == {}
    write_folder(tmp_path, {"generation_config.json": {"eos_token_id": [1, 2]}})
    assert Checkpoint.open(tmp_path).generation_config == {"eos_token_id": [1, 2]}


def test_views_outlive_close_and_the_files_names(tmp_path):
    with Checkpoint.open(write_folder(tmp_path, SHARDED)) as checkpoint:
        array, tensors = checkpoint.tensors["a"].array(), checkpoint.tensors
    checkpoint.close()  # twice is harmless
    for file in checkpoint.files:
        file.unlink()
    assert array[0] == 1.0 and tensors["b"].array()[0] == 2.0
    assert checkpoint.nbytes == 8
    with pytest.raises(ValueError, match=r"is closed, expected open"):
        _ = checkpoint.tensors


def test_a_file_is_unmapped_with_its_last_view(tmp_path):
    checkpoint = Checkpoint.open(write_folder(tmp_path, SHARDED))
    array = checkpoint.tensors["a"].array()
    assert open_files(tmp_path)
    checkpoint.close()
    gc.collect()
    assert {Path(path).name for path in open_files(tmp_path)} <= {"one.safetensors"}
    assert array[0] == 1.0
    del array
    gc.collect()
    assert not open_files(tmp_path)


def test_a_view_refuses_bytes_that_do_not_fit():
    data = np.zeros(8, np.uint8)
    assert TensorView("x", "float32", (2,), Path("f"), data).array().shape == (2,)
    with pytest.raises(ValueError, match=r"'x': data is uint8 \[8\], expected uint8 \[12\]"):
        TensorView("x", "float32", (3,), Path("f"), data)
    with pytest.raises(ValueError, match=r"'x': dtype is 'F32', expected one of bool, uint8"):
        TensorView("x", "F32", (2,), Path("f"), data)


def test_a_file_of_many_gigabytes_is_not_read_and_offsets_pass_4_gib(tmp_path):
    size_bytes = 5 << 30
    header = header_of({"large": ("U8", (size_bytes,)), "end": ("F32", (1,))})
    path = write_folder(tmp_path, {"model.safetensors": file_bytes(header)}) / "model.safetensors"
    try:  # a sparse file: it takes no room
        with open(path, "r+b") as file:
            file.seek(size_bytes, os.SEEK_END)
            file.write(b"\0\0\x80\x3f")
    except OSError as problem:
        if problem.errno not in (errno.EFBIG, errno.ENOSPC):
            raise
        pytest.skip(f"this file system has no sparse files of 5 GiB: {problem}")
    with bounded_memory(), Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.tensors["end"].array()[0] == 1.0
        assert checkpoint.tensors["large"].array()[-1] == 0
        assert checkpoint.nbytes == size_bytes + 4


# ---- the table of bad folders


@dataclass(frozen=True)
class BadFolder:
    """A folder that must be refused; in the message `…` stands for another library's words."""

    name: str
    files: dict[str, object]  # beside a good config.json; None leaves a file out
    message: str  # after "Checkpoint: <folder>"


GOOD = {"model.safetensors": ONE}
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
NO_JSON = "expected one JSON object in UTF-8; download it again or correct it"
NO_FILE = "expected a whole safetensors file; download or convert it again"
NO_WEIGHTS = "expected model.safetensors or model.safetensors.index.json"
NOT_THIS_SHARD = (
    "expected only tensors that the index lists for this shard; "
    "download index and shards again, of one revision"
)
NO_SHARD_NAME = (
    "expected the plain name of a .safetensors file in the same folder; "
    "download it again or correct it"
)


def one_tensor(dtype="F32", shape=(1,), offsets=(0, 4), data=b"\0" * 4):
    header = {"a": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}
    return {"model.safetensors": file_bytes(header, data)}


def shard_name(name):
    return {INDEX: {"weight_map": {"a": name}}}


BAD_FOLDERS = [
    # No weights
    BadFolder(
        "empty",
        {"config.json": None},
        " is empty, expected a model folder with config.json and model.safetensors; "
        "download the model into it",
    ),
    BadFolder(
        "settings only",
        {},
        f" holds no weights, {NO_WEIGHTS}; "
        "download the model's safetensors into it, or give another folder",
    ),
    BadFolder(
        "pickles",
        {"pytorch_model-1.bin": b"", "pytorch_model-2.bin": b""},
        " holds weights only as pickles (pytorch_model-1.bin and 1 more), never loaded here, "
        f"{NO_WEIGHTS}; pickles can run code: take a safetensors revision of the model, or convert "
        "it with transformers' save_pretrained(folder, safe_serialization=True)",
    ),
    BadFolder(
        "Meta's pickles",
        {"consolidated.00.pth": b"", "params.json": {}},
        " holds weights only as pickles (consolidated.00.pth), never loaded here, expected …",
    ),
    BadFolder(
        "GGUF",
        {"model.Q4_K.gguf": b"", "config.json": None},
        f" holds weights only as GGUF (model.Q4_K.gguf), which is not read, {NO_WEIGHTS}; "
        "download the safetensors of the model",
    ),
    BadFolder(
        "adapter",
        {"adapter_model.safetensors": ONE, "adapter_config.json": {}, "config.json": None},
        f" holds an adapter (LoRA or the like), not a whole model, {NO_WEIGHTS}; "
        "merge it into its base model, with peft's merge_and_unload() and save_pretrained()",
    ),
    BadFolder(
        "shards without index",
        {"model-00001-of-00002.safetensors": ONE, "model-00002-of-00002.safetensors": TWO},
        " holds model-00001-of-00002.safetensors and 1 more, but no weights under a "
        f"Hugging Face name, "
        f"{NO_WEIGHTS}; rename a single file to model.safetensors; download the index that "
        "belongs to shards",
    ),
    BadFolder(
        "Mistral's layout",
        {"consolidated.safetensors": ONE},
        " holds only consolidated.safetensors, which is not Hugging Face layout, "
        f"{NO_WEIGHTS}; download the Hugging Face files of the model",
    ),
    # config.json and its like
    BadFolder(
        "no config",
        {**GOOD, "config.json": None},
        "/config.json is missing, expected a readable file; "
        "download it from where the rest of the folder came",
    ),
    BadFolder(
        "config not JSON",
        {**GOOD, "config.json": "{'a': 1}"},
        f"/config.json is not valid JSON (…), {NO_JSON}",
    ),
    BadFolder(
        "config empty",
        {**GOOD, "config.json": ""},
        f"/config.json is not valid JSON (…), {NO_JSON}",
    ),
    BadFolder(
        "config an array", {**GOOD, "config.json": []}, f"/config.json holds an array, {NO_JSON}"
    ),
    BadFolder(
        "config null", {**GOOD, "config.json": "null"}, f"/config.json holds null, {NO_JSON}"
    ),
    BadFolder(
        "config with NaN",
        {**GOOD, "config.json": '{"rope_theta": NaN}'},
        f"/config.json is not valid JSON (NaN is no JSON number), {NO_JSON}",
    ),
    BadFolder(
        "config with 1e999",
        {**GOOD, "config.json": '{"rope_theta": 1e999}'},
        f"/config.json is not valid JSON (1e999 is out of a double's range), {NO_JSON}",
    ),
    BadFolder(
        "config with an endless integer",
        {**GOOD, "config.json": '{"rope_theta": ' + "9" * 5000 + "}"},
        f"/config.json is not valid JSON (…), {NO_JSON}",
    ),
    BadFolder(
        "config nested",
        {**GOOD, "config.json": '{"a":' * 100_000},
        f"/config.json is nested too deeply, {NO_JSON}",
    ),
    BadFolder(
        "config in Latin-1",
        {**GOOD, "config.json": b'{"a": "\xe9"}'},
        f"/config.json is not valid JSON ('utf-8' codec …), {NO_JSON}",
    ),
    BadFolder(
        "config in UTF-16",
        {**GOOD, "config.json": "{}".encode("utf-16")},
        f"/config.json is not valid JSON ('utf-8' codec …), {NO_JSON}",
    ),
    BadFolder(
        "config of git-lfs",
        {**GOOD, "config.json": LFS},
        "/config.json is a git-lfs pointer, expected the file it points to; "
        "run `git lfs pull` in its folder",
    ),
    BadFolder(
        "generation config broken",
        {**GOOD, "generation_config.json": "{"},
        f"/generation_config.json is not valid JSON (…), {NO_JSON}",
    ),
    BadFolder(
        "generation config a number",
        {**GOOD, "generation_config.json": "7"},
        f"/generation_config.json holds a number, {NO_JSON}",
    ),
    # One file of weights
    BadFolder("no bytes", {"model.safetensors": b""}, f"/model.safetensors is 0 bytes, {NO_FILE}"),
    BadFolder(
        "git-lfs pointer",
        {"model.safetensors": LFS},
        "/model.safetensors is a git-lfs pointer, expected the file it points to; "
        "run `git lfs pull` in its folder",
    ),
    BadFolder(
        "cut short",
        {"model.safetensors": ONE[:-1]},
        f"/model.safetensors ({len(ONE) - 1} bytes) is damaged or cut short: …, {NO_FILE}",
    ),
    BadFolder(
        "bytes at the end",
        {"model.safetensors": ONE + b"\0"},
        f"/model.safetensors ({len(ONE) + 1} bytes) is damaged or cut short: …, {NO_FILE}",
    ),
    BadFolder(
        "a web page",
        {"model.safetensors": b"<!DOCTYPE html><html></html>"},
        f"/model.safetensors (28 bytes) is damaged or cut short: …, {NO_FILE}",
    ),
    BadFolder(
        "header of 2^60 bytes",
        {"model.safetensors": file_bytes({}, header_length=2**60)},
        f"/model.safetensors (10 bytes) is damaged or cut short: …, {NO_FILE}",
    ),
    BadFolder(
        "header not JSON",
        {"model.safetensors": file_bytes(b"{]")},
        f"/model.safetensors (10 bytes) is damaged or cut short: …, {NO_FILE}",
    ),
    BadFolder(
        "header nested",
        {"model.safetensors": file_bytes(b'{"a":' * 100_000)},
        f"/model.safetensors (500008 bytes) is damaged or cut short: …, {NO_FILE}",
    ),
    BadFolder(
        "no tensors",
        {"model.safetensors": file_bytes({})},
        "/model.safetensors holds no tensors, expected at least one; download or convert it again",
    ),
    BadFolder(
        "unknown dtype",
        one_tensor(dtype="Q4"),
        "/model.safetensors (72 bytes) is damaged or cut short: …Q4…, expected …",
    ),
    BadFolder(
        "half-byte dtype",
        one_tensor("F4", (8,)),
        "/model.safetensors holds tensor 'a' of dtype F4, expected one of BOOL, U8, …; "
        "take a checkpoint in one of these",
    ),
    BadFolder(
        "wrong size", one_tensor(shape=(2,)), f"/model.safetensors (…) is damaged …, {NO_FILE}"
    ),
    BadFolder(
        "gap before",
        one_tensor(offsets=(4, 8), data=b"\0" * 8),
        f"/model.safetensors (…a…, {NO_FILE}",
    ),
    BadFolder(
        "overlap",
        {
            "model.safetensors": file_bytes(
                {
                    name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
                    for name in ("first", "second")
                },
                b"\0" * 4,
            )
        },
        f"/model.safetensors (…) is damaged or cut short: …, {NO_FILE}",
    ),
    BadFolder(
        "size beyond 64 bits",
        one_tensor(shape=(2**63, 2**63), offsets=(0, 0), data=b""),
        f"/model.safetensors (…) is damaged or cut short: …, {NO_FILE}",
    ),
    BadFolder(
        "empty tensor of an endless axis",
        one_tensor(shape=(2**63, 0), offsets=(0, 0), data=b""),
        "/model.safetensors holds tensor 'a' of shape [9223372036854775808, 0], "
        "expected at most 64 dimensions of less than 2**63 bytes; download or convert it again",
    ),
    BadFolder(
        "tensor of 65 axes",
        one_tensor(shape=(1,) * 65),
        "/model.safetensors holds tensor 'a' of shape [1, 1, …], expected at most 64 dimensions …",
    ),
    # Index and shards
    BadFolder("index not JSON", {INDEX: "{"}, f"/{INDEX} is not valid JSON (…), {NO_JSON}"),
    BadFolder("index a string", {INDEX: '"a"'}, f"/{INDEX} holds a string, {NO_JSON}"),
    BadFolder(
        "index without map",
        {INDEX: {"metadata": {}}},
        f"/{INDEX} holds no weight_map, "
        "expected an object of tensor name to shard name; download it again or correct it",
    ),
    BadFolder(
        "index with a list",
        {INDEX: {"weight_map": ["a"]}},
        f"/{INDEX} holds an array as weight_map, expected an object …",
    ),
    BadFolder(
        "shard name a number", shard_name(1), f"/{INDEX} puts tensor 'a' in '1', {NO_SHARD_NAME}"
    ),
    BadFolder(
        "shard above the folder",
        shard_name("../x.safetensors"),
        f"/{INDEX} puts tensor 'a' in '../x.safetensors', {NO_SHARD_NAME}",
    ),
    BadFolder(
        "shard anywhere",
        shard_name("/etc/x.safetensors"),
        f"/{INDEX} puts tensor 'a' in '/etc/x.safetensors', {NO_SHARD_NAME}",
    ),
    BadFolder(
        "shard with a NUL",
        shard_name("\0.safetensors"),
        f"/{INDEX} puts tensor 'a' in '\\x00.safetensors', {NO_SHARD_NAME}",
    ),
    BadFolder(
        "shard a pickle",
        shard_name("a.bin"),
        f"/{INDEX} puts tensor 'a' in 'a.bin', {NO_SHARD_NAME}",
    ),
    BadFolder(
        "shard missing",
        {**SHARDED, "two.safetensors": None},
        f"/{INDEX} lists two.safetensors, not in the folder, expected all 2 shards beside it; "
        "download the missing files",
    ),
    BadFolder(
        "shard cut short",
        {**SHARDED, "two.safetensors": TWO[:-1]},
        f"/two.safetensors (…) is damaged or cut short: …, {NO_FILE}",
    ),
    BadFolder(
        "tensor in no shard",
        {**SHARDED, INDEX: {"weight_map": {"a": "one.safetensors", "c\n": "one.safetensors"}}},
        f"/one.safetensors lacks tensor 'c\\n', listed in {INDEX}, "
        "expected every tensor of the index; download index and shards again, of one revision",
    ),
    BadFolder(
        "tensor in another shard",
        {**SHARDED, INDEX: {"weight_map": {"a": "two.safetensors", "b": "one.safetensors"}}},
        f"/one.safetensors holds tensor 'a', in two.safetensors according to {INDEX}, "
        f"{NOT_THIS_SHARD}",
    ),
    BadFolder(
        "tensor in two shards",
        {**SHARDED, "two.safetensors": ONE},
        f"/two.safetensors holds tensor 'a', in one.safetensors according to {INDEX}, "
        f"{NOT_THIS_SHARD}",
    ),
    BadFolder(
        "tensor not in the index",
        {
            **SHARDED,
            INDEX: {"weight_map": {"b": "two.safetensors"}},
            "two.safetensors": tensors_bytes({"b": ("U8", (0,), b""), "extra": ("U8", (0,), b"")}),
        },
        f"/two.safetensors holds tensor 'extra', left out according to {INDEX}, {NOT_THIS_SHARD}",
    ),
]


@pytest.mark.parametrize("bad", BAD_FOLDERS, ids=lambda bad: bad.name)
def test_a_bad_folder_is_refused_with_its_message(tmp_path, bad):
    folder = write_folder(tmp_path / "model", bad.files)
    check_refused(folder, f"Checkpoint: {folder}{bad.message}")


def test_a_folder_that_is_none(tmp_path):
    wanted = "expected a model folder with config.json and model.safetensors"
    missing = tmp_path / "missing"
    check_refused(missing, f"Checkpoint: {missing} does not exist, {wanted}; check the path")
    for name, advice in (
        ("model.safetensors", "give the folder that holds the file"),
        ("model.gguf", "GGUF is not read: give a folder of safetensors"),
    ):
        (tmp_path / name).write_bytes(ONE)
        path = tmp_path / name
        check_refused(path, f"Checkpoint: {path} is a file, {wanted}; {advice}")
    check_refused(Path("a\0b"), f"Checkpoint: a\\x00b cannot be listed (…), {wanted}; …")
    long = tmp_path / ("x" * 300)
    check_refused(long, f"Checkpoint: {long} cannot be listed (…), {wanted}; …")


def test_files_that_are_none(tmp_path):
    folder = write_folder(tmp_path, {})
    weights = folder / "model.safetensors"
    weights.mkdir()
    check_refused(folder, f"Checkpoint: {weights} is a folder, expected a readable file; …")
    weights.rmdir()
    os.mkfifo(weights)  # would hang when opened
    check_refused(folder, f"Checkpoint: {weights} is a pipe, socket or device, expected …; …")
    weights.unlink()
    weights.symlink_to("missing-blob")
    check_refused(folder, f"Checkpoint: {weights} cannot be read (…), expected …; check its …")


def test_files_without_permission(tmp_path, monkeypatch):
    folder = write_folder(tmp_path, GOOD)
    config = folder / "config.json"
    config.chmod(0)
    if os.access(config, os.R_OK):  # root may read everything: let open() refuse instead
        real_open = open

        def refusing_open(path, *args):
            if path == config:
                raise PermissionError(13, "Permission denied", str(path))
            return real_open(path, *args)

        monkeypatch.setattr("builtins.open", refusing_open)
    check_refused(
        folder,
        f"Checkpoint: {config} cannot be read (Permission denied), expected a readable file; "
        "check its permissions, or download it again",
    )


def test_a_map_that_fails_leaves_no_other_open(tmp_path, monkeypatch):
    folder = write_folder(tmp_path, SHARDED)
    real_mmap, calls = mmap.mmap, []

    def failing_mmap(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise OSError(12, "Cannot allocate memory")
        return real_mmap(*args, **kwargs)

    monkeypatch.setattr("mmap.mmap", failing_mmap)
    check_refused(
        folder,
        f"Checkpoint: {folder}/two.safetensors cannot be mapped (Cannot allocate memory), "
        "expected a file that can be; copy the folder to a local disk",
    )
    assert len(calls) == 2


def test_a_file_that_is_replaced_while_it_is_read(tmp_path, monkeypatch):
    folder = write_folder(tmp_path, GOOD)
    real_safe_open = safetensors.safe_open

    def replacing_safe_open(path, framework):
        path.unlink()
        path.write_bytes(tensors_bytes({"a": ("F32", (2,), bytes(8))}))
        return real_safe_open(path, framework=framework)

    monkeypatch.setattr("cugraphs.safetensors_file.safe_open", replacing_safe_open)
    check_refused(
        folder,
        f"Checkpoint: {folder}/model.safetensors changed from {len(ONE)} to {len(ONE) + 4} bytes "
        "while being read, expected a file at rest; wait until it is written",
    )


def test_a_file_that_shrinks_while_it_is_read(tmp_path, monkeypatch):
    folder = write_folder(tmp_path, SHARDED)
    real_mmap = mmap.mmap

    def shortening_mmap(*args, **kwargs):
        os.truncate(folder / "two.safetensors", len(TWO) - 1)
        return real_mmap(*args, **kwargs)

    monkeypatch.setattr("mmap.mmap", shortening_mmap)
    check_refused(
        folder,
        f"Checkpoint: {folder}/two.safetensors changed from {len(TWO)} to {len(TWO) - 1} bytes "
        "while being read, expected a file at rest; wait until it is written",
    )


def test_json_larger_than_any_config_is_not_read(tmp_path):
    path = write_folder(tmp_path, GOOD) / "config.json"
    with open(path, "wb") as file:
        file.truncate(1 << 32)
    with bounded_memory():
        check_refused(
            tmp_path,
            f"Checkpoint: {path} is 4294967296 bytes, expected at most 67108864 bytes; "
            "check that it is the right file",
        )


# ---- mutated files

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


# ---- how the tests look


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


def check_refused(folder, message):
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder)
    # The traceback is alive here, and with it every variable of the functions it passed.
    assert not open_files(folder)
    found = str(caught.value)
    assert_message(found, folder)
    position = 0
    for part in message.split("…"):
        position = found.find(part, position)
        assert position >= 0, f"{part!r} is not (in order) in: {found}"
        position += len(part)
    assert found.startswith(message.split("…")[0])
    if not message.endswith("…"):
        assert found.endswith(message.split("…")[-1])


def assert_message(text, folder):
    """One line of printable text that names the file and says what was expected and what to do."""
    assert text.isprintable() and len(text) < 2000
    assert text.startswith("Checkpoint: ")
    assert "\0" in str(folder) or str(folder) in text
    assert ", expected " in text and "; " in text.split(", expected ")[-1]


def open_files(folder):
    """Files under a folder that this process has open or mapped."""
    paths = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    for line in Path("/proc/self/maps").read_text().splitlines():
        paths += line.split(maxsplit=5)[5:]
    return [path for path in paths if path.startswith(f"{folder}/")]


@contextlib.contextmanager
def bounded_memory(limit_bytes=64 << 20):
    """Check that the process's peak of resident memory does not grow by more than a limit."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown_bytes < limit_bytes
