"""Kernels compiled together in processes: the same cubins; what fails is left to the caller."""

import os
from pathlib import Path

import pytest

from cugraphs import compile_processes, nvrtc
from cugraphs.build_cache import cache_folder
from cugraphs.compile_processes import compile_together

pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC (extra dev)")

SOURCE = """
template <typename T> __global__ void scale(T* x, T by) { x[threadIdx.x] *= by; }
"""


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """An empty cache, and two cores whatever the machine has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    cache_folder.cache_clear()
    yield tmp_path / "caches" / "cugraphs" / "cubins"
    cache_folder.cache_clear()


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "scale.cu"
    file.write_text(SOURCE)
    return file


def scales(source, *types):
    return [(source, f"scale<{type_}>", "sm_90") for type_ in types]


def test_what_is_compiled_together_is_what_is_compiled_alone(caches, source):
    functions = scales(source, "float", "int", "double")
    assert compile_together(functions) == 2
    assert len(list(caches.iterdir())) == 3 and all(nvrtc.is_compiled(*f) for f in functions)
    for function in functions:
        together = nvrtc.compile_cubin(*function)
        assert together == nvrtc._compile(*function, nvrtc._OPTIONS)
    assert compile_together(functions) == 0  # nothing is missing


def test_a_kernel_that_does_not_compile_is_left_to_its_caller(caches, source):
    functions = scales(source, "float", "no_such_type", "int")
    compile_together(functions)
    assert [nvrtc.is_compiled(*function) for function in functions] == [True, False, True]
    with pytest.raises(nvrtc.CompileError, match="no_such_type"):
        nvrtc.compile_cubin(*functions[1])


@pytest.mark.parametrize("lack", ["a second kernel", "a second core", "a cache", "processes"])
def test_where_nothing_is_gained_or_possible_nothing_is_done(caches, source, monkeypatch, lack):
    functions = scales(source, "float", "int")
    if lack == "a second kernel":
        functions = functions[:1]
    elif lack == "a second core":
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    elif lack == "a cache":  # that other processes find
        folder = Path(source).parent / "cugraphs-cubins-x"
        monkeypatch.setattr(compile_processes, "cache_folder", lambda kind: folder)
    else:
        monkeypatch.setattr(compile_processes.sys, "executable", "/no/such/python")
    assert compile_together(functions) == 0
    assert not any(nvrtc.is_compiled(*function) for function in functions)


def test_a_source_that_changes_has_another_key(caches, source):
    (function,) = scales(source, "float")
    nvrtc.compile_cubin(*function)
    assert nvrtc.is_compiled(*function)
    source.write_text(SOURCE.replace("*=", "+="))
    os.utime(source, ns=(1, 1))  # an older file, as a checkout may bring
    assert not nvrtc.is_compiled(*function)
    source.write_text('#include "step.cuh"\n' + SOURCE)
    (source.parent / "step.cuh").write_text("// one\n")
    nvrtc.compile_cubin(*function)
    (source.parent / "step.cuh").write_text("// two\n")
    assert not nvrtc.is_compiled(*function)
