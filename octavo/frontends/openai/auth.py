"""Who may call: every path but the health checks needs a key, once a key is set."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from octavo.frontends.openai.errors import HTTPError, error_response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/ping"})


class Authentication:
    """ASGI middleware. ``scope["octavo.identity"]`` names the caller by a digest of its key ("" without keys): it separates prefix caches."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self._keys = [(key.encode(), hashlib.blake2b(key.encode(), digest_size=16).hexdigest()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        identity = self._identity(scope)
        if identity is None and scope["path"] not in OPEN_PATHS:
            error = HTTPError(401, "a valid API key is needed: Authorization: Bearer KEY", headers={"WWW-Authenticate": "Bearer"})
            await error_response(error)(scope, receive, send)
            return
        await self.app({**scope, "octavo.identity": identity or ""}, receive, send)

    def _identity(self, scope: Scope) -> str | None:
        """The caller's digest; None if it has no right key. All keys are compared, each in constant time."""
        if not self._keys:
            return ""
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != b"bearer":
            token = b""
        found = None
        for key, digest in self._keys:
            if hmac.compare_digest(key, token.strip()):
                found = digest
        return found
