"""An engine process that is started again when it dies.

Who resubmits: the service. It keeps a journal of live requests (prompt ids, parameters with their seed, ids emitted so far) and handles three events:

    EngineLost  the engine ended; everything it held is gone. Nothing need be done but to tell users that answers pause.
    Ready       an engine serves. After an EngineLost, send every request of the journal again, with ``resumed`` and ``finished`` filled in;
                the next token of each sequence is the very one the lost engine would have given.
    Fatal       there will be no further engine: end every live request with this error.

Deltas of the lost engine arrive before its EngineLost, so the journal is complete by then. What is sent between a death and the moment the reader
takes the next Ready goes nowhere: a request added then is in the journal, and is sent with the others, once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from octavo.engine.client import Inbox, ProcessClient
from octavo.engine.faults import error_of, fatal_of
from octavo.engine.messages import EngineLost, Fatal, Ready
from octavo.errors import EngineDied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from octavo.config import EngineConfig
    from octavo.engine.client import EngineClient
    from octavo.engine.messages import ClientEvent, EngineInfo, ToEngine
    from octavo.engine.spawn import EngineHandle

log = logging.getLogger("octavo.engine")


class SupervisedClient:
    """An EngineClient whose engine comes back. The first start is not repeated: what made it fail would make it fail again.

    max_restarts deaths within ``window`` seconds are made good, the next one is Fatal; ``delays[k]`` seconds pass before restart k of them
    (the last entry counts for all further ones). ``handle``: an engine process already spawned.
    """

    def __init__(
        self,
        config: EngineConfig,
        handle: EngineHandle | None = None,
        *,
        max_restarts: int = 3,
        window: float = 60.0,
        delays: Sequence[float] = (0.0, 1.0, 4.0),
        make_client: Callable[[EngineConfig], EngineClient] = ProcessClient,
    ) -> None:
        self._config, self._make_client = config, make_client
        self._max_restarts, self._window, self._delays = max_restarts, window, delays
        self._client: EngineClient = make_client(config) if handle is None else ProcessClient(config, handle)
        self._target = self._client  # where ``send`` goes: the engine whose Ready the reader has taken
        self._inbox: Inbox[tuple[EngineClient, ClientEvent]] = Inbox()
        self._deaths: deque[float] = deque()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the current engine."""
        return getattr(self._client, "pid", None)

    async def start(self) -> EngineInfo:
        self._task = asyncio.get_running_loop().create_task(self._supervise(), name="octavo-supervisor")
        return await self._inbox.started()

    def send(self, message: ToEngine) -> None:
        self._target.send(message)

    async def events(self) -> AsyncIterator[ClientEvent]:
        async for client, event in self._inbox.events():
            if isinstance(event, Ready):
                self._target = client
            yield event

    async def close(self) -> None:
        self._closing.set()
        await self._client.close()
        if self._task is not None:
            await self._task
        self._inbox.end()

    async def _supervise(self) -> None:
        try:
            error = await self._serve(first=True)
            while error is not None and not self._closing.is_set() and self._may_restart(error):
                if not await self._pause(error):
                    break
                self._client = self._make_client(self._config)
                error = await self._serve(first=False)
        except Exception as failed:
            log.exception("the supervisor failed")
            self._put(fatal_of(failed))
        finally:
            self._inbox.end()

    async def _serve(self, *, first: bool) -> Exception | None:
        """Run one engine to its end, passing on what it says. None: nothing is left to do (it was closed, or the first start failed)."""
        client = self._client
        starting = asyncio.ensure_future(client.start())
        ready = False
        error: Exception | None = None
        try:
            async for event in client.events():
                if isinstance(event, Fatal):
                    error = error_of(event)
                    break
                ready |= isinstance(event, Ready)
                self._inbox.put((client, event))
                if isinstance(event, Ready):
                    self._inbox.settle(event.info)
        except Exception as died:
            error = died
        with suppress(Exception):
            await starting
        await client.close()
        if error is not None and first and not ready and not self._closing.is_set():
            self._put(fatal_of(error))
            self._inbox.settle(error)
            return None
        return error

    def _may_restart(self, error: Exception) -> bool:
        """Count a death; beyond the cap, tell the reader that this was the last one."""
        now = time.monotonic()
        while self._deaths and now - self._deaths[0] > self._window:
            self._deaths.popleft()
        self._deaths.append(now)
        if len(self._deaths) <= self._max_restarts:
            return True
        count = f"{len(self._deaths)} times within {self._window:g} s"
        self._put(fatal_of(EngineDied(f"the engine ended {count} and is not started again; last: {error}")))
        return False

    async def _pause(self, error: Exception) -> bool:
        """Tell the reader and wait. False: the client was closed meanwhile."""
        attempt = len(self._deaths)
        delay = self._delays[min(attempt, len(self._delays)) - 1] if self._delays else 0.0
        log.error("%s; starting it again (%d of %d)", error, attempt, self._max_restarts)
        self._put(EngineLost(message=str(error), attempt=attempt, delay=delay))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closing.wait(), delay)
        return not self._closing.is_set()

    def _put(self, event: ClientEvent) -> None:
        self._inbox.put((self._client, event))
