"""The scheduler's four calls on hand-made situations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from octavo.core.plan import PositionLogprobs, StepPlan, StepResult
from octavo.core.policy import PriorityFirst
from octavo.errors import ConfigError, InvalidParameter
from tests.core.helpers import answer, finish, make_request, make_scheduler, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.core.request import Request
    from octavo.core.scheduler import Scheduler


def rows(plan: StepPlan) -> list[tuple[int, int, int, bool]]:
    return [(row.slot, row.start, row.count, row.sample) for row in plan.rows]


def family(scheduler: Scheduler, name: str, length: int, n: int, **options: object) -> list[Request]:
    parent = make_request(name, length, n=n, **options)
    made = [parent, *(make_request(name, length, n=n, index=i, parent=parent, **options) for i in range(1, n))]
    for request in made:
        scheduler.add(request)
    return made


# ---- counts catch up ----


def test_prompt_then_decode() -> None:
    scheduler = make_scheduler()
    request = make_request(length=5, max_len=8)
    scheduler.add(request)
    plan, deltas = step(scheduler, 1)
    assert rows(plan) == [(0, 0, 5, True)] and plan.num_tokens == 5
    assert [(a.slot, a.request_id, a.token_ids, a.block_ids) for a in plan.admits] == [(0, "r", [100, 101, 102, 103, 104], [0, 1])]
    assert deltas[0].token_ids == [1] and deltas[0].num_cached_tokens == 0 and deltas[0].finish_reason is None
    plan, deltas = step(scheduler, 2)
    assert rows(plan) == [(0, 5, 1, True)] and plan.rows[0].blocks == () and plan.admits == [] and deltas[0].num_cached_tokens is None
    plan, deltas = step(scheduler, 3)
    assert rows(plan) == [(0, 6, 1, True)] and deltas[0].finish_reason == "length"
    assert request.token_ids[5:] == [1, 2, 3] and not scheduler.has_work
    assert step(scheduler)[0].drops == [0] and scheduler.cache.num_free == 64


def test_chunked_prompt_samples_only_at_its_end() -> None:
    scheduler = make_scheduler(tokens=4)
    scheduler.add(make_request(length=10, max_len=12))
    for expected, told, count in (((0, 0, 4, False), (0, []), 0), ((0, 4, 4, False), (1, [1]), 0), ((0, 8, 2, True), (2, [2]), 1)):
        plan, deltas = step(scheduler)
        assert rows(plan) == [expected] and (plan.rows[0].blocks_at, list(plan.rows[0].blocks)) == told and len(deltas) == count


def test_new_blocks_are_told_once() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request(length=4))
    assert step(scheduler)[0].rows[0].blocks == ()  # the admission carried them
    told: list[tuple[int, list[int]] | None] = []
    for _ in range(5):
        row = step(scheduler)[0].rows[0]
        told.append((row.blocks_at, list(row.blocks)) if row.blocks else None)
    assert told == [(1, [1]), None, None, None, (2, [2])]


def test_drafts_follow_the_commit_rule() -> None:
    scheduler = make_scheduler()
    request = make_request(length=4)
    scheduler.add(request)
    plan = scheduler.schedule()
    scheduler.commit(plan, StepResult([[1]], draft={0: [2, 3, 4]}))
    plan = scheduler.schedule()
    assert rows(plan) == [(0, 4, 4, True)] and plan.rows[0].num_draft == 3
    (delta,) = scheduler.commit(plan, StepResult([[2, 9]], draft={}))  # one right, then the model's own
    assert delta.token_ids == [2, 9] and request.num_computed == 6 and request.draft == []
    assert rows(scheduler.schedule()) == [(0, 6, 1, True)]


def test_accepted_drafts_are_cut_at_a_stop_with_their_logprobs() -> None:
    scheduler = make_scheduler()
    request = make_request(length=4, stop_token_ids=[3], logprobs=0)
    scheduler.add(request)
    scheduler.commit(scheduler.schedule(), StepResult([[1]], draft={0: [2, 3, 4]}))
    scores = [PositionLogprobs([t], [0.0], [1]) for t in (2, 3, 4, 5)]
    (delta,) = scheduler.commit(scheduler.schedule(), StepResult([[2, 3, 4, 5]], logprobs={0: scores}))
    assert delta.token_ids == [2, 3] and delta.logprobs == scores[:2] and (delta.finish_reason, delta.stop_reason) == ("stop", 3)
    assert request.token_ids[-2:] == [2, 3]
    scheduler.cache.check()


def test_drafts_never_reach_beyond_the_length() -> None:
    scheduler = make_scheduler()
    request = make_request(length=4, max_len=7)
    scheduler.add(request)
    scheduler.commit(scheduler.schedule(), StepResult([[1]], draft={0: [2, 3, 4]}))
    assert request.draft == [2]  # with the model's own token that makes 7


def test_drafts_do_not_take_blocks_from_others() -> None:
    scheduler = make_scheduler(blocks=3, caching=False)
    scheduler.add(make_request("a", length=3))
    scheduler.add(make_request("b", length=4, arrival=1.0))
    scheduler.commit(scheduler.schedule(), StepResult([[1], [1]], draft={0: [2, 3, 4, 5, 6, 7, 8]}))
    plan = scheduler.schedule()
    assert [(row.count, row.num_draft) for row in plan.rows] == [(5, 4)] and scheduler.counters.preemptions == 0
    assert scheduler.num_running == 2  # the other sits out


def test_prefix_hit_and_counters() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", length=9, max_len=10))
    finish(scheduler)
    scheduler.add(make_request("b", length=9, max_len=10))
    plan, deltas = step(scheduler)
    assert rows(plan) == [(0, 8, 1, True)] and deltas[0].num_cached_tokens == 8
    assert plan.admits[0].block_ids[:2] == [0, 1]
    counters = scheduler.counters
    assert (counters.prompt_tokens, counters.generation_tokens, counters.prefix_queries, counters.prefix_hits) == (18, 2, 18, 8)


def test_resumed_request_knows_more() -> None:
    scheduler = make_scheduler()
    request = make_request(tokens=[1, 2, 3, 4, 5], prompt_len=3, min_tokens=3, stop_token_ids=[9], max_len=7)
    scheduler.add(request)
    plan, deltas = step(scheduler, 9)
    assert rows(plan) == [(0, 0, 5, True)] and plan.admits[0].prompt_len == 3
    assert deltas[0].token_ids == [9] and deltas[0].finish_reason is None  # the third output: min_tokens not passed
    assert step(scheduler, 9)[1][0].finish_reason == "stop"


# ---- fairness ----


def test_decoding_rows_always_get_their_token_beside_a_long_prompt() -> None:
    scheduler = make_scheduler(blocks=400, tokens=16)
    scheduler.add(make_request("a", length=4))
    step(scheduler)
    scheduler.add(make_request("long", length=200, arrival=1.0))
    for _ in range(10):
        plan, _ = step(scheduler)
        assert [row.count for row in plan.rows] == [1, 8]


def test_short_prompt_is_not_stuck_behind_a_long_one() -> None:
    scheduler = make_scheduler(blocks=400, tokens=16)
    scheduler.add(make_request("long", length=500))
    step(scheduler)
    scheduler.add(make_request("short", tokens=[1, 2, 3, 4, 5], arrival=1.0))
    plan, deltas = step(scheduler)
    assert [row.count for row in plan.rows] == [11, 5] and [d.request_id for d in deltas] == ["short"]


def test_at_most_as_many_rows_as_tokens() -> None:
    scheduler = make_scheduler(seqs=8, tokens=3)
    for i in range(5):
        scheduler.add(make_request(f"r{i}", length=2, max_len=6, arrival=float(i)))
    while scheduler.has_work:
        plan, _ = step(scheduler)
        assert plan.num_tokens <= 3 and scheduler.num_running <= 3


def test_giant_is_overtaken_only_so_often() -> None:
    scheduler = make_scheduler(blocks=10, seqs=4, caching=False, max_overtaken=3)
    scheduler.add(make_request("first", length=8, max_len=30))
    step(scheduler)
    giant = make_request("giant", tokens=[5] * 36, max_len=38, arrival=1.0)
    scheduler.add(giant)
    for i in range(30):
        scheduler.add(make_request(f"small{i}", tokens=[i] * 2, max_len=4, arrival=2.0 + i))
    order = list(dict.fromkeys(key[0] for key, deltas in finish(scheduler).items() for _ in deltas))
    assert order.index("giant") == 4  # after the first and the three that overtook it
    assert len(order) == 32


def test_priorities_order_the_queue() -> None:
    scheduler = make_scheduler(seqs=1, policy=PriorityFirst())
    for i, priority in enumerate((2, 0, 1)):
        scheduler.add(make_request(f"p{priority}", max_len=6, priority=priority, arrival=float(i)))
    assert [key[0] for key in finish(scheduler)] == ["p0", "p1", "p2"]


# ---- gates ----


def test_gate_holds_one_request_and_no_other() -> None:
    scheduler = make_scheduler()
    ready = False
    scheduler.add(make_request("gated", gate=lambda: ready, max_len=6))
    scheduler.add(make_request("free", arrival=1.0, max_len=6))
    assert [d.request_id for _ in range(3) for d in step(scheduler)[1]] == ["free", "free"]
    assert scheduler.has_work and scheduler.num_waiting == 1
    ready = True
    assert step(scheduler)[1][0].request_id == "gated"


def test_gate_that_raises_ends_its_request_alone() -> None:
    def broken() -> bool:
        raise ValueError("the grammar has no rule named root")

    scheduler = make_scheduler()
    scheduler.add(make_request("bad", gate=broken))
    scheduler.add(make_request("good", arrival=1.0))
    _, deltas = step(scheduler)
    assert [(d.request_id, d.finish_reason, d.error) for d in deltas] == [
        ("bad", "error", "the grammar has no rule named root"), ("good", None, None),
    ]  # fmt: skip


# ---- forks ----


def test_forks_share_the_prompt_and_sample_for_themselves() -> None:
    scheduler = make_scheduler()
    made = family(scheduler, "f", length=6, n=3)
    plan, deltas = step(scheduler)
    assert rows(plan) == [(0, 0, 6, True)] and [d.index for d in deltas] == [0] and scheduler.num_waiting == 2
    plan = scheduler.schedule()
    assert sorted(rows(plan)) == [(0, 6, 1, True), (1, 5, 1, True), (2, 5, 1, True)]
    assert [source for source, _ in plan.copies] == [1, 1]
    assert [d.index for d in scheduler.commit(plan, answer(plan))] == [0, 1, 2]
    assert made[1].num_cached == 0 and {r.block_ids[0] for r in made} == {0}
    scheduler.cache.check()


def test_forks_survive_a_parent_that_ends_with_its_first_token() -> None:
    scheduler = make_scheduler()
    family(scheduler, "f", length=8, n=2, max_len=9)
    plan, deltas = step(scheduler)
    assert deltas[0].finish_reason == "length"
    plan, deltas = step(scheduler)
    assert plan.drops == [0] and rows(plan) == [(0, 7, 1, True)] and plan.admits[0].index == 1
    assert (deltas[0].index, deltas[0].finish_reason) == (1, "length")


@pytest.mark.parametrize("how", ["abort", "error"])
def test_forks_of_a_lost_parent_become_ordinary(how: str) -> None:
    scheduler = make_scheduler(tokens=4)
    children = family(scheduler, "f", length=8, n=3, max_len=10)[1:]
    plan = scheduler.schedule()
    if how == "abort":
        assert [d.index for d in scheduler.abort("f", 0)] == [0]
        assert scheduler.commit(plan, answer(plan)) == []
    else:
        (delta,) = scheduler.commit(plan, StepResult([[]], errors={0: "fault"}))
        assert (delta.finish_reason, delta.error) == ("error", "fault")
    assert [child.parent for child in children] == [None, None]
    ends = finish(scheduler)
    assert {key: deltas[-1].finish_reason for key, deltas in ends.items()} == {("f", 1): "length", ("f", 2): "length"}


def test_fork_with_another_prompt_or_salt_is_ordinary() -> None:
    scheduler = make_scheduler()
    parent = make_request("f")
    others = [
        make_request("f", tokens=[1, 2], index=1, parent=parent), make_request("f", index=2, parent=parent, cache_salt="x"),
        make_request("f", tokens=[100, 101, 102, 103, 7], prompt_len=4, index=3, parent=parent),
    ]  # fmt: skip
    for request in (parent, *others):
        scheduler.add(request)
    assert parent.forks == [] and all(request.parent is None for request in others)
    assert len(scheduler.schedule().rows) == 4


def test_fork_keeps_its_own_gate() -> None:
    scheduler = make_scheduler()
    ready = False
    parent = make_request("f")
    child = make_request("f", index=1, parent=parent, gate=lambda: ready)
    scheduler.add(parent)
    scheduler.add(child)
    step(scheduler)
    assert len(step(scheduler)[0].rows) == 1
    ready = True
    assert len(step(scheduler)[0].rows) == 2


@pytest.mark.parametrize(("length", "max_len"), [(10, 15), (18, 20)])
def test_waiting_forks_give_up_their_blocks_when_memory_is_short(length: int, max_len: int) -> None:
    """The fork holds two of five blocks and waits; the other needs four (it grows) or five (it could not even start)."""
    opened = False
    scheduler = make_scheduler(blocks=5, caching=False)
    parent = make_request("f", 8, max_len=9)
    child = make_request("f", 8, index=1, parent=parent, max_len=9, gate=lambda: opened)
    scheduler.add(parent)
    scheduler.add(child)
    assert step(scheduler)[1][0].finish_reason == "length" and len(child.block_ids) == 2 and child.num_computed == 7
    scheduler.add(make_request("other", tokens=[1] * length, max_len=max_len, arrival=1.0))
    for _ in range(max_len - length):
        assert len(step(scheduler)[0].rows) == 1
    assert scheduler.num_running == 0 and scheduler.counters.preemptions == 0
    assert (child.block_ids, child.num_computed) == ([], 0)
    opened = True
    plan, deltas = step(scheduler)
    assert rows(plan) == [(0, 0, 8, True)] and deltas[0].finish_reason == "length"


def two_families(gate: Callable[[], bool] | None) -> Scheduler:
    """Two parents in four blocks, one block free, each with a fork; all of them write into a shared block next."""
    scheduler = make_scheduler(blocks=5, caching=False)
    scheduler._blocks._margin = 0  # or the forks would wait
    a, b = make_request("a", 5, max_len=12), make_request("b", tokens=[1] * 6, max_len=12, arrival=1.0)
    fork_a = make_request("a", 5, index=1, parent=a, max_len=12, arrival=2.0, gate=gate)
    fork_b = make_request("b", tokens=[1] * 6, index=1, parent=b, max_len=12, arrival=3.0)
    for request in (a, b, fork_a, fork_b):
        scheduler.add(request)
    step(scheduler)
    assert [len(request.block_ids) for request in (a, b, fork_a, fork_b)] == [2] * 4 and scheduler.cache.num_free == 1
    return scheduler


@pytest.mark.parametrize("waiting", [False, True])
def test_no_block_is_the_source_of_one_copy_and_the_destination_of_another(waiting: bool) -> None:
    """a copies from the block it shares with its fork. b then needs a block, and must not get that one, though the fork of a would be the
    first to give way."""
    opened = not waiting
    scheduler = two_families(lambda: opened)
    plan = scheduler.schedule()
    assert [source for source, _ in plan.copies] == [1] and [row.slot for row in plan.rows][:2] == [0, 1]
    assert scheduler.num_waiting == (2 if waiting else 1) and scheduler.counters.preemptions == 1  # the fork of b gave way
    scheduler.commit(plan, answer(plan))
    scheduler.cache.check()
    opened = True
    assert {deltas[-1].finish_reason for deltas in finish(scheduler).values()} == {"length"}


# ---- memory ----


def test_preemption_recomputes_and_the_prefix_cache_restores() -> None:
    scheduler = make_scheduler(blocks=6)
    old, young = make_request("old", length=8, max_len=20), make_request("young", tokens=[1] * 8, max_len=20, arrival=1.0)
    scheduler.add(old)
    scheduler.add(young)
    while not scheduler.counters.preemptions:
        plan, _ = step(scheduler)
    assert young.num_preemptions == 1 and young.num_computed == 0 and young.block_ids == [] and young.status == "waiting"
    slot, known = 1, len(young.token_ids)
    ends: dict[str, str | None] = {}
    drops: list[int] = []
    while scheduler.has_work:
        plan, deltas = step(scheduler)
        drops += plan.drops
        ends.update({d.request_id: d.finish_reason for d in deltas})
        for admit in plan.admits:
            assert admit.request_id == "young" and admit.token_ids == young.token_ids[: len(admit.token_ids)] and len(admit.token_ids) == known
    assert ends == {"old": "length", "young": "length"} and slot in drops and old.num_preemptions == 0


def test_request_larger_than_the_cache_ends_with_the_numbers() -> None:
    scheduler = make_scheduler(blocks=256)
    scheduler.add(make_request("big", tokens=[1] * 1025, max_len=2000))
    scheduler.add(make_request("good", max_len=6, arrival=1.0))
    ends = {key[0]: deltas[-1] for key, deltas in finish(scheduler).items()}
    assert ends["big"].finish_reason == "error" and "1,025" in ends["big"].error and "1,024" in ends["big"].error
    assert ends["good"].finish_reason == "length"


def test_request_that_outgrows_the_cache_ends_after_what_it_said() -> None:
    scheduler = make_scheduler(blocks=4)
    scheduler.add(make_request("grows", length=4))
    deltas = finish(scheduler)["grows", 0]
    assert sum(len(d.token_ids) for d in deltas) == 13 and deltas[-1].finish_reason == "error" and deltas[-1].token_ids == []
    assert "17" in deltas[-1].error and "16" in deltas[-1].error


def test_request_that_fills_the_cache_exactly_is_served_after_others() -> None:
    scheduler = make_scheduler(blocks=4)
    scheduler.add(make_request("small", length=3, max_len=10))
    scheduler.add(make_request("whole", tokens=[1] * 16, max_len=17, arrival=1.0))
    assert {d[-1].finish_reason for d in finish(scheduler).values()} == {"length"}


def test_newcomers_do_not_take_blocks_promised_to_a_running_prompt() -> None:
    scheduler = make_scheduler(blocks=12, tokens=8, caching=False)
    scheduler.add(make_request("long", tokens=[1] * 36, max_len=40))
    step(scheduler)
    scheduler.add(make_request("late", tokens=[2] * 16, max_len=20, arrival=1.0))
    finish(scheduler)
    assert scheduler.counters.preemptions == 0


def test_zero_or_negative_sizes() -> None:
    for seqs, tokens in ((0, 8), (8, 0)):
        with pytest.raises(ConfigError, match="at least one row and one token"):
            make_scheduler(seqs=seqs, tokens=tokens)


# ---- prompt logprobs ----


def scores(*positions: int) -> list[PositionLogprobs]:
    return [PositionLogprobs([p], [0.0], [1]) for p in positions]


def test_prompt_logprobs_compute_every_position_and_come_with_the_first_token() -> None:
    scheduler = make_scheduler(tokens=4)
    scheduler.add(make_request("warm", length=9, max_len=10))
    finish(scheduler)
    scheduler.add(make_request("scored", length=9, max_len=11, prompt_logprobs=0))
    deltas = []
    for positions in ((1, 2, 3, 4), (5, 6, 7, 8), (9,)):  # the last names the output position, which is not the prompt's
        plan = scheduler.schedule()
        deltas += scheduler.commit(plan, StepResult(answer(plan).token_ids, prompt_logprobs={0: scores(*positions)}))
    assert [row.start for row in plan.rows] == [8]
    assert len(deltas) == 1 and deltas[0].prompt_logprobs == scores(*range(1, 9)) and deltas[0].num_cached_tokens == 0
    assert step(scheduler)[1][0].prompt_logprobs is None


def test_prompt_logprobs_of_a_preempted_prompt_are_not_doubled() -> None:
    scheduler = make_scheduler(tokens=4, caching=False)
    request = make_request("scored", length=9, max_len=11, prompt_logprobs=0)
    scheduler.add(request)
    scheduler.commit(scheduler.schedule(), StepResult([[]], prompt_logprobs={0: scores(1, 2, 3, 4)}))
    scheduler._preempt(request)
    deltas = []
    for positions in ((1, 2, 3, 4), (5, 6, 7, 8), (9,)):
        plan = scheduler.schedule()
        deltas += scheduler.commit(plan, StepResult(answer(plan).token_ids, prompt_logprobs={0: scores(*positions)}))
    assert deltas[0].prompt_logprobs == scores(*range(1, 9))


def test_prompt_logprobs_of_a_resumed_request_were_sent() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request(tokens=[1, 2, 3, 4], prompt_len=3, prompt_logprobs=0))
    (delta,) = scheduler.commit(scheduler.schedule(), StepResult([[5]], prompt_logprobs={0: scores(1, 2)}))
    assert delta.prompt_logprobs is None


# ---- ends ----


def test_abort_everywhere() -> None:
    scheduler = make_scheduler(seqs=1)
    assert scheduler.abort("nobody") == []
    scheduler.add(make_request("runs"))
    scheduler.add(make_request("waits", arrival=1.0))
    plan = scheduler.schedule()
    assert [(d.request_id, d.finish_reason) for d in scheduler.abort("runs") + scheduler.abort("waits")] == [("runs", "abort"), ("waits", "abort")]
    assert scheduler.abort("runs") == [] and not scheduler.has_work
    scheduler.add(make_request("next", arrival=2.0))
    assert scheduler.commit(plan, answer(plan)) == []
    plan, deltas = step(scheduler)
    assert plan.drops == [0] and plan.admits[0].slot == 0 and deltas[0].request_id == "next"


def test_slot_of_an_aborted_request_waits_for_the_plan_in_flight() -> None:
    scheduler = make_scheduler(seqs=1)
    scheduler.add(make_request("a"))
    first = scheduler.schedule()
    scheduler.abort("a")
    scheduler.add(make_request("b", arrival=1.0))
    second = scheduler.schedule()  # the first is still in flight
    assert second.drops == [0] and second.rows == []
    assert scheduler.commit(first, answer(first)) == [] == scheduler.commit(second, answer(second))
    third = scheduler.schedule()
    assert third.drops == [] and [a.request_id for a in third.admits] == ["b"]


def test_abort_of_one_sequence_leaves_the_others() -> None:
    scheduler = make_scheduler()
    family(scheduler, "f", length=4, n=3, max_len=6)
    assert [d.index for d in scheduler.abort("f", 1)] == [1] and scheduler.abort("f", 1) == []
    assert sorted(finish(scheduler)) == [("f", 0), ("f", 2)]


def test_errors_end_their_rows_alone() -> None:
    scheduler = make_scheduler()
    for i in range(3):
        scheduler.add(make_request(f"r{i}", tokens=[i] * 3, arrival=float(i)))
    deltas = scheduler.commit(scheduler.schedule(), StepResult([[1], [], []], errors={1: "out of memory"}))
    assert [(d.request_id, d.finish_reason, d.token_ids) for d in deltas] == [("r0", None, [1]), ("r1", "error", []), ("r2", "error", [])]
    assert deltas[1].error == "out of memory" and "no token was sampled" in deltas[2].error
    assert scheduler.num_running == 1
    scheduler.cache.check()


def test_impossible_requests_end_with_the_next_commit() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("empty", length=0))
    scheduler.add(make_request("long", length=10, max_len=10))
    scheduler.add(make_request("done", length=6, prompt_len=4, max_len=6))
    assert scheduler.has_work
    plan, deltas = step(scheduler)
    assert plan.rows == [] and [(d.request_id, d.finish_reason) for d in deltas] == [("empty", "error"), ("long", "error"), ("done", "length")]
    assert not scheduler.has_work


def test_same_sequence_twice_is_refused_and_the_first_goes_on() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("r", max_len=6))
    with pytest.raises(InvalidParameter, match="already being served"):
        scheduler.add(make_request("r"))
    assert len(finish(scheduler)["r", 0]) == 2
    scheduler.add(make_request("r", max_len=6))
    assert len(finish(scheduler)["r", 0]) == 2


def test_terminal_deltas_survive_a_commit_that_fails() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("empty", length=0))
    scheduler.add(make_request("r"))
    plan = scheduler.schedule()
    with pytest.raises(IndexError):
        scheduler.commit(plan, StepResult([]))
    assert step(scheduler)[1][0].request_id == "empty"


def test_stop_token_is_included_and_named() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request(eos_token_ids=[7]))
    (delta,) = step(scheduler, 7)[1]
    assert (delta.token_ids, delta.finish_reason, delta.stop_reason) == ([7], "stop", 7)
