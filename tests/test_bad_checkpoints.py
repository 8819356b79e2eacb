"""Every bad model folder is refused with its message."""

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import safetensors.numpy
from checkpoint_checks import GOOD, INDEX, ONE, SHARDED, TWO, bounded_memory, check_refused
from model_folders import file_bytes, tensors_bytes, write_folder


@dataclass(frozen=True)
class BadFolder:
    """A folder that must be refused; in the message `…` stands for another library's words."""

    name: str
    files: dict[str, object]  # beside a good config.json; None leaves a file out
    message: str  # after "Checkpoint: <folder>"


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
        f"/model.safetensors (500,008 bytes) is damaged or cut short: …, {NO_FILE}",
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


@pytest.fixture(scope="module", autouse=True)
def memory_stays_bounded():
    with bounded_memory(limit_bytes=256 << 20):
        yield


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
