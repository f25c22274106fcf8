"""The service's end: one small protocol over an engine on a thread or in a process of its own. Never imports torch.

    client = SupervisedClient(config)          # octavo.engine.supervisor; or InProcessClient, ProcessClient
    info = await client.start()                # raises CheckpointError, ConfigError, OutOfMemory ... as the engine did
    client.send(AddRequest(...))               # does not wait
    async for event in client.events(): ...    # Progress, Ready, Deltas, Stats ...
    await client.close()
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from octavo.engine.faults import error_of, fatal_of
from octavo.engine.link import QueueLink
from octavo.engine.messages import Fatal, Ready, Shutdown, encoder, from_engine_decoder
from octavo.engine.spawn import spawn_engine
from octavo.errors import EngineDied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import zmq.asyncio

    from octavo.config import EngineConfig
    from octavo.engine.messages import ClientEvent, EngineInfo, FromEngine, ToEngine
    from octavo.engine.spawn import EngineHandle

log = logging.getLogger("octavo.engine")

# Not 0: ZeroMQ would then throw away what a process sent before it ended.
LINGER_MS = 1_000
DRAIN_MS = 100  # how long the last messages of a process that ended may take to arrive

T = TypeVar("T")


class EngineClient(Protocol):
    """An engine as the service sees it. All calls come from the event loop in which ``start`` runs."""

    async def start(self) -> EngineInfo:
        """Wait until the engine serves. Raises the engine's own error if it cannot start, EngineDied if it ended or was closed meanwhile."""
        ...

    def send(self, message: ToEngine) -> None:
        """Hand a message over once the engine has started; returns at once. Messages arrive in order.

        What is sent to an engine that has ended is lost without an error: its end is told by ``events``.
        """
        ...

    def events(self) -> AsyncIterator[ClientEvent]:
        """What the engine says, from the first Progress on, in order; may be read before and during ``start``, by one reader.

        Every admitted sequence gets exactly one terminal delta while the engine lives. The stream ends after ``close`` and after a Fatal.
        An unsupervised client raises EngineDied here when the engine ended by itself.
        """
        ...

    async def close(self) -> None:
        """Stop the engine; live sequences still get their terminal delta ("abort"). May be called twice, and during ``start``."""
        ...


class Inbox(Generic[T]):
    """Events on their way to the one reader, and the outcome of the start. Used on one event loop."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[T | None] = asyncio.Queue()
        self._outcome: EngineInfo | Exception | None = None
        self._settled = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None

    def put(self, event: T) -> None:
        self._queue.put_nowait(event)

    def settle(self, outcome: EngineInfo | Exception) -> None:
        """What ``started`` gives or raises; the first call counts."""
        if self._outcome is None:
            self._outcome = outcome
            self._settled.set()

    def end(self, error: Exception | None = None) -> None:
        """No more events; ``error`` is raised to the reader after the last one."""
        if not self._ended:
            self._ended, self._error = True, error
            self.settle(error or EngineDied("the engine was closed while it started"))
            self._queue.put_nowait(None)

    @property
    def serves(self) -> bool:
        """The start went well."""
        return self._outcome is not None and not isinstance(self._outcome, Exception)

    async def started(self) -> EngineInfo:
        await self._settled.wait()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    async def events(self) -> AsyncIterator[T]:
        while (event := await self._queue.get()) is not None:
            yield event
        self._queue.put_nowait(None)  # the end stays the end for whoever asks again
        if self._error is not None:
            raise self._error


class EngineInbox(Inbox["FromEngine"]):
    """Reads the outcome of the start off the messages themselves; a Fatal is the last of them."""

    def take(self, message: FromEngine) -> None:
        self.put(message)
        if isinstance(message, Ready):
            self.settle(message.info)
        elif isinstance(message, Fatal):
            self.settle(error_of(message))
            self.end()


class InProcessClient:
    """The engine loop on a thread of this process; message objects pass through queues, unencoded. An EngineClient."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._inbox = EngineInbox()
        self._done = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._link = QueueLink(lambda message: self._call(self._inbox.take, message))

    async def start(self) -> EngineInfo:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._thread.start()
        return await self._inbox.started()

    def send(self, message: ToEngine) -> None:
        self._link.post(message)

    def events(self) -> AsyncIterator[ClientEvent]:
        return self._inbox.events()

    async def close(self) -> None:
        if self._thread is not None:
            self._link.post(Shutdown())
            await self._done.wait()
            self._thread.join()
        self._inbox.end()

    # -- on the engine's thread

    def _run(self) -> None:
        try:
            from octavo.engine.build import build_loop

            engine, info = build_loop(self._config, self._link)
            self._link.send(Ready(info))
            engine.run()
        except Exception as error:
            log.debug("the engine thread ends", exc_info=error)
            self._link.send(fatal_of(error))
        self._call(self._done.set)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the event loop closed first; nobody is left to tell
            self._loop.call_soon_threadsafe(function, *args)


