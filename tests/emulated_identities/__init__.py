"""Identities between runs of the kernels' sources on the CPU, bit for bit.

Tolerances cannot see what these see: an order of additions that depends on the batch or on which
thread comes first, and a rounding that two kernels promise to share. Every identity takes the
kernels by name, so that it can also be asked of kernels with a bug planted in them. What is asked
of which kernel stands in ``IDENTITIES`` of the modules below; the others have what they share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from emulated_identities import (
    decode_attention,
    decode_layer,
    exact_kernels,
    prefill_attention,
    products,
    row_wise,
    sampling,
)
from emulated_identities.identity import Identity

_MODULES = (
    *(exact_kernels, row_wise, products, decode_attention, decode_layer),
    *(prefill_attention, sampling),
)
_LISTED = [named for module in _MODULES for named in module.IDENTITIES.items()]
IDENTITIES: Mapping[str, tuple[Identity, ...]] = dict(_LISTED)
"""What is asked of each kernel, by its name."""

assert len(IDENTITIES) == len(_LISTED), Counter(name for name, _ in _LISTED).most_common(1)
