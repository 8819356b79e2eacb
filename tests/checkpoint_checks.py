"""Small checkpoints, and what the tests of reading them look at: messages, files and memory."""

import contextlib
import os
import resource
from pathlib import Path

import pytest
from model_folders import tensors_bytes

from cugraphs.checkpoint import Checkpoint, CheckpointError

ONE = tensors_bytes({"a": ("F32", (1,), b"\0\0\x80\x3f")})  # a = [1.0]
TWO = tensors_bytes({"b": ("F32", (1,), b"\0\0\0\x40")})  # b = [2.0]
INDEX = "model.safetensors.index.json"
SHARDED = {
    INDEX: {"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}},
    "one.safetensors": ONE,
    "two.safetensors": TWO,
}
GOOD = {"model.safetensors": ONE}


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
