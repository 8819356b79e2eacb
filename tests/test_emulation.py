"""The emulation itself: planted mistakes are found where they are, and right kernels pass."""

import re
import resource
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, needs_compiler

from cugraphs.emulation import BuildError, EmulationError, emulate
from cugraphs.emulation import build as build_module
from cugraphs.kernel import Access, Case, Cost, Kernel, Launch, MatrixProduct, Operand

pytestmark = needs_compiler

SOURCE = Path(__file__).with_name("planted.cu")
TEXT = SOURCE.read_text()
ORDERS = ("forward", "reverse", "random")
# A block reads what another one wrote: what lacks between.
UNPUBLISHED = ("no_fence_before_the_atomic", "no_fence_after_the_atomic", "stores_after_the_fence")
BLOCKS = {"reversed": 3, "last_block_adds": 5, "blocks_write_one_element": 2}
BLOCKS |= dict.fromkeys(UNPUBLISHED, 2)
PROGRAMMATIC = {
    "writes_before_the_wait",
    "reads_before_the_wait",
    "returns_without_the_wait",
    "waits",
}

REVERSED = ("reversed", "reversed_twice", "class_in_shared_memory", "copied")
RIGHT = (*REVERSED, "last_block_adds", "syncwarp", "waits")
# The mistake, and what the message must say of it.
WRONG = {
    "no_barrier": r"read of uninitialised shared memory tile at byte 252",
    "no_second_barrier": r"race on shared memory tile .*: read here, written by thread \d+ with no",
    "last_thread_does_not_wait": r"race on shared memory total at byte 0: written here, read by th",
    "no_syncwarp": r"read of uninitialised shared memory tile at byte 4",
    "reads_past_the_end": r"read of 4 bytes out of bounds, at byte 256 of x, which has 256",
    "writes_past_the_end": r"write of 4 bytes out of bounds, at byte 256 of out, which has 256",
    "reads_unwritten_shared": r"read of uninitialised shared memory tile at byte 128",
    "reads_unwritten_output": r"read of uninitialised out at byte 0",
    "writes_an_input": r"write to x, an operand that is READ",
    "misaligned": r"misaligned access: the address is 4 bytes off a multiple of 16",
    "array_index": r"index out of the bounds of an array",
    "int_overflow": r"overflow of a signed integer in a multiplication",
    "null_bias": r"read of 4 bytes through a null pointer: an optional operand that was left out",
    "blocks_write_one_element": r"race on out at byte 0: written here, written by block 0 in the",
    "two_barriers": r"meet at different barriers: thread 0 here, thread 32 at planted.cu:\d+",
    "half_a_warp_shuffles": r"deadlock: thread \d+ waits here .* 0 of 64 have returned",
    "mask_without_the_caller": r"mask 0000ffff of a warp's collective lacks the calling lane 16",
    "copy_without_wait": r"read of uninitialised shared memory tile at byte 0",
    "copy_without_barrier": r"race on shared memory|read of uninitialised shared memory",
    "writes_before_the_wait": r"write of out before griddepcontrol.wait",
    "reads_before_the_wait": r"read of x before griddepcontrol.wait",
    "returns_without_the_wait": r"a thread returns without griddepcontrol.wait",
}


def launches(axes, dtype, *, function):
    blocks = BLOCKS.get(function, 1)
    return (
        Launch(
            function,
            (blocks, 1, 1),
            64,
            (np.int32(16),),
            shared_bytes=256 if function == "reversed_twice" else 0,
            programmatic=function in PROGRAMMATIC,
        ),
    )


def planted(cases, source=SOURCE, launches=launches):
    return Kernel(
        "planted",
        (
            Operand("out", ("n",), "float32", Access.WRITE),
            Operand("x", ("n",), "float32"),
            Operand("bias", ("n",), "float32", optional=True),
        ),
        reference=lambda x, bias=None, *, function: (x,),
        cost=lambda axes, dtype, **_: Cost(0, 0),
        cases=tuple(
            Case(name, lambda rng, dtype: (np.zeros(64, np.float32),), {"function": name})
            for name in cases
        ),
        source=source,
        launches=launches,
    )


PLANTED = planted((*RIGHT, *WRONG, *UNPUBLISHED))


def run(function, n=64, *, kernel=PLANTED, **how):
    x = np.arange(1, n + 1, dtype=np.float32)
    return emulate(kernel, (x,), {"function": function}, **how)[0]


