"""What `model` names: folders first, the demo, then Hub ids in the cache; nothing is downloaded."""

import fnmatch
import os
import sys
import types
from pathlib import Path

import pytest
from model_folders import write_folder

from cugraphs.model_lookup import ModelLookupError, find_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "f" * 40
FILES = {"model.safetensors": b"", "tokenizer.json": {}}
INDEX = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
WANTED = "expected a folder, 'demo' or a Hub id like 'org/name'"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty home and working folder, and no huggingface_hub."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # import raises ImportError
    return home


def write_snapshot(cache, files, *, commit=COMMIT, ref="main", repository="models--org--name"):
    """A repository in the layout that huggingface_hub writes: files are links to blobs."""
    repository = Path(cache) / repository
    write_folder(repository / "blobs", {"config.json": None})
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name, file in {"config.json": {}, **files}.items():
        if file is None:
            continue
        write_folder(repository / "blobs", {"config.json": None, f"blob-{name}": file})
        (snapshot / name).symlink_to(f"../../blobs/blob-{name}")
    if ref:
        (repository / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (repository / "refs" / ref).write_text(commit)
    return snapshot


def fake_hub(monkeypatch, download):
    """A huggingface_hub whose snapshot_download records its arguments and calls `download`."""
    calls = []

    def snapshot_download(repo_id, **arguments):
        calls.append((repo_id, arguments))
        return str(download())

    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return calls


def refusal(model, **arguments):
    with pytest.raises(ModelLookupError) as caught:
        find_model(model, **arguments)
    text = str(caught.value)
    assert text.isprintable() and text.startswith("find_model: ") and len(text) < 2000
    assert ", expected " in text and "; " in text
    return text


@pytest.mark.parametrize("model", [None, 5, b"demo", ["demo"]])
def test_a_model_of_another_type_is_refused(model):
    with pytest.raises(TypeError, match=r"^find_model: model is .*, expected a folder, 'demo' or"):
        find_model(model)


# ---- folders and the demo


def test_an_existing_folder_is_itself(home):
    folder = write_folder(home / "model", {})
    assert find_model(folder) == folder
    assert find_model(str(folder)) == folder
    assert find_model("model") == Path("model")
    assert find_model("./model") == Path("model")
    assert find_model("~/model") == folder
    assert find_model(".") == Path(".")


def test_a_folder_wins_over_a_cached_id_of_that_name(home):
    write_snapshot(home / ".cache/huggingface/hub", FILES)
    folder = write_folder(home / "org" / "name", {})
    assert find_model("org/name").resolve() == folder


def test_demo_is_the_folder_in_the_package(home, monkeypatch):
    package = write_folder(home / "package" / "demo", {}).parent
    monkeypatch.setattr(
        "importlib.resources.files", lambda name: {"cugraphs.models": package}[name]
    )
    write_folder(home / "demo", {})
    assert find_model("demo") == package / "demo"
    assert find_model("./demo") == Path("demo")
    assert find_model(Path("demo")) == Path("demo")


def test_a_package_without_demo_says_so(home, monkeypatch):
    monkeypatch.setattr("importlib.resources.files", lambda name: home)
    assert f"the demo model is not at {home}/demo, expected in the inst" in refusal("demo")


# ---- the cache


@pytest.mark.parametrize(
    ("environment", "cache"),
    [
        ({}, "home/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "{root}/xdg"}, "xdg/huggingface/hub"),
        ({"HF_HOME": "{root}/hf", "XDG_CACHE_HOME": "{root}/xdg"}, "hf/hub"),
        ({"HF_HOME": "~/hf"}, "home/hf/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "{root}/old", "HF_HOME": "{root}/hf"}, "old"),
        ({"HF_HUB_CACHE": "{root}/new", "HUGGINGFACE_HUB_CACHE": "{root}/old"}, "new"),
        ({"HF_HUB_CACHE": "$HOME/new"}, "home/new"),
    ],
)
def test_the_cache_is_where_hugging_face_puts_it(tmp_path, monkeypatch, environment, cache):
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(root=tmp_path))
    snapshot = write_snapshot(tmp_path / cache, FILES)
    assert find_model("org/name") == snapshot


def test_revisions(home):
    cache = home / ".cache/huggingface/hub"
    main = write_snapshot(cache, FILES)
    branch = write_snapshot(cache, FILES, commit=OTHER_COMMIT, ref="refs/pr/1")
    assert find_model("org/name") == find_model("org/name@main") == main
    assert find_model("org/name@refs/pr/1") == branch
    assert find_model(f"org/name@{OTHER_COMMIT}") == branch
    assert "'org/name@v2' is neither a folder nor in" in refusal("org/name@v2")


def test_a_sharded_snapshot_needs_every_shard(home):
    cache = home / ".cache/huggingface/hub"
    files = {"model.safetensors.index.json": INDEX, "tokenizer.json": {}, "one.safetensors": b""}
    snapshot = write_snapshot(cache, files)
    text = refusal("org/name")
    assert f"is in the Hugging Face cache without two.safetensors ({snapshot})" in text
    (snapshot / "two.safetensors").write_bytes(b"")
    assert find_model("org/name") == snapshot


@pytest.mark.parametrize(
    ("files", "lacking"),
    [
        ({"tokenizer.json": {}}, "model.safetensors"),
        ({"model.safetensors": b"", "tokenizer.json": {}, "config.json": None}, "config.json"),
        ({"model.safetensors": b""}, "tokenizer.json"),
        ({}, "model.safetensors, tokenizer.json"),
    ],
)
def test_a_snapshot_that_lacks_files_says_which(home, files, lacking):
    snapshot = write_snapshot(home / ".cache/huggingface/hub", files)
    text = refusal("org/name")
    assert f"'org/name' is in the Hugging Face cache without {lacking} ({snapshot}), " in text
    assert "pip install 'cugraphs[hub]'" in text


def test_a_link_to_a_blob_that_is_gone_is_a_missing_file(home):
    snapshot = write_snapshot(home / ".cache/huggingface/hub", FILES)
    (snapshot / "model.safetensors").resolve().unlink()
    assert "without model.safetensors (" in refusal("org/name")


@pytest.mark.parametrize("ref", ["", "../../../../secret", "xyz", "a" * 39, b"\xff\xfe"])
def test_a_ref_that_is_no_commit_is_not_followed(home, ref):
    snapshot = write_snapshot(home / ".cache/huggingface/hub", FILES)
    write_folder(home / "secret", FILES)
    refs = snapshot.parent.parent / "refs" / "main"
    refs.write_bytes(ref if isinstance(ref, bytes) else ref.encode())
    assert "is neither a folder nor in the Hugging Face cache" in refusal("org/name")


# ---- download


def test_a_download_takes_safetensors_json_and_templates_only(home, monkeypatch):
    cache = home / ".cache/huggingface/hub"
    calls = fake_hub(monkeypatch, lambda: write_snapshot(cache, FILES))
    assert find_model("org/name@v1") == cache / "models--org--name/snapshots" / COMMIT
    [(repository, arguments)] = calls
    assert (repository, arguments["revision"]) == ("org/name", "v1")
    assert Path(arguments["cache_dir"]) == cache

    def taken(name):
        def hit(patterns):
            return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

        return hit(arguments["allow_patterns"]) and not hit(arguments["ignore_patterns"])

    wanted = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
    ]
    refused = [
        "pytorch_model.bin",
        "model.gguf",
        "README.md",
        "consolidated.safetensors",
        "consolidated-00001-of-00002.safetensors",
        "original/consolidated.00.pth",
        "original/params.json",
        "onnx/model.onnx",
        "adapter/adapter_model.safetensors",
    ]
    assert [name for name in wanted + refused if taken(name)] == wanted


@pytest.mark.parametrize("index", ["{", {"weight_map": 1}, {"weight_map": {"a": "../x.bin"}}])
def test_a_broken_index_is_left_to_the_checkpoint_to_explain(home, index):
    files = {"model.safetensors.index.json": index, "tokenizer.json": {}}
    snapshot = write_snapshot(home / ".cache/huggingface/hub", files)
    assert find_model("org/name") == snapshot


def test_what_is_cached_is_not_downloaded(home, monkeypatch):
    calls = fake_hub(monkeypatch, lambda: pytest.fail("downloaded"))
    snapshot = write_snapshot(home / ".cache/huggingface/hub", FILES)
    assert find_model("org/name") == snapshot
    assert not calls


def test_an_incomplete_snapshot_is_completed(home, monkeypatch):
    snapshot = write_snapshot(home / ".cache/huggingface/hub", {})

    def download():
        (snapshot / "model.safetensors").write_bytes(b"")
        return snapshot

    calls = fake_hub(monkeypatch, download)
    assert find_model("org/name") == snapshot
    assert len(calls) == 1


def test_no_download_when_not_allowed(home, monkeypatch):
    calls = fake_hub(monkeypatch, lambda: pytest.fail("downloaded"))
    text = refusal("org/name", allow_download=False)
    assert f"'org/name' is neither a folder nor in the Hugging Face cache ({home}/.cache/h" in text
    assert text.endswith(f"{WANTED} on this machine; allow the download, or give a folder")
    assert not calls


def test_without_the_extra_it_says_how(home):
    assert refusal("org/name") == (
        "find_model: 'org/name' is neither a folder nor in the Hugging Face cache "
        f"({home}/.cache/huggingface/hub), {WANTED}; "
        "to download it pip install 'cugraphs[hub]', or give a folder"
    )


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("GatedRepoError", "accept its licence on huggingface.co, then log in with"),
        ("RepositoryNotFoundError", "check the spelling; a private one needs `hf auth login`"),
        ("RevisionNotFoundError", "check the revision after the @"),
        ("ConnectError", "check the network, or give a folder"),
    ],
)
def test_a_download_that_fails_is_one_line(monkeypatch, kind, advice):
    def download():
        raise type(kind, (Exception,), {})("404 Client Error.\n\nRequest ID: 1\x1b[31m")

    fake_hub(monkeypatch, download)
    text = refusal("org/name")
    assert f"its download failed ({kind}: 404 Client Error. Request ID: 1\\x1b[31m), ex" in text
    assert advice in text


