"""Serves random traffic for minutes and checks everything that can be checked from outside.

    python scripts/soak.py demo --minutes 5
    python scripts/soak.py ../shared/models/stories260K --device cuda

Requests of all lengths come in waves, greedy and seeded, with one or several samples, priorities
and prompts that begin alike, through a KV cache that is too small for them; some are aborted on the
way, and the text of some cannot be made. In batch-invariant mode each answer must be what the
request gets alone, bit for bit; after every step the blocks must add up; at the end so must the
counters, and no memory may be lost. The time is shared by engines that queue their steps in all the
ways there are, unless one way is asked for. Traffic that meets no preemption, cache hit, fork,
failure or abort proves nothing, and is a failure too.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs import LLM, SamplingParams
from cugraphs.device import Device
from cugraphs.outputs import CompletionOutput, RequestOutput
from cugraphs.request import Request
from cugraphs.statistics import EngineStats

MAX_MODEL_LEN = 160
LONGEST_PROMPT = 100
LONGEST_ANSWER = 40
PLANTED = "planted by soak.py"
MOST_PROBLEMS = 10  # then the traffic ends early
PATIENCE_S = 60.0  # for the last requests to end
SETTLING_SHARE = 0.3  # of the time, until memory must stay as it is
WAYS: dict[str, dict[str, Any]] = {
    "one step ahead": {"async_scheduling": True},
    "loops of 16, one ahead": {
        "async_scheduling": True,
        "num_scheduler_steps": 16,
        "step_loops": True,
    },
    "4 at once, no prefixes": {
        "num_scheduler_steps": 4,
        "step_loops": False,
        "prefix_caching": False,
    },
    "one after the other": {"async_scheduling": False},
}
COUNTED = ("steps", "preemptions", "cached_tokens", "forks", "forked_tokens", "copied_blocks")
HOST_GROWTH_BYTES = 64 << 20
DEVICE_GROWTH_BYTES = 8 << 20


@dataclass(frozen=True)
class Asked:
    """A request that comes again and again.

    Args:
        prompt_token_ids: its prompt.
        params: how to continue it.
        fails_at: the token of its last sample whose text cannot be made; 0: it does not fail.
    """

    prompt_token_ids: list[int]
    params: SamplingParams
    fails_at: int = 0


@dataclass
class Memory:
    """The least that was free on the device, and the most that the process held, once settled."""

    device: Device | None  # that is watched
    settled: tuple[int, int] | None = None  # free on the device, held by the process
    worst: tuple[int, int] = (1 << 62, 0)

    def look(self, *, is_settled: bool) -> None:
        """Measure, if it is time to."""
        if not is_settled:
            return
        found = 0 if self.device is None else self.device.free_bytes, resident_bytes()
        self.settled = self.settled or found
        self.worst = min(self.worst[0], found[0]), max(self.worst[1], found[1])

    def __str__(self) -> str:
        """What was lost since it had settled."""
        if self.settled is None:
            return "not measured"
        device, host = self.settled[0] - self.worst[0], self.worst[1] - self.settled[1]
        return f"{device:,} bytes of the device lost, {host:,} of the host"

    def problems(self) -> list[str]:
        """What was lost, if it is much."""
        if self.settled is None:
            return ["memory was never measured: the traffic ended too early"]
        found = []
        device, host = self.settled[0] - self.worst[0], self.worst[1] - self.settled[1]
        if device > DEVICE_GROWTH_BYTES:
            found.append(f"the device's free memory shrank by {device:,} bytes")
        if host > HOST_GROWTH_BYTES:
            found.append(f"the process grew by {host:,} bytes")
        return found


@dataclass
class Soak:
    """Traffic through one engine, and what each request gets alone from another.

    Args:
        busy: serves many at once.
        alone: serves one, and finds no prefix in its cache.
        max_num_seqs: of the busy one.
        asked: what may come.
        expected: what each gets alone, as far as it was asked.
        random: decides everything.
    """

    busy: LLM
    alone: LLM
    max_num_seqs: int
    asked: list[Asked]
    expected: dict[int, RequestOutput]
    random: np.random.Generator
    problems: list[str] = field(default_factory=list)
    num_added: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    num_compared: int = 0
    num_different: int = 0
    num_tokens: int = 0  # that outputs held
    _live: dict[int, tuple[Request, int]] = field(default_factory=dict)
    _wave: int = 0  # requests that shall be there at a time

    def run(
        self, seconds: float, least_steps: int, memory: Memory, say: Callable[[str], None]
    ) -> None:
        """Serve for so long, and so many steps, then until all have ended."""
        start = told = time.monotonic()
        step = 0
        while not self._is_hopeless:
            passed = time.monotonic() - start
            if passed >= seconds and step >= least_steps:
                break
            if step % 200 == 0:
                choices = [0, 1, *(self.max_num_seqs * factor for factor in (1, 2, 3))]
                self._wave = int(self.random.choice(choices))
            self._come_and_go()
            self._step()
            step += 1
            if time.monotonic() - told > 5:
                told = time.monotonic()
                say(f"{passed:.0f} s: {self.summary()}")
            if step % 10 == 0:
                memory.look(is_settled=passed > SETTLING_SHARE * seconds)
        give_up = time.monotonic() + PATIENCE_S
        while self.busy.engine.has_unfinished() and not self._is_hopeless:
            self._step()
            if time.monotonic() > give_up:
                self.problems.append(f"{len(self._live):,} requests have not ended")
                break
        memory.look(is_settled=True)
        self._check_counters()
        self.problems += memory.problems()

    def summary(self) -> str:
        """What happened so far."""
        return summary(self.counts())

    def counts(self) -> Counter[str]:
        """What happened so far, by name."""
        stats: EngineStats = self.busy.stats()
        found = Counter({name: getattr(stats, name) for name in COUNTED})
        found["loops"] = sum(stats.loops.values())
        for name in ("added", "aborted", "failed", "compared", "different"):
            found[name] = getattr(self, f"num_{name}")
        return found

    @property
    def _is_hopeless(self) -> bool:
        return len(self.problems) >= MOST_PROBLEMS

    def _come_and_go(self) -> None:
        """Requests come until the wave is full; now and then one is aborted."""
        while len(self._live) < self._wave:
            number = int(self.random.integers(len(self.asked)))
            one, priority = self.asked[number], int(self.random.choice([0, 0, 0, -1, 2]))
            request = self.busy.engine.add_request(
                one.prompt_token_ids, one.params, priority=priority
            )
            if one.fails_at:
                break_text(request, one.fails_at)
            self._live[request.request_id] = request, number
            self.num_added += 1
        if self._live and self.random.random() < 0.05:
            chosen = int(self.random.choice(list(self._live)))
            request, number = self._live.pop(chosen)
            self.busy.engine.abort(request)
            self.num_aborted += 1
            self._compare(request.output(), number)

    def _step(self) -> None:
        """One step of the engine, what has ended in it, and its blocks."""
        for progressed in self.busy.engine.step():
            if progressed.finished and progressed.request_id in self._live:
                request, number = self._live.pop(progressed.request_id)
                self._compare(request.output(), number)
        self.busy.engine.blocks.check_invariant()

    def _compare(self, found: RequestOutput, number: int) -> None:
        """Every answer is that of the request alone, or its beginning where it was cut off."""
        self.num_compared += 1
        self.num_failed += found.error is not None
        self.num_tokens += sum(len(answer.token_ids) for answer in found.outputs)
        expected, one = self._alone(number), self.asked[number]
        same = all(
            answer == whole if ended(answer) else starts_as(answer, whole)
            for answer, whole in zip(found.outputs, expected.outputs, strict=True)
        )
        logprobs = found.prompt_logprobs
        if logprobs is not None and expected.prompt_logprobs is not None:
            same = same and logprobs == expected.prompt_logprobs[: len(logprobs)]
        if found.error is not None and PLANTED not in found.error:
            self.problems.append(f"request {found.request_id} failed: {found.error}")
        if not same:
            self.num_different += 1
            self.problems.append(
                f"request {found.request_id} got {shown(found)}, alone {shown(expected)}; prompt "
                f"{one.prompt_token_ids}, {one.params}"
            )

    def _alone(self, number: int) -> RequestOutput:
        if number not in self.expected:
            one = self.asked[number]
            (self.expected[number],) = self.alone.generate([one.prompt_token_ids], one.params)
        return self.expected[number]

    def _check_counters(self) -> None:
        """After everything has ended."""
        stats = self.busy.stats()
        wanted = {
            "requests_waiting": 0,
            "requests_running": 0,
            "requests_finished": self.num_added,
            "requests_failed": self.num_failed,
            "kv_blocks_used": 0,
        }
        for name, value in wanted.items():
            if (found := getattr(stats, name)) != value:
                self.problems.append(f"{name} is {found:,}, expected {value:,}")
        if (found := stats.generated_tokens - stats.surplus_tokens) != self.num_tokens:
            self.problems.append(
                f"{found:,} tokens were generated for answers, which have {self.num_tokens:,}"
            )
        if self.num_compared != self.num_added:
            self.problems.append(f"{self.num_compared:,} of {self.num_added:,} requests ended")


def summary(counts: Counter[str]) -> str:
    """What happened, for people."""
    return (
        f"{counts['added']:,} requests, {counts['aborted']:,} aborted, {counts['failed']:,} failed "
        f"as planted; {counts['steps']:,} steps, {counts['loops']:,} captured loops, "
        f"{counts['preemptions']:,} preemptions; {counts['cached_tokens']:,} prompt tokens from "
        f"the cache, {counts['forked_tokens']:,} in {counts['forks']:,} forks, which copied "
        f"{counts['copied_blocks']:,} blocks; {counts['compared']:,} compared, "
        f"{counts['different']:,} differences"
    )


def too_tame(counts: Counter[str], *, loops: bool) -> list[str]:
    """What the traffic has not met, but should have.

    Args:
        counts: of all engines.
        loops: whether captured loops are to be met.
    """
    wanted = {
        "preemptions": "preemptions",
        "cached_tokens": "cache hits",
        "forks": "forks",
        "copied_blocks": "copied blocks",
        "aborted": "aborts",
        "failed": "failures",
        **({"loops": "loops"} if loops else {}),
    }
    missing = [name for key, name in wanted.items() if not counts[key]]
    return [f"there were no {name}: the traffic proves too little" for name in missing]


def break_text(request: Request, at: int) -> None:
    """Let the text of a request's last sample fail at one of its tokens."""
    completion = request.completions[-1]
    append = completion.append

    def fails(token_id: int, is_last: bool) -> None:
        if len(completion.token_ids) + 1 == at:
            raise ValueError(PLANTED)
        append(token_id, is_last)

    completion.append = fails  # type: ignore[method-assign]


