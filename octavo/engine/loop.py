"""The step loop: drain messages, plan, launch, mask, sample, commit, send. One step is one page (:meth:`EngineLoop.step`).

The loop is where two promises are kept: every admitted sequence gets exactly one terminal delta, and what goes wrong in a step ends the sequences
of that step and no other. It therefore keeps its own list of live sequences and believes nobody else's.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

from octavo.core.plan import StepPlan, TokenDelta
from octavo.engine.admission import sequences
from octavo.engine.masks import Masks
from octavo.engine.messages import Abort, AddRequest, Deltas, GetStats, Shutdown, Stats
from octavo.errors import GrammarError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.core.kv import KVCache
    from octavo.core.plan import StepResult
    from octavo.core.request import Request
    from octavo.core.scheduler import Counters
    from octavo.decode.constraint import Pending
    from octavo.engine.admission import Limits
    from octavo.engine.executor import Executor
    from octavo.engine.link import Link
    from octavo.engine.masks import Key
    from octavo.engine.messages import ToEngine

log = logging.getLogger("octavo.engine")

COUNTERS = ("steps", "prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits", "preemptions")
STARVED_WAIT = 0.005  # seconds between tries while requests are live and none may run (a closed gate)


class Scheduler(Protocol):
    """The four calls of :mod:`octavo.core.scheduler`, and what it tells about itself."""

    cache: KVCache
    counters: Counters

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...

    def add(self, request: Request) -> None: ...

    def abort(self, request_id: str, index: int | None = None) -> list[TokenDelta]: ...

    def schedule(self) -> StepPlan: ...

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]: ...


def unconstrained(message: AddRequest) -> Pending | None:
    return None


class EngineLoop:
    """Runs on one thread, which calls :meth:`run`. ``heartbeat`` counts up with every turn; a watchdog may read it from another thread."""

    def __init__(
        self,
        link: Link,
        executor: Executor,
        make_scheduler: Callable[[], Scheduler],
        limits: Limits,
        *,
        constrain: Callable[[AddRequest], Pending | None] = unconstrained,
    ) -> None:
        """``constrain``: what a request's sequences wait for and then obey, each asking for itself; None if its tokens are free."""
        self._link, self._executor, self._limits = link, executor, limits
        self._make_scheduler, self._constrain = make_scheduler, constrain
        self._scheduler = make_scheduler()
        self._masks = Masks(limits.vocab_size)
        self._live: dict[str, set[int]] = {}  # request id -> sequences without a terminal delta
        self._slots: dict[int, Key] = {}  # worker slot -> the sequence in it
        self._starved = self._stopping = False
        self.heartbeat = 0
        self.idle = True
        self._past: dict[str, int] = {}  # counters of schedulers that were given up
        self._last_step = time.monotonic()

    def run(self) -> None:
        """Serve until a Shutdown arrives. Without live requests the thread sleeps in the link."""
        while not self._stopping:
            self.idle = not self._live
            messages = self._link.receive(None if self.idle else STARVED_WAIT if self._starved else 0)
            self.idle = False
            self.heartbeat += 1
            for message in messages:
                self._handle(message)
            if self._live and not self._stopping:
                self.step()

    def step(self) -> None:
        """One engine step."""
        plan: StepPlan | None = None
        try:
            plan = self._scheduler.schedule()
            self._follow(plan)
            self._starved = not plan.rows
            self._masks.propose(plan, self._slots)
            self._executor.launch(plan)
            masks = self._masks.fill(plan, self._slots)
            result = self._executor.sample(masks)
            failed = self._masks.advance(plan, result, self._slots)
            deltas = self._scheduler.commit(plan, result)
            for delta in deltas if failed else ():
                if (delta.request_id, delta.index) in failed:
                    delta.error_kind = GrammarError.__name__
        except Exception as error:
            deltas = self._contain(plan, error)
        self._send(deltas)
        self._last_step = time.monotonic()

    # -- messages

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, AddRequest):
            self._add(message)
        elif isinstance(message, Abort):
            if message.request_id in self._live:
                self._send(self._end(message.request_id, message.index, "abort"))
        elif isinstance(message, GetStats):
            self._link.send(self.stats())
        elif isinstance(message, Shutdown):
            for request_id in list(self._live):
                self._send(self._end(request_id, None, "abort"))
            self._stopping = True

    def _add(self, message: AddRequest) -> None:
        """Hand the sequences over, or answer each with its terminal delta.

        A second request with a live id is answered with index -1: the refusal must not end the sequences of the first.
        """
        request_id = message.request_id
        if self._stopping:
            ends = [TokenDelta(request_id, i, [], "abort") for i in range(message.params.n) if i not in message.finished]
            self._link.send(Deltas(ends))
            return
        if request_id in self._live:
            self._link.send(Deltas([TokenDelta(request_id, -1, [], "error", error=f"request id {request_id!r} is already in use")]))
            return
        indices = [i for i in range(message.params.n) if i not in message.finished]
        self._live[request_id] = set(indices)
        try:
            made = sequences(message, self._limits)
            pending = self._constrain(message)
            for request in made:
                self._start(request, pending)
        except RequestError as error:
            self._send(self._end(request_id, None, "error", error.message, type(error).__name__))
        except Exception as error:
            log.exception("request %s could not be added", request_id)
            self._send(self._end(request_id, None, "error", describe(error)))
        if not self._live.get(request_id, True):
            del self._live[request_id]

    def _start(self, request: Request, pending: Pending | None) -> None:
        if len(request.token_ids) >= request.max_len:  # resumed with nothing left to do
            self._send([TokenDelta(request.request_id, request.index, [], "length")])
            return
        if pending is not None:
            request.gate = self._masks.gate(request.key, pending, request.token_ids[request.prompt_len :])
        self._scheduler.add(request)

    # -- endings

    def _send(self, deltas: list[TokenDelta]) -> None:
        """Send what belongs to a live sequence and take the ended ones off the list."""
        sent: list[TokenDelta] = []
        for delta in deltas:
            indices = self._live.get(delta.request_id, ())
            if delta.index not in indices:
                log.debug("a delta for sequence %d of %s came after its end", delta.index, delta.request_id)  # an abort was faster
                continue
            sent.append(delta)
            if delta.finish_reason is not None:
                self._masks.end((delta.request_id, delta.index))
                self._live[delta.request_id].discard(delta.index)
                if not self._live[delta.request_id]:
                    del self._live[delta.request_id]
        if sent:
            self._link.send(Deltas(sent))

    def _end(self, request_id: str, index: int | None, reason: str, error: str | None = None, kind: str | None = None) -> list[TokenDelta]:
        """Take a live request (or one sequence of it) out of the scheduler; returns the terminal deltas, one a sequence."""
        try:
            self._scheduler.abort(request_id, index)
        except Exception as broken:
            log.exception("the scheduler could not drop %s", request_id)
            return self._reset(f"the engine failed: {describe(broken)}")
        indices = sorted(i for i in self._live.get(request_id, ()) if index is None or i == index)
        return [TokenDelta(request_id, i, [], reason, error=error, error_kind=kind) for i in indices]

    def _contain(self, plan: StepPlan | None, error: Exception) -> list[TokenDelta]:
        """A step failed as a whole: end its sequences. If not even a plan came about, or the books no longer balance, end all and start afresh."""
        log.error("a step failed", exc_info=error)
        message = f"the engine failed in a step: {describe(error)}"
        if plan is None:
            return self._reset(message)
        keys = [self._slots[row.slot] for row in plan.rows if row.slot in self._slots]
        try:
            for request_id, index in keys:
                self._scheduler.abort(request_id, index)
            self._scheduler.cache.check()
        except Exception:
            log.exception("the scheduler's books do not balance; all requests end")
            return self._reset(message)
        return [TokenDelta(*key, [], "error", error=message) for key in keys if key[1] in self._live.get(key[0], ())]

    def _reset(self, message: str) -> list[TokenDelta]:
        """A new scheduler with an empty cache; every live sequence ends. Worker slots are simply taken again."""
        self._past = self._totals()
        self._scheduler = self._make_scheduler()
        self._slots.clear()
        return [TokenDelta(request_id, i, [], "error", error=message) for request_id, indices in self._live.items() for i in sorted(indices)]

    # -- bookkeeping

    def stats(self) -> Stats:
        """A snapshot of this moment."""
        usage = self._scheduler.cache.usage()
        return Stats(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            kv_blocks_used=usage.blocks_used,
            kv_blocks_total=self._scheduler.cache.num_blocks,
            kv_waste=usage.waste,
            last_step_age=time.monotonic() - self._last_step,
            **self._totals(),
        )

    def _totals(self) -> dict[str, int]:
        counters = self._scheduler.counters
        return {name: getattr(counters, name) + self._past.get(name, 0) for name in COUNTERS}

    def _follow(self, plan: StepPlan) -> None:
        for slot in plan.drops:
            self._slots.pop(slot, None)
        for admit in plan.admits:
            self._slots[admit.slot] = (admit.request_id, admit.index)


def describe(error: BaseException) -> str:
    """One line for the person who asked: the kind of error and what it says."""
    text = str(error).strip().splitlines()
    name = "out of memory" if isinstance(error, MemoryError) else type(error).__name__
    return f"{name}: {text[0]}" if text else name
