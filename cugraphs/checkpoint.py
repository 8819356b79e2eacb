"""A model folder as named, typed, zero-copy byte views.

A folder holds ``config.json`` and either ``model.safetensors`` or shards listed in
``model.safetensors.index.json``, as Hugging Face transformers writes them. The `safetensors`
library opens and validates each file; the bytes are views of this module's own memory map, because
the library's NumPy side cannot give BF16 or FP8.

Knows file formats only: not what a config key means, not which tensors a model needs, no device.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

# What safetensors calls a dtype, what we (and NumPy, torch) call it, and how `array` shows it.
# FP8 has no arithmetic here, so it stays raw bytes. No Llama has the others that the format knows
# (less than a byte, complex, AMD's FP8).
_DTYPES: dict[str, tuple[str, np.dtype[Any]]] = {
    "BOOL": ("bool", np.dtype(np.bool_)),
    "U8": ("uint8", np.dtype(np.uint8)),
    "I8": ("int8", np.dtype(np.int8)),
    "U16": ("uint16", np.dtype(np.uint16)),
    "I16": ("int16", np.dtype(np.int16)),
    "U32": ("uint32", np.dtype(np.uint32)),
    "I32": ("int32", np.dtype(np.int32)),
    "U64": ("uint64", np.dtype(np.uint64)),
    "I64": ("int64", np.dtype(np.int64)),
    "F16": ("float16", np.dtype(np.float16)),
    "BF16": ("bfloat16", np.dtype(ml_dtypes.bfloat16)),
    "F32": ("float32", np.dtype(np.float32)),
    "F64": ("float64", np.dtype(np.float64)),
    "F8_E4M3": ("float8_e4m3fn", np.dtype(np.uint8)),
    "F8_E5M2": ("float8_e5m2", np.dtype(np.uint8)),
    "F8_E8M0": ("float8_e8m0fnu", np.dtype(np.uint8)),
}
_ARRAY_DTYPES: dict[str, np.dtype[Any]] = dict(_DTYPES.values())

_MAX_JSON_BYTES = 64 << 20  # the index of the largest Llama is under 1 MiB
_MAX_DIMENSIONS = 64  # NumPy's own limit
_LFS_POINTER = b"version https://git-lfs"
_PICKLES = (".bin", ".pth", ".pt", ".ckpt")


class CheckpointError(ValueError):
    """A model folder that cannot be read; one line that names the file and what to do."""


@dataclass(frozen=True, eq=False, slots=True)
class TensorView:
    """One tensor of a checkpoint: its name, type, shape and bytes, which are never copied.

    Args:
        name: Name in the file, e.g. ``model.norm.weight``.
        dtype: ``float32``, ``bfloat16``, ``float8_e4m3fn`` and so on.
        shape: As in the file; ``()`` for a scalar.
        file: The file that holds the bytes.
        data: uint8 [nbytes], read-only view of the mapped file, at any alignment.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    data: npt.NDArray[np.uint8] = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse bytes that do not fit dtype and shape."""
        if self.dtype not in _ARRAY_DTYPES:
            known = ", ".join(_ARRAY_DTYPES)
            raise ValueError(
                f"TensorView {self.name!r}: dtype is {self.dtype!r}, expected one of {known}"
            )
        expected_bytes = math.prod(self.shape) * _ARRAY_DTYPES[self.dtype].itemsize
        if self.data.dtype != np.uint8 or self.data.shape != (expected_bytes,):
            raise ValueError(
                f"TensorView {self.name!r}: data is {self.data.dtype} {list(self.data.shape)}, "
                f"expected uint8 [{expected_bytes}] for {self.dtype} {list(self.shape)}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the file."""
        return self.data.nbytes

    def array(self) -> npt.NDArray[Any]:
        """The tensor as a read-only array over the same bytes; FP8 stays uint8 of the same shape.

        The bytes may begin at any address: NumPy reads such an array, code that takes its pointer
        must look at ``flags.aligned``.
        """
        return self.data.view(_ARRAY_DTYPES[self.dtype]).reshape(self.shape)