def line_of(marker):
    """Line of the comment that is exactly this name."""
    lines = TEXT.splitlines()
    return 1 + next(i for i, line in enumerate(lines) if line.endswith(f"// {marker}"))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
def test_right_kernels_pass(checked, order):
    how = {"checked": checked, "order": order}
    x = np.arange(1, 65, dtype=np.float32)
    for name in ("reversed_twice", "waits"):
        np.testing.assert_array_equal(run(name, **how), x)
    for name in ("class_in_shared_memory", "copied"):
        np.testing.assert_array_equal(run(name, **how), x[::-1])
    np.testing.assert_array_equal(run("syncwarp", **how), x.reshape(-1, 2)[:, ::-1].ravel())
    blocks = np.arange(1, 193, dtype=np.float32).reshape(3, 64)[:, ::-1].ravel()
    np.testing.assert_array_equal(run("reversed", 192, **how), blocks)


@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
def test_the_last_block_may_read_what_others_wrote_behind_a_fence(checked):
    # Block 0 clears the counter, so it must come first.
    assert run("last_block_adds", checked=checked)[0] == 1 + 2 + 3 + 4 + 5


def test_a_settled_operand_may_be_read_before_the_wait_but_for_what_is_appended():
    out, x, bias = PLANTED.operands
    settled = replace(PLANTED, operands=(out, replace(x, settled=True), bias))
    x = np.arange(1, 65, dtype=np.float32)
    how = {"kernel": settled, "checked": True}
    np.testing.assert_array_equal(run("reads_before_the_wait", late={"x": []}, **how), x)
    with pytest.raises(AssertionError, match=r"read of x before griddepcontrol\.wait"):
        run("reads_before_the_wait", late={"x": [range(40, 41)]}, **how)
    np.testing.assert_array_equal(run("waits", late={"x": [range(64)]}, **how), x)


def test_a_launch_that_settles_waits_before_it_lets_the_next_one_start():
    def settling(axes, dtype, *, function):
        (launch,) = launches(axes, dtype, function=function)
        return (replace(launch, programmatic=True, settles=True),)

    name = "lets_the_next_start_before_the_wait"
    kernel = planted([name, "reads_before_the_wait"], launches=settling)
    with pytest.raises(AssertionError, match="a launch that settles lets the next one start befor"):
        run(name, kernel=kernel)


def test_a_constant_operand_may_be_read_before_the_wait():
    out, x, bias = PLANTED.operands
    constant = replace(PLANTED, operands=(out, replace(x, constant=True), bias))
    x = np.arange(1, 65, dtype=np.float32)
    np.testing.assert_array_equal(run("reads_before_the_wait", kernel=constant, checked=True), x)


@pytest.mark.parametrize(("function", "message"), WRONG.items(), ids=WRONG)
def test_a_planted_mistake_is_found_where_it_is(function, message):
    with pytest.raises(AssertionError, match=message) as caught:
        run(function, checked=True)
    if function != "returns_without_the_wait":
        assert str(caught.value).startswith(f"planted.cu:{line_of(function)}: block (")
    assert function in str(caught.value)


@pytest.mark.parametrize("function", UNPUBLISHED)
def test_what_another_block_wrote_is_published_and_looked_for(function):
    line = line_of("lacks_a_fence")
    where = (
        rf"^planted.cu:{line}.*: race on out at byte 4: read here, written by block 0 in the same"
    )
    with pytest.raises(AssertionError, match=where):
        run(function, checked=True)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("function", ["no_barrier", "no_second_barrier", "copy_without_barrier"])
def test_a_race_is_found_in_every_order(function, seed):
    with pytest.raises(AssertionError, match=r"race on|uninitialised"):
        run(function, checked=True, order="random", seed=seed)


def test_a_missing_barrier_changes_the_result_with_the_order():
    right = np.arange(64, 0, -1, dtype=np.float32)
    results = [run("no_barrier", order=order) for order in ORDERS]
    assert not all(np.array_equal(result, right, equal_nan=True) for result in results)


