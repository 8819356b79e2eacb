"""Runs of the kernels' sources on the CPU that must agree in every bit."""

import errno

import pytest
from conftest import needs_compiler
from emulated_identities import IDENTITIES

from cugraphs.kernels import ALL

pytestmark = needs_compiler

KERNELS = {kernel.name: kernel for kernel in ALL}
# One call asks all the kernels that share an identity; it stands under the first one's name.
# What `orders_agree` runs, test_emulated_kernels.py does, and compares it there.
CHECKS = {}
for name, identities in IDENTITIES.items():
    for identity in identities:
        if identity.__name__ == "orders_agree":
            continue
        CHECKS.setdefault(identity, f"{name}-{identity.__name__}")


def test_every_kernel_with_a_source_has_an_identity():
    assert set(IDENTITIES) == {kernel.name for kernel in ALL if kernel.source is not None}


@pytest.mark.parametrize("check", CHECKS, ids=list(CHECKS.values()))
def test_identity(check):
    try:
        check(KERNELS)
    except OSError as problem:
        if problem.errno != errno.ENOMEM:
            raise
        pytest.skip(f"this machine lends too little address space: {problem}")
