"""The application over a fake engine, served by uvicorn on a free port from a thread of the test process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import uvicorn

from octavo.frontends.openai.app import create_app
from octavo.service.service import Service, ServiceOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.service.model_text import ModelText
    from tests.service.fake import FakeClient


class Served:
    """``with Served(client, text) as s:`` then ``s.url``; ``s.on_loop(f)`` runs a function on the server's event loop."""

    def __init__(self, client: FakeClient, text: ModelText, *, names: tuple[str, ...] = ("fake", "alias"), options: Any = None, **app: Any) -> None:
        self.client = client
        self.service = Service(client, lambda: text, ServiceOptions(model_name=names[0], **(options or {})))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(create_app(self.service, names, **app), log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def serve() -> None:
            starting = asyncio.create_task(self.service.start())
            await self._server.serve(sockets=[self._socket])
            await asyncio.gather(starting, return_exceptions=True)
            await self.service.close()

        self._loop.run_until_complete(serve())

    def __enter__(self) -> Served:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self.client.gate.set()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._loop.close()

    def on_loop(self, function: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(5)

    def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Wait until something is true on the server's loop."""
        end = time.monotonic() + seconds
        while not self.on_loop(condition):
            assert time.monotonic() < end, "it did not become true"
            time.sleep(0.005)
