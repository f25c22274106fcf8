"""The scheduler: which tokens of which requests the next step computes, and what its result means.

There are no phases. A request wants ``known + draft - computed`` tokens; :meth:`Scheduler.schedule` turns wants into rows, and
:meth:`Scheduler.commit` appends what came back and sets ``computed = min(start + count, known - 1 if anything was sampled else known)``.
Chunked prefill, prefix hits, rejected drafts, resumed and preempted requests all follow from that rule.

Why it cannot hang: running requests are served in order of rank, and the first may take blocks from every later one, so it always gets a
row, unless it does not fit the empty cache, which ends it with an error. When nothing runs, the first ready waiting request is admitted.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.core import fork
from octavo.core.budget import BlockBudget, Budget, RowBudget, TokenBudget
from octavo.core.kv import reserve_up_to
from octavo.core.outcome import report_first, take_extras
from octavo.core.plan import Admit, StepPlan, TokenDelta
from octavo.core.queue import MAX_OVERTAKEN, Queue, by_order
from octavo.core.request import FINISHED, RUNNING, WAITING, Request
from octavo.core.slots import SlotTable
from octavo.core.stop import ABORT, ERROR, cut, over_at_arrival, too_large
from octavo.errors import ConfigError, InvalidParameter

if TYPE_CHECKING:
    from octavo.core.kv import KVCache, KVUsage
    from octavo.core.plan import StepResult
    from octavo.core.policy import Policy


@dataclass(slots=True)
class Counters:
    """Totals since the start. Prompt tokens are counted once a request, at its first admission; forks count none."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0  # tokens looked up in the prefix cache
    prefix_hits: int = 0  # tokens found there
    preemptions: int = 0


