"""Small rules: stop conditions, fair shares, budgets, policies, the queue's overtaking rule, slots, the registry."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from octavo.core.budget import TokenBudget, fair_shares
from octavo.core.policy import FirstComeFirstServed, PriorityFirst, ShortestFirst
from octavo.core.queue import Queue
from octavo.core.registry import resolve
from octavo.core.scheduler import Scheduler
from octavo.core.slots import SlotTable
from octavo.core.stop import cut, over_at_arrival
from octavo.errors import ConfigError
from tests.core.helpers import make_request

if TYPE_CHECKING:
    from octavo.core.request import Request

# ---- stop ----


def test_cut_at_the_first_stopping_token() -> None:
    request = make_request(length=4, stop_token_ids=[5], max_len=10)
    assert cut(request, [1, 2]) == ([1, 2], None, None)
    assert cut(request, [1, 5, 2, 5]) == ([1, 5], "stop", 5)
    assert cut(request, [1, 2, 3, 4, 6, 7, 5]) == ([1, 2, 3, 4, 6, 7], "length", None)
    assert cut(request, [1, 2, 3, 4, 6, 5]) == ([1, 2, 3, 4, 6, 5], "stop", 5)  # both at once: it stopped


def test_stop_tokens_count_only_beyond_min_tokens() -> None:
    request = make_request(length=4, stop_token_ids=[5], min_tokens=2, max_len=10)
    assert cut(request, [5, 5]) == ([5, 5], None, None)
    assert cut(request, [5, 5, 5, 1]) == ([5, 5, 5], "stop", 5)


def test_end_of_sequence_and_ignore_eos() -> None:
    assert cut(make_request(eos_token_ids=[2]), [2])[1] == "stop"
    assert cut(make_request(eos_token_ids=[2], ignore_eos=True), [2])[1] is None
    assert cut(make_request(eos_token_ids=[2], ignore_eos=True, stop_token_ids=[2]), [2]) == ([2], "stop", 2)


def test_over_at_arrival() -> None:
    assert over_at_arrival(make_request(length=4, max_len=5)) is None
    assert over_at_arrival(make_request(length=0)) == ("error", "the prompt is empty; at least one token is needed")
    reason, message = over_at_arrival(make_request(length=1500, max_len=1000)) or ("", None)
    assert reason == "error" and message is not None and "1,500" in message and "1,000" in message
    assert over_at_arrival(make_request(length=6, prompt_len=4, max_len=6)) == ("length", None)


# ---- budgets ----


@pytest.mark.parametrize(
    ("wants", "total", "shares"),
    [
        ([100], 30, [30]),
        ([100, 100], 30, [15, 15]),
        ([5, 100, 100], 30, [5, 13, 12]),
        ([100, 5], 30, [25, 5]),
        ([3, 4], 30, [3, 4]),
        ([9, 9, 9], 2, [1, 1, 0]),
        ([], 7, []),
    ],
)
def test_fair_shares(wants: list[int], total: int, shares: list[int]) -> None:
    assert fair_shares(wants, total) == shares


def test_fair_shares_properties() -> None:
    rng = random.Random(0)
    for _ in range(500):
        wants = [rng.randint(1, 50) for _ in range(rng.randint(1, 8))]
        total = rng.randint(0, 120)
        shares = fair_shares(wants, total)
        assert sum(shares) == min(total, sum(wants)) and all(0 <= s <= w for s, w in zip(shares, wants, strict=True))
        cut_off = [s for s, w in zip(shares, wants, strict=True) if s < w]
        assert not cut_off or max(shares) - min(cut_off) <= 1  # whoever is cut has as much as anybody
        assert total < len(wants) or min(shares) >= 1


def running(*wants: int, drafts: int = 0) -> list[Request]:
    out = []
    for i, want in enumerate(wants):
        request = make_request(f"r{i}", length=want + 3)
        request.num_computed, request.order = 3, (float(i), i)
        request.draft = [1] * drafts if want == 1 else []
        out.append(request)
    return out


def shares_of(budget: TokenBudget, requests: list[Request]) -> list[int]:
    budget.begin(requests)
    shares = budget.shares()
    return [shares.get(r, 0) for r in requests]


def test_one_prompt_alone_gets_the_whole_budget() -> None:
    assert shares_of(TokenBudget(64), running(1000)) == [64]


def test_prompts_get_at_most_their_part_while_others_decode() -> None:
    assert shares_of(TokenBudget(64), running(1, 1000)) == [0, 32]
    assert shares_of(TokenBudget(64), running(1, 1000, 1000)) == [0, 16, 16]
    assert shares_of(TokenBudget(64), running(1, 1000, 10)) == [0, 22, 10]
    assert shares_of(TokenBudget(64, prompt_share=1.0), running(1, 1000)) == [0, 63]


def test_decoding_rows_leave_what_they_leave() -> None:
    assert shares_of(TokenBudget(8), running(1, 1, 1, 1, 1, 1, 50)) == [0] * 6 + [2]


def test_few_long_prompts_side_by_side_and_short_ones_behind_them() -> None:
    assert shares_of(TokenBudget(64), running(*[1000] * 6)) == [16, 16, 16, 16, 0, 0]
    assert shares_of(TokenBudget(64), running(*[10] * 8)) == [10] * 4 + [6] * 4


def test_drafts_leave_room_for_prompts() -> None:
    budget = TokenBudget(16)
    budget.begin(running(1, 1, drafts=10))
    assert budget.drafts() == 14
    budget.begin(running(1, 1, 100, drafts=10))
    assert budget.drafts() == 6 and sum(budget.shares().values()) == 8
    budget.begin(running(1, 1))
    assert budget.drafts() == 0


def test_full_token_budget() -> None:
    budget = TokenBudget(4)
    budget.begin(running(1, 1, 1, 1))
    assert budget.full
    budget.begin(running(1, 1, 1))
    assert not budget.full and budget.fits(make_request())
    budget.take(make_request(length=9))
    assert budget.full


# ---- policies ----


def test_first_come_first_served() -> None:
    policy = FirstComeFirstServed()
    early, late = make_request(arrival=1.0), make_request(arrival=2.0)
    assert policy.rank(early) < policy.rank(late)
    early.num_computed, late.num_computed = 10, 20
    assert policy.victim([early, late]) is early  # least work lost
    late.num_computed = 10
    assert policy.victim([early, late]) is late  # then the younger


def test_priority_with_ageing() -> None:
    policy = PriorityFirst(seconds_per_level=30)
    urgent, patient = make_request(priority=0, arrival=100.0), make_request(priority=1, arrival=80.0)
    assert policy.rank(urgent) < policy.rank(patient)
    patient.arrival = 69.0  # 31 seconds earlier make up for one level
    assert policy.rank(patient) < policy.rank(urgent)
    assert policy.victim([urgent, patient]) is patient
    assert policy.rank(make_request(priority=-(10**400))) < policy.rank(urgent) < policy.rank(make_request(priority=10**400))


def test_shortest_first_with_ageing() -> None:
    policy = ShortestFirst(tokens_per_second=100)
    short, long = make_request(length=10, arrival=5.0), make_request(length=200, arrival=5.0)
    assert policy.rank(short) < policy.rank(long)
    long.arrival = 3.0
    assert policy.rank(long) < policy.rank(short)
    assert policy.victim([short, long]) is long


# ---- queue ----


def test_queue_counts_only_real_overtaking_and_then_closes() -> None:
    queue = Queue(max_overtaken=2)
    giant, *small = (make_request(f"r{i}", length=100 if i == 0 else 1) for i in range(6))
    for i, request in enumerate([giant, *small]):
        request.order = (float(i), i)
        queue.push(request)
    fits = {request: request is not giant for request in (giant, *small)}
    admitted = queue.admit(lambda r: True, lambda r: fits[r])
    assert next(admitted) is small[0] and giant.skipped == 1
    assert next(admitted) is small[1] and giant.skipped == 2
    admitted.close()
    assert list(queue.admit(lambda r: True, lambda r: fits[r])) == [] and len(queue) == 4  # nobody may pass the giant any more
    fits[giant] = True
    assert list(queue.admit(lambda r: True, lambda r: fits[r])) == [giant, *small[2:]] and giant.skipped == 0


def test_queue_passes_over_closed_gates_without_counting() -> None:
    queue = Queue(max_overtaken=0)
    gated, free = make_request("a"), make_request("b")
    gated.order, free.order = (0.0, 0), (1.0, 1)
    queue.push(free)
    queue.push(gated)
    assert list(queue.admit(lambda r: r is free, lambda r: True)) == [free] and gated.skipped == 0


# ---- slots ----


def test_a_slot_is_not_given_away_while_a_plan_in_flight_names_it() -> None:
    slots = SlotTable(1)
    request = make_request()
    slots.take(request)
    request.row.slot = request.slot  # the worker was told
    row = request.row
    slots.leave(request, step=3)
    assert request.slot == -1 and request.row is not row and row.slot == 0
    assert slots.begin(committed=2) == [0] and slots.free == []
    assert slots.begin(committed=3) == [] and slots.free == [0]


def test_a_slot_the_worker_never_heard_of_is_free_at_once() -> None:
    slots = SlotTable(2)
    request = make_request()
    slots.take(request)
    slots.leave(request, step=3)
    assert sorted(slots.free) == [0, 1] and slots.begin(committed=0) == []


# ---- registry ----


def test_registered_names_and_module_paths() -> None:
    assert resolve("scheduler", "default") is Scheduler
    assert resolve("scheduling_policy", "shortest-first") is ShortestFirst
    assert resolve("kv_cache", "octavo.core.kv.paged:PagedKVCache") is resolve("kv_cache", "paged")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lifo", "choose one of fcfs, priority, shortest-first"),
        ("no.such.module:Policy", "cannot be loaded"),
        ("octavo.core.policy:Missing", "cannot be loaded"),
        ("octavo.core.stop:cut", "is not a class"),
        (":Policy", "unknown scheduling_policy"),
        ("octavo.core.policy:", "unknown scheduling_policy"),
        ("..:x", "cannot be loaded"),
    ],
)
def test_wrong_names(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("scheduling_policy", name)
