"""Where terminal commands get their text from: an engine of their own, or a running server. Both give pieces of text as they come."""

from __future__ import annotations

import asyncio
import itertools
import json
import queue
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from octavo.core.sampling_params import SamplingParams
from octavo.errors import ConfigError, OctavoError, RequestFailed
from octavo.frontends.cli.console import model_path, say
from octavo.frontends.options import engine_config
from octavo.service.launch import process_service, start_engine
from octavo.service.types import GenerateRequest

if TYPE_CHECKING:
    import http.client
    from collections.abc import Coroutine, Iterator

    from octavo.service.service import Service

READ_TIMEOUT = 600.0  # seconds without a byte from a server


@dataclass(slots=True)
class Reply:
    """Counts of the latest answer; complete when its text has been read."""

    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Talk(Protocol):
    """A model to talk to. ``reply`` is about the latest answer. Closing an iterator early stops the generation."""

    name: str
    reply: Reply

    def chat(self, messages: list[dict[str, Any]], params: dict[str, Any]) -> Iterator[str]: ...

    def complete(self, prompt: str, params: dict[str, Any]) -> Iterator[str]: ...

    def close(self) -> None: ...


def open_talk(url: str | None, api_key: str | None, **options: Any) -> Talk:
    """A server at ``url``, or an engine made from ``options`` (EngineConfig's names)."""
    if url is not None:
        return RemoteTalk(url, api_key)
    return LocalTalk(options)


class LocalTalk:
    """An engine process of this command's own, with a service on a loop thread."""

    def __init__(self, options: dict[str, Any]) -> None:
        config = engine_config(options)
        self.name = config.model
        self.reply = Reply()
        self._counter = itertools.count()
        # From this thread, which lives as long as the command: the engine ends with the thread that started it.
        self._engine = start_engine(replace(config, model=str(model_path(config.model))))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._service: Service | None = None
        say(f"loading {self.name} ...")
        try:
            self._service = self._run(self._open())
        except BaseException:
            self.close()
            raise

    async def _open(self) -> Service:
        from octavo.service.service import ServiceOptions

        service = process_service(self._engine, ServiceOptions(model_name=self.name))
        try:
            await service.start()
        except BaseException:
            await service.close()
            raise
        return service

    def chat(self, messages: list[dict[str, Any]], params: dict[str, Any]) -> Iterator[str]:
        return self._stream({"messages": messages}, params)

    def complete(self, prompt: str, params: dict[str, Any]) -> Iterator[str]:
        return self._stream({"prompt": prompt}, params)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        if self._service is not None:
            self._run(self._service.close())
        else:
            self._engine.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _stream(self, source: dict[str, Any], params: dict[str, Any]) -> Iterator[str]:
        assert self._service is not None
        given = {name: value for name, value in params.items() if value is not None}
        request = GenerateRequest(
            request_id=f"terminal-{next(self._counter)}", params=SamplingParams(**{**self._service.default_params, **given}), **source
        )
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        task = asyncio.run_coroutine_threadsafe(self._generate(request, pieces), self._loop)
        task.add_done_callback(lambda _: pieces.put(None))  # the end, whatever kind it is
        try:
            while (piece := pieces.get()) is not None:
                yield piece
            task.result()
        finally:
            task.cancel()  # does nothing to a task that is done

    async def _generate(self, request: GenerateRequest, pieces: queue.SimpleQueue[str | None]) -> None:
        assert self._service is not None
        self.reply = reply = Reply()
        async with await self._service.generate(request) as generation:
            async for delta in generation:
                if delta.finish_reason == "error":
                    raise generation.failure or RequestFailed(delta.error or "the engine could not finish this request")
                reply.finish_reason = delta.finish_reason
                reply.prompt_tokens, reply.completion_tokens = generation.usage.prompt_tokens, generation.usage.completion_tokens
                pieces.put(delta.text)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class RemoteTalk:
    """A server that speaks the OpenAI API; the first model it lists."""

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url must look like http://127.0.0.1:8000, got {url!r}")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        self._url = url
        self.reply = Reply()
        self.name = self._first_model()

    def _first_model(self) -> str:
        connection, response = self._ask("GET", "/v1/models", None)
        with connection, response:
            models = json.load(response).get("data") or []
        if not models:
            raise ConfigError(f"{self._url} serves no model")
        return str(models[0]["id"])

    def chat(self, messages: list[dict[str, Any]], params: dict[str, Any]) -> Iterator[str]:
        return self._stream("/v1/chat/completions", {"messages": messages}, params)

    def complete(self, prompt: str, params: dict[str, Any]) -> Iterator[str]:
        return self._stream("/v1/completions", {"prompt": prompt}, params)

    def close(self) -> None:
        return None

    def _stream(self, path: str, source: dict[str, Any], params: dict[str, Any]) -> Iterator[str]:
        given = {name: value for name, value in params.items() if value is not None}
        body = {"model": self.name, "stream": True, "stream_options": {"include_usage": True}, **source, **given}
        self.reply = Reply()
        connection, response = self._ask("POST", path, json.dumps(body))
        with connection, response:
            for line in response:
                data = line.decode().strip().removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                if data:
                    yield self._piece(json.loads(data))

    def _piece(self, chunk: dict[str, Any]) -> str:
        if "error" in chunk:
            raise RequestFailed(str(chunk["error"].get("message", chunk["error"])))
        usage = chunk.get("usage")
        if usage:
            self.reply.prompt_tokens, self.reply.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        text = ""
        for choice in chunk.get("choices") or ():
            text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            self.reply.finish_reason = choice.get("finish_reason") or self.reply.finish_reason
        return text

    def _ask(self, method: str, path: str, body: str | None) -> tuple[Any, http.client.HTTPResponse]:
        """(the connection as a context manager, the response). Raises ConfigError if nobody answers, OctavoError for a refusal."""
        import http.client
        from contextlib import closing

        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=READ_TIMEOUT)
        try:
            connection.request(method, self._base + path, body, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ConfigError(f"cannot reach {self._url}: {error}") from None
        if response.status != 200:
            with closing(connection):
                raise OctavoError(f"the server says {response.status}: {_error_text(response.read())}")
        return closing(connection), response


def _error_text(data: bytes) -> str:
    try:
        return str(json.loads(data)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return data[:300].decode("utf-8", "replace")
