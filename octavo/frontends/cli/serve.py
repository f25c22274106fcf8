"""``octavo serve``: bind, start the engine process, and only then import the HTTP side, so that both load at the same time."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import closing
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING

from octavo.errors import ConfigError
from octavo.frontends.cli.console import model_path
from octavo.service.launch import start_engine

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.service.launch import EngineHandle

LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
BACKLOG = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What concerns the server and not the engine. ``names``: served model names; empty: the model as it was named."""

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    insecure: bool = False
    trust_request_chat_template: bool = False
    auto_tool_choice: bool = True
    max_queued: int = 1024
    seed: int | None = None
    metrics_prefix: str = "octavo"
    root_path: str = ""
    drain_timeout: float = 30.0
    load_timeout: float = 300.0
    log_level: str = "warning"
    log_stats: bool = True


def process_age() -> float:
    """Seconds since this process was started, interpreter start included; on Linux only, elsewhere since a moment ago."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rsplit(")", 1)[1].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return time.process_time()


def run_server(config: EngineConfig, options: ServeOptions, waiting: EngineHandle | None = None) -> None:
    """Serve until asked to stop. ``waiting``: an engine process started beforehand. Raises ConfigError, CheckpointError, OutOfMemory."""
    options = checked(options)
    with closing(bind(options.host, options.port)) as listener:
        path = model_path(config.model)
        names = options.names or (config.model,)
        signal.signal(signal.SIGTERM, _terminated)
        engine = start_engine(replace(config, model=str(path), served_model_name=names[0]), waiting)
        try:
            spawned = process_age()
            from octavo.frontends.cli.server import serve_http

            status = serve_http(engine, listener, names, options, spawned)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # what follows is quick and must not be cut short
            engine.kill()
    sys.exit(status)


def _terminated(*_: object) -> None:
    """SIGTERM before the server runs: unwind, so that the engine process goes too."""
    sys.exit(128 + signal.SIGTERM)


def checked(options: ServeOptions) -> ServeOptions:
    """The options with the keys of the environment. Raises ConfigError for what must not be served."""
    keys = options.api_keys or tuple(k for k in [os.environ.get("OCTAVO_API_KEY", "")] if k)
    if any(not k.strip() or not k.isascii() for k in keys):
        raise ConfigError("an API key must be non-empty ASCII text")
    if options.log_level not in LOG_LEVELS:
        raise ConfigError(f"--uvicorn-log-level must be one of {', '.join(LOG_LEVELS)}, got {options.log_level!r}")
    if options.max_queued < 0:
        raise ConfigError(f"--max-queued must be at least 0, got {options.max_queued}")
    if not keys and not options.insecure and not is_loopback(options.host):
        raise ConfigError(f"--host {options.host} lets other machines in: set a key (OCTAVO_API_KEY or --api-key), or say --insecure")
    return replace(options, api_keys=keys)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A socket that owns the address before anything slow happens. Raises ConfigError if it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        hint = ""
        if isinstance(error.errno, int) and os.strerror(error.errno) == "Address already in use":
            hint = f"; another server runs there, choose another one with --port (such as --port {port + 1})"
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}{hint}") from None
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


