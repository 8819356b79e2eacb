"""Any traffic through a whole engine: every request ends, with the text that it gets alone.

The model is a tiny one, the cache too small for what comes. Only what a caller can do is done.
"""

import functools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tiny_model import write_tiny_model

from cugraphs import LLM, SamplingParams

MAX_MODEL_LEN = 48
BLOCKS_OF_ONE = 3  # of 16 tokens
OPTIONS = {"device": "cpu", "batch_invariant": True, "max_model_len": MAX_MODEL_LEN}
FAMILIES = 2  # prompts of one family begin alike


@pytest.fixture(scope="module", autouse=True)
def model(tmp_path_factory):
    AnyTraffic.folder = write_tiny_model(tmp_path_factory.mktemp("traffic") / "tiny")
    AnyTraffic.alone = staticmethod(functools.cache(alone_in(AnyTraffic.folder)))


def alone_in(folder):
    llm = LLM(folder, max_num_seqs=1, prefix_caching=False, **OPTIONS)
    return lambda prompt, params: llm.generate([list(prompt)], params)[0]


@st.composite
def prompts(draw):
    """Up to ``MAX_MODEL_LEN - 1`` tokens; those of one family are the same up to their end."""
    length = draw(st.sampled_from([33, 32, 34, 40, 17, 16, 15, 1]) | st.integers(1, 47))
    family = draw(st.integers(0, FAMILIES - 1))
    prompt = [10 + (family + i * i) % 90 for i in range(length)]
    return (*prompt[:-1], 100 + draw(st.integers(0, 3)))


@st.composite
def any_params(draw):
    greedy = draw(st.booleans())
    return SamplingParams(
        n=draw(st.sampled_from([2, 1, 1, 4])),
        temperature=0.0 if greedy else 1.0,
        seed=draw(st.integers(0, 2)),
        max_tokens=draw(st.integers(1, 16)),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 1.0])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0])),
        ignore_eos=draw(st.booleans()),
    )


class AnyTraffic(RuleBasedStateMachine):
    """Arrivals, aborts and steps in any order."""

    folder = alone = None  # set for the module

    @initialize(
        seqs=st.sampled_from([4, 3, 5, 2, 1]),
        spare_blocks=st.sampled_from([2, 1, 4, 0, 20]),
        budget=st.sampled_from([64, 17, 200, 5]),
        prefix_caching=st.sampled_from([True, True, False]),
        num_scheduler_steps=st.sampled_from([1, 1, 3, 16]),
        step_loops=st.booleans(),
        async_scheduling=st.booleans(),
    )
    def start(self, seqs, spare_blocks, budget, **options):
        self.llm = LLM(
            self.folder,
            max_num_seqs=seqs,
            num_kv_blocks=1 + BLOCKS_OF_ONE + spare_blocks,
            max_num_batched_tokens=budget,
            **options,
            **OPTIONS,
        )
        self.engine, self.max_num_seqs = self.llm.engine, seqs
        text = self.engine._text  # waits for it, so that what fails can be repeated
        self.engine._pipeline._give = lambda tokens: (text.put(tokens), text.drain())
        self.live = []  # (request, prompt, params)
        self.added = self.tokens = 0

    @rule(
        crowd=st.lists(
            st.tuples(prompts(), any_params(), st.sampled_from([0, 0, 0, -1, 1])),
            min_size=2,
            max_size=6,
        )
    )
    def arrive(self, crowd):
        for prompt, params, priority in crowd:
            request = self.engine.add_request(prompt, params, priority=priority)
            self.live.append((request, prompt, params))
            self.added += 1

    @rule(prompt=prompts())
    def arrive_too_long(self, prompt):
        with pytest.raises(ValueError, match="expected at most"):
            self.engine.add_request(prompt * MAX_MODEL_LEN, SamplingParams())

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data):
        entry = data.draw(st.sampled_from(self.live), label="whom")
        self.engine.abort(entry[0])
        self.live.remove(entry)
        for found, whole in zip(*self.answers(entry), strict=True):
            assert found.token_ids == whole.token_ids[: len(found.token_ids)]

    @rule(count=st.integers(1, 9))
    def steps(self, count):
        for _ in range(count):
            self.one_step()

    def one_step(self):
        progressed = self.engine.step()
        ids = [one.request_id for one in progressed]
        assert len(set(ids)) == len(ids)
        ended = {one.request_id for one in progressed if one.finished}
        for entry in [entry for entry in self.live if entry[0].request_id in ended]:
            self.live.remove(entry)
            found, whole = self.answers(entry)
            assert found == whole
        self.sums_hold()

    def answers(self, entry):
        """What a request has got in the end, and what it gets alone."""
        request, prompt, params = entry
        output, whole = request.output(), self.alone(prompt, params)
        self.tokens += sum(len(answer.token_ids) for answer in output.outputs)
        if output.finished and output.outputs[0].finish_reason != "abort":
            assert output.prompt_logprobs == whole.prompt_logprobs
        return output.outputs, whole.outputs

    @invariant()
    def sums_hold(self):
        if not hasattr(self, "engine"):
            return
        self.engine.blocks.check_invariant()
        stats = self.llm.stats()
        samples = sum(params.n for _, _, params in self.live)
        assert stats.requests_running <= min(self.max_num_seqs, samples)
        assert stats.requests_running + stats.requests_waiting <= samples
        assert stats.requests_finished <= self.added
        assert 0 <= stats.kv_blocks_used <= stats.kv_blocks == self.llm.runner.num_kv_blocks - 1
        assert stats.kv_blocks_cached + stats.kv_blocks_used <= stats.kv_blocks
        if not self.engine.has_unfinished():  # then every output is out
            assert not self.live and stats.requests_finished == self.added

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        # Whatever the others do, the first in order computes a token of its own at every step; its
        # text may come some steps later.
        tokens = sum(p.n * (len(prompt) + p.max_tokens) for _, prompt, p in self.live)
        for _ in range(2 * tokens + 20):
            if not self.engine.has_unfinished():
                break
            self.one_step()
        assert not self.live
        stats = self.llm.stats()
        assert stats.kv_blocks_used == stats.requests_running == stats.requests_waiting == 0
        assert stats.generated_tokens >= self.tokens


AnyTraffic.TestCase.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
TestAnyTraffic = AnyTraffic.TestCase