def shown(output: RequestOutput) -> str:
    """The answers of a request, for people."""
    return ", ".join(f"{a.finish_reason} {list(a.token_ids)}" for a in output.outputs)


def ended(answer: CompletionOutput) -> bool:
    """Whether an answer came to its own end."""
    return answer.finish_reason in ("stop", "length")


def starts_as(part: CompletionOutput, whole: CompletionOutput) -> bool:
    """Whether an aborted answer is the beginning of the whole one."""
    count = len(part.token_ids)
    same = part.token_ids == whole.token_ids[:count]
    if part.logprobs is not None and whole.logprobs is not None:
        same = same and part.logprobs == whole.logprobs[:count]
    # What an abort flushes may end in half a character, or in half a stop string.
    return same and (whole.text.startswith(part.text.rstrip("\ufffd")) or bool(whole.stop_reason))


def make_requests(vocab_size: int, random: np.random.Generator, count: int) -> list[Asked]:
    """Prompts of 1 to 100 tokens, a third of them with a common beginning; 1 to 40 tokens each."""
    common = random.integers(10, vocab_size, 64).tolist()
    asked = []
    for number in range(count):
        prompt = random.integers(10, vocab_size, int(random.integers(1, LONGEST_PROMPT))).tolist()
        if number % 3 == 0:
            prompt = (common + prompt)[: max(len(prompt), 20)]
        greedy = bool(random.random() < 0.5)
        params = SamplingParams(
            n=int(random.choice([1, 1, 1, 2, 3])),
            temperature=0.0 if greedy else 1.0,
            top_p=1.0 if greedy else float(random.choice([1.0, 0.9])),
            top_k=0 if greedy else int(random.choice([0, 40])),
            repetition_penalty=float(random.choice([1.0, 1.0, 1.2])),
            frequency_penalty=float(random.choice([0.0, 0.0, 0.5])),
            seed=number,
            max_tokens=int(random.integers(1, LONGEST_ANSWER)),
            ignore_eos=bool(random.random() < 0.5),
            stop=["e."] if random.random() < 0.2 else None,
            logprobs=2 if random.random() < 0.2 else None,
            prompt_logprobs=1 if random.random() < 0.1 else None,
        )
        fails_at = int(random.integers(1, LONGEST_ANSWER)) if random.random() < 0.08 else 0
        asked.append(Asked(prompt, params, fails_at))
    return asked


