"""``AsyncLLM``: many tasks, one engine; every task gets its own answer, and can leave."""

import asyncio
import gc
import threading
import weakref

import pytest

from cugraphs import LLM, AsyncLLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
OPTIONS = {"device": "cpu", "max_num_seqs": 4, "max_model_len": 64, "batch_invariant": True}


async def collect(llm, prompt, params):
    return [delta async for delta in llm.generate(prompt, params)]


def begun_task(llm, params):
    """A task that asks, and what is set once its answer has begun."""
    begun = asyncio.Event()

    async def ask():
        async for _ in llm.generate("The quick", params):
            begun.set()

    return asyncio.create_task(ask()), begun


def text_of(deltas, index=0):
    return "".join(delta.text for delta in deltas if delta.index == index)


def test_concurrent_tasks_get_what_they_get_alone(folder):
    prompts = [f"The quick {word}" for word in ("brown", "fox", "jumps", "over", "the", "dog")]
    params = [SamplingParams(temperature=1, seed=i, max_tokens=3 + 4 * i) for i in range(6)]
    expected = LLM(folder, **OPTIONS).generate(prompts, params)

    async def main():
        async with AsyncLLM(folder, **OPTIONS) as llm:
            return await asyncio.gather(
                *(collect(llm, *each) for each in zip(prompts, params, strict=True))
            )

    for deltas, wanted in zip(asyncio.run(main()), expected, strict=True):
        answer = wanted.outputs[0]
        assert text_of(deltas) == answer.text
        assert tuple(t for delta in deltas for t in delta.token_ids) == answer.token_ids
        assert deltas[-1].finish_reason == answer.finish_reason
        assert all(delta.finish_reason is None for delta in deltas[:-1])


def test_samples_and_the_whole_output(folder):
    params = SamplingParams(n=3, temperature=1, seed=1, max_tokens=6, logprobs=1, stop="e")
    (wanted,) = LLM(folder, **OPTIONS).generate("The quick", params)

    async def main():
        async with AsyncLLM(folder, **OPTIONS) as llm:
            whole = llm.complete("The quick", params)
            return await asyncio.gather(collect(llm, "The quick", params), whole)

    deltas, output = asyncio.run(main())
    assert output.outputs == wanted.outputs and output.finished
    for answer in wanted.outputs:
        mine = [delta for delta in deltas if delta.index == answer.index]
        assert "".join(delta.text for delta in mine) == answer.text
        assert tuple(entry for delta in mine for entry in delta.logprobs) == answer.logprobs
        assert (mine[-1].finish_reason, mine[-1].stop_reason) == (
            answer.finish_reason,
            answer.stop_reason,
        )


def test_leaving_or_cancelling_aborts_the_request(folder):
    long = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)

    async def main():
        async with AsyncLLM(folder, **OPTIONS) as llm:
            answers = llm.generate("The quick", long)
            async for _ in answers:
                break
            await answers.aclose()
            task, begun = begun_task(llm, long)
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # Somebody else's request runs on, and only its blocks are in use at the end.
            await llm.complete("The quick", GREEDY)
            while llm.stats().requests_running:
                await asyncio.sleep(0.001)
            llm.llm.engine.blocks.check_invariant()
            return llm.stats()

    stats = asyncio.run(main())
    assert stats.requests_finished == 3 and stats.kv_blocks_used == 0


@pytest.mark.parametrize("turns", [1, 2, 4])
def test_a_task_that_is_cancelled_while_it_asks_leaves_nothing(folder, turns):
    long = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)

    async def main():
        async with AsyncLLM(folder, **OPTIONS) as llm:
            for _ in range(10):
                task = asyncio.create_task(collect(llm, "The quick", long))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            output = await asyncio.wait_for(llm.complete("The quick", GREEDY), 60)
            while llm._steps.listeners or llm.stats().requests_running:
                await asyncio.sleep(0.001)
            assert llm.stats().kv_blocks_used == 0
            return output

    assert len(asyncio.run(main()).outputs[0].token_ids) == 12


def test_a_listener_whose_loop_is_closed_spares_the_others(folder):
    long = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    llm = AsyncLLM(folder, **OPTIONS)
    loop = asyncio.new_event_loop()
    answers = llm.generate("The quick", long)
    loop.run_until_complete(anext(answers))
    loop.close()  # while its answer grows
    output = asyncio.run(llm.complete("The quick", GREEDY))
    assert len(output.outputs[0].token_ids) == 12
    asyncio.run(llm.close())


