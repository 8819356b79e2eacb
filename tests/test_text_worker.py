"""Tokens become answers in another thread: in order, once, until the end, whatever goes wrong."""

import gc
import threading
import time

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from cugraphs import SamplingParams
from cugraphs.completion import Completion
from cugraphs.request import Request
from cugraphs.sequence import Sequence
from cugraphs.text_worker import MAX_STEPS_BEHIND, Begun, StepTokens, TextWorker
from cugraphs.tokenizer import Tokenizer

WORDS = {f"w{i}": i for i in range(9)}
EOS = 8


@pytest.fixture
def tokenizer():
    backend = Backend(models.WordLevel(WORDS, unk_token="w0"))
    return Tokenizer(backend, prefix=(), bos_token_id=None, eos_token_ids=frozenset([EOS]))


def make_completion(tokenizer, params, *, streams=False, seq_id=0):
    completion = Completion(Sequence(seq_id, [1, 2], params, max_tokens=9), tokenizer)
    completion.streams = streams
    return completion


def tokens(slots, token_ids, position, *, last=(), begun=()):
    is_last = np.isin(slots, last)
    positions = np.full(len(slots), position, np.int32)
    return StepTokens(
        np.int32(slots), np.int32(token_ids), positions, is_last, time_s=0.0, begun=begun
    )


def begin(worker, slot, completion):
    number, streams = completion.sequence.seq_id, completion.streams
    request = Request(
        number, None, (1, 2), [completion], None, streams=streams, catch_up=lambda: None
    )
    worker.add(request, completion)
    return Begun(slot, completion.sequence, 0.0, 0)


def test_texts_of_two_slots_by_hand(tokenizer):
    worker = TextWorker(tokenizer, 4)
    params = SamplingParams(stop="w5 w6")
    first = make_completion(tokenizer, params)
    second = make_completion(tokenizer, SamplingParams(), streams=True, seq_id=1)
    begun = [begin(worker, 3, first), begin(worker, 0, second)]
    worker.put(tokens([3, 0], [4, 1], 2, begun=begun))
    worker.put(tokens([3, 0], [5, 2], 3))
    worker.put(tokens([3, 0], [6, EOS], 4, last=[0]))
    worker.put(tokens([3], [7], 5))  # surplus: the stop string has ended it
    worker.drain()
    assert (first.output().text, first.token_ids) == (" w4 ", [4, 5, 6])
    assert (first.finish_reason, first.stop_reason) == ("stop", "w5 w6")
    assert (second.finish_reason, second.stop_reason) == ("stop", None)
    assert [c for step in worker.results for _, c in step.ended] == [first, second]
    outputs = [output for step in worker.results for output in step.outputs]
    found = [(o.request_id, o.outputs[0].text, o.outputs[0].token_ids) for o in outputs]
    assert found == [
        (1, " w1", (1,)),
        (1, " w2", (2,)),
        (1, "", (EOS,)),
        (0, " w4 ", (4, 5, 6)),
    ]
    assert [output.finished for output in outputs] == [False, False, True, True]


def test_a_token_that_comes_again_is_taken_once(tokenizer):
    """A step that was taken back is made again; one of its tokens may be known already."""
    worker = TextWorker(tokenizer, 2)
    completion = make_completion(tokenizer, SamplingParams())
    worker.put(tokens([1], [3], 2, begun=[begin(worker, 1, completion)]))
    worker.put(tokens([0], [3], 2, begun=[Begun(0, completion.sequence, 0.0, 0)]))
    worker.put(tokens([0], [4], 3))
    worker.drain()
    assert completion.token_ids == [3, 4]


def test_an_error_ends_its_own_request_alone(tokenizer, monkeypatch):
    worker = TextWorker(tokenizer, 2)
    pair = [make_completion(tokenizer, SamplingParams(), seq_id=i) for i in range(2)]
    monkeypatch.setattr(pair[0], "append", lambda *_: 1 / 0)
    begun = [begin(worker, slot, completion) for slot, completion in enumerate(pair)]
    worker.put(tokens([0, 1], [3, 3], 2, begun=begun))
    worker.put(tokens([0, 1], [4, 4], 3))
    worker.drain()
    assert not worker.errors
    (output,) = [output for step in worker.results for output in step.outputs]
    assert output.error == "ZeroDivisionError: division by zero" and output.finished
    assert [c for step in worker.results for _, c in step.ended] == pair[:1]
    assert pair[0].finish_reason == "error"
    assert pair[1].token_ids == [3, 4]


def test_steps_wait_for_a_text_that_is_far_behind(tokenizer, monkeypatch):
    worker = TextWorker(tokenizer, 1)
    completion = make_completion(tokenizer, SamplingParams())
    goes_on = threading.Event()
    append = completion.append
    monkeypatch.setattr(completion, "append", lambda *a: goes_on.wait() and append(*a))
    begun = [begin(worker, 0, completion)]
    put = []

    def put_many():
        for position in range(2, 2 + MAX_STEPS_BEHIND + 3):
            worker.put(tokens([0], [1], position, begun=begun if position == 2 else ()))
            put.append(position)

    thread = threading.Thread(target=put_many)
    thread.start()
    time.sleep(0.05)
    assert len(put) <= MAX_STEPS_BEHIND + 1
    goes_on.set()
    thread.join()
    worker.drain()
    assert len(completion.token_ids) == len(put) == MAX_STEPS_BEHIND + 3


def test_the_thread_ends_with_its_worker(tokenizer):
    def threads():
        return {t for t in threading.enumerate() if t.name == "cugraphs text"}

    before = threads()
    worker = TextWorker(tokenizer, 1)
    completion = make_completion(tokenizer, SamplingParams())
    worker.put(tokens([0], [1], 2, begun=[begin(worker, 0, completion)]))
    (thread,) = threads() - before
    del worker
    gc.collect()
    thread.join(timeout=5)
    assert not thread.is_alive() and completion.token_ids == [1]
