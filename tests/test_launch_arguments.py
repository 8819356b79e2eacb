"""Launches as they are handed to the driver, without one: what is packed, what layers share."""

import ctypes

import numpy as np
import pytest
from device_arrays import OnDevice

from cugraphs import launch
from cugraphs.kernel import WORKSPACE, Access, Cost, Kernel, Launch, Operand
from cugraphs.launch import PreparedLaunch, prepare

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings (extra dev)")


def launches(axes, dtype, *, scale):
    scalars = (np.float32(scale), np.int64(axes["rows"]), np.int32(-3))
    operands = ("out", WORKSPACE, "x", "bias")
    yield Launch("first<float>", (axes["rows"], 1, 1), 32, scalars, operands, programmatic=True)


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    """A kernel whose launches are planned; ``calls`` counts how often."""
    launch._plan.cache_clear()
    monkeypatch.setattr(launch, "_function", lambda *args: 77)
    monkeypatch.setattr(launch, "device_arch", lambda: "sm_90")
    calls = []

    def planned(axes, dtype, *, scale):
        calls.append(dict(axes))
        return tuple(launches(axes, dtype, scale=scale))

    made = Kernel(
        name="made",
        operands=(
            Operand("out", ("rows", "width"), "T", Access.WRITE),
            Operand("x", ("rows", "width"), "T"),
            Operand("bias", ("width",), "T", optional=True),
        ),
        reference=lambda x, bias=None, *, scale: (x,),
        cost=lambda axes, dtype, *, scale: Cost(0, 0),
        source=tmp_path / "made.cu",
        launches=planned,
        workspace=lambda axes, dtype, *, scale: 16,
    )
    yield made, calls
    launch._plan.cache_clear()


def arguments(prepared: PreparedLaunch, ctypes_of):
    """What the driver reads: it is told where each argument is."""
    where = (ctypes.c_uint64 * len(ctypes_of)).from_address(prepared._arguments)
    pairs = zip(where, ctypes_of, strict=True)
    return [type_.from_address(address).value for address, type_ in pairs]


def prepared(kernel, rows, *, scale=0.5, first=4096, bias=False):
    arrays = [OnDevice(np.zeros((rows, 8), np.float32), first + 256 * i) for i in range(2)]
    if bias:
        arrays.append(OnDevice(np.zeros(8, np.float32), 1 << 40))
    scratch = OnDevice(np.zeros(64, np.uint8), 1 << 33)
    (one,) = prepare(kernel, arrays, {"scale": scale}, stream=5, cublaslt=None, workspace=scratch)
    return one


TYPES = [ctypes.c_uint64] * 4 + [ctypes.c_float, ctypes.c_int64, ctypes.c_int32]


def test_the_driver_finds_pointers_in_order_and_scalars_of_their_own_types(kernel):
    made, _ = kernel
    assert arguments(prepared(made, 3), TYPES) == [4096, 1 << 33, 4352, 0, 0.5, 3, -3]
    with_bias = prepared(made, 3, bias=True)
    assert arguments(with_bias, TYPES) == [4096, 1 << 33, 4352, 1 << 40, 0.5, 3, -3]


def test_layers_share_a_plan_and_not_their_arguments(kernel):
    made, calls = kernel
    layers = [prepared(made, 3, first=first) for first in (4096, 8192, 12288)]
    assert len(calls) == 1
    assert [arguments(layer, TYPES)[0] for layer in layers] == [4096, 8192, 12288]
    assert len({id(layer._form) for layer in layers}) == 1


@pytest.mark.parametrize(("arch", "attributes"), [("sm_80", 0), ("sm_90", 1), ("sm_120", 1)])
def test_a_launch_is_programmatic_after_ours_where_the_gpu_has_that(
    kernel, monkeypatch, arch, attributes
):
    made, _ = kernel
    monkeypatch.setattr(launch, "device_arch", lambda: arch)
    seen = []

    def launched(config, function, arguments, extra):
        seen.append(config.numAttrs)
        return (0,)

    one = prepared(made, 3)
    one._form.launch = launched
    one()
    one(True)
    assert seen == [0, attributes]


@pytest.mark.parametrize("build", [(), (launch.DELAYED,)])
def test_the_build_reaches_the_compiler(kernel, monkeypatch, build):
    made, _ = kernel
    given = []
    monkeypatch.setattr(launch, "_function", lambda *arguments: given.append(arguments) or 77)
    arrays = [OnDevice(np.zeros((3, 8), np.float32), 256)] * 2
    scratch = OnDevice(np.zeros(64, np.uint8), 512)
    options = {"stream": 5, "cublaslt": None, "workspace": scratch}
    prepare(made, arrays, {"scale": 0.5}, build=build, **options)
    ((source, function, arch, shared_bytes, found),) = given
    assert (source, function) == (made.source, "first<float>") and found == build
    assert (arch, shared_bytes) == ("sm_90", 0)


@pytest.mark.parametrize("other", [{"rows": 4}, {"rows": 3, "scale": 2.0}])
def test_another_size_or_scalar_is_another_plan(kernel, other):
    made, calls = kernel
    prepared(made, 3)
    different = prepared(made, **other)
    assert len(calls) == 2
    assert arguments(different, TYPES)[4:6] == [other.get("scale", 0.5), other["rows"]]


def test_a_wrong_array_is_refused_whatever_was_planned_before(kernel):
    made, _ = kernel
    prepared(made, 3)
    arrays = [OnDevice(np.zeros(shape, np.float32), 256) for shape in ((3, 8), (4, 8))]
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^made: out is float32\[3, 8\], expected"):
            prepare(made, arrays, {"scale": 0.5}, stream=5, cublaslt=None, workspace=None)


def test_the_workspace_is_checked_each_time(kernel):
    made, _ = kernel
    prepared(made, 3)
    arrays = [OnDevice(np.zeros((3, 8), np.float32), 256)] * 2
    with pytest.raises(ValueError, match="workspace is 0 bytes, expected at least 16"):
        prepare(made, arrays, {"scale": 0.5}, stream=5, cublaslt=None, workspace=None)
