"""The record of GPU runs: several that end at once all leave their files in it."""

import json
from concurrent.futures import ThreadPoolExecutor

import gpu_record
import pytest

MACHINE = {"kernels_sha256": "0", "gpu": "toy"}


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_record, "RECORD", tmp_path / "record.json")
    return gpu_record.RECORD


def counts(passed):
    return {"passed": passed, "failed": 0, "skipped": 0, "seconds": 0.5}


def test_runs_that_end_at_once_are_all_recorded(record):
    runs = [{f"test_{number}.py": counts(number)} for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda files: gpu_record.add_to_record(MACHINE, files), runs))
    found = json.loads(record.read_text())
    assert len(found["files"]) == 40
    assert (found["passed"], found["seconds"]) == (sum(range(40)), 20.0)


def test_other_kernels_begin_a_new_record(record):
    gpu_record.add_to_record(MACHINE, {"a.py": counts(1)})
    gpu_record.add_to_record({**MACHINE, "kernels_sha256": "1"}, {"b.py": counts(2)})
    assert list(json.loads(record.read_text())["files"]) == ["b.py"]
