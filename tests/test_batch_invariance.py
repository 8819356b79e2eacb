"""With batch_invariant a request gets, bit for bit, the logits and tokens that it gets alone.

Whatever arrives beside it and when, however its prompt is cut into chunks, in whatever bucket it
decodes, and if it is preempted and computed anew.
"""

from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st
from invariant_serving import Limits, Server, assert_same_as_alone, limits_for, requests_of
from tiny_model import write_tiny_model

DEMO = Path(__file__).resolve().parent.parent / "models" / "demo"
COUNT, LONGEST = 9, 40
BUDGETS = (1, 3, 7, 16, 64, 200)  # tokens of a step


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def tiny(request, tmp_path_factory):
    """Random weights, 4 query heads on 2 KV heads."""
    folder = write_tiny_model(tmp_path_factory.mktemp("invariance") / "tiny")
    return started(Server(folder, request.param, max_model_len=64))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def demo(request):
    return started(Server(DEMO, request.param, max_model_len=64))


def started(server):
    asked = requests_of(server, LONGEST, COUNT)
    return server, asked, server.alone(asked)


@hypothesis.settings(max_examples=50)
@hypothesis.given(st.data())
def test_a_random_model(tiny, data):
    server, asked, alone = tiny
    limits = data.draw(limits_for(server, COUNT, BUDGETS))
    assert_same_as_alone(server.serve(asked, limits)[0], alone, str(limits))


@hypothesis.settings(max_examples=10)
@hypothesis.given(st.data())
def test_the_demo_model(demo, data):
    server, asked, alone = demo
    limits = data.draw(limits_for(server, COUNT, BUDGETS))
    assert_same_as_alone(server.serve(asked, limits)[0], alone, str(limits))


def test_preempted_sequences(tiny):
    """The one list of limits of which it is known that they preempt."""
    server, asked, alone = tiny
    limits = Limits(COUNT, 64, server.fewest_blocks, tuple((0, n) for n in range(COUNT)))
    served, engine = server.serve(asked, limits)
    assert engine.scheduler.num_preemptions > 0
    assert_same_as_alone(served, alone, str(limits))


def test_blocks_of_a_common_prefix(tiny):
    """Limits of which it is known that prompts find their beginning in the cache."""
    server, asked, alone = tiny
    arrivals = tuple((2, n) for n in range(COUNT))
    limits = Limits(COUNT, 64, 10 * server.fewest_blocks, arrivals, prefix_caching=True)
    served, engine = server.serve(asked, limits)
    assert engine.blocks.num_cached_tokens > 0
    assert_same_as_alone(served, alone, str(limits))


def test_requests_differ_and_tokens_follow_the_logits(tiny):
    """Else equal bits would say little."""
    _, asked, alone = tiny
    rows = [row for served in alone.values() for row in served.logits.values()]
    assert len(set(rows)) > 0.9 * len(rows)
    assert len({served.token_ids for served in alone.values()}) == len(asked)
