"""The HTTP process of ``octavo serve``: uvicorn over the application, signals, and what is printed on the way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import uvicorn

import octavo
from octavo.errors import OctavoError
from octavo.frontends.cli.console import say
from octavo.frontends.cli.serve import process_age, url_of
from octavo.frontends.openai.app import create_app
from octavo.service.admission import Limits
from octavo.service.launch import process_service
from octavo.service.service import ServiceOptions

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from octavo.frontends.cli.serve import ServeOptions
    from octavo.service.launch import EngineProcess
    from octavo.service.service import EngineInfo, Service, Stats

STATS_SECONDS = 10.0
CLOSE_SECONDS = 5.0  # for clients to take the end of their streams after the drain
INTERRUPTED = 130


class Server(uvicorn.Server):
    """uvicorn that drains: the first signal refuses new requests and lets live ones finish, the second ends everything at once."""

    def __init__(self, config: uvicorn.Config, service: Service, engine: EngineProcess, drain_timeout: float) -> None:
        super().__init__(config)
        self._service, self._engine, self._drain_timeout = service, engine, drain_timeout
        self._drain: asyncio.Task[None] | None = None
        self.asked = False
        self.loop: asyncio.AbstractEventLoop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.asked:
            self._engine.kill()
            os._exit(INTERRUPTED)
        self.asked = True
        live = self._service.health().live_requests
        wait = f"; {live} live requests have {self._drain_timeout:g} s to finish, Ctrl-C again stops at once" if live else ""
        say(f"\nstopping{wait}")
        self.loop.call_soon_threadsafe(self._stop)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours hold until the engine has stopped, which is longer than uvicorn's would: see :func:`serve_http`."""
        yield

    def _stop(self) -> None:
        self._drain = self.loop.create_task(self._service.drain(self._drain_timeout))
        self.should_exit = True
        if self._service.info is None:
            self._engine.kill()  # it would not listen while it loads


def serve_http(engine: EngineProcess, listener: socket.socket, names: Sequence[str], options: ServeOptions, spawned: float) -> int:
    """Run to the end; returns the exit status. ``spawned``: age of this process when the engine process was started, in seconds."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    service = process_service(
        engine,
        ServiceOptions(
            model_name=names[0],
            metrics_prefix=options.metrics_prefix,
            limits=Limits(max_queued=options.max_queued),
            seed=options.seed,
            load_timeout=options.load_timeout,
        ),
    )
    app = create_app(
        service,
        names,
        api_keys=options.api_keys,
        trust_request_chat_template=options.trust_request_chat_template,
        auto_tool_choice=options.auto_tool_choice,
        root_path=options.root_path,
    )
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level=options.log_level,
        access_log=options.log_level in ("info", "debug", "trace"),
        lifespan="off",
        timeout_graceful_shutdown=max(1, round(options.drain_timeout + CLOSE_SECONDS)),
        server_header=False,
    )
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).setLevel("DEBUG" if options.log_level == "trace" else options.log_level.upper())
    server = Server(config, service, engine, options.drain_timeout)
    loop = new_event_loop()
    server.loop = loop
    before = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(_serve(server, service, listener, names, options, spawned))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _serve(server: Server, service: Service, listener: socket.socket, names: Sequence[str], options: ServeOptions, spawned: float) -> int:
    failure: OctavoError | None = None

    async def start() -> None:
        nonlocal failure
        try:
            info = await service.start()
        except OctavoError as error:
            failure = error
            server.should_exit = True
            return
        say(ready_report(info, names[0], url_of(listener), bool(options.api_keys)))
        if options.log_stats:
            await _log_stats(service)

    say(f"octavo {octavo.__version__}: engine process started after {spawned:.2f} s")
    starting = asyncio.create_task(start())
    announcing = asyncio.create_task(_announce(server, url_of(listener)))
    await server.serve(sockets=[listener])
    announcing.cancel()
    await service.close()
    starting.cancel()
    await asyncio.gather(starting, announcing, return_exceptions=True)
    if failure is not None and not server.asked:
        raise failure
    return 0


async def _announce(server: Server, url: str) -> None:
    while not server.started:
        await asyncio.sleep(0.005)
    say(f"listening on {url} after {process_age():.2f} s; requests wait until the model is ready")


def ready_report(info: EngineInfo, name: str, url: str, needs_key: bool) -> str:
    """What is printed when the model is ready: phases, the memory plan (the engine's notes), and how to call it."""
    lines = [
        "engine: " + ", ".join(f"{p.name} {p.seconds:.2f} s" for p in info.phases),
        f"model: {info.model_type}, {info.backend} backend{f' ({info.isa})' if info.isa else ''}, {info.threads} threads",
        *([f"on the reference backend: {', '.join(info.fallbacks)}"] if info.fallbacks else []),
        *info.notes,
        f"ready after {process_age():.2f} s: {name} on {url}",
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'"
        + (" -H \"Authorization: Bearer $OCTAVO_API_KEY\"" if needs_key else "")
        + f""" -d '{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'""",
    ]
    return "\n".join(lines)


async def _log_stats(service: Service) -> None:
    """One line every ten seconds in which something was computed."""
    last, since = await service.stats(), time.monotonic()
    while True:
        await asyncio.sleep(STATS_SECONDS)
        stats, now = await service.stats(), time.monotonic()
        line = stats_line(last, stats, now - since)
        if line:
            logging.getLogger("octavo").info(line)
        last, since = stats, now


def stats_line(last: Stats, stats: Stats, seconds: float) -> str | None:
    """None if nothing happened between the two snapshots."""
    if stats.steps == last.steps and not stats.num_running and not stats.num_waiting:
        return None
    rates: dict[str, Any] = {n: max(0, getattr(stats, n) - getattr(last, n)) / seconds for n in ("prompt_tokens", "generation_tokens")}
    queries, hits = stats.prefix_queries - last.prefix_queries, stats.prefix_hits - last.prefix_hits
    used = stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
    return (
        f"{rates['prompt_tokens']:.1f} prompt tokens/s, {rates['generation_tokens']:.1f} generated tokens/s, {stats.num_running} running,"
        f" {stats.num_waiting} waiting, KV cache {used:.1%}" + (f", prefix hits {hits / queries:.1%}" if queries > 0 else "")
    )


