"""Kernels whose every operation is rounded on its own, or that compute with integers alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cugraphs.emulation.emulate import bind_launches
from cugraphs.kernel import DTYPES
from cugraphs.testing import ORDERS, case_arrays
from emulated_identities.any_kernel import orders_agree, reference_bits
from emulated_identities.identity import Identity, Kernels, assert_same_bits, case_named
from emulated_identities.in_place import buffers_of, launch_in_place


def rows_begin_with_the_changes(kernels: Kernels) -> None:
    """Where words are the state's memory, rows see what the same launch has changed in it."""
    kernel = kernels["begin_rows"]
    fields = ("last_token", "num_computed", "done", "block_tables", "num_logprobs")
    names = [operand.name for operand in kernel.supplied]
    for case in (case_named(kernel, name) for name in ("dead_rows", "done_and_full")):
        apart = case_arrays(kernel, case, "bfloat16")
        given = dict(zip(names, apart, strict=True))
        expected = kernel.reference(*[array.copy() for array in apart], **case.attrs)
        values = np.concatenate([given[name].reshape(-1) for name in fields])
        given["changes"] = np.stack([np.arange(len(values)), values], axis=1, dtype=np.int32)
        for order, checked in (*((order, False) for order in ORDERS), ("forward", True)):
            given["words"] = np.roll(np.resize(values, len(given["words"])), 1)
            given["step"] = apart[names.index("step")].copy()
            begin = 0
            for name in fields:
                size, shape = given[name].size, given[name].shape
                given[name] = given["words"][begin : begin + size].reshape(shape)
                begin += size
            produced, launches = bind_launches(kernel, [*given.values()], case.attrs)
            found = [np.empty(type_.shape, DTYPES[type_.dtype]) for type_ in produced]
            buffers = buffers_of(kernel, [*found, *given.values()])
            owners = [name for name in buffers if name not in fields] if checked else []
            launch_in_place(kernel, launches, buffers, checked=owners, order=order)
            assert_same_bits(f"begin_rows {case.name} {order}", found, expected)
            assert (given["words"][:begin] == values).all()


IDENTITIES: Mapping[str, tuple[Identity, ...]] = {
    **{
        name: (orders_agree(name), reference_bits(name))
        for name in (
            *("add", "advance", "apply_changes", "attention_parts", "copy_blocks"),
            *("decode_rows", "embedding", "loop_control", "mixed_rows"),
        )
    },
    "begin_rows": (
        orders_agree("begin_rows"),
        reference_bits("begin_rows"),
        rows_begin_with_the_changes,
    ),
}
"""What is asked of each kernel, by its name."""