def test_a_repository_of_pickles_is_refused_after_the_download(home, monkeypatch):
    cache = home / ".cache/huggingface/hub"
    fake_hub(monkeypatch, lambda: write_snapshot(cache, {"tokenizer.json": {}}))
    assert "'org/name' has no model.safetensors on the Hub, expected a Llama" in refusal("org/name")


def test_the_names_of_errors_are_those_of_huggingface_hub(monkeypatch):
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    errors = pytest.importorskip("huggingface_hub.errors", reason="needs extra hub")
    for name in ("GatedRepoError", "RepositoryNotFoundError", "RevisionNotFoundError"):
        assert issubclass(getattr(errors, name), Exception)


# ---- what is neither


@pytest.mark.parametrize(
    "model",
    [
        "",
        "modle",
        "./a/b",
        "/a",
        "../org/name",
        "a/b/c",
        "org/",
        "a--b/c",
        "org/..",
        "o\0rg",
        "né/x",
        "o/n@../x",
        "o/n@/x",
        "o/n@",
        "o/n..m",
    ],
)
def test_a_name_that_is_no_folder_and_cannot_be_an_id(monkeypatch, model):
    calls = fake_hub(monkeypatch, lambda: pytest.fail("downloaded"))
    assert f"' does not exist, {WANTED}; " in refusal(model)
    assert not calls


