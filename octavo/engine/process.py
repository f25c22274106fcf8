"""The engine process: reads one JSON line from standard input, connects, loads the model, serves, ends. See :mod:`octavo.engine.spawn`.

    {"config": {...EngineConfig...}, "address": "ipc://..."}

While that line has not come, it imports torch: whoever started it is still reading a command line.
It lives no longer than its parent: the kernel kills it when the parent ends (Linux), and it ends itself when standard input closes (everywhere).
SIGINT and SIGTERM are the parent's business: a terminal or a service manager sends them to both, and the parent drains before it says Shutdown.
Exit status 0: it was asked to stop; 1: see the Fatal message.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import logging
import os
import select
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import zmq

from octavo.core.plan import TokenDelta
from octavo.engine.faults import fatal_of
from octavo.engine.messages import Deltas, PhaseTime, Progress, Ready, config_decoder, encoder, to_engine_decoder
from octavo.errors import OctavoError

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.engine.loop import EngineLoop
    from octavo.engine.messages import FromEngine, ToEngine

log = logging.getLogger("octavo.engine")

PR_SET_PDEATHSIG = 1
STUCK_AFTER = 60.0  # seconds without a turn of the loop before the watchdog writes every thread's stack
LINGER_MS = 2_000  # how long the last messages may take to leave


class SocketLink:
    """The engine's end of the ZeroMQ connection: a PAIR socket, one msgpack message a frame. A Link, see :mod:`octavo.engine.link`."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)  # what waits is bounded by the live requests; the loop must never block on a slow reader
        self._socket.linger = LINGER_MS
        self._socket.connect(address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)

    def receive(self, timeout: float | None) -> list[ToEngine]:
        messages: list[ToEngine] = []
        self._poller.poll(None if timeout is None else int(timeout * 1000))
        while True:
            try:
                message = self._decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return messages
            if message is not None:
                messages.append(message)

    def _decode(self, data: bytes) -> ToEngine | None:
        """A message that cannot be read ends the request it names, and nothing else."""
        try:
            return to_engine_decoder.decode(data)
        except Exception as error:
            log.exception("a message of %d bytes could not be read", len(data))
            request_id = _request_id(data)
            if request_id is not None:
                self.send(Deltas([TokenDelta(request_id, 0, [], "error", error=f"the engine could not read the request: {error}")]))
            return None

    def send(self, message: FromEngine) -> None:
        self._socket.send(encoder.encode(message), zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def _request_id(data: bytes) -> str | None:
    try:
        fields = msgspec.msgpack.decode(data)
    except msgspec.DecodeError:
        return None
    value = fields.get("request_id") if isinstance(fields, dict) and fields.get("type") == "AddRequest" else None
    return value if isinstance(value, str) else None


def main(parent: int) -> None:
    """Run one engine process to its end; does not return. ``parent``: process id that it must not outlive."""
    began = time.perf_counter()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    die_with_parent(parent)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s engine: %(message)s")
    line = first_line()
    threading.Thread(target=wait_for_end, name="octavo-parent-watch", daemon=True).start()
    if not line:
        os._exit(0)  # the parent had nothing to load after all
    order = json.loads(line)
    link = SocketLink(order["address"])
    link.send(Progress("start", 0, 0))
    status = 0
    try:
        serve(config_decoder.decode(json.dumps(order["config"])), link, began)
    except Exception as error:
        if not isinstance(error, OctavoError):  # ours say all there is to say, and whoever started the engine shows them
            log.exception("the engine cannot go on")
        link.send(fatal_of(error))
        status = 1
    link.close()
    sys.stderr.flush()
    os._exit(status)  # nothing is left to save, and unmapping gigabytes in order takes seconds


def first_line() -> bytes:
    """The order on standard input; empty when that was closed."""
    if not select.select([sys.stdin.fileno()], [], [], 0)[0]:
        import torch  # noqa: F401 (so that it is there when the order comes)
    return sys.stdin.buffer.readline()


def serve(config: EngineConfig, link: SocketLink, began: float) -> None:
    """Load the model, say Ready, and run the loop until it is asked to stop."""
    from octavo.engine.build import build_loop

    imported = time.perf_counter() - began
    loop, info = build_loop(config, link)
    info.phases.insert(0, PhaseTime("engine process", imported))
    tune_gc()
    watch(loop, STUCK_AFTER)
    link.send(Ready(info))
    loop.run()


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when process ``parent`` ends, however it does (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the request above
        os._exit(0)


def wait_for_end() -> None:
    """On a thread: end this process when standard input closes, as it does when the parent ends."""
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


def tune_gc() -> None:
    """Start-up objects never become garbage: leave them out of collections, and collect rarely. A pass in a step would show as a hiccup."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def watch(loop: EngineLoop, seconds: float) -> None:
    """Write all stacks to standard error when one turn of the loop takes longer than ``seconds``.

    faulthandler's timer runs without the interpreter lock, so it also fires when native code holds the lock; this thread only winds it up again.
    """

    def wind_up() -> None:
        last = -1
        while True:
            if loop.idle or loop.heartbeat != last:
                last = loop.heartbeat
                faulthandler.dump_traceback_later(seconds)
            time.sleep(min(1.0, seconds / 4))

    threading.Thread(target=wind_up, name="octavo-watchdog", daemon=True).start()
