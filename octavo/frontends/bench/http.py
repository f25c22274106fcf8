"""A small asyncio HTTP/1.1 client that streams server-sent events and says when each one arrived. One connection a request."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from octavo.errors import ConfigError, OctavoError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, AsyncIterator

MAX_LINE = 1 << 22  # bytes; an event longer than this is an error


class HttpError(OctavoError):
    """The server refused, broke off or answered with something that is not HTTP."""


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible server. ``base`` is the path before ``/v1``."""

    url: str
    host: str
    port: int
    secure: bool
    base: str
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Target:
        """Raises ConfigError for what is not an http address."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"the server's address must look like http://127.0.0.1:8000, got {url!r}")
        secure = parts.scheme == "https"
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        return cls(url, parts.hostname, port or (443 if secure else 80), secure, parts.path.rstrip("/").removesuffix("/v1"), headers)

    def tls(self) -> ssl.SSLContext | None:
        if not self.secure:
            return None
        import ssl

        return ssl.create_default_context()

    def request(self, method: str, path: str, body: bytes) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {self.base}{path} HTTP/1.1", f"Host: {host}:{self.port}", "Connection: close", "Accept: */*"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(slots=True)
class Response:
    status: int
    headers: dict[str, str]
    reader: asyncio.StreamReader

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            async for piece in self._chunks():
                yield piece
            return
        left = int(self.headers["content-length"]) if "content-length" in self.headers else None
        while left is None or left > 0:
            piece = await self.reader.read(65536 if left is None else min(left, 65536))
            if not piece:
                if left:
                    raise HttpError("the server closed the connection in the middle of its reply")
                return
            left = None if left is None else left - len(piece)
            yield piece

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        while True:
            size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
            data = await self.reader.readexactly(size + 2)
            if size == 0:
                return
            yield data[:-2]

    async def text(self) -> str:
        return b"".join([piece async for piece in self.pieces()]).decode("utf-8", "replace")


@asynccontextmanager
async def opened(target: Target, method: str, path: str, body: bytes = b"") -> AsyncIterator[Response]:
    """Send a request and read the head of its reply. Raises HttpError, OSError."""
    reader, writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls(), limit=MAX_LINE)
    try:
        writer.write(target.request(method, path, body))
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        yield Response(int(head[0].split()[1]), headers, reader)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise HttpError("the server closed the connection in the middle of its reply") from None
    except (ValueError, IndexError):
        raise HttpError("the server's reply is not HTTP/1.1") from None
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def get_json(target: Target, path: str) -> Any:
    """Raises HttpError for another status than 200, OSError if nobody answers."""
    async with opened(target, "GET", path) as response:
        return parsed(await accepted(response))


async def post_json(target: Target, path: str, body: dict[str, Any]) -> Any:
    async with opened(target, "POST", path, json.dumps(body).encode()) as response:
        return parsed(await accepted(response))


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise HttpError(f"the server's reply is not JSON: {text[:200]!r}") from None


async def accepted(response: Response) -> str:
    """The body of a 200 reply. Raises HttpError with the server's own words otherwise."""
    text = await response.text()
    if response.status != 200:
        raise HttpError(f"{response.status}: {error_text(text)}")
    return text


def error_text(text: str) -> str:
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return text[:300] or "(empty reply)"


async def post_events(target: Target, path: str, body: bytes) -> AsyncGenerator[tuple[float, bytes], None]:
    """(time.perf_counter() of arrival, data) of each server-sent event until [DONE] or the end of the stream. Raises HttpError, OSError."""
    async with opened(target, "POST", path, body) as response:
        if response.status != 200:
            await accepted(response)
        pending = b""
        async with aclosing(response.pieces()) as pieces:
            async for piece in pieces:
                now = time.perf_counter()
                *lines, pending = (pending + piece).split(b"\n")
                for line in lines:
                    if line.startswith(b"data:"):
                        data = line[5:].strip()
                        if data == b"[DONE]":
                            return
                        yield now, data
