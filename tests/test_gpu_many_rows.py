"""SwiGLU's product of 65 to 256 rows on the GPU, at gates that are wide enough for its own form."""

import numpy as np
import pytest

from cugraphs.expected_results import ExpectedResults
from cugraphs.gpu_runs import run_on_gpu
from cugraphs.kernel import DTYPES
from cugraphs.kernels import LINEAR_SWIGLU
from cugraphs.kernels.case_arrays import normal

pytestmark = pytest.mark.gpu
INTER = 13400  # the last tile of a pair is not full


@pytest.mark.parametrize("dtype", LINEAR_SWIGLU.cuda_dtypes)
@pytest.mark.parametrize("tokens", [65, 128, 150, 200, 256])
def test_wide_gates_are_within_the_tolerance_and_repeat_their_bits(tokens, dtype):
    axes = {"tokens": tokens, "in_features": 520, "inter": INTER}
    (launch,) = LINEAR_SWIGLU.launches(axes, dtype)
    assert "linear_swiglu_rows<" in launch.function
    rng = np.random.default_rng(tokens)
    x = normal(rng, DTYPES[dtype], (tokens, 520))
    weight = normal(rng, DTYPES[dtype], (2 * INTER, 520), 520**-0.5)
    found, again = (run_on_gpu(LINEAR_SWIGLU, [x, weight], {}, how="captured") for _ in range(2))
    verdict = ExpectedResults(LINEAR_SWIGLU, [x, weight], {}).judge(found, [x, weight])
    assert not verdict.problem, verdict.problem
    assert found[0].tobytes() == again[0].tobytes()