class Scheduler:
    """Continuous batching over one KV cache. Every plan must be committed, in order, also one without rows.

    ``max_num_seqs``: worker slots. ``max_num_batched_tokens``: tokens of a step; at most so many requests run. ``prompt_share``: part of
    these tokens that prompts together may take while others decode. ``max_overtaken``: so often may later requests be admitted before one
    that did not fit.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policy: Policy,
        prompt_share: float = 0.5,
        max_overtaken: int = MAX_OVERTAKEN,
    ) -> None:
        if max_num_seqs < 1 or max_num_batched_tokens < 1:
            raise ConfigError(f"a step needs at least one row and one token, got {max_num_seqs:,} rows and {max_num_batched_tokens:,} tokens")
        self.cache, self.policy, self.counters = cache, policy, Counters()
        self._requests: dict[str, dict[int, Request]] = {}  # every live request, by id and index
        self._waiting = Queue(max_overtaken)
        self._running: list[Request] = []  # in order of rank
        self._slots = SlotTable(max_num_seqs)
        self._ended: list[TokenDelta] = []  # terminal deltas that the next commit returns
        self._seq = self._step = self._committed = 0
        rows = RowBudget(min(max_num_seqs, max_num_batched_tokens), self._slots.free)
        self._tokens = TokenBudget(max_num_batched_tokens, prompt_share=prompt_share)
        self._blocks = BlockBudget(cache)
        self._budgets: tuple[Budget, ...] = (self._tokens, rows, self._blocks)

    # ---- state, cheap to read ----

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Something lives, or a terminal delta waits for the next commit."""
        return bool(self._running or self._waiting or self._ended)

    @property
    def usage(self) -> KVUsage:
        return self.cache.usage()

    # ---- the four calls ----

    def add(self, request: Request) -> None:
        """Queue a request; one that can never run gets its terminal delta from the next commit.

        A request with a live ``parent`` of the same prompt waits until that prompt is computed and forks from it; any other is on its own.
        Raises InvalidParameter if this sequence of this request is live already.
        """
        siblings = self._requests.setdefault(request.request_id, {})
        if request.index in siblings:
            raise InvalidParameter(f"request {request.request_id!r} is already being served (sequence {request.index})")
        siblings[request.index] = request
        self._seq += 1
        request.seq, request.order, request.status = self._seq, (self.policy.rank(request), self._seq), WAITING
        fork.attach(request)
        self._waiting.push(request)
        over = over_at_arrival(request)
        if over:
            self._end_later(request, *over)

    def abort(self, request_id: str, index: int | None = None) -> list[TokenDelta]:
        """End a request, or one of its sequences, at any moment. Returns the terminal deltas; unknown ids are ignored."""
        siblings = self._requests.get(request_id, {})
        return [self._end(siblings[i], ABORT) for i in sorted(siblings) if index is None or i == index]

    def schedule(self) -> StepPlan:
        """The next step: a row for each running request, in order of rank, after admitting waiting ones while all budgets allow."""
        self._step += 1
        self.counters.steps += 1
        plan = StepPlan(self._step, drops=self._slots.begin(self._committed))
        self._fill(plan)
        if not plan.rows and not self._running and self._strip(plan):
            self._fill(plan)
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        """Take in what the step computed. Returns what every sequence gained, and the terminal deltas of those that ended."""
        deltas: list[TokenDelta] = []
        self._committed = max(self._committed, plan.step)
        slots, sampled, errors = self._slots.requests, result.token_ids, result.errors
        block_size, publish = self.cache.block_size, self.cache.publish
        extras = bool(result.logprobs or result.prompt_logprobs or result.draft)
        generated = 0
        for i, row in enumerate(plan.rows):
            request = slots[row.slot]
            if request is None:
                continue  # it ended after this plan was made
            if (errors and i in errors) or (row.sample and not sampled[i]):
                deltas.append(self._end(request, ERROR, errors.get(i, f"no token was sampled for position {len(request.token_ids):,}")))
                continue
            start, computed, delta = row.start, row.start + row.count, None
            if row.sample:
                known, tokens = request.token_ids, sampled[i]
                delta = TokenDelta(request.request_id, request.index, tokens)
                if len(tokens) > 1 or tokens[0] in request.stop_ids or len(known) + 1 >= request.max_len:
                    tokens, delta.finish_reason, delta.stop_reason = cut(request, tokens)
                    delta.token_ids = tokens
                known += tokens
                generated += len(tokens)
                if computed >= len(known):
                    computed = len(known) - 1
                if request.draft:
                    request.draft = []
                deltas.append(delta)
            request.num_computed = computed
            if computed % block_size < computed - start:
                publish(request)
            if extras:
                take_extras(request, i, start, delta, result)
            if delta is not None:
                if request.unreported:
                    report_first(request, delta, self.cache)
                if delta.finish_reason:
                    self._forget(request)
        self.counters.generation_tokens += generated
        if self._ended:
            deltas, self._ended = self._ended + deltas, []
        return deltas

    # ---- making a plan ----

    def _fill(self, plan: StepPlan) -> None:
        """Admit, then give every running request its row. Kept flat: this loop is the host cost of a step."""
        running, append, total = self._running, plan.rows.append, 0
        if self._waiting:
            self._admit()
        else:
            self._tokens.begin(running)
        shares, drafts = self._tokens.shares(), self._tokens.drafts()
        unfit: list[Request] = []
        for request in running:  # making room removes later entries only
            start, known, row = request.num_computed, len(request.token_ids), request.row
            end = known
            if known - start > 1:
                end = start + shares.get(request, 0)
                if end == start:
                    continue
            elif drafts and request.draft:
                end += min(len(request.draft), drafts)
                drafts -= end - known
            if end > request.capacity:
                end = self._reserve(plan, request, end, unfit)
                if end == start:
                    continue
            else:
                row.blocks = ()
            row.start, row.count, row.sample, row.num_draft = start, end - start, end >= known, end - known if end > known else 0
            total += end - start
            append(row)
        plan.num_tokens += total
        for request in unfit:
            self._end_later(request, ERROR, too_large(request, self.cache.max_tokens))

    def _admit(self) -> None:
        for budget in self._budgets:
            budget.begin(self._running)
            if budget.full:
                return
        for request in self._waiting.admit(self._ready, self._place):
            self._slots.take(request)
            request.status = RUNNING
            insort(self._running, request, key=by_order)
            for budget in self._budgets:
                budget.take(request)
            if request.num_cached is None:
                request.num_cached = request.num_computed
                self.counters.prompt_tokens += request.prompt_len
                self.counters.prefix_queries += len(request.token_ids)
                self.counters.prefix_hits += request.num_computed
            if any(budget.full for budget in self._budgets):
                return

    def _ready(self, request: Request) -> bool:
        """Ask the gate. A request that turns out to be impossible ends here."""
        if len(request.token_ids) > self.cache.max_tokens:
            self._end_later(request, ERROR, too_large(request, self.cache.max_tokens))
            return False
        if request.gate is None:
            return True
        try:
            if request.gate():
                request.gate = None
        except Exception as error:  # what it waited for failed, for this request alone
            self._end_later(request, ERROR, str(error) or type(error).__name__)
            self._ended[-1].error_kind = type(error).__name__
            return False
        return request.gate is None

    def _place(self, request: Request) -> bool:
        """Every budget has room. True leaves the request holding its cached prefix, false holding what it held."""
        if not all(budget.fits(request) for budget in self._budgets):
            return False
        if not request.block_ids and request.prompt_logprobs is None:  # prompt logprobs need every position computed
            request.num_computed = self.cache.adopt(request)
            if request.block_ids and not self._blocks.fits(request):
                self._vacate(request)
                return False
        return True

    def _reserve(self, plan: StepPlan, request: Request, end: int, unfit: list[Request]) -> int:
        """Blocks up to ``end`` or as far as they reach. Returns the new end, ``num_computed`` if the request must sit this step out."""
        held = len(request.block_ids)
        reached, copies = reserve_up_to(self.cache, request, end)
        if copies is None:
            reached, copies = self._make_room(plan, request, end, unfit)
            if copies is None:
                return reached
        row = request.row
        if row.slot < 0:  # the worker has not seen it in this slot
            row.slot, row.blocks = request.slot, ()
            tokens, blocks = list(request.token_ids), list(request.block_ids)
            plan.admits.append(
                Admit(request.slot, request.request_id, request.index, tokens, request.prompt_len, request.params, request.eos_token_ids, blocks)
            )
        else:
            row.blocks_at = request.num_computed // self.cache.block_size if copies else held
            row.blocks = request.block_ids[row.blocks_at :]
        plan.copies += copies
        return reached

    # ---- giving up blocks and slots ----

    def _make_room(self, plan: StepPlan, request: Request, wanted: int, unfit: list[Request]) -> tuple[int, list[tuple[int, int]] | None]:
        """Take blocks from waiting forks, then from later running requests, until at least one more token fits; drafts do not count.

        Holders of this step's copy sources keep them: a block must not be the source of one copy and the destination of another.
        """
        cache, end = self.cache, min(wanted, len(request.token_ids))
        if len(request.token_ids) > cache.max_tokens:
            unfit.append(request)
            return request.num_computed, None
        reached, copies = reserve_up_to(cache, request, end) if self._strip(plan) else (request.num_computed, None)
        sources = {source for source, _ in plan.copies}
        later = self._running[self._running.index(request) + 1 :]
        candidates = [other for other in later if other.block_ids and sources.isdisjoint(other.block_ids)]
        while copies is None and candidates:
            victim = self.policy.victim(candidates)
            candidates.remove(victim)
            self._preempt(victim)
            reached, copies = reserve_up_to(cache, request, end)
        if copies is None and cache.num_free + len(request.block_ids) == cache.num_blocks:  # it has the cache to itself
            unfit.append(request)
        return reached, copies

    def _strip(self, plan: StepPlan) -> bool:
        """Waiting forks give up the blocks they hold and become ordinary requests. False if there were none to take."""
        sources = {source for source, _ in plan.copies}
        holders = [request for request in self._waiting.holders() if sources.isdisjoint(request.block_ids)]
        for request in holders:
            self._vacate(request)
        return bool(holders)

    def _preempt(self, victim: Request) -> None:
        """Back to its place in the queue; it will be computed again, mostly from the prefix cache."""
        self._running.remove(victim)
        self._slots.leave(victim, self._step)
        self._vacate(victim)
        victim.status, victim.draft = WAITING, []
        victim.num_preemptions += 1
        self.counters.preemptions += 1
        self._waiting.push(victim)

    def _vacate(self, request: Request) -> None:
        self.cache.release(request)
        request.num_computed = 0

    def _end(self, request: Request, reason: str, error: str | None = None) -> TokenDelta:
        self._forget(request)
        return TokenDelta(request.request_id, request.index, [], reason, error=error)

    def _end_later(self, request: Request, reason: str, error: str | None = None) -> None:
        self._ended.append(self._end(request, reason, error))

    def _forget(self, request: Request) -> None:
        """The request is over: it leaves its slot or the queue, its blocks, and its forks."""
        if request.status == RUNNING:
            self._running.remove(request)
            self._slots.leave(request, self._step)
        else:
            self._waiting.remove(request)
        self.cache.release(request)
        request.status = FINISHED
        fork.detach(request)
        siblings = self._requests[request.request_id]
        del siblings[request.index]
        if not siblings:
            del self._requests[request.request_id]
