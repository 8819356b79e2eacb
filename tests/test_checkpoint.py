"""Model folders: what is read is what the bytes say."""

import errno
import gc
import json
import math
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoint_checks import INDEX, ONE, SHARDED, bounded_memory, open_files
from model_folders import CONFIG, file_bytes, header_of, tensors_bytes, write_folder

from cugraphs.checkpoint import Checkpoint
from cugraphs.safetensors_file import TensorView


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
