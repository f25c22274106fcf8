"""Random traces of the real scheduler and cache: every text equals one-at-a-time execution, every block is accounted for, everything ends once.

A trace draws a machine (slots, tokens a step, blocks, policy, drafts) and a load (shared prefixes, forks, stops, priorities, gates, errors,
aborts, resumes), then steps until nothing is left. The worker is in fake_worker.py.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.kv.paged import PagedKVCache
from octavo.core.registry import POLICIES, resolve
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from tests.property.fake_worker import VOCAB, FakeWorker, score, sequential, values_of

if TYPE_CHECKING:
    from octavo.core.plan import PositionLogprobs, StepPlan, TokenDelta

TRACES = 2_400
PARTS = 8


@dataclass
class Sequence:
    """What is known about one sequence from outside."""

    prompt: list[int]
    expected: list[int]
    reason: str
    request: Request
    resumed: list[int]
    output: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[list[PositionLogprobs]] = field(default_factory=list)
    ends: list[TokenDelta] = field(default_factory=list)


class Trace:
    """One random run."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.block_size = rng.choice((1, 2, 3, 4, 8))
        self.slots = rng.choice((1, 2, 3, 4, 8))
        self.limit = rng.choice((1, 2, 4, 7, 16, 64))
        # From "hardly one request" to "all of them".
        self.blocks = max(2, rng.choice((12, 24, 40, 80, 300)) // self.block_size)
        self.cache = PagedKVCache(self.blocks, self.block_size, enable_prefix_caching=rng.random() < 0.75, secret=b"s")
        policy = resolve("scheduling_policy", rng.choice(sorted(POLICIES)))()
        self.scheduler = Scheduler(
            self.cache, max_num_seqs=self.slots, max_num_batched_tokens=self.limit, policy=policy, max_overtaken=rng.choice((0, 2, 16))
        )
        self.worker = FakeWorker(self.slots, self.blocks, self.block_size, rng, max_draft=rng.choice((0, 0, 1, 4)))
        self.sequences: dict[tuple[str, int], Sequence] = {}
        self.prefixes = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))] for _ in range(2)]
        self.now = 0.0
        self.to_add = rng.randint(1, 7)
        self.abort_rate = rng.choice((0.0, 0.0, 0.02, 0.15))
        self.steps = 0

    # ---- load ----

    def prompt(self) -> list[int]:
        rng = self.rng
        head = rng.choice(self.prefixes) if rng.random() < 0.7 else []
        head = head[: rng.randint(0, len(head))] if rng.random() < 0.3 else head
        return head + [rng.randrange(VOCAB) for _ in range(rng.randint(0 if head else 1, 12))]

    def add(self) -> None:
        rng, request_id = self.rng, f"r{len(self.sequences)}"
        prompt, n = self.prompt(), rng.choice((1, 1, 1, 2, 3, 4))
        params = SamplingParams(
            n=n,
            seed=rng.randrange(1000),
            min_tokens=rng.choice((0, 0, 3)),
            stop_token_ids=rng.sample(range(VOCAB), rng.choice((0, 1, 2))),
            ignore_eos=rng.random() < 0.5,
            logprobs=rng.choice((None, 0)),
            prompt_logprobs=0 if rng.random() < 0.15 else None,
        )
        max_len = len(prompt) + rng.randint(1, 20)
        salt, priority = rng.choice(("", "", "tenant")), rng.randint(-2, 2)
        opens = self.steps + rng.randint(0, 6)
        gate = (lambda: self.steps >= opens) if rng.random() < 0.1 else None
        parent: Request | None = None
        for index in range(n):
            request = self._sequence(request_id, index, prompt, params, max_len, salt, priority, parent, gate)
            if request is not None and parent is None:
                parent = request
            if request is not None and rng.random() < 0.03:
                self.worker.fail_after[request.key] = request.num_output + rng.randint(0, 6)

    def _sequence(self, request_id, index, prompt, params, max_len, salt, priority, parent, gate) -> Request | None:
        rng, eos = self.rng, [5]
        stop = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos))
        expected, reason = sequential(
            prompt, seed=params.seed, index=index, max_len=max_len, min_tokens=params.min_tokens, stop=stop
        )
        resumed = expected[: rng.randint(0, len(expected) - 1)] if rng.random() < 0.1 else []
        request = Request(
            request_id, prompt + resumed, params, index=index, prompt_len=len(prompt), max_len=max_len, eos_token_ids=eos, priority=priority,
            arrival=self.now, cache_salt=salt, parent=parent, gate=gate,
        )  # fmt: skip
        self.sequences[request.key] = Sequence(prompt, expected, reason, request, resumed)
        self.scheduler.add(request)
        return request

    def maybe_abort(self) -> None:
        if self.rng.random() < self.abort_rate:
            request_id, index = self.rng.choice(sorted(self.sequences))
            self.take(self.scheduler.abort(request_id, index if self.rng.random() < 0.5 else None))

    # ---- run ----

    def run(self) -> Trace:
        while self.to_add or self.scheduler.has_work:
            self.steps += 1
            self.now += self.rng.random()
            assert self.steps < 5_000, "no progress"
            while self.to_add and self.rng.random() < 0.4:
                self.add()
                self.to_add -= 1
            if self.sequences:
                self.maybe_abort()
            plan = self.scheduler.schedule()
            self.check_plan(plan)
            self.cache.check()
            result = self.worker.step(plan)
            if self.sequences:
                self.maybe_abort()
            self.take(self.scheduler.commit(plan, result))
            self.cache.check()
        self.check_end()
        return self

    def take(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            sequence = self.sequences[delta.request_id, delta.index]
            assert not sequence.ends, f"{delta} after {sequence.ends}"
            sequence.output += delta.token_ids
            assert len(sequence.resumed) + len(sequence.output) <= len(sequence.expected), "went on after its end"
            sequence.logprobs += delta.logprobs or []
            if delta.prompt_logprobs is not None:
                sequence.prompt_logprobs.append(delta.prompt_logprobs)
            if delta.finish_reason:
                sequence.ends.append(delta)

    def check_plan(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self.limit and len(plan.rows) <= self.slots
        running = self.scheduler.num_running
        assert plan.rows or not running or self.scheduler._ended, f"{running} running, none of them gets a row"

    def check_end(self) -> None:
        assert self.cache.num_free == self.blocks and self.cache.usage() == (0, 0, 0)
        assert not self.scheduler._requests and not self.scheduler.num_waiting and not self.scheduler.num_running
        self.scheduler.commit(plan := self.scheduler.schedule(), self.worker.step(plan))
        assert not any(self.worker.seats), "a slot was never dropped"
        assert sorted(self.scheduler._slots.free) == list(range(self.slots))
        for key, sequence in self.sequences.items():
            self.check_sequence(key, sequence)

    def check_sequence(self, key: tuple[str, int], sequence: Sequence) -> None:
        assert len(sequence.ends) == 1, f"{key} ended {len(sequence.ends)} times"
        end, text = sequence.ends[0], sequence.resumed + sequence.output
        if end.finish_reason in ("stop", "length"):
            assert text == sequence.expected and end.finish_reason == sequence.reason, key
            assert end.stop_reason == (text[-1] if end.finish_reason == "stop" else None)
        else:
            assert text == sequence.expected[: len(text)], key
        if end.finish_reason == "error" and end.error == "device fault":
            assert len(text) >= self.worker.fail_after[key]
        elif end.finish_reason == "error":
            assert len(sequence.prompt) + len(text) > self.cache.max_tokens and f"{self.cache.max_tokens:,}" in end.error, end
        values = values_of(sequence.prompt + text)
        if sequence.request.params.logprobs is not None:
            begin = len(sequence.prompt) + len(sequence.resumed)
            assert sequence.logprobs == [score(values[:p], (sequence.prompt + text)[p]) for p in range(begin, begin + len(sequence.output))], key
        if sequence.prompt_logprobs:
            assert sequence.prompt_logprobs == [[score(values[:p], sequence.prompt[p]) for p in range(1, len(sequence.prompt))]], key
        elif sequence.request.params.prompt_logprobs is not None and key[1] == 0 and not sequence.resumed:
            assert not sequence.output, f"{key}: prompt logprobs are missing"


@pytest.mark.parametrize("part", range(PARTS))
def test_random_traces(part: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(part, TRACES, PARTS):
        try:
            trace = Trace(seed).run()
        except Exception as error:
            raise AssertionError(f"trace {seed}: {error}") from error
        counters = trace.scheduler.counters
        seen.update(hits=counters.prefix_hits, preemptions=counters.preemptions, copies=trace.worker.copies_run)
        seen.update(right=trace.worker.drafts_right, wrong=trace.worker.drafts_wrong)
        seen.update(end.finish_reason for s in trace.sequences.values() for end in s.ends)
    # The traces reach what they are meant to reach.
    rare = {name: seen[name] for name in ("hits", "preemptions", "copies", "right", "wrong", "stop", "length", "abort", "error")}
    assert min(rare.values()) >= 20, rare


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(min_value=10**6, max_value=10**9))
def test_other_seeds(seed: int) -> None:
    Trace(seed).run()


def test_same_load_same_text_whatever_the_machine() -> None:
    """One load on many machines: the deltas of a sequence, joined, never change."""
    texts = set()
    for slots, limit, blocks, block_size, caching, drafts in (
        (1, 4, 40, 4, True, 0), (8, 64, 200, 4, True, 4), (8, 7, 24, 4, False, 1), (3, 1, 160, 1, True, 2), (4, 16, 20, 8, True, 0),
    ):  # fmt: skip
        cache = PagedKVCache(blocks, block_size, caching)
        scheduler = Scheduler(cache, max_num_seqs=slots, max_num_batched_tokens=limit, policy=resolve("scheduling_policy", "fcfs")())
        worker = FakeWorker(slots, blocks, block_size, random.Random(slots), max_draft=drafts)
        for i in range(6):
            parent = None
            for index in range(1 + i % 3):
                params = SamplingParams(n=1 + i % 3, seed=i, ignore_eos=True)
                prompt = [(3 * k) % VOCAB for k in range(20)] + [i]
                request = Request(f"r{i}", prompt, params, index=index, max_len=60, arrival=float(i), parent=parent)
                parent = parent or request
                scheduler.add(request)
        out: dict[tuple[str, int], list[int]] = {}
        while scheduler.has_work:
            plan = scheduler.schedule()
            for delta in scheduler.commit(plan, worker.step(plan)):
                out.setdefault((delta.request_id, delta.index), []).extend(delta.token_ids)
            cache.check()
        texts.add(repr(sorted(out.items())))
    assert len(texts) == 1