def test_a_path_is_never_an_id(home):
    write_snapshot(home / ".cache/huggingface/hub", FILES)
    assert "'org/name' does not exist, expected" in refusal(Path("org/name"))


def test_a_file_is_no_folder(home):
    folder = write_folder(home / "model", FILES)
    text = refusal("model/model.safetensors")
    assert text == (
        f"find_model: 'model/model.safetensors' is a file, {WANTED}; "
        "give the folder that holds it: model"
    )
    (folder / "x.gguf").write_bytes(b"GGUF")
    assert refusal(folder / "x.gguf").endswith("GGUF is not read: give a folder of safetensors")


def test_a_name_too_long_to_look_up():
    assert "cannot be looked at (" in refusal("x" * 5000)
    assert "cannot be looked at (" in refusal("~no-such-user-here/model")


def test_close_names_are_offered(home):
    write_folder(home / "llama-1b", {})
    assert refusal("lama-1b").endswith("did you mean 'llama-1b'?")
    assert refusal(home / "lama-1b").endswith(f"did you mean '{home}/llama-1b'?")
    write_snapshot(home / ".cache/huggingface/hub", FILES)
    assert refusal("org/nane").endswith("or give a folder; did you mean 'org/name'?")
    assert refusal("org/nane", allow_download=False).endswith("did you mean 'org/name'?")


def test_names_that_are_far_are_not_offered(home):
    write_folder(home / "something", {})
    assert "did you mean" not in refusal("model-x")


def test_a_folder_without_permission(home):
    locked = home / "locked"
    locked.mkdir(mode=0)
    user = os.geteuid()
    if user == 0:  # root may look anywhere: look as somebody who may not
        os.seteuid(65534)
    try:
        told = refusal(str(locked / "model"))
    finally:
        os.seteuid(user)
    assert "cannot be looked at (" in told
