"""Text in, stream of text deltas out: the one path that every front end takes to the engine."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.engine.faults import error_of, request_error
from octavo.engine.messages import Abort, Deltas, EngineLost, Fatal, GetStats, Progress, Ready
from octavo.engine.messages import Stats as Stats
from octavo.errors import EngineDied, InvalidParameter, OctavoError, Overloaded, RequestError, RequestFailed
from octavo.service.admission import Admission, Limits, seed_source
from octavo.service.generation import Generation, Live
from octavo.service.journal import Journal
from octavo.service.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from octavo.core.plan import TokenDelta
    from octavo.engine.client import EngineClient
    from octavo.engine.messages import ClientEvent
    from octavo.engine.messages import EngineInfo as EngineInfo  # also for front ends
    from octavo.service.admission import Admitted
    from octavo.service.model_text import ModelText
    from octavo.service.types import GenerateRequest, TextDelta
    from octavo.text.tokenizer import Tokenizer as Tokenizer

logger = logging.getLogger(__name__)

LOADING, READY, RESTARTING, DRAINING, DEAD = "loading", "ready", "restarting", "draining", "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """``seed`` None: requests without a seed get one from the operating system; else a repeatable sequence of seeds starts there.

    load_timeout: seconds a request waits for a model that is loading or an engine that restarts.
    """

    model_name: str
    metrics_prefix: str = "octavo"
    limits: Limits = field(default_factory=Limits)
    seed: int | None = None
    load_timeout: float = 300.0


@dataclass(frozen=True, slots=True)
class Health:
    """``status``: "loading", "ready", "restarting", "draining" or "dead". ``phase`` says what a loading engine does."""

    status: str
    phase: str = ""
    detail: str = ""
    live_requests: int = 0


class Service:
    """Owns the engine client and every live request. All methods run on the event loop that called :meth:`start`.

    ``load_text`` runs in a thread while the engine starts; it gives the model's tokenizer and template.
    """

    def __init__(self, client: EngineClient, load_text: Callable[[], ModelText], options: ServiceOptions) -> None:
        self.options = options
        self.journal = Journal()
        self.metrics = Metrics(options.model_name, prefix=options.metrics_prefix)
        self._client, self._load_text = client, load_text
        self._live: dict[str, Live] = {}
        self._text: ModelText | None = None
        self._info: EngineInfo | None = None
        self._admission: Admission | None = None
        self._phase = "starting"
        self._engine_lost = self._draining = False
        self._waiting = 0  # calls that wait for readiness
        self._failure: OctavoError | None = None
        self._changed = asyncio.Event()  # set whenever waiting for readiness may be over
        self._pump: asyncio.Task[None] | None = None
        self._stats, self._stats_waiters = Stats(), list[asyncio.Future[Stats]]()

    # --- life ---

    async def start(self) -> EngineInfo:
        """Start the engine and load the text side, at the same time. Raises what made the start fail; close the service then."""
        self._pump = asyncio.create_task(self._read_events(), name="octavo-events")
        try:
            info, text = await asyncio.gather(self._client.start(), asyncio.to_thread(self._load_text))
        except Exception as error:
            self._give_up(error if isinstance(error, OctavoError) else EngineDied(f"the engine did not start: {error}"))
            raise
        self._text, self._info = text, self._info or info
        self._admission = Admission(text, self._info, self.options.limits, seed_source(self.options.seed))
        self._changed.set()
        return self._info

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Take no more requests, let live ones finish for ``drain_seconds``, abort the rest, stop the engine. Safe to call twice."""
        await self.drain(drain_seconds)
        await self._client.close()
        if self._pump is not None:
            self._pump.cancel()
            with suppress(asyncio.CancelledError):
                await self._pump
        if self._admission is not None:
            self._admission.close()
        self._give_up(self._failure or EngineDied("the server has stopped"))

    async def drain(self, seconds: float) -> None:
        """Refuse new requests; wait up to ``seconds`` for the live ones, then abort what is left (each stream gets its end)."""
        self._draining = True
        self._changed.set()
        until = time.monotonic() + seconds
        while self._live and time.monotonic() < until:
            await asyncio.sleep(0.02)
        for request_id in list(self._live):
            self.abort(request_id)

    # --- requests ---

    async def generate(self, request: GenerateRequest) -> Generation:
        """Admit a request. Every complaint about it is raised here, before the first delta; raises Overloaded, EngineDied, RequestError."""
        return (await self.generate_all([request]))[0]

    async def generate_all(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        """Admit all of these, or none: the first complaint in order is raised before anything runs."""
        await self._wait_in_line()
        assert self._admission is not None
        self._check_room(sum(r.params.n for r in requests))
        results = await asyncio.gather(*(self._admission.admit(r) for r in requests), return_exceptions=True)
        admitted: list[Admitted] = []
        for position, result in enumerate(results):
            if isinstance(result, BaseException):
                if isinstance(result, RequestError) and len(requests) > 1:
                    result.message = f"prompt {position}: {result.message}"
                    result.args = (result.message,)
                raise result
            admitted.append(result)
        await self.ready()  # the engine may have gone, or a drain begun, while the prompts were tokenized
        self._check_room(sum(r.params.n for r in requests))
        ids = [a.message.request_id for a in admitted]
        taken = next((i for i in ids if i in self._live), None)
        if taken is not None or len(set(ids)) < len(ids):
            raise InvalidParameter(f"a request with id {taken or ids[0]!r} is running already", param="request_id")
        return [self._submit(a) for a in admitted]

    async def _wait_in_line(self) -> None:
        """Wait until requests can run, as one of a bounded number of waiting calls."""
        most = self.options.limits.max_pending
        if self.status != READY and most is not None and self._waiting >= most:
            raise Overloaded(f"{self._waiting:,} requests wait for the model ({self.status}); try again later", retry_after=10.0)
        self._waiting += 1
        try:
            await self.ready()
        finally:
            self._waiting -= 1

    def _check_room(self, sequences: int) -> None:
        assert self._admission is not None
        try:
            self._admission.check_room(self.journal.num_sequences, sequences)
        except Overloaded:
            self.metrics.count("admission_rejections")
            raise

    def _submit(self, admitted: Admitted) -> Generation:
        assert self._text is not None
        message = admitted.message
        live = Live(admitted, self._text.tokenizer)
        self._live[message.request_id] = live
        self.journal.open(message)
        self.metrics.observe("request_prompt_tokens", len(message.prompt_token_ids))
        self.metrics.observe("request_params_n", message.params.n)
        self._client.send(message)
        return Generation(live, admitted.prompt, self.abort)

    def abort(self, request_id: str) -> bool:
        """End a request now: its stream gets finish_reason "abort". False if no such request is live."""
        live = self._live.get(request_id)
        if live is None:
            return False
        self._end(live, "abort")
        self._client.send(Abort(request_id))
        return True

    async def ready(self) -> None:
        """Wait until requests can run. Raises Overloaded after ``load_timeout``, EngineDied or the start's own error if that cannot be."""
        until = time.monotonic() + self.options.load_timeout
        while (status := self.status) != READY:
            if status == DRAINING:
                raise Overloaded("the server is shutting down", retry_after=5.0)
            if status == DEAD:
                raise self._failure or EngineDied("the engine has stopped")
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), until - time.monotonic())
            except asyncio.TimeoutError:
                raise Overloaded(f"the model is not ready after {self.options.load_timeout:g} s: {status}, {self._phase}", retry_after=10.0) from None

    # --- facts ---

    @property
    def status(self) -> str:
        if self._failure is not None:
            return DEAD
        if self._draining:
            return DRAINING
        if self._admission is None:
            return LOADING
        return RESTARTING if self._engine_lost else READY

    def health(self) -> Health:
        status = self.status
        detail = self._failure.message if self._failure is not None else ""
        return Health(status, self._phase if status in (LOADING, RESTARTING) else "", detail, len(self._live))

    async def stats(self, timeout: float = 1.0) -> Stats:
        """A fresh snapshot of the engine, or the last one known if it does not answer in ``timeout`` seconds (it may be in a long step)."""
        if self.status in (READY, DRAINING) and not self._engine_lost:
            waiter: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
            self._stats_waiters.append(waiter)
            self._client.send(GetStats())
            with suppress(asyncio.TimeoutError):
                return await asyncio.wait_for(waiter, timeout)
        return self._stats

    async def render_metrics(self) -> bytes:
        """The Prometheus page, with engine figures as fresh as can be had."""
        await self.stats()
        return self.metrics.render()

    @property
    def info(self) -> EngineInfo | None:
        """Facts about the engine; None while it loads."""
        return self._info

    @property
    def text(self) -> ModelText | None:
        return self._text

    @property
    def tokenizer(self) -> Tokenizer:
        if self._text is None:
            raise EngineDied("the model is still loading")
        return self._text.tokenizer

    @property
    def default_params(self) -> Mapping[str, Any]:
        """Sampling defaults that the model's generation_config.json names."""
        return self._text.default_params if self._text is not None else {}

    # --- engine events ---

    async def _read_events(self) -> None:
        try:
            async for event in self._client.events():
                self._handle(event)
        except asyncio.CancelledError:
            raise
        except OctavoError as error:
            self._give_up(error)
        except Exception:
            logger.exception("reading the engine's events failed")
            self._give_up(EngineDied("the connection to the engine broke"))
        else:
            self._give_up(self._failure or EngineDied("the engine has stopped"))

    def _handle(self, event: ClientEvent) -> None:
        match event:
            case Deltas(deltas=deltas):
                for delta in deltas:
                    self._take(delta)
            case Stats():
                self._stats = event
                self.metrics.engine(event)
                for waiter in self._stats_waiters:
                    if not waiter.done():
                        waiter.set_result(event)
                self._stats_waiters.clear()
            case Progress():
                self._progress(event)
            case Ready(info=info):
                self._engine_ready(info)
            case EngineLost(message=message):
                logger.warning("%d live requests go on when the engine is back (%s)", len(self._live), message)
                self._engine_lost = True
            case Fatal():
                self._give_up(error_of(event))

    def _progress(self, event: Progress) -> None:
        self._phase = f"{event.phase} {100 * event.done // event.total}%" if event.total else event.phase

    def _engine_ready(self, info: EngineInfo) -> None:
        """A restarted engine knows nothing: tell it every live request again, with what was emitted."""
        if not self._engine_lost:
            return  # the first start; start() goes on
        self._engine_lost, self._info = False, info
        if self._admission is not None:
            self._admission.info = info
        self.metrics.count("engine_restarts")
        for message in self.journal.resumptions():
            self._live[message.request_id].engine_restarts()
            self._client.send(message)
        self._changed.set()

    def _take(self, delta: TokenDelta) -> None:
        """One token delta to its stream. An error in one request's text ends that request alone."""
        live = self._live.get(delta.request_id)
        if live is None or not 0 <= delta.index < len(live.outputs) or live.outputs[delta.index].finish_reason is not None:
            return  # aborted, or ended by a stop string while the step was running
        try:
            text = live.take(delta)
        except Exception:
            logger.exception("request %s failed while its text was decoded", delta.request_id)
            self._end(live, "error", RequestFailed("the output could not be decoded"))
            self._client.send(Abort(delta.request_id))
            return
        if text is None:
            return
        if text.token_ids:
            self.journal.record(delta.request_id, delta.index, text.token_ids)
            self._measure(live, delta.index, len(text.token_ids))
        if text.finish_reason is not None:
            if text.finish_reason == "error" and live.failure is None:
                live.failure = request_error(delta.error_kind, text.error or "the engine could not finish this request")
            if delta.finish_reason is None:
                self._client.send(Abort(delta.request_id, delta.index))  # a stop string: the engine does not know yet
            self._ended(live, text)

    def _measure(self, live: Live, index: int, tokens: int) -> None:
        now = time.monotonic()
        if live.first_token[index] is None:
            if not any(t is not None for t in live.first_token):
                self.metrics.observe("time_to_first_token_seconds", now - live.arrival)
                self.metrics.count("prompt_tokens", live.usage.prompt_tokens)
                self.metrics.count("prompt_tokens_cached", live.usage.cached_tokens)
            live.first_token[index] = now
        else:
            self.metrics.observe("inter_token_latency_seconds", now - live.last_token[index])
        live.last_token[index] = now
        self.metrics.count("generation_tokens", tokens)

    def _ended(self, live: Live, delta: TextDelta) -> None:
        """Bookkeeping for a sequence whose terminal delta is in its stream."""
        request_id, index = delta.request_id, delta.index
        first = live.first_token[index]
        self.metrics.ended(
            delta.finish_reason or "error",
            latency=time.monotonic() - live.arrival,
            tokens=live.outputs[index].num_tokens,
            first_token=None if first is None else first - live.arrival,
        )
        self.journal.finish(request_id, index)
        if live.finished:
            del self._live[request_id]

    # --- ends that do not come from the engine ---

    def _end(self, live: Live, reason: str, error: OctavoError | None = None) -> None:
        """Give every unfinished sequence its terminal delta."""
        live.failure = live.failure or error
        for output in live.outputs:
            if output.finish_reason is None:
                delta = output.end(reason, error.message if error is not None else None)
                live.put(delta)
                self._ended(live, delta)

    def _give_up(self, error: OctavoError) -> None:
        """The engine will not come back: every live request gets its one end."""
        self._failure = error
        self._changed.set()
        for live in list(self._live.values()):
            self._end(live, "error", error)
