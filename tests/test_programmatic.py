"""Programmatic launches: every kernel of ours is one, and none reads too early what another writes.

A launch that begins before the one before has ended may read, before it waits, only what no launch
writes. The emulation checks what a kernel does; here is what the compiler may make of it, and which
launches the attribute is dropped from.
"""

import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from cugraphs.cuda_device import is_settled
from cugraphs.emulation.emulate import bind_launches
from cugraphs.kernel import (
    NOTHING,
    WORKSPACE,
    Access,
    Kernel,
    Launch,
    Operand,
    offset_in_workspace,
)
from cugraphs.kernels import ALL
from cugraphs.launch import queue
from cugraphs.testing import case_arrays, check_plan

SIGNATURE = re.compile(r"__global__.*?(\w+)\(((?:[^()]|\([^()]*\))*)\)\s*\{", re.S)
COMMENT = re.compile(r"//[^\n]*")


def launches_of(kernel):
    """Each launch of the cases, those for one architecture too."""
    for case, dtype in check_plan(kernel):
        _, launches = bind_launches(kernel, case_arrays(kernel, case, dtype), case.attrs)
        for launch in launches:
            if isinstance(launch, Launch):
                everywhere = (launch, *(launch.elsewhere or ()))
                yield from (each for each in everywhere if isinstance(each, Launch))


def signatures(text):
    """Parameters of each __global__ function, by its name."""
    plain = re.sub(r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)", "", COMMENT.sub("", text))
    return {match[1]: match[2].split(",") for match in SIGNATURE.finditer(plain)}


def wrong_parameters(kernel, launch, functions):
    """Parameters that the compiler may read ahead of the wait, and that another launch may write.

    What a pointer to const with __restrict__ points to is read-only memory to the compiler, and a
    pointer with __restrict__ is to memory that nobody else writes: both let it move a read across
    the wait. So only results that are not read, and constants, are called so.
    """
    operands = {operand.name: operand for operand in kernel.operands}
    names = launch.operands or tuple(operands)
    parameters = functions[launch.function.partition("<")[0]]
    if launch.stack:  # which comes first, as one parameter
        parameters = parameters[1:]
    for name, parameter in zip(names, parameters, strict=False):
        operand = operands.get(name)
        if name == NOTHING:
            continue
        if name != WORKSPACE and offset_in_workspace(name) is not None:
            read = "const" in parameter.split()  # the result of another launch of the kernel
        else:
            read = name == WORKSPACE or (
                operand.access is not Access.WRITE and not operand.constant
            )
        if read and "__restrict__" in parameter:
            yield " ".join(parameter.split())


WITH_SOURCE = [kernel for kernel in ALL if kernel.source is not None]


@pytest.mark.parametrize("kernel", WITH_SOURCE, ids=lambda kernel: kernel.name)
def test_every_launch_is_programmatic_and_reads_nothing_early(kernel):
    functions = {}
    for file in sorted(kernel.source.parent.glob("*.cu*")):
        functions |= signatures(file.read_text())
    seen = {}
    for launch in launches_of(kernel):
        assert launch.programmatic, f"{launch.function} is not programmatic"
        seen[launch.function.partition("<")[0]] = launch
    for launch in seen.values():
        assert not [*wrong_parameters(kernel, launch, functions)], launch.function


def test_the_check_finds_what_may_be_read_early():
    kernel = Kernel(
        "toy",
        (
            Operand("out", ("n",), "float32", Access.WRITE),
            Operand("x", ("n",), "float32"),
            Operand("weight", ("n",), "float32", constant=True),
        ),
        reference=lambda x, weight: (x,),
        cost=None,
    )
    text = """template <typename T>
    __global__ void __launch_bounds__(kMost(2), 1) toy(
        T* __restrict__ out,        // [n], const T* __restrict__ is not for x
        const T* __restrict__ x,
        const T* __restrict__ weight) {"""
    functions = signatures(text)
    assert list(functions) == ["toy"] and len(functions["toy"]) == 3
    launch = Launch("toy<float>", (1, 1, 1), 32)
    assert [*wrong_parameters(kernel, launch, functions)] == ["const T* __restrict__ x"]
    right = signatures(text.replace("const T* __restrict__ x", "const T* x"))
    assert not [*wrong_parameters(kernel, launch, right)]


def test_a_written_operand_is_not_constant():
    with pytest.raises(ValueError, match="toy: out is constant and write, expected constant"):
        out = Operand("out", ("n",), "float32", Access.WRITE, constant=True)
        Kernel("toy", (out, Operand("x", ("n",), "float32")), reference=None, cost=None)


@pytest.mark.parametrize(
    ("access", "change", "what"),
    [
        (
            Access.WRITE,
            {"settled": True},
            "settled and write, expected settled operands to be READ or UPDATE",
        ),
        (
            Access.READ,
            {"appends": True},
            "appends and is read, expected operands that are appended",
        ),
    ],
)
def test_what_is_settled_is_read_and_what_appends_updates(access, change, what):
    with pytest.raises(ValueError, match=f"toy: x (is )?{what}"):
        operands = (Operand("x", ("n",), "float32", access, **change),)
        Kernel("toy", operands, reference=None, cost=None)


def test_settled_is_what_the_op_before_does_not_write_or_only_appends_to():
    def op(*operands, buffers):
        kernel = Kernel("toy", operands, reference=lambda cache, lengths: (), cost=None)
        return SimpleNamespace(kernel=kernel, operands=buffers)

    q, cache, lengths = (SimpleNamespace(name=name) for name in ("q", "cache", "lengths"))
    out = Operand("q", ("n",), "float32", Access.WRITE)
    updated = Operand("cache", ("m",), "float32", Access.UPDATE)
    read = Operand("lengths", ("n",), "int32")
    appends = op(out, replace(updated, appends=True), read, buffers=(q, cache, lengths))
    updates = op(out, updated, read, buffers=(q, cache, lengths))
    assert [is_settled(b, appends) for b in (q, cache, lengths)] == [False, True, True]
    assert [is_settled(b, updates) for b in (q, cache, lengths)] == [False, False, True]
    assert not is_settled(lengths, None)  # nothing is known of what is before


def test_only_what_directly_follows_one_of_ours_may_begin_early():
    told = []

    def prepared(name, is_ours):
        call = partial(lambda name, after_ours: told.append((name, after_ours)), name)
        return type("Prepared", (), {"__call__": lambda self, *a: call(*a), "is_ours": is_ours})()

    a, b, c = (prepared(name, True) for name in "abc")
    product = prepared("product", False)
    assert queue([a, b, product, c, a]) is True
    assert told == [("a", False), ("b", True), ("product", True), ("c", False), ("a", True)]
    assert queue([a, product], True) is False
    assert queue([], True) is True and queue([]) is False
    assert told[5:] == [("a", True), ("product", True)]
