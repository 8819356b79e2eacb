"""A model folder as named, typed, zero-copy byte views.

A folder holds ``config.json`` and either ``model.safetensors`` or shards listed in
``model.safetensors.index.json``, as Hugging Face transformers writes them.

Knows which files a folder must hold and what they must agree on; one file is `safetensors_file`'s
or `json_file`'s. Does not know what a config key means, which tensors a model needs, any device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from cugraphs.counted import counted
from cugraphs.json_file import json_kind, read_json_object
from cugraphs.model_file import ModelFileError, refusal
from cugraphs.one_line import one_line, quoted, reason, several
from cugraphs.safetensors_file import FileHeader, TensorView, map_file, read_header, view_tensors

CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_PICKLES = (".bin", ".pth", ".pt", ".ckpt")


class CheckpointError(ValueError):
    """A model folder that cannot be read; one line that names the file and what to do."""


class Checkpoint:
    """The settings and tensors of one model folder, all checked before the first byte is mapped.

    Pages are read from disk when a view is first touched. A file that shrinks while it is mapped
    ends the process (SIGBUS) that touches ``array()`` or ``data``, as with every memory map; what
    ``TensorView.read`` copies, as loading does, raises an error instead. Do not overwrite a model
    in use: write a new file and rename it.
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
        try:
            names = _list_folder(folder)
            headers = _read_headers(folder, names)
            config = read_json_object(folder / CONFIG_NAME)
            has_generation_config = GENERATION_CONFIG_NAME in names
            generation_config = (
                read_json_object(folder / GENERATION_CONFIG_NAME) if has_generation_config else {}
            )
            tensors = _map_tensors(headers)
        except ModelFileError as error:
            raise CheckpointError(f"Checkpoint: {error}") from error
        return cls(
            folder,
            MappingProxyType(config),
            MappingProxyType(generation_config),
            MappingProxyType(tensors),
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


def _list_folder(folder: Path) -> frozenset[str]:
    """Names in a folder; an error where it is none, or empty."""
    wanted = "a model folder with config.json and model.safetensors"
    try:
        names = frozenset(os.listdir(folder))
    except NotADirectoryError as error:
        advice = "give the folder that holds the file"
        if folder.suffix.lower() == ".gguf":
            advice = "GGUF is not read: give a folder of safetensors"
        raise refusal(folder, "is a file", wanted, advice) from error
    except FileNotFoundError as error:
        raise refusal(folder, "does not exist", wanted, "check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise refusal(
            folder, f"cannot be listed ({reason(error)})", wanted, "check path and permissions"
        ) from error
    if not names:
        raise refusal(folder, "is empty", wanted, "download the model into it")
    return names


def _no_weights(folder: Path, names: frozenset[str]) -> ModelFileError:
    """Say what a folder without weights holds instead, and the way from there."""

    def with_suffix(*suffixes: str) -> list[str]:
        return sorted(name for name in names if name.lower().endswith(suffixes))

    # Meta's and Mistral's own layout, often beside the Hugging Face one; its names differ.
    safetensors = with_suffix(".safetensors")
    others = [name for name in safetensors if not name.startswith("consolidated")]
    pickles = with_suffix(*_PICKLES)
    ggufs = with_suffix(".gguf")
    if "adapter_config.json" in names:
        found = "holds an adapter (LoRA or the like), not a whole model"
        advice = (
            "merge it into its base model, with peft's merge_and_unload() and save_pretrained()"
        )
    elif others:
        found = f"holds {several(others)}, but no weights under a Hugging Face name"
        advice = (
            "rename a single file to model.safetensors; download the index that belongs to shards"
        )
    elif safetensors:
        found = f"holds only {several(safetensors)}, which is not Hugging Face layout"
        advice = "download the Hugging Face files of the model"
    elif pickles:
        found = f"holds weights only as pickles ({several(pickles)}), never loaded here"
        advice = (
            "pickles can run code: take a safetensors revision of the model, or convert it with "
            "transformers' save_pretrained(folder, safe_serialization=True)"
        )
    elif ggufs:
        found = f"holds weights only as GGUF ({several(ggufs)}), which is not read"
        advice = "download the safetensors of the model"
    else:
        found = "holds no weights"
        advice = "download the model's safetensors into it, or give another folder"
    return refusal(folder, found, f"{WEIGHTS_NAME} or {INDEX_NAME}", advice)


def _read_headers(folder: Path, names: frozenset[str]) -> list[FileHeader]:
    """Read the header of every file of weights."""
    if WEIGHTS_NAME in names:
        return [read_header(folder / WEIGHTS_NAME)]
    if INDEX_NAME in names:
        return _read_shards(folder, names)
    raise _no_weights(folder, names)


def _read_shards(folder: Path, names: frozenset[str]) -> list[FileHeader]:
    """Read the header of every shard of the index, and hold each to what the index says."""
    index_path = folder / INDEX_NAME
    shard_of = read_weight_map(index_path)
    shards = sorted(set(shard_of.values()))
    missing = [shard for shard in shards if shard not in names]
    if missing:
        raise refusal(
            index_path,
            f"lists {several(missing)}, not in the folder",
            f"all {counted(len(shards), 'shard')} beside it",
            "download the missing files",
        )
    headers = [read_header(folder / shard) for shard in shards]
    # First what is where it should not be: it explains best why something else seems missing.
    for header in headers:
        for entry in header.entries:
            listed = shard_of.get(entry.name)
            if listed != header.path.name:
                where = f"in {one_line(listed)}" if listed else "left out"
                raise refusal(
                    header.path,
                    f"holds tensor {quoted(entry.name)}, {where} according to {INDEX_NAME}",
                    "only tensors that the index lists for this shard",
                    "download index and shards again, of one revision",
                )
    held = {entry.name for header in headers for entry in header.entries}
    absent = [name for name in shard_of if name not in held]
    if absent:
        tensors = several([quoted(name) for name in absent])
        raise refusal(
            folder / shard_of[absent[0]],
            f"lacks tensor {tensors}, listed in {INDEX_NAME}",
            "every tensor of the index",
            "download index and shards again, of one revision",
        )
    return headers


def read_weight_map(index_path: Path) -> dict[str, str]:
    """The index as tensor name -> shard name, every shard a plain file name.

    Raises:
        ModelFileError: The index cannot be read, or names anything else as a shard.
    """
    weight_map = read_json_object(index_path).get("weight_map")
    advice = "download it again or correct it"
    if not isinstance(weight_map, dict) or not weight_map:
        found = f"{json_kind(weight_map)} as" if weight_map else "no"
        wanted = "an object of tensor name to shard name"
        raise refusal(index_path, f"holds {found} weight_map", wanted, advice)
    for name, shard in weight_map.items():
        # A shard elsewhere could be any file of the machine: the index may come from a stranger.
        plain = isinstance(shard, str) and shard.endswith(".safetensors")
        if not plain or any(character in shard for character in "/\\\0"):
            raise refusal(
                index_path,
                f"puts tensor {quoted(name)} in {quoted(shard)}",
                "the plain name of a .safetensors file in the same folder",
                advice,
            )
    return weight_map


def _map_tensors(headers: list[FileHeader]) -> dict[str, TensorView]:
    """Map every file, then view it: no view exists before every map does, so all can be closed."""
    with ExitStack() as stack:
        maps = []
        for header in headers:
            mapped, reader = map_file(header)
            stack.enter_context(mapped)
            stack.callback(reader.close)
            maps.append((mapped, reader))
        stack.pop_all()  # from here each map lives as long as a view of it
    tensors: dict[str, TensorView] = {}
    for header, (mapped, reader) in zip(headers, maps, strict=True):
        tensors |= view_tensors(header, mapped, reader)
    return tensors
