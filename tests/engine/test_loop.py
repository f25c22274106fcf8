"""The step loop over a fake executor and the real scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.engine.messages import Abort, Deltas, GetStats, Shutdown, Stats
from tests.engine.fakes import CONTEXT, VOCAB, FakeExecutor, add, finish, make_loop, make_scheduler, reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from octavo.core.plan import StepPlan, StepResult, TokenDelta
    from octavo.engine.messages import ToEngine

PROMPT = [5, 6, 7, 8, 9, 10, 11]


def test_requests_together_get_what_each_gets_alone() -> None:
    prompts = {f"r{i}": list(range(3 + i, 10 + 3 * i)) for i in range(6)}
    run = finish(make_loop([[add(name, prompt) for name, prompt in prompts.items()]]))
    for name, prompt in prompts.items():
        assert run.tokens[name, 0] == reference(prompt, 0, 8)
        assert run.ends[name, 0].finish_reason == "length"


def test_sequences_of_one_request_fork_and_differ() -> None:
    run = finish(make_loop([[add("r", PROMPT, n=3)]]))
    for index in range(3):
        assert run.tokens["r", index] == reference(PROMPT, index, 8)
    assert sum(len(plan.admits) for plan in run.executor.plans) == 3
    # The prompt was computed once: the others computed its last token only.
    assert sum(plan.num_tokens for plan in run.executor.plans) == len(PROMPT) + 2 + 3 * 7


def test_abort_ends_a_request_midway_and_frees_its_blocks() -> None:
    run = finish(make_loop([[add("a", PROMPT, count=40), add("b", PROMPT)], [], [], [Abort("a")]]))
    assert run.ends["a", 0].finish_reason == "abort"
    assert run.tokens["a", 0] == reference(PROMPT, 0, 40)[: len(run.tokens["a", 0])] and len(run.tokens["a", 0]) < 40
    assert run.tokens["b", 0] == reference(PROMPT, 0, 8)
    stats = run.loop.stats()
    assert (stats.kv_blocks_used, stats.num_running, stats.num_waiting) == (0, 0, 0)


def test_abort_of_one_sequence_leaves_its_siblings() -> None:
    run = finish(make_loop([[add("r", PROMPT, n=3)], [], [Abort("r", 1)]]))
    assert run.ends["r", 1].finish_reason == "abort"
    for index in (0, 2):
        assert run.tokens["r", index] == reference(PROMPT, index, 8)


def test_a_request_behind_the_shutdown_still_gets_its_end() -> None:
    run = finish(make_loop([[add("a", PROMPT, count=40)], [Shutdown(), add("late", PROMPT, n=2)]]))
    assert {key: end.finish_reason for key, end in run.ends.items()} == {("a", 0): "abort", ("late", 0): "abort", ("late", 1): "abort"}


def test_abort_of_the_unknown_is_ignored() -> None:
    run = finish(make_loop([[Abort("nobody"), Abort("nobody", 3), add("r", PROMPT)], [Abort("r", 7)]]))
    assert run.tokens["r", 0] == reference(PROMPT, 0, 8)


@pytest.mark.parametrize("emitted", [1, 3, 7])
def test_a_resumed_request_goes_on_as_if_nothing_had_happened(emitted: int) -> None:
    whole = reference(PROMPT, 0, 8)
    run = finish(make_loop([[add("r", PROMPT, resumed={0: whole[:emitted]})]]))
    assert run.tokens["r", 0] == whole[emitted:]
    assert run.ends["r", 0].finish_reason == "length"


def test_a_resumed_request_of_several_sequences() -> None:
    wholes = [reference(PROMPT, i, 8) for i in range(4)]
    message = add("r", PROMPT, n=4, resumed={1: wholes[1][:5], 2: wholes[2][:2]}, finished=[0])
    run = finish(make_loop([[message]]))
    assert ("r", 0) not in run.ends
    assert run.tokens == {("r", 1): wholes[1][5:], ("r", 2): wholes[2][2:], ("r", 3): wholes[3]}
    assert {admit.index for plan in run.executor.plans for admit in plan.admits} == {1, 2, 3}


def test_resumed_with_nothing_emitted_forks_again() -> None:
    run = finish(make_loop([[add("r", PROMPT, n=2, resumed={0: [], 1: []})]]))
    assert run.tokens == {("r", i): reference(PROMPT, i, 8) for i in range(2)}
    assert sum(plan.num_tokens for plan in run.executor.plans) == len(PROMPT) + 1 + 2 * 7


def test_resumed_at_its_length_ends_at_once() -> None:
    run = finish(make_loop([[add("r", PROMPT, n=2, count=4, resumed={0: reference(PROMPT, 0, 4)})]]))
    assert run.tokens["r", 0] == [] and run.ends["r", 0].finish_reason == "length"
    assert run.tokens["r", 1] == reference(PROMPT, 1, 4)


BAD = {
    "empty": (add("bad", []), "empty"),
    "negative id": (add("bad", [1, -1]), "token id -1"),
    "id beyond the vocabulary": (add("bad", [1, VOCAB]), f"token id {VOCAB}"),
    "prompt too long": (add("bad", [1] * CONTEXT, count=0), f"{CONTEXT} tokens"),
    "more than the context": (add("bad", [1], count=CONTEXT), f"{CONTEXT + 1} tokens"),
    "stop token beyond the vocabulary": (add("bad", [1], params=SamplingParams(stop_token_ids=[VOCAB])), "stop_token_ids"),
    "resumed index": (add("bad", [1], resumed={3: [1]}), "sequence 3"),
    "resumed id": (add("bad", [1], resumed={0: [VOCAB]}), f"token id {VOCAB}"),
    "finished index": (add("bad", [1], finished=[-1]), "sequence -1"),
}


@pytest.mark.parametrize(("message", "expected"), BAD.values(), ids=BAD.keys())
def test_a_bad_request_ends_alone(message: ToEngine, expected: str) -> None:
    run = finish(make_loop([[add("good", PROMPT), message, add("later", PROMPT)]]))
    assert run.ends["bad", 0].finish_reason == "error"
    assert expected in (run.ends["bad", 0].error or "")
    assert run.tokens["good", 0] == run.tokens["later", 0] == reference(PROMPT, 0, 8)


def test_every_sequence_of_a_bad_request_gets_its_end() -> None:
    run = finish(make_loop([[add("bad", [], n=3, finished=[1])]]))
    assert sorted(run.ends) == [("bad", 0), ("bad", 2)]


def test_a_second_request_with_a_live_id_does_not_touch_the_first() -> None:
    run = finish(make_loop([[add("r", PROMPT)], [add("r", [1, 2])]]))
    assert run.ends["r", -1].finish_reason == "error"
    assert run.tokens["r", 0] == reference(PROMPT, 0, 8)
    assert run.ends["r", 0].finish_reason == "length"


def test_an_id_may_be_used_again_after_its_end() -> None:
    run = make_loop([[add("r", PROMPT)], *[[]] * 10, [add("r", PROMPT)]])
    run.loop.run()
    ends = [d for m in run.link.sent if isinstance(m, Deltas) for d in m.deltas if d.finish_reason]
    assert [d.finish_reason for d in ends] == ["length", "length"]


def test_a_row_that_fails_ends_alone() -> None:
    executor = FakeExecutor()
    executor.row_errors = {"b"}
    run = finish(make_loop([[add("a", PROMPT), add("b", PROMPT, n=2), add("c", PROMPT)]], executor))
    for index in range(2):
        assert run.ends["b", index].finish_reason == "error" and run.ends["b", index].error == "this row failed"
    assert run.tokens["a", 0] == run.tokens["c", 0] == reference(PROMPT, 0, 8)


@pytest.mark.parametrize("where", ["before_launch", "before_sample"])
def test_a_step_that_fails_ends_its_sequences_and_no_other(where: str) -> None:
    executor = FakeExecutor()

    def fail_third_step(plan: StepPlan) -> None:
        if plan.step == 3:
            raise RuntimeError("the device fell over")

    setattr(executor, where, fail_third_step)
    script = [[add("a", PROMPT), add("b", PROMPT, n=2)], [], [], [], [add("c", PROMPT)]]
    run = finish(make_loop(script, executor, make_scheduler=lambda: make_scheduler(seqs=8)))
    for key in [("a", 0), ("b", 0), ("b", 1)]:
        assert run.ends[key].finish_reason == "error" and "the device fell over" in (run.ends[key].error or "")
    assert run.tokens["c", 0] == reference(PROMPT, 0, 8)
    assert run.loop.stats().kv_blocks_used == 0


def test_a_failed_step_spares_those_who_were_not_in_it() -> None:
    """One slot: "b" waits while "a" fails."""
    executor = FakeExecutor()

    def fail_once(plan: StepPlan) -> None:
        if plan.step == 2:
            raise MemoryError

    executor.before_sample = fail_once
    run = finish(make_loop([[add("a", PROMPT), add("b", PROMPT)]], executor, make_scheduler=lambda: make_scheduler(seqs=1)))
    assert run.ends["a", 0].error == "the engine failed in a step: out of memory"
    assert run.tokens["b", 0] == reference(PROMPT, 0, 8)


class Breakable(Scheduler):
    """A scheduler that raises from one of its calls, once."""

    def __init__(self, inner: Scheduler, call: str, at: int) -> None:
        super().__init__(inner.cache, max_num_seqs=8, max_num_batched_tokens=16, policy=inner.policy)
        self.call, self.at = call, at

    def _count(self, call: str) -> None:
        if call == self.call:
            self.at -= 1
            if self.at == 0:
                raise ZeroDivisionError(f"{call} is broken")

    def schedule(self) -> StepPlan:
        self._count("schedule")
        return super().schedule()

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        self._count("commit")
        return super().commit(plan, result)

    def abort(self, request_id: str, index: int | None = None) -> list[TokenDelta]:
        self._count("abort")
        return super().abort(request_id, index)


@pytest.mark.parametrize("call", ["schedule", "commit", "abort"])
def test_a_broken_scheduler_ends_requests_not_the_loop(call: str) -> None:
    made: list[Scheduler] = []

    def factory() -> Scheduler:
        made.append(Breakable(make_scheduler(), call, 2 if call != "abort" else 1) if not made else make_scheduler())
        return made[-1]

    script: list[list[ToEngine]] = [[add("a", PROMPT), add("b", PROMPT)], [], [Abort("a")] if call == "abort" else [], [], [add("c", PROMPT)]]
    run = finish(make_loop(script, make_scheduler=factory))
    assert run.ends["b", 0].finish_reason == "error" and f"{call} is broken" in (run.ends["b", 0].error or "")
    assert run.tokens["c", 0] == reference(PROMPT, 0, 8)


def test_books_that_do_not_balance_mean_a_fresh_start() -> None:
    executor = FakeExecutor()
    made: list[Scheduler] = []

    def factory() -> Scheduler:
        made.append(make_scheduler(seqs=1))
        return made[-1]

    def corrupt(plan: StepPlan) -> None:
        if plan.step == 2 and len(made) == 1:
            made[0].cache._refs[-1] += 1  # type: ignore[attr-defined]
            raise RuntimeError("corrupt")

    executor.before_sample = corrupt
    run = finish(make_loop([[add("a", PROMPT), add("b", PROMPT)], [], [], [add("c", PROMPT)]], executor, make_scheduler=factory))
    assert len(made) == 2
    assert {run.ends[name, 0].finish_reason for name in "ab"} == {"error"}
    assert run.tokens["c", 0] == reference(PROMPT, 0, 8)
    assert run.loop.stats().steps > made[1].counters.steps  # counters go on


def test_shutdown_gives_every_live_sequence_its_end() -> None:
    run = finish(make_loop([[add("a", PROMPT, n=2), add("b", PROMPT)], [], [Shutdown()]]))
    assert {end.finish_reason for end in run.ends.values()} == {"abort"}
    assert len(run.ends) == 3


def test_an_idle_loop_sleeps() -> None:
    run = finish(make_loop([[add("a", PROMPT)]]))
    assert run.link.sleeps == 1
    assert len(run.executor.plans) == 8


def test_closed_gates_do_not_spin() -> None:
    """While the only request may not start, the loop waits between its tries."""
    waits: list[float | None] = []
    open_gate = False

    def script() -> Iterator[list[ToEngine]]:
        nonlocal open_gate
        yield [add("a", PROMPT)]
        yield from [[]] * 5
        open_gate = True

    class Gated(Scheduler):
        def add(self, request: object) -> None:
            request.gate = lambda: open_gate  # type: ignore[attr-defined]
            super().add(request)  # type: ignore[arg-type]

    def factory() -> Scheduler:
        inner = make_scheduler()
        return Gated(inner.cache, max_num_seqs=8, max_num_batched_tokens=16, policy=inner.policy)

    run = make_loop(script(), make_scheduler=factory)
    receive = run.link.receive

    def watched(timeout: float | None) -> list[ToEngine]:
        waits.append(timeout)
        return receive(timeout)

    run.link.receive = watched  # type: ignore[method-assign]
    finish(run)
    assert all(timeout for timeout in waits[2:6])
    assert run.tokens["a", 0] == reference(PROMPT, 0, 8)


def test_stats_are_a_snapshot() -> None:
    run = finish(make_loop([[add("a", PROMPT), add("b", PROMPT)], [], [GetStats()]]))
    stats = next(m for m in run.link.sent if isinstance(m, Stats))
    assert stats.num_running == 2 and stats.kv_blocks_used > 0 and stats.kv_blocks_total == 64
    assert stats.prompt_tokens == 2 * len(PROMPT)
    final = run.loop.stats()
    assert final.generation_tokens == 16 and final.steps >= 8 and final.kv_blocks_used == 0


def test_logprobs_travel_with_their_tokens() -> None:
    run = finish(make_loop([[add("a", PROMPT)]]))
    deltas = [d for m in run.link.sent if isinstance(m, Deltas) for d in m.deltas]
    assert [d.logprobs[0].token_ids for d in deltas if d.logprobs] == [d.token_ids for d in deltas]


def test_preempted_requests_get_the_same_tokens() -> None:
    prompts = {f"r{i}": [i + 2] * 9 for i in range(6)}
    run = finish(make_loop([[add(n, p, count=20) for n, p in prompts.items()]], make_scheduler=lambda: make_scheduler(12)))
    assert run.loop.stats().preemptions > 0
    for name, prompt in prompts.items():
        assert run.tokens[name, 0] == reference(prompt, 0, 20)


class EvenOnly:
    """A constraint: even tokens may come. Keeps what it took."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def fill(self, mask: np.ndarray) -> bool:
        mask &= np.uint32(0x55555555)
        return True

    def accept(self, token_id: int) -> None:
        self.taken.append(token_id)

    def rollback(self, count: int) -> None:
        del self.taken[len(self.taken) - count :]

    def forced(self) -> list[int]:
        return []


def test_a_constraint_masks_its_own_sequence_and_sees_its_tokens() -> None:
    made: dict[str, EvenOnly] = {}

    def constrain(message: object) -> object:
        name = message.request_id  # type: ignore[attr-defined]
        return None if name == "free" else lambda: made.setdefault(name, EvenOnly())

    whole = reference(PROMPT, 0, 8)
    script = [[add("free", PROMPT), add("bound", PROMPT), add("old", PROMPT, resumed={0: whole[:3]})]]
    run = finish(make_loop(script, constrain=constrain))
    assert made["bound"].taken == run.tokens["bound", 0]
    assert made["old"].taken == whole  # what was emitted before the restart, then the rest
    slots: dict[int, str] = {}
    for plan, masks in zip(run.executor.plans, run.executor.masks, strict=True):
        slots.update({admit.slot: admit.request_id for admit in plan.admits})
        bound = {n for n, row in enumerate(plan.rows) if row.sample and slots[row.slot] != "free"}
        assert set(masks or {}) == bound
        for mask in (masks or {}).values():
            assert mask.shape == (1, -(-VOCAB // 32)) and (mask == 0x55555555).all()