class Checkpoint:
    """The settings and tensors of one model folder, all checked before the first byte is mapped.

    Pages are read from disk when a view is first touched. A file that shrinks while it is mapped
    ends the process (SIGBUS), as with every memory map: do not overwrite a model in use, write a
    new file and rename it.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        generation_config: Mapping[str, Any],
        tensors: Mapping[str, TensorView],
        files: tuple[Path, ...],
    ) -> None:
        """Hold parts that `open` has read; call that instead."""
        self.folder = folder
        self.config = config
        self.generation_config = generation_config
        self.files = files
        self.nbytes = sum(view.nbytes for view in tensors.values())
        self._tensors: Mapping[str, TensorView] | None = tensors

    @classmethod
    def open(cls, folder: str | Path) -> Checkpoint:
        """Read and check the settings and every file's header, then map the files.

        ``model.safetensors`` wins where an index lies beside it, as in transformers. Otherwise the
        index is the allow-list: its shards must hold the tensors it names, and no others.

        Args:
            folder: A folder in Hugging Face layout.

        Raises:
            CheckpointError: The folder cannot be read as a whole; then no file is left open.
        """
        folder = Path(folder)
        names = _list_folder(folder)
        if WEIGHTS_NAME in names:
            headers = [_read_header(folder / WEIGHTS_NAME)]
        elif INDEX_NAME in names:
            headers = _read_shards(folder, names)
        else:
            raise _no_weights(folder, names)
        config = read_json_object(folder / CONFIG_NAME)
        has_generation_config = GENERATION_CONFIG_NAME in names
        generation_config = (
            read_json_object(folder / GENERATION_CONFIG_NAME) if has_generation_config else {}
        )
        return cls(
            folder,
            MappingProxyType(config),
            MappingProxyType(generation_config),
            MappingProxyType(_map_tensors(headers)),
            tuple(header.path for header in headers),
        )

    @property
    def tensors(self) -> Mapping[str, TensorView]:
        """Every tensor by name, in the order of the files' bytes; ValueError after `close`."""
        if self._tensors is None:
            raise ValueError(f"Checkpoint: {self.folder} is closed, expected open; open it again")
        return self._tensors

    def close(self) -> None:
        """Let go of the files; each is unmapped when the last view or array of it is gone.

        So a view taken before stays valid after, and closing twice is harmless.
        """
        self._tensors = None

    def __enter__(self) -> Self:
        """Return the checkpoint itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close, whatever happened."""
        self.close()


