"""The README's code runs as it stands there."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import needs_compiler

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def code(language: str, containing: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (block,) = [block for block in blocks if containing in block]
    return block


def run(*arguments: object, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_generate_stream_and_chat(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(code("python", "= LLM("))
    printed = run("example.py", cwd=tmp_path)
    assert printed.count("Once upon a time, there was a small, playful girl named Susan") == 1
    assert "In a deep forest" in printed
    assert "demo model of cugraphs" in printed


def test_many_tasks_at_once(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(code("python", "AsyncLLM("))
    assert len(run("example.py", cwd=tmp_path)) > 100


@pytest.fixture
def my_kernels(tmp_path: Path) -> Path:
    (tmp_path / "my_kernels.py").write_text(code("python", "SCALED_ADD = Kernel("))
    (tmp_path / "scaled_add.cu").write_text(code("cuda", "scaled_add"))
    return tmp_path


@needs_compiler
def test_the_kernel_of_the_reader_is_proven(my_kernels: Path) -> None:
    printed = run("my_kernels.py", cwd=my_kernels)
    assert "scaled_add three_rows bfloat16 emulate: passed" in printed
    assert "scaled_add three_rows float32 compile: passed" in printed
    table = run("-m", "cugraphs", "check", "my_kernels.py:SCALED_ADD", cwd=my_kernels)
    assert "scaled_add" in table


def test_the_step_of_the_reader_runs(my_kernels: Path) -> None:
    (my_kernels / "my_step.py").write_text(code("python", "cugraphs.compile("))
    printed = run("my_step.py", cwd=my_kernels)
    assert "padding_rows=2" in printed and "off_ladder_steps=1" in printed
    assert "weights: 16,640 bytes" in printed and "outputs/y" in printed


@needs_compiler
def test_without_the_if_it_names_the_line_that_writes_out_of_bounds(my_kernels: Path) -> None:
    source = my_kernels / "scaled_add.cu"
    text = source.read_text()
    assert "if (i < count) " in text
    source.write_text(text.replace("if (i < count) ", ""))
    with pytest.raises(AssertionError, match=r"scaled_add\.cu:7"):
        run("my_kernels.py", cwd=my_kernels)


def test_the_list_of_files_names_every_module():
    (tree,) = re.findall(r"```\ncugraphs/\n(.*?)```", README, re.DOTALL)
    in_package, _, _ = tree.partition("\nkernels/")
    modules = {file.name for file in (ROOT / "cugraphs").glob("[!_]*.py")}
    kernels = {file.name for file in (ROOT / "cugraphs").glob("*.cu")}
    assert sorted(re.findall(r"\b\w+\.(?:py|cu)\b", in_package)) == sorted(modules | kernels)


def names_of(pattern: str) -> list[str]:
    """What a pattern such as `linear_{add,swiglu}.{cu,py}` stands for."""
    parts = [part.split(",") for part in re.split(r"[{}]", pattern)]
    return ["".join(name) for name in itertools.product(*parts)]


def test_the_map_of_the_kernels_names_every_file_once() -> None:
    (tree,) = re.findall(r"```\nkernels/\n(.*?)```", README, re.DOTALL)
    patterns = re.findall(r"[\w{},]+\.(?:cuh?\b|py\b|\{[\w,]+\})", tree)
    named = [name for pattern in patterns for name in names_of(pattern)]
    assert sorted(named) == sorted(f.name for f in (ROOT / "kernels").iterdir() if f.is_file())