class ProcessClient:
    """The engine in a process of its own, msgpack over a ZeroMQ ``ipc://`` socket in a private folder. An EngineClient.

    ``handle``: a process that :func:`octavo.engine.spawn.spawn_engine` started earlier; without it ``start`` starts one.
    ``grace``: seconds that ``close`` gives the engine to end by itself before it is made to.
    """

    def __init__(self, config: EngineConfig, handle: EngineHandle | None = None, *, grace: float = 5.0) -> None:
        self._config, self._handle, self._grace = config, handle, grace
        self._inbox = EngineInbox()
        self._started = self._connected = self._closing = False
        self._exited, self._ended = asyncio.Event(), asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id of the engine, once there is one."""
        return None if self._handle is None else self._handle.process.pid

    async def start(self) -> EngineInfo:
        try:
            handle = self._handle = self._handle or spawn_engine(self._config)
        except OSError as error:
            self._inbox.end(EngineDied(f"the engine process cannot be started: {error}"))
            return await self._inbox.started()
        import zmq.asyncio  # after the engine was started: both import at the same time

        loop = asyncio.get_running_loop()
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket = self._context.socket(zmq.PAIR)
        self._plain: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket)  # the same socket with calls that do not wait
        self._socket.set_hwm(0)
        self._socket.linger = LINGER_MS
        self._socket.bind(handle.address)
        self._started = True
        self._reader = loop.create_task(self._read(handle), name="octavo-engine-reader")
        self._reader.add_done_callback(lambda task: self._reader_ended(task, handle))
        threading.Thread(target=self._wait, args=(loop, handle), name="octavo-engine-wait", daemon=True).start()
        return await self._inbox.started()

    def send(self, message: ToEngine) -> None:
        if not self._connected:
            raise EngineDied("the engine has not started")
        if not self._socket.closed:
            self._socket.send(encoder.encode(message))

    def events(self) -> AsyncIterator[ClientEvent]:
        return self._inbox.events()

    async def close(self) -> None:
        handle, self._closing = self._handle, True
        if handle is None or not self._started:
            if handle is not None:
                handle.kill()
            self._inbox.end()
            return
        if self._inbox.serves and not self._exited.is_set():
            self.send(Shutdown())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._exited.wait(), self._grace)
        if not self._exited.is_set():  # it does not listen while it loads
            handle.process.kill()
        await self._ended.wait()

    # -- the process

    async def _read(self, handle: EngineHandle) -> None:
        while True:
            await self._socket.poll()  # and not ``recv``: a cancelled receive may take a message along
            self._drain(handle)

    def _drain(self, handle: EngineHandle, wait_ms: int = 0) -> None:
        """Take every message that is there, and those that follow within ``wait_ms`` of each other."""
        while self._plain.poll(wait_ms):
            self._take(handle, self._plain.recv())

    def _reader_ended(self, task: asyncio.Task[None], handle: EngineHandle) -> None:
        """An engine whose messages cannot be read is as good as dead: end it, so that its requests go on elsewhere."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("reading the engine's messages failed", exc_info=error)
            handle.process.kill()

    def _take(self, handle: EngineHandle, data: bytes) -> None:
        if not self._connected:
            self._connected = True
            handle.remove_folder()  # the path has served its purpose
        self._inbox.take(from_engine_decoder.decode(data))

    def _wait(self, loop: asyncio.AbstractEventLoop, handle: EngineHandle) -> None:
        """On a thread: wait for the end of the process, whatever its reason."""
        handle.process.wait()

        def exited() -> None:
            self._exited.set()
            self._finisher = loop.create_task(self._finish(handle), name="octavo-engine-exit")

        with contextlib.suppress(RuntimeError):  # the event loop closed first
            loop.call_soon_threadsafe(exited)

    async def _finish(self, handle: EngineHandle) -> None:
        """The process ended: deliver what it still sent, then the end."""
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._reader
        with contextlib.suppress(msgspec.DecodeError):
            self._drain(handle, DRAIN_MS)
        self._socket.close(linger=0)
        self._context.term()
        handle.close()
        self._inbox.end(None if self._closing else EngineDied(f"the engine process {how_it_ended(handle.process.returncode)}"))
        self._ended.set()


def how_it_ended(status: int) -> str:
    """A process's return code in words; negative codes are signals."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}" + (" (the system does this when memory runs out)" if name == "SIGKILL" else "")
