"""Every error Octavo raises on purpose, and the HTTP status each one maps to.

    OctavoError                     500  anything below
    ├── RequestError                400  the request itself is wrong; only that request ends
    │   ├── InvalidParameter        400  a field is out of range or of the wrong type
    │   ├── PromptTooLong           400  prompt plus asked tokens exceed the context
    │   ├── TemplateError           400  the chat template refused the messages
    │   ├── GrammarError            400  a schema, regular expression or grammar cannot be enforced; says where
    │   ├── ModelNotFound           404  no such model is served
    │   └── Overloaded              503  the queue is full; carries ``retry_after`` seconds
    ├── RequestFailed               500  the engine could not finish this one request
    ├── EngineDied                  503  the engine process ended; it is being restarted
    ├── ConfigError                 500  options that contradict each other or the machine
    │   └── OutOfMemory             500  the memory plan does not fit; names the number to change
    └── CheckpointError             500  a model cannot be loaded
        ├── FormatError             500  a file is truncated, corrupt or not what it says
        ├── TensorMismatch          500  missing, unread or wrongly shaped tensors, by name
        ├── UnsupportedModel        500  an architecture or tensor type that Octavo does not know
        └── PullError               500  a download failed or its digest is wrong

Messages are written for the person who must act on them: they carry the numbers, and never a traceback or a path inside the program.
"""

from __future__ import annotations


class OctavoError(Exception):
    """Root of the tree. ``status`` is the HTTP status, ``kind`` the ``type`` field of an OpenAI error body."""

    status = 500
    kind = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RequestError(OctavoError):
    status = 400
    kind = "invalid_request_error"


class InvalidParameter(RequestError):
    pass


class PromptTooLong(RequestError):
    pass


class TemplateError(RequestError):
    pass


class GrammarError(RequestError):
    def __init__(self, message: str, *, param: str | None = "structured_outputs") -> None:
        super().__init__(message, param=param)


class ModelNotFound(RequestError):
    status = 404
    kind = "not_found_error"


class Overloaded(RequestError):
    status = 503
    kind = "overloaded_error"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestFailed(OctavoError):
    pass


class EngineDied(OctavoError):
    status = 503
    kind = "engine_error"


class ConfigError(OctavoError):
    kind = "config_error"


class OutOfMemory(ConfigError):
    pass


class CheckpointError(OctavoError):
    kind = "checkpoint_error"


class FormatError(CheckpointError):
    pass


class TensorMismatch(CheckpointError):
    pass


class UnsupportedModel(CheckpointError):
    pass


class PullError(CheckpointError):
    pass
