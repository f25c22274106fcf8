"""A Hugging Face hub of one's own: the part of its HTTP interface that downloads use, over files in memory, and a log of what was asked."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class HubServer(ThreadingHTTPServer):
    """``repos``: "org/name" -> file -> bytes. ``commit`` is what every branch points to. ``gated`` repositories need ``token``."""

    def __init__(self, repos: Mapping[str, Mapping[str, bytes]], gated: Mapping[str, str] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos, self.gated = {name: dict(files) for name, files in repos.items()}, dict(gated or {})
        self.commit = "a" * 40
        self.asked: list[tuple[str, str, str]] = []  # method, path, range
        self.break_after: int | None = None  # bytes of the next body that are sent before the connection breaks

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


def serving(server: HubServer) -> Iterator[HubServer]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append((self.command, path, self.headers.get("Range", "")))
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._api("/".join(parts[2:4]), parts[4:], body=body)
        elif len(parts) > 4 and parts[2] == "resolve":
            self._file("/".join(parts[:2]), "/".join(parts[4:]), body=body)
        else:
            self._error(404, "EntryNotFound", body=body)

    def _allowed(self, repo: str, *, body: bool) -> bool:
        if repo not in self.server.repos:
            self._error(401, "RepoNotFound", body=body)
            return False
        token = self.server.gated.get(repo)
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            self._error(403, "GatedRepo", body=body)
            return False
        return True

    def _api(self, repo: str, rest: list[str], *, body: bool) -> None:
        if not self._allowed(repo, body=body):
            return
        if rest[:1] in (["revision"], ["tree"]) and rest[1] not in ("main", "v1", self.server.commit):
            self._error(404, "RevisionNotFound", body=body)
            return
        files = self.server.repos[repo]
        if rest[:1] == ["tree"]:
            answer: Any = [{"type": "file", "path": n, "size": len(d), "oid": hashlib.sha1(d).hexdigest()} for n, d in files.items()]
        else:
            siblings = [{"rfilename": n, "size": len(d), "blobId": hashlib.sha1(d).hexdigest()} for n, d in files.items()]
            answer = {"id": repo, "modelId": repo, "sha": self.server.commit, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"}, body=body)

    def _file(self, repo: str, name: str, *, body: bool) -> None:
        if not self._allowed(repo, body=body):
            return
        data = self.server.repos[repo].get(name)
        if data is None:
            self._error(404, "EntryNotFound", body=body)
            return
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": self.server.commit, "Accept-Ranges": "bytes"}
        status = 200
        if wanted := self.headers.get("Range"):
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            status, headers["Content-Range"] = 206, f"bytes {start}-{len(data) - 1}/{len(data)}"
            data = data[start:]
        self._send(status, data, headers, body=body)

    def _error(self, status: int, code: str, *, body: bool) -> None:
        self._send(status, json.dumps({"error": code}).encode(), {"X-Error-Code": code, "X-Error-Message": code}, body=body)

    def _send(self, status: int, data: bytes, headers: Mapping[str, str], *, body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not body:
            return
        if self.server.break_after is not None and len(data) > self.server.break_after:
            self.wfile.write(data[: self.server.break_after])
            self.server.break_after = None
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(data)