@dataclass(frozen=True)
class _Entry:
    """One tensor of a header; `start` counts from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True)
class _Header:
    """What one file holds, in the order of its bytes."""

    path: Path
    file_bytes: int
    entries: tuple[_Entry, ...]


def read_json_object(path: Path) -> dict[str, Any]:
    """Read one JSON object from a UTF-8 file, with or without a byte order mark.

    Raises:
        CheckpointError: Not a readable file, not JSON (NaN and infinities are not), not an object.
    """
    with _open_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > _MAX_JSON_BYTES:
            raise _refusal(
                path,
                f"is {size_bytes} bytes",
                f"at most {_MAX_JSON_BYTES} bytes of JSON",
                "check that it is the right file",
            )
        raw = file.read()
    wanted = "one JSON object in UTF-8"
    advice = "download it again or correct it"
    try:
        value = json.loads(
            raw.decode("utf-8-sig"), parse_constant=_refuse_number, parse_float=_finite_float
        )
    except RecursionError:
        # From None: the traceback of a thousand levels would say no more.
        raise _refusal(path, "is nested too deeply", wanted, advice) from None
    except ValueError as error:  # broken JSON, bad UTF-8, integers of thousands of digits
        raise _refusal(path, f"is not valid JSON ({_reason(error)})", wanted, advice) from error
    if not isinstance(value, dict):
        raise _refusal(path, f"holds {_json_type(value)}", wanted, advice)
    return value


def _refuse_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{_one_line(text)} is out of a double's range")
    return value


def _json_type(value: object) -> str:
    kinds = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


def _list_folder(folder: Path) -> frozenset[str]:
    """Names in a folder; an error where it is none, or empty."""
    wanted = "a model folder with config.json and model.safetensors"
    try:
        names = frozenset(os.listdir(folder))
    except NotADirectoryError as error:
        advice = "give the folder that holds the file"
        if folder.suffix.lower() == ".gguf":
            advice = "GGUF is not read: give a folder of safetensors"
        raise _refusal(folder, "is a file", wanted, advice) from error
    except FileNotFoundError as error:
        raise _refusal(folder, "does not exist", wanted, "check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _refusal(
            folder, f"cannot be listed ({_reason(error)})", wanted, "check path and permissions"
        ) from error
    if not names:
        raise _refusal(folder, "is empty", wanted, "download the model into it")
    return names


def _no_weights(folder: Path, names: frozenset[str]) -> CheckpointError:
    """Say what a folder without weights holds instead, and the way from there."""

    def with_suffix(*suffixes: str) -> list[str]:
        return sorted(name for name in names if name.lower().endswith(suffixes))

    # Meta's and Mistral's own layout, often beside the Hugging Face one; its names differ.
    others = [n for n in with_suffix(".safetensors") if not n.startswith("consolidated")]
    if "adapter_config.json" in names:
        found = "holds an adapter (LoRA or the like), not a whole model"
        advice = (
            "merge it into its base model, with peft's merge_and_unload() and save_pretrained()"
        )
    elif others:
        found = f"holds {_some(others)}, but no weights under a Hugging Face name"
        advice = (
            "rename a single file to model.safetensors; download the index that belongs to shards"
        )
    elif with_suffix(".safetensors"):
        found = f"holds only {_some(with_suffix('.safetensors'))}, which is not Hugging Face layout"
        advice = "download the Hugging Face files of the model"
    elif with_suffix(*_PICKLES):
        found = (
            f"holds weights only as pickles ({_some(with_suffix(*_PICKLES))}), never loaded here"
        )
        advice = (
            "pickles can run code: take a safetensors revision of the model, or convert it with "
            "transformers' save_pretrained(folder, safe_serialization=True)"
        )
    elif with_suffix(".gguf"):
        found = f"holds weights only as GGUF ({_some(with_suffix('.gguf'))}), which is not read"
        advice = "download the safetensors of the model"
    else:
        found = "holds no weights"
        advice = "download the model's safetensors into it, or give another folder"
    return _refusal(folder, found, f"{WEIGHTS_NAME} or {INDEX_NAME}", advice)


def _read_shards(folder: Path, names: frozenset[str]) -> list[_Header]:
    """Read the header of every shard of the index, and hold each to what the index says."""
    index_path = folder / INDEX_NAME
    shard_of = _read_weight_map(index_path)
    shards = sorted(set(shard_of.values()))
    missing = [shard for shard in shards if shard not in names]
    if missing:
        raise _refusal(
            index_path,
            f"lists {_some(missing)}, not in the folder",
            f"all {len(shards)} shards beside it",
            "download the missing files",
        )
    headers = [_read_header(folder / shard) for shard in shards]
    # First what is where it should not be: it explains best why something else seems missing.
    for header in headers:
        for entry in header.entries:
            listed = shard_of.get(entry.name)
            if listed != header.path.name:
                where = f"in {_one_line(listed)}" if listed else "left out"
                raise _refusal(
                    header.path,
                    f"holds tensor {_quote(entry.name)}, {where} according to {INDEX_NAME}",
                    "only tensors that the index lists for this shard",
                    "download index and shards again, of one revision",
                )
    held = {entry.name for header in headers for entry in header.entries}
    absent = [name for name in shard_of if name not in held]
    if absent:
        raise _refusal(
            folder / shard_of[absent[0]],
            f"lacks tensor {_some([_quote(name) for name in absent])}, listed in {INDEX_NAME}",
            "every tensor of the index",
            "download index and shards again, of one revision",
        )
    return headers


def _read_weight_map(index_path: Path) -> dict[str, str]:
    """The index as tensor name -> shard name, every shard a plain file name."""
    weight_map = read_json_object(index_path).get("weight_map")
    advice = "download it again or correct it"
    if not isinstance(weight_map, dict) or not weight_map:
        found = f"{_json_type(weight_map)} as" if weight_map else "no"
        wanted = "an object of tensor name to shard name"
        raise _refusal(index_path, f"holds {found} weight_map", wanted, advice)
    for name, shard in weight_map.items():
        # A shard elsewhere could be any file of the machine: the index may come from a stranger.
        plain = isinstance(shard, str) and shard.endswith(".safetensors")
        if not plain or any(character in shard for character in "/\\\0"):
            raise _refusal(
                index_path,
                f"puts tensor {_quote(name)} in {_quote(shard)}",
                "the plain name of a .safetensors file in the same folder",
                advice,
            )
    return weight_map


def _read_header(path: Path) -> _Header:
    """Names, dtypes, shapes and places of a file's tensors, validated; leaves nothing open."""
    with _open_file(path) as file:
        file_bytes = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
    wanted = "a whole safetensors file"
    advice = "download or convert it again"
    if file_bytes < 8:
        raise _refusal(path, f"is {file_bytes} bytes", wanted, advice)
    try:
        with safe_open(path, framework="np") as opened:
            slices = ((name, opened.get_slice(name)) for name in opened.offset_keys())
            listed = [(name, s.get_dtype(), tuple(s.get_shape())) for name, s in slices]
    except (SafetensorError, OSError) as error:
        raise _refusal(
            path, f"({file_bytes} bytes) is damaged or cut short: {_reason(error)}", wanted, advice
        ) from error
    # The library has checked that the tensors follow the header, and each other, without gaps.
    offset = 8 + int.from_bytes(prefix, "little")
    entries = []
    for name, stored_dtype, shape in listed:
        if stored_dtype not in _DTYPES:
            raise _refusal(
                path,
                f"holds tensor {_quote(name)} of dtype {stored_dtype}",
                f"one of {', '.join(_DTYPES)}",
                "take a checkpoint in one of these",
            )
        dtype, array_dtype = _DTYPES[stored_dtype]
        # Only an empty tensor can claim more than the file holds, and NumPy would refuse it.
        claimed_bytes = math.prod(size for size in shape if size) * array_dtype.itemsize
        if len(shape) > _MAX_DIMENSIONS or claimed_bytes >= 2**63:
            raise _refusal(
                path,
                f"holds tensor {_quote(name)} of shape {_one_line(str(list(shape)))}",
                f"at most {_MAX_DIMENSIONS} dimensions of less than 2**63 bytes",
                advice,
            )
        nbytes = math.prod(shape) * array_dtype.itemsize
        entries.append(_Entry(name, dtype, shape, offset, nbytes))
        offset += nbytes
    if offset != file_bytes:
        found = f"changed from {file_bytes} to {offset} bytes while being read"
        raise _refusal(path, found, "a file at rest", "wait until it is written")
    if not entries:
        raise _refusal(path, "holds no tensors", "at least one", advice)
    return _Header(path, file_bytes, tuple(entries))