def test_random_order_repeats_with_its_seed():
    first, again = (run("no_barrier", order="random", seed=3) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_shared_memory_holds_nan_until_it_is_written():
    result = run("reads_unwritten_shared")
    assert np.isnan(result[32:]).all() and not np.isnan(result[:32]).any()


def test_a_plain_run_notices_writes_around_operands_and_to_inputs():
    with pytest.raises(AssertionError, match=r"^planted: 4 bytes around out .* \+0 from its end$"):
        run("writes_past_the_end")
    with pytest.raises(AssertionError, match=r"^planted: x was changed, expected READ to leave"):
        run("writes_an_input")


def test_an_optional_operand_is_passed_where_it_is_given():
    x, bias = np.ones(64, np.float32), np.full(64, 2, np.float32)
    (out,) = emulate(PLANTED, (x, bias), {"function": "null_bias"}, checked=True)
    np.testing.assert_array_equal(out, 3)


def test_an_empty_axis_launches_nothing():
    assert run("reversed", 0).shape == (0,)


def test_libraries_that_are_loaded_at_once_have_shared_memory_of_their_own(tmp_path):
    # One symbol for both would be the shared memory of whichever library was loaded first.
    template = """
        template <int kSize>
        __global__ void swap(float* out, const float* x, const float* bias, int n) {
          __shared__ float tile[kSize];
          tile[threadIdx.x] = x[threadIdx.x];
          __syncthreads();
          out[threadIdx.x] = %s tile[kSize - 1 - threadIdx.x];
        }
    """
    kernels = []
    for sign in "+-":
        source = tmp_path / f"swap{ord(sign)}.cu"
        source.write_text(template % sign)
        kernels.append(planted(["swap<64>"], source))
    for _ in range(2):
        for kernel, sign in zip(kernels, (1, -1), strict=True):
            result = run("swap<64>", kernel=kernel, checked=True)
            np.testing.assert_array_equal(result, sign * np.arange(64, 0, -1))


def test_a_function_of_no_case_is_built_on_its_own():
    assert run("reversed", kernel=planted(["syncwarp"]))[0] == 64


# ------------------------------------------------------------------------------- what is refused


def wrong_scalars(axes, dtype, *, function):
    return (Launch(function, (1, 1, 1), 64, (np.float32(16),)),)


def missing_operand(axes, dtype, *, function):
    return (Launch(function, (1, 1, 1), 64, (np.int32(16),), operands=("out", "x")),)


def swapped_operands(axes, dtype, *, function):
    return (Launch(function, (1, 1, 1), 64, (np.int32(16),), operands=("x", "out", "bias")),)


@pytest.mark.parametrize(
    ("launches", "message"),
    [
        (wrong_scalars, "parameter 3 is an integer of 4 bytes, expected a float of 4 bytes for"),
        (missing_operand, "the launch passes 3 arguments, the function takes 4"),
        (
            swapped_operands,
            "parameter 0 is a pointer to 4-byte elements, expected a pointer to con",
        ),
    ],
)
def test_arguments_of_another_type_than_the_parameters_are_refused(launches, message):
    with pytest.raises(AssertionError, match=f"^reversed: {re.escape(message)}"):
        run("reversed", kernel=planted(["reversed"], launches=launches))


def test_launch_shapes_that_no_device_takes_are_refused():
    for grid, block, message in (
        ((1, 1, 1), 1025, "block is 1025, expected 1 to 1024"),
        ((0, 1, 1), 64, r"grid is \(0, 1, 1\), expected at least 1"),
        ((1, 65536, 1), 64, "at most 65535 blocks in y and z"),
    ):
        kernel = planted(
            ["reversed"],
            launches=lambda axes, dtype, *, function, grid=grid, block=block: (
                Launch(function, grid, block, (np.int32(1),)),
            ),
        )
        with pytest.raises(ValueError, match=message):
            run("reversed", kernel=kernel)


def wide_launches(axes, dtype, *, function):
    return (Launch(function, (1, 1, 1), 1024, (np.int32(16),)),)


@contextmanager
def little_memory(mebibytes):
    """The process may map so much more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + (mebibytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def runs_out_of_memory(how):
    """In a process of its own, whose memory no other test has taken: messages, and that it goes on.

    Args:
        how: "stacks" or "operands" are what there is no memory for.
    """
    checked = how == "operands"
    wide = planted(["reversed"], launches=wide_launches)
    run("reversed", 192, checked=checked)  # which builds it
    with little_memory(400 if checked else 128):
        try:
            if checked:
                run("reversed", 4 << 20, checked=True)
            else:
                run("reversed", 1024, kernel=wide, checked=False)
        except EmulationError as error:
            print(error)
    assert run("reversed", 192, checked=checked)[0] == 64


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "stacks",
            r"reversed: 1024 threads run at the same time, and after the stacks of \d+ the system "
            r'answers "Cannot allocate memory": all take 2048 memory maps and 272629760 bytes of '
            r"addresses; raise vm\.max_map_count \(sysctl; here \d+\) or the process's limit "
            r"\(ulimit -v\), or take a case of fewer threads\n",
        ),
        (
            "operands",
            r"operand \w+: what is known of 16777216 bytes takes \d+ bytes of addresses, and the "
            r'system answers "Cannot allocate memory"; raise the process\'s limit \(ulimit -v\) or '
            r"vm\.overcommit_memory, take a smaller case, or run it unchecked\n",
        ),
    ],
    ids=["stacks", "operands"],
)
def test_where_memory_ends_the_message_says_what_it_is_for_and_the_process_goes_on(how, message):
    command = (
        f"import sys; sys.path.append('tests'); import {Path(__file__).stem} as t; "
        f"t.runs_out_of_memory({how!r})"
    )
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(message, done.stdout)


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        ("\n__global__ void k(float* o) { o[0] = y; }", "k", r"^wrong.cu:2: 'y' was not declared"),
        ("__global__ void k(float* o) {}", "other", r"^wrong.cu: 'other' was not declared"),
        (
            "__global__ void k(float* o) { extern __shared__ float tile[]; o[0] = tile[0]; }",
            "k",
            r"^wrong.cu: .*tile.* is not defined; dynamic shared memory is named `smem`",
        ),
    ],
    ids=["undeclared", "no_such_function", "name_of_dynamic_shared_memory"],
)
def test_a_source_that_does_not_build_says_where(tmp_path, text, function, message):
    source = tmp_path / "wrong.cu"
    source.write_text(text)
    with pytest.raises(BuildError, match=message):
        run(function, kernel=planted([function], source))


def test_without_a_compiler_the_message_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    build_module.compiler.cache_clear()
    with pytest.raises(RuntimeError, match=r"g\+\+ is not found.*apt-get install g\+\+"):
        build_module.compiler()


def test_a_kernel_without_a_source_is_refused():
    with pytest.raises(ValueError, match=r"^planted: source or launches is None"):
        emulate(planted([], source=None), (np.ones(4, np.float32),), {"function": "x"})
    with pytest.raises(ValueError, match=r"^emulate: order is 'sideways', expected one of forward"):
        run("reversed", order="sideways")


# ---------------------------------------------------------------- what else a declaration can say


def test_what_one_architecture_has_runs_its_portable_form():
    special = Launch(
        "needs_wgmma",
        (1, 1, 1),
        128,
        arch="sm_90a",
        elsewhere=(Launch("reversed", (1, 1, 1), 64, (np.int32(1),)),),
    )
    kernel = planted(["reversed"], launches=lambda axes, dtype, *, function: (special,))
    assert run("reversed", kernel=kernel)[0] == 64
    assert special.on("sm_90") == (special,)
    assert special.on("sm_100") == special.elsewhere == special.on("")
    with pytest.raises(ValueError, match="expected both or neither"):
        Launch("needs_wgmma", (1, 1, 1), 128, arch="sm_90a")


def test_a_matrix_product_is_computed_beside_the_launches():
    kernel = Kernel(
        "product",
        (
            Operand("out", ("m", "n"), "T", Access.WRITE),
            Operand("x", ("m", "k"), "T"),
            Operand("weight", ("n", "k"), "T"),
            Operand("bias", ("n",), "T", optional=True),
        ),
        reference=lambda x, weight, bias=None: (x,),
        cost=lambda axes, dtype: Cost(0, 0),
        source=SOURCE,
        launches=lambda axes, dtype: (MatrixProduct(),),
    )
    x, weight = np.array([[1, 2]], np.float16), np.array([[3, 4], [5, 6]], np.float16)
    np.testing.assert_array_equal(emulate(kernel, (x, weight), {})[0], [[11, 17]])
    bias = np.array([100, 200], np.float16)
    np.testing.assert_array_equal(emulate(kernel, (x, weight, bias), {})[0], [[111, 217]])
