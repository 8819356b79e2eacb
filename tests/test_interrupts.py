"""Ctrl-C at any instruction of the host: what was asked before and after gets its whole answer."""

import contextlib
import os
import sys

import numpy as np
import pytest

from cugraphs import LLM, SamplingParams

PROMPTS = [
    "The quick brown fox jumps over the lazy dog",
    "Once upon a time there was a little girl who had a cat",  # so long that its samples fork
    "a",
    "over the",
]
PARAMS = [
    SamplingParams(seed=0, max_tokens=9),
    SamplingParams(seed=1, max_tokens=12, n=2),
    SamplingParams(seed=2, max_tokens=11, presence_penalty=1.0),
    SamplingParams(seed=3, max_tokens=14, stop=["e"]),
]
LONG = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
WAYS = {
    "sync": {},
    "4 at once, async": {"num_scheduler_steps": 4, "async_scheduling": True},
    "loops of 8": {"num_scheduler_steps": 8, "step_loops": True, "async_scheduling": True},
}
MODULES = {  # whose lines are interrupted: all that keep account of something between two steps
    *("engine.py", "step_pipeline.py", "scheduler.py", "sequence.py"),
    *("block_manager.py", "prefix_cache.py"),
    *("model_runner.py", "state_mirror.py", "token_ring.py", "step_state.py", "text_worker.py"),
    *("bucketed_step.py", "executable.py", "request.py", "completion.py", "llm.py"),
}


class Interrupter:
    """Counts the lines that this thread runs of the modules, and interrupts one of them."""

    def __init__(self, at=None):
        self.lines, self.at = 0, at

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *exception):
        sys.settrace(self.before)

    def _call(self, frame, event, argument):
        folder, name = os.path.split(frame.f_code.co_filename)
        is_ours = name in MODULES and os.path.basename(folder) == "cugraphs"
        return self._line if is_ours else None

    def _line(self, frame, event, argument):
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self._line


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_at_any_line_loses_nothing(folder, way):
    """In a cache that is too small, so that sequences are preempted; beside a stream."""
    llm = LLM(
        folder,
        device="cpu",
        max_num_seqs=4,
        max_model_len=64,
        num_kv_blocks=9,
        max_num_batched_tokens=24,
        batch_invariant=True,
        **WAYS[way],
    )
    expected = [output.outputs for output in llm.generate(PROMPTS, PARAMS)]
    streamed = llm.generate("The quick", LONG)[0].outputs[0]
    with Interrupter() as counted:
        llm.generate(PROMPTS, PARAMS)
    completed = 0
    for at in np.random.default_rng(0).integers(1, counted.lines, 25).tolist():
        stream = llm.stream("The quick", LONG)
        pieces = [next(stream)]
        with contextlib.suppress(KeyboardInterrupt), Interrupter(at):
            llm.generate(PROMPTS, PARAMS)
            completed += 1  # how many lines there are depends on the thread of the text too
        llm.engine.blocks.check_invariant()
        pieces += stream
        assert "".join(pieces) == streamed.text and stream.output.outputs[0] == streamed
        assert [output.outputs for output in llm.generate(PROMPTS, PARAMS)] == expected
        llm.engine.blocks.check_invariant()
        assert not llm.engine.has_unfinished()
        assert llm.engine.blocks.num_free == llm.engine.blocks.num_usable
        assert llm.stats().requests_running == 0 and not llm.engine._text._answers
    assert completed <= 5
    assert llm.stats().forks > 10 and llm.stats().preemptions > 10


def test_an_interrupt_loses_no_output_of_a_stream(folder):
    """While the engine takes them from the thread of the text, each comes out once."""
    llm = LLM(folder, device="cpu", max_num_seqs=4, max_model_len=64, batch_invariant=True)
    engine = llm.engine
    expected = llm.generate(PROMPTS, PARAMS)

    class AtOpcode(Interrupter):
        def _call(self, frame, event, argument):
            frame.f_trace_opcodes = True
            return self._line if frame.f_code.co_name == "_take_results" else None

        def _line(self, frame, event, argument):
            return super()._line(frame, "line" if event == "opcode" else event, argument)

    with AtOpcode() as counted:
        llm.generate(PROMPTS, PARAMS)
    for at in range(1, counted.lines, 7):
        streams = [
            engine.add_request(llm.tokenizer.encode(prompt), params, streams=True)
            for prompt, params in zip(PROMPTS, PARAMS, strict=True)
        ]
        told, interrupter = [], AtOpcode(at)
        while engine.has_unfinished():
            with contextlib.suppress(KeyboardInterrupt), interrupter:
                told += engine.step()
        for request, whole in zip(streams, expected, strict=True):
            mine = [a for o in told if o.request_id == request.request_id for a in o.outputs]
            for answer in whole.outputs:
                parts = [part for part in mine if part.index == answer.index]
                assert "".join(part.text for part in parts) == answer.text
                assert sum((part.token_ids for part in parts), ()) == answer.token_ids
                assert parts[-1].finish_reason == answer.finish_reason