def resident_bytes() -> int:
    """Memory that this process holds, as Linux tells it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main(argv: list[str] | None = None) -> int:
    """Soak, print a verdict; exit code 1 if anything was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo", help='a small model (default "demo")')
    parser.add_argument("--minutes", type=float, default=5.0, help="of traffic (default 5)")
    parser.add_argument(
        "--steps", type=int, default=0, help="of each way at least, however long they take"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    parser.add_argument("--requests", type=int, default=200, help="different ones (default 200)")
    parser.add_argument("--max-num-seqs", type=int, default=16, help="at once (default 16)")
    parser.add_argument(
        "--num-scheduler-steps", type=int, help="queued together, and so the one way (else all)"
    )
    parser.add_argument("--step-loops", action="store_true", help="as one launch, on a GPU")
    parser.add_argument(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        help="queue a step while the last still runs, and so the one way (else all)",
    )
    parser.add_argument(
        "--shared-gpu", action="store_true", help="others use the GPU too: do not watch its memory"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the traffic (default 0)")
    args = parser.parse_args(argv)
    options = {
        "device": args.device,
        "batch_invariant": True,
        "max_model_len": MAX_MODEL_LEN,
        "max_num_batched_tokens": 192,
    }
    alone = LLM(
        args.model,
        max_num_seqs=1,
        num_kv_blocks=1 + MAX_MODEL_LEN // 16,
        prefix_caching=False,
        **options,
    )
    random = np.random.default_rng(args.seed)
    asked = make_requests(alone.config.vocab_size, random, args.requests)
    on_gpu = not alone.device.shares_host_memory
    ways = chosen_ways(args)
    print(f"soak: {args.model} on {alone.device.name}, {args.minutes:g} minutes, seed {args.seed}")
    counts: Counter[str] = Counter()
    problems: list[str] = []
    expected: dict[int, RequestOutput] = {}
    for name, way in ways.items():
        print(f"{name}:", flush=True)
        blocks = 1 + 2 * args.max_num_seqs + MAX_MODEL_LEN // 16  # a third of what would be used
        busy = LLM(
            args.model, max_num_seqs=args.max_num_seqs, num_kv_blocks=blocks, **options, **way
        )
        soak = Soak(busy, alone, args.max_num_seqs, asked, expected, random)
        # The CPU's free memory is that of the whole machine: it tells nothing of this process.
        watched = None if args.shared_gpu or not on_gpu else busy.device
        memory = Memory(watched)
        seconds = args.minutes * 60 / len(ways)
        soak.run(seconds, args.steps, memory, lambda text: print(f"  {text}", flush=True))
        print(f"  end: {soak.summary()}\n  memory: {memory}")
        counts += soak.counts()
        problems += [f"{name}: {problem}" for problem in soak.problems]
        if problems:
            break
    else:
        problems += too_tame(counts, loops=on_gpu and any("step_loops" in w for w in ways.values()))
    print(f"all: {summary(counts)}")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    print("soak: FAILED" if problems else "soak: passed")
    return 1 if problems else 0


def chosen_ways(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """How engines queue their steps: as asked for, or in every way."""
    if args.num_scheduler_steps is None and args.async_scheduling is None and not args.step_loops:
        return WAYS
    way = {"step_loops": args.step_loops, "async_scheduling": args.async_scheduling}
    return {"as asked": {"num_scheduler_steps": args.num_scheduler_steps or 1, **way}}


if __name__ == "__main__":
    raise SystemExit(main())
