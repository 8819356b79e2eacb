"""What the word `model` names: a folder, the demo model, or a Hub id, found or downloaded.

Reads the layout of the local Hugging Face cache itself; `huggingface_hub` (the extra ``hub``) is
imported only to download. Does not read the model: that is `Checkpoint.open`.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from cugraphs.checkpoint import CONFIG_NAME, INDEX_NAME, WEIGHTS_NAME, read_weight_map
from cugraphs.model_file import ModelFileError
from cugraphs.one_line import one_line, quoted, reason

DEMO_NAME = "demo"
_TOKENIZER_NAME = "tokenizer.json"

# The Hub's own rules: https://huggingface.co/docs/huggingface_hub/package_reference/utilities
_HUB_ID = re.compile(
    r"(?P<repository>\w[\w.-]{0,95}/\w[\w.-]{0,95})(@(?P<revision>\w[\w./-]*))?", re.ASCII
)
_COMMIT = re.compile(r"[0-9a-f]{40}")

# What a model needs and no more: no pickles, no second copy in Meta's layout, no exports in
# subfolders, of which only the chat templates matter.
_DOWNLOADED = ["*.safetensors", "*.json", "*.jinja"]
_NOT_DOWNLOADED = ["consolidated*.safetensors", "*/*.safetensors", "*/*.json"]

_WANTED = "a folder, 'demo' or a Hub id like 'org/name'"
_INSTALL = "pip install 'cugraphs[hub]'"


class ModelLookupError(ValueError):
    """A `model` that names nothing usable; one line that says where was looked and what to do."""


@dataclass(frozen=True)
class _HubId:
    """A repository of the Hub at a branch, tag or commit."""

    repository: str
    revision: str

    def __str__(self) -> str:
        return self.repository if self.revision == "main" else f"{self.repository}@{self.revision}"


def find_model(model: str | Path, *, allow_download: bool = True) -> Path:
    """The folder that `model` names.

    Args:
        model: An existing folder (``~`` is the home folder); ``"demo"``, the model in this package
            (a folder of that name is ``"./demo"``); or a Hub id ``"org/name"`` or
            ``"org/name@revision"``. A `Path` is a folder only.
        allow_download: Whether a Hub id that is not in the local cache may be downloaded.

    Raises:
        ModelLookupError: Nothing of that name, or a download that failed.
        TypeError: `model` is neither a string nor a path.
    """
    if not isinstance(model, str | Path):
        raise TypeError(
            f"find_model: model is {one_line(repr(model))} ({type(model).__name__}), "
            f"expected {_WANTED}"
        )
    if model == DEMO_NAME:
        return _demo_folder()
    folder = _existing_folder(Path(model)) if model != "" else None  # Path("") would be "."
    if folder is not None:
        return folder
    hub_id = _parse_hub_id(model) if isinstance(model, str) else None
    if hub_id is None:
        raise ModelLookupError(
            f"find_model: {quoted(model)} does not exist, expected {_WANTED}; "
            f"{_did_you_mean(Path(model)) or 'check the path'}"
        )
    snapshot = _cached_snapshot(hub_id)
    lacking = _missing_files(snapshot) if snapshot else None
    if snapshot and not lacking:
        return snapshot
    if lacking:
        found = f"is in the Hugging Face cache without {', '.join(lacking)} ({snapshot})"
    else:
        found = f"is neither a folder nor in the Hugging Face cache ({_cache_folder()})"
    if not allow_download:
        advice = _did_you_mean(Path(model)) or "allow the download, or give a folder"
        raise ModelLookupError(
            f"find_model: {quoted(model)} {found}, expected {_WANTED} on this machine; {advice}"
        )
    return _download(hub_id, found)


def _demo_folder() -> Path:
    folder = resources.files("cugraphs.models") / DEMO_NAME
    # In a zip it would be no Path, and could not be mapped into memory.
    if not isinstance(folder, Path) or not folder.is_dir():
        raise ModelLookupError(
            f"find_model: the demo model is not at {folder}, expected in the installed package; "
            "install cugraphs from its wheel or a full checkout, unzipped"
        )
    return folder


def _existing_folder(path: Path) -> Path | None:
    """The folder at a path; None where nothing is; an error where a file is."""
    try:
        path = path.expanduser()
        if path.is_dir():
            return path
        exists = path.exists()
    except (OSError, RuntimeError) as error:  # no permission, name too long, no such ~user
        raise ModelLookupError(
            f"find_model: {quoted(path)} cannot be looked at ({reason(error)}), "
            f"expected {_WANTED}; check path and permissions"
        ) from error
    if exists:
        advice = f"give the folder that holds it: {path.parent}"
        if path.suffix.lower() == ".gguf":
            advice = "GGUF is not read: give a folder of safetensors"
        raise ModelLookupError(
            f"find_model: {quoted(path)} is a file, expected {_WANTED}; {advice}"
        )
    return None


def _parse_hub_id(text: str) -> _HubId | None:
    """The Hub id in a text, or None where the Hub would not allow it as one."""
    match = _HUB_ID.fullmatch(text)
    # ".." would also lead out of the cache folder.
    if match is None or ".." in text or "--" in match["repository"]:
        return None
    return _HubId(match["repository"], match["revision"] or "main")


def _cache_folder() -> Path:
    """The Hub cache, by the variables that every Hugging Face program follows."""
    environment = os.environ
    home = environment.get("HF_HOME") or os.path.join(
        environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    folder = (
        environment.get("HF_HUB_CACHE")
        or environment.get("HUGGINGFACE_HUB_CACHE")
        or os.path.join(home, "hub")
    )
    return Path(os.path.expandvars(os.path.expanduser(folder)))


def _cached_snapshot(hub_id: _HubId) -> Path | None:
    """The cached folder of a repository at a revision: ``refs/<revision>`` holds the commit."""
    repository = _cache_folder() / ("models--" + hub_id.repository.replace("/", "--"))
    commit = hub_id.revision
    try:
        if not _COMMIT.fullmatch(commit):
            commit = (repository / "refs" / commit).read_text("utf-8").strip()
        folder = repository / "snapshots" / commit
        return folder if _COMMIT.fullmatch(commit) and folder.is_dir() else None
    except (OSError, UnicodeError):  # not there or not readable is not cached
        return None


def _missing_files(folder: Path, *, tokenizer: bool = True) -> list[str]:
    """Files that a model needs and a snapshot lacks; a cached file is a link to a blob."""
    missing = [] if (folder / CONFIG_NAME).exists() else [CONFIG_NAME]
    if not (folder / WEIGHTS_NAME).exists():
        if (folder / INDEX_NAME).exists():
            missing += [shard for shard in _shards(folder) if not (folder / shard).exists()]
        else:
            missing.append(WEIGHTS_NAME)
    if tokenizer and not (folder / _TOKENIZER_NAME).exists():
        missing.append(_TOKENIZER_NAME)
    return missing


def _shards(folder: Path) -> list[str]:
    """Shards that an index names; what is wrong with an index is for `Checkpoint.open` to say."""
    try:
        return sorted(set(read_weight_map(folder / INDEX_NAME).values()))
    except ModelFileError:
        return []


def _download(hub_id: _HubId, found: str) -> Path:
    """Download a repository's safetensors, JSON and templates into the Hub cache."""
    name = f"'{hub_id}'"
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        hint = _did_you_mean(Path(str(hub_id)))
        raise ModelLookupError(
            f"find_model: {name} {found}, expected {_WANTED}; to download it {_INSTALL}, "
            f"or give a folder{'; ' + hint if hint else ''}"
        ) from error
    try:
        folder = Path(
            snapshot_download(
                hub_id.repository,
                revision=hub_id.revision,
                cache_dir=_cache_folder(),
                allow_patterns=_DOWNLOADED,
                ignore_patterns=_NOT_DOWNLOADED,
            )
        )
    except Exception as error:  # its HTTP library, and so the errors, differ between versions
        raise ModelLookupError(
            f"find_model: {name} {found}, and its download failed "
            f"({type(error).__name__}: {reason(error)}), expected {_WANTED}; "
            f"{_download_advice(error)}"
        ) from error
    missing = _missing_files(folder, tokenizer=False)
    if missing:
        raise ModelLookupError(
            f"find_model: {name} has no {', '.join(missing)} on the Hub, expected a Llama model "
            "in safetensors; take another revision or repository (pickles are never loaded)"
        )
    return folder


def _download_advice(error: Exception) -> str:
    """What to do, by the names of huggingface_hub's own errors."""
    return {
        "GatedRepoError": "accept its licence on huggingface.co, then log in with `hf auth login`",
        "RepositoryNotFoundError": "check the spelling; a private one needs `hf auth login`",
        "RevisionNotFoundError": "check the revision after the @",
    }.get(type(error).__name__, "check the network, or give a folder")


def _did_you_mean(path: Path) -> str:
    """A hint with names close to one that does not exist, or nothing."""
    try:
        siblings = [entry.name for entry in os.scandir(path.parent) if entry.is_dir()]
    except (OSError, ValueError):
        siblings = []
    close = [
        str(path.parent / name) for name in difflib.get_close_matches(path.name, siblings, n=2)
    ]
    try:
        cached = [
            name.removeprefix("models--").replace("--", "/")
            for name in os.listdir(_cache_folder())
            if name.startswith("models--")
        ]
    except OSError:
        cached = []
    close += difflib.get_close_matches(str(path), cached, n=2)
    return f"did you mean {' or '.join(map(quoted, close))}?" if close else ""
