"""Small builders for the core's tests: requests of counted tokens, a scheduler on a small cache, and a worker that answers by rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.core.kv.paged import PagedKVCache
from octavo.core.plan import StepPlan, StepResult, TokenDelta
from octavo.core.policy import FirstComeFirstServed
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable


def make_request(
    name: str = "r", length: int = 4, *, tokens: list[int] | None = None, max_len: int = 1000, index: int = 0, **options: Any
) -> Request:
    """Options of SamplingParams and of Request, mixed. The prompt is 100, 101, ... unless given."""
    fields = SamplingParams.__dataclass_fields__
    params = SamplingParams(**{k: v for k, v in options.items() if k in fields})
    rest = {k: v for k, v in options.items() if k not in fields}
    tokens = list(range(100, 100 + length)) if tokens is None else tokens
    return Request(name, tokens, params, index=index, max_len=max_len, **rest)


def make_scheduler(blocks: int = 64, block_size: int = 4, *, seqs: int = 8, tokens: int = 64, caching: bool = True, **options: Any) -> Scheduler:
    options.setdefault("policy", FirstComeFirstServed())
    return Scheduler(PagedKVCache(blocks, block_size, caching), max_num_seqs=seqs, max_num_batched_tokens=tokens, **options)


def answer(plan: StepPlan, token: int | Callable[[int], int] = 7) -> StepResult:
    """Every row that samples gets ``token`` (or ``token(row number)``)."""
    return StepResult([[token if isinstance(token, int) else token(i)] if row.sample else [] for i, row in enumerate(plan.rows)])


def step(scheduler: Scheduler, token: int = 7) -> tuple[StepPlan, list[TokenDelta]]:
    plan = scheduler.schedule()
    deltas = scheduler.commit(plan, answer(plan, token))
    scheduler.cache.check()
    return plan, deltas


def finish(scheduler: Scheduler, limit: int = 10_000) -> dict[tuple[str, int], list[TokenDelta]]:
    """Step until nothing is left; the deltas of each sequence."""
    seen: dict[tuple[str, int], list[TokenDelta]] = {}
    for _ in range(limit):
        if not scheduler.has_work:
            return seen
        for delta in step(scheduler)[1]:
            seen.setdefault((delta.request_id, delta.index), []).append(delta)
    raise AssertionError("no end")
