"""Every kernel on the GPU against its reference: eager, captured while its operands hold NaN bytes,
and replayed twice on real ones."""

import pytest

from cugraphs.kernels import ALL
from cugraphs.testing import assert_kernel

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [(kernel, dtype) for kernel in ALL for dtype in kernel.cuda_dtypes],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_every_case(kernel, dtype):
    results = assert_kernel(kernel, stages=["gpu"], dtypes=[dtype])
    assert len(results) >= len(kernel.cases)
