"""Every failure of a route in OpenAI's shape: {"error": {"message", "type", "param", "code"}}. Status and type come from the error's class."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec
from fastapi import Response

from octavo.errors import OctavoError, Overloaded
from octavo.frontends.openai.schema import ErrorBody, ErrorInfo

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from starlette.exceptions import HTTPException

logger = logging.getLogger(__name__)

# What the HTTP layer itself refuses: status -> type.
HTTP_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    499: "client_closed_request",
}


class HTTPError(OctavoError):
    """A refusal by the HTTP layer; ``headers`` go into the reply."""

    def __init__(self, status: int, message: str, *, param: str | None = None, headers: dict[str, str] | None = None) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.kind = HTTP_KINDS.get(status, "invalid_request_error" if status < 500 else "internal_error")
        self.headers = headers or {}


class ClientGone(HTTPError):
    """The client closed the connection; nobody reads the reply."""

    def __init__(self) -> None:
        super().__init__(499, "the client closed the connection")


def error_body(error: OctavoError) -> ErrorBody:
    return ErrorBody(ErrorInfo(message=error.message, type=error.kind, param=error.param, code=error.status))


def error_response(error: OctavoError) -> Response:
    headers = dict(error.headers) if isinstance(error, HTTPError) else {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    return Response(msgspec.json.encode(error_body(error)), status_code=error.status, headers=headers, media_type="application/json")


async def _octavo_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, OctavoError)
    if error.status >= 500:
        logger.warning("request failed: %s", error.message)
    return error_response(error)


async def _http_exception(request: Request, error: Exception) -> Response:
    """The router's own refusals: no such path, wrong method."""
    exception: HTTPException = error  # type: ignore[assignment]
    where = f"{request.method} {request.url.path}"
    message = {404: f"there is no {where}", 405: f"{where} is not allowed"}.get(exception.status_code, str(exception.detail))
    return error_response(HTTPError(exception.status_code, message, headers=dict(exception.headers or {})))


async def _unexpected(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(HTTPError(500, "internal error; the server's log has the details"))


def install(app: FastAPI) -> None:
    from starlette.exceptions import HTTPException

    app.add_exception_handler(OctavoError, _octavo_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(Exception, _unexpected)
