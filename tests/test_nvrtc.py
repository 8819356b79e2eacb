"""Compiling without a GPU: what a cubin says of itself, the cache, and one-line errors."""

import sys

import pytest

from cugraphs import build_cache, kernel_source, nvrtc
from cugraphs.kernels import RMS_NORM
from cugraphs.nvrtc import CompileError, compile_cubin

TEXT = """#include "scale.cuh"
template <typename T>
__global__ void scaled(T* out, const T* x) {
  __shared__ T tile[32];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = SCALE * tile[31 - threadIdx.x];
}
__global__ void __launch_bounds__(1024, 2) spills(float* out) {
  float values[64];
  for (int i = 0; i < 64; ++i) values[i] = out[i * threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 64; ++i) out[i + threadIdx.x] = values[i] * values[63 - i];
}
"""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "scale.cuh").write_text("#define SCALE 2.0f\n")
    file = tmp_path / "scaled.cu"
    file.write_text(TEXT)
    return file


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build_cache.cache_folder.cache_clear()
    yield tmp_path / "cache" / "cugraphs" / "cubins"
    build_cache.cache_folder.cache_clear()


def files(folder):
    return sorted(folder.iterdir())


def test_a_cubin_says_what_it_needs(source, cache):
    cubin = compile_cubin(source, "scaled<float>", "sm_90")
    assert cubin.data.startswith(b"\x7fELF")
    assert cubin.lowered_name == "_Z6scaledIfEvPT_PKS0_"
    assert cubin.shared_bytes == 32 * 4
    assert cubin.spill_bytes == cubin.stack_bytes == 0
    assert 0 < cubin.registers < 64


def test_spills_are_counted(source, cache):
    cubin = compile_cubin(source, "spills", "sm_80")
    assert cubin.registers <= 32
    assert cubin.spill_bytes > 0 and cubin.stack_bytes > 0


def test_a_kernel_of_the_project_compiles_for_one_generation(cache):
    assert RMS_NORM.source is not None
    assert compile_cubin(RMS_NORM.source, "rms_norm<float, 4, 32, 1>", "sm_90a").data


def test_the_cache_gives_back_what_was_compiled(source, cache, monkeypatch):
    first = compile_cubin(source, "scaled<float>", "sm_90")
    assert len(files(cache)) == 1
    monkeypatch.setattr(nvrtc, "_compile", None)
    assert compile_cubin(source, "scaled<float>", "sm_90") == first


def test_whatever_changes_a_cubin_is_in_its_key(source, cache):
    def compiled():
        return compile_cubin(source, "scaled<float>", "sm_90").data

    first = compiled()
    (source.parent / "scale.cuh").write_text("#define SCALE 3.0f\n")
    assert compiled() != first  # only a header has changed
    source.write_text(TEXT.replace("31 -", "30 -"))
    compiled()
    compile_cubin(source, "scaled<float>", "sm_80")
    compile_cubin(source, "scaled<double>", "sm_90")
    compile_cubin(source, "scaled<float>", "sm_90", options=("--use_fast_math",))
    assert len(files(cache)) == 6


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"not a cubin", b'{"hash": "0"}\nabc'])
def test_a_broken_file_is_compiled_again(source, cache, damage, monkeypatch):
    first = compile_cubin(source, "scaled<float>", "sm_90")
    (file,) = files(cache)
    for content in (damage, file.read_bytes()[:-1]):
        file.write_bytes(content)
        assert compile_cubin(source, "scaled<float>", "sm_90") == first
    monkeypatch.setattr(nvrtc, "_compile", None)
    assert compile_cubin(source, "scaled<float>", "sm_90") == first


def test_a_cache_that_cannot_be_written_is_done_without(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    build_cache.cache_folder.cache_clear()
    try:
        assert compile_cubin(source, "scaled<float>", "sm_90").data
    finally:
        build_cache.cache_folder.cache_clear()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tile[threadIdx.x] =", "tiles[threadIdx.x] =", r'^scaled.cu:5: identifier "tiles" is und'),
        ("scale.cuh", "scales.cuh", r'^scaled.cu:1: .*"scales.cuh"'),
        ("scaled(T*", "renamed(T*", r'^scaled.cu: .*"scaled"'),
    ],
)
def test_an_error_names_file_and_line(source, cache, old, new, message):
    source.write_text(TEXT.replace(old, new))
    with pytest.raises(CompileError, match=message) as caught:
        compile_cubin(source, "scaled<float>", "sm_90")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("(compiling scaled<float> for sm_90)")
    assert not files(cache)


def test_an_error_in_a_header_names_the_header(source, cache):
    (source.parent / "scale.cuh").write_text("\n#define SCALE\nfloat f( {\n")
    with pytest.raises(CompileError, match=r"^scale.cuh:3: "):
        compile_cubin(source, "scaled<float>", "sm_90")


def test_an_unknown_architecture_is_an_error(source, cache):
    with pytest.raises(CompileError, match="invalid value for --gpu-architecture"):
        compile_cubin(source, "scaled<float>", "sm_1")


def test_a_missing_source_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"kernel source: .*none.cu does not exist"):
        compile_cubin(tmp_path / "none.cu", "k", "sm_90")


def test_without_the_bindings_the_message_says_what_to_install(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    nvrtc.nvrtc_version.cache_clear()
    with pytest.raises(RuntimeError, match=r"cuda-bindings is not installed.*cugraphs\[cuda13\]"):
        compile_cubin(source, "scaled<float>", "sm_90")


def test_without_headers_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(kernel_source, "_NEEDED_HEADERS", ("no_such_header.h",))
    kernel_source.cuda_include_folder.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r"^CUDA headers: .*not found.*cugraphs\[cuda13\]"):
            kernel_source.cuda_include_folder()
    finally:
        kernel_source.cuda_include_folder.cache_clear()
