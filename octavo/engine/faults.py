"""Errors that cross the process border: an exception to a Fatal message and back."""

from __future__ import annotations

from octavo import errors
from octavo.engine.messages import Fatal
from octavo.errors import EngineDied, OctavoError, OutOfMemory, RequestError, RequestFailed


def fatal_of(error: BaseException) -> Fatal:
    """The message for an error that ends an engine: our own errors as they are, others as EngineDied."""
    if isinstance(error, OctavoError):
        return Fatal(type(error).__name__, error.message)
    if isinstance(error, MemoryError):
        return Fatal(OutOfMemory.__name__, "the machine ran out of memory while the engine started")
    return Fatal(EngineDied.__name__, f"the engine failed: {type(error).__name__}: {error}")


def request_error(kind: str | None, message: str) -> OctavoError:
    """The exception for one request that ended in an error: the requester's fault if ``kind`` names such a class, else the engine's."""
    found = getattr(errors, kind or "", None)
    return found(message) if isinstance(found, type) and issubclass(found, RequestError) else RequestFailed(message)


def error_of(message: Fatal) -> OctavoError:
    """The exception that a Fatal stands for; an unknown kind becomes EngineDied."""
    kind = getattr(errors, message.kind, None)
    if isinstance(kind, type) and issubclass(kind, OctavoError):
        return kind(message.message)
    return EngineDied(message.message)
