"""How messages reach the engine loop and leave it, whoever is on the other side."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.engine.messages import FromEngine, ToEngine


class Link(Protocol):
    """The engine loop's end of a connection; all calls come from the loop's own thread."""

    def receive(self, timeout: float | None) -> list[ToEngine]:
        """All messages that wait. If there is none, sleep until one arrives or ``timeout`` seconds passed (None: no limit, 0: do not sleep)."""
        ...

    def send(self, message: FromEngine) -> None:
        """Hand a message over without waiting for the receiver."""
        ...


class QueueLink:
    """Both ends in one process: message objects pass through a queue, unencoded. ``deliver`` takes what the engine sends."""

    def __init__(self, deliver: Callable[[FromEngine], None]) -> None:
        self._inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self._deliver = deliver

    def post(self, message: ToEngine) -> None:
        """Called by the other side, from any thread."""
        self._inbox.put(message)

    def receive(self, timeout: float | None) -> list[ToEngine]:
        messages: list[ToEngine] = []
        try:
            if timeout is None or timeout > 0:
                messages.append(self._inbox.get(timeout=timeout))
            while True:
                messages.append(self._inbox.get_nowait())
        except queue.Empty:
            return messages

    def send(self, message: FromEngine) -> None:
        self._deliver(message)
