"""Kernels whose every operation is rounded on its own, or that compute with integers alone."""

from __future__ import annotations

from collections.abc import Mapping

from emulated_identities.any_kernel import orders_agree, reference_bits
from emulated_identities.identity import Identity

IDENTITIES: Mapping[str, tuple[Identity, ...]] = {
    name: (orders_agree(name), reference_bits(name))
    for name in (
        *("add", "advance", "apply_changes", "attention_parts", "begin_rows", "copy_blocks"),
        *("decode_rows", "embedding", "loop_control", "mixed_rows"),
    )
}
"""What is asked of each kernel, by its name."""