def test_an_abort_that_fails_is_told_to_all_and_ends_nothing_else(folder, monkeypatch):
    async def main():
        async with AsyncLLM(folder, **OPTIONS) as llm:
            other = asyncio.create_task(
                llm.complete("The quick", SamplingParams(max_tokens=50, ignore_eos=True))
            )
            answers = llm.generate("The quick", GREEDY)
            await anext(answers)

            def broken(request):
                monkeypatch.undo()
                raise RuntimeError("planted")

            monkeypatch.setattr(llm.llm.engine, "abort", broken)
            await answers.aclose()
            with pytest.raises(RuntimeError, match="planted"):
                await asyncio.wait_for(other, 60)
            return await asyncio.wait_for(llm.complete("The quick", GREEDY), 60)

    assert len(asyncio.run(main()).outputs[0].token_ids) == 12


def test_mistakes_are_told_to_the_task_that_made_them(folder):
    async def main():
        async with AsyncLLM(folder, **OPTIONS) as llm:
            good = asyncio.create_task(collect(llm, "The quick", GREEDY))
            with pytest.raises(ValueError, match="a prompt token id is 999999"):
                await llm.complete([1, 999999], GREEDY)
            with pytest.raises(ValueError, match=r"prompt is empty|has 0 tokens"):
                await llm.complete([], GREEDY)
            with pytest.raises(TypeError, match="the prompt is"):
                await collect(llm, 3, GREEDY)
            return await good

    assert len(asyncio.run(main())) > 0


def test_a_failed_step_fails_the_requests_and_not_the_engine(folder):
    async def main():
        async with AsyncLLM(folder, **OPTIONS) as llm:
            submit = llm.llm.runner.submit

            def broken(*step, **options):
                llm.llm.runner.submit = submit
                raise FloatingPointError("planted")

            llm.llm.runner.submit = broken
            with pytest.raises(FloatingPointError, match="planted"):
                await llm.complete("The quick", GREEDY)
            return await llm.complete("The quick", GREEDY)

    assert len(asyncio.run(main()).outputs[0].token_ids) == 12


@pytest.mark.parametrize("halfway", [False, True])
def test_one_that_nobody_holds_ends_with_its_threads(folder, halfway):
    before = set(threading.enumerate())
    llm = AsyncLLM(folder, **OPTIONS)
    threads = set(threading.enumerate()) - before
    assert {thread.name for thread in threads} == {"cugraphs engine", "cugraphs text"}
    asyncio.run(llm.complete("The quick", GREEDY))
    if halfway:  # a loop that was closed while an answer grew
        loop = asyncio.new_event_loop()
        answers = llm.generate("The quick", GREEDY)
        loop.run_until_complete(anext(answers))
        loop.close()
        del answers
    gone = weakref.ref(llm.llm.runner)
    del llm
    gc.collect()
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive()
    gc.collect()
    assert gone() is None


def test_while_a_task_listens_it_is_held(folder):
    async def main():
        answers = AsyncLLM(folder, **OPTIONS).generate("The quick", GREEDY)
        found = []
        async for delta in answers:
            gc.collect()
            found += delta.token_ids
        return found

    assert len(asyncio.run(main())) == 12


def test_an_llm_that_nobody_holds_ends_with_its_thread(folder):
    before = set(threading.enumerate())
    llm = LLM(folder, **OPTIONS)
    (thread,) = set(threading.enumerate()) - before
    llm.generate("The quick", GREEDY)
    stream = llm.stream("The quick", GREEDY)
    next(stream)
    gone = weakref.ref(llm.runner)
    del llm
    gc.collect()
    assert gone() is not None and len(list(stream)) > 0  # it runs steps as before
    del stream
    gc.collect()
    thread.join(timeout=10)
    assert not thread.is_alive() and gone() is None


def test_closing_ends_what_still_runs(folder):
    async def main():
        llm = AsyncLLM(folder, **OPTIONS)
        task, begun = begun_task(llm, SamplingParams(max_tokens=40, ignore_eos=True, seed=1))
        await begun.wait()
        await llm.close()
        with pytest.raises(RuntimeError, match="it was closed"):
            await task
        with pytest.raises(RuntimeError, match="it is closed"):
            await llm.complete("The quick", GREEDY)
        assert not llm.llm.engine.has_unfinished()

    asyncio.run(main())
