"""``octavo bench startup``: from ``octavo serve`` to its first streamed token, beside what ``import torch`` alone takes, in turn."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError, OctavoError
from octavo.frontends.bench.report import print_table, report, save
from octavo.frontends.cli.console import model_path, say

if TYPE_CHECKING:
    from pathlib import Path

POLL_SECONDS = 0.01
LIMIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from the command's start until the server accepts connections, says it is ready, and has streamed a token."""

    accepting: float
    ready: float
    first_token: float


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def import_torch() -> float:
    """Seconds of an interpreter that imports torch and ends."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - start


class Starting:
    """One ``octavo serve`` and the questions it is asked."""

    def __init__(self, command: list[str], port: int) -> None:
        self.port = port
        self.ready: float | None = None
        self.start = time.perf_counter()
        environment = {name: value for name, value in os.environ.items() if name != "OCTAVO_API_KEY"}  # the questions bring no key
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)

    def age(self) -> float:
        return time.perf_counter() - self.start

    def connect(self) -> http.client.HTTPConnection:
        """Raises OctavoError with what the server printed if it ended."""
        while self.age() < LIMIT_SECONDS:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_SECONDS)
            try:
                connection.connect()
                return connection
            except ConnectionRefusedError:
                if self.server.poll() is not None:
                    assert self.server.stderr is not None
                    raise OctavoError(f"octavo serve ended: {self.server.stderr.read().strip()[-500:]}") from None
                time.sleep(0.002)
        raise OctavoError(f"octavo serve accepts no connection after {LIMIT_SECONDS:g} s")

    def watch_health(self) -> None:
        while self.ready is None and self.server.poll() is None and self.age() < LIMIT_SECONDS:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    self.ready = self.age()
                connection.close()
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(POLL_SECONDS)

    def measure(self) -> Start:
        """The completion is asked as soon as the server accepts, and waits while the model loads."""
        connection = self.connect()
        accepting = self.age()
        watcher = threading.Thread(target=self.watch_health, daemon=True)
        watcher.start()
        body = json.dumps({"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0, "stream": True})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        line = response.readline()
        first_token = self.age()
        if response.status != 200 or not line.startswith(b"data: "):
            raise OctavoError(f"octavo serve answered {response.status}: {line!r}")
        watcher.join(60)
        connection.close()
        return Start(accepting, first_token if self.ready is None else min(self.ready, first_token), first_token)

    def stop(self) -> None:
        """Ends the server, and reads what it printed so that no pipe fills."""
        if self.server.poll() is None:
            self.server.send_signal(signal.SIGTERM)
        try:
            self.server.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.communicate()


def start_once(model: str, arguments: list[str]) -> Start:
    port = free_port()
    starting = Starting([sys.executable, "-m", "octavo", "serve", model, "--port", str(port), *arguments], port)
    try:
        return starting.measure()
    finally:
        starting.stop()


def figures_of(torch: list[float], starts: list[Start]) -> dict[str, Any]:
    """Medians and ranges in seconds; ``over_import_torch`` pairs each start with the import measured before it."""
    series = {
        "import_torch": torch,
        "accepting": [s.accepting for s in starts],
        "ready": [s.ready for s in starts],
        "first_token": [s.first_token for s in starts],
        "over_import_torch": [s.first_token - t for s, t in zip(starts, torch, strict=True)],
    }
    return {f"{name}_s": {"median": statistics.median(v), "min": min(v), "max": max(v)} for name, v in series.items()}


def run_startup(model: str, runs: int, arguments: list[str], flags: dict[str, Any], output: Path | None) -> None:
    """Raises ConfigError, CheckpointError, OctavoError."""
    if runs < 1:
        raise ConfigError(f"--runs must be at least 1, got {runs}")
    path = str(model_path(model))
    say("warming up the file cache ...")
    import_torch(), start_once(path, arguments)
    torch, starts = [], []
    for _ in range(runs):
        torch.append(import_torch())
        starts.append(start_once(path, arguments))
    figures = figures_of(torch, starts)
    names = {
        "import_torch_s": "import torch alone", "accepting_s": "accepts connections", "ready_s": "ready", "first_token_s": "first streamed token",
        "over_import_torch_s": "first token minus import torch",
    }  # fmt: skip
    rows = [(text, *(figures[name][column] for column in ("median", "min", "max"))) for name, text in names.items()]
    print_table(f"octavo serve {model}: seconds, {runs} runs", ("", "median", "lowest", "highest"), rows)
    save(output, report("startup", flags, figures))