def _map_tensors(headers: list[_Header]) -> dict[str, TensorView]:
    """Map every file, then view it: no view exists before every map does, so all can be closed."""
    with ExitStack() as stack:
        maps = []
        for header in headers:
            with _open_file(header.path) as file:
                try:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                except (OSError, ValueError) as error:
                    raise _refusal(
                        header.path,
                        f"cannot be mapped ({_reason(error)})",
                        "a file that can be",
                        "copy the folder to a local disk",
                    ) from error
            maps.append(stack.enter_context(mapped))
            if len(mapped) != header.file_bytes:
                raise _refusal(
                    header.path,
                    f"changed from {header.file_bytes} to {len(mapped)} bytes while being read",
                    "a file at rest",
                    "wait until it is written",
                )
        stack.pop_all()  # from here each map lives as long as a view of it
    tensors = {}
    for header, mapped in zip(headers, maps, strict=True):
        file_data = np.frombuffer(mapped, np.uint8)
        for entry in header.entries:
            data = file_data[entry.start : entry.start + entry.nbytes]
            view = TensorView(entry.name, entry.dtype, entry.shape, header.path, data)
            tensors[entry.name] = view
    return tensors


def _open_file(path: Path) -> BinaryIO:
    """Open a regular file that is no git-lfs pointer; the caller closes it."""
    wanted = "a readable file"
    try:
        # Looked at before opening: opening a pipe would wait for its writer.
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            found = "is a folder" if stat.S_ISDIR(mode) else "is a pipe, socket or device"
            raise _refusal(path, found, wanted, "put the model's own file there")
        with ExitStack() as stack:
            file = stack.enter_context(open(path, "rb"))
            if file.peek(len(_LFS_POINTER)).startswith(_LFS_POINTER):
                advice = "run `git lfs pull` in its folder"
                raise _refusal(path, "is a git-lfs pointer", "the file it points to", advice)
            stack.pop_all()
    except OSError as error:
        if not os.path.lexists(path):
            found, advice = "is missing", "download it from where the rest of the folder came"
        else:
            found = f"cannot be read ({_reason(error)})"
            advice = "check its permissions, or download it again"
        raise _refusal(path, found, wanted, advice) from error
    return file


def _refusal(path: Path, found: str, expected: str, advice: str) -> CheckpointError:
    """The one form of all messages: which file, what it is, what it should be, what to do."""
    where = _one_line(str(path), limit=1000)
    return CheckpointError(f"Checkpoint: {where} {found}, expected {expected}; {advice}")


def _reason(error: Exception) -> str:
    """What an error says, on one line."""
    return _one_line((isinstance(error, OSError) and error.strerror) or str(error))


def _one_line(text: str, limit: int = 200) -> str:
    """Text fit for a message whatever is in it: printable, and not longer than `limit`."""
    text = text if len(text) <= limit else text[:limit] + "…"
    return text if text.isprintable() else repr(text)[1:-1]


def _quote(value: object) -> str:
    """A name from a file, in quotes."""
    return f"'{_one_line(str(value))}'"


def _some(names: list[str]) -> str:
    """The first name, and how many more there are."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return _one_line(names[0]) + more
