"""The FastAPI application over a service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI

import octavo
from octavo.frontends.openai import errors
from octavo.frontends.openai.auth import Authentication
from octavo.frontends.openai.routes import ServedModel, router
from octavo.frontends.openai.schema import ChatRequest, CompletionRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.service.service import Service


def create_app(
    service: Service,
    names: Sequence[str],
    *,
    api_keys: Sequence[str] = (),
    trust_request_chat_template: bool = False,
    auto_tool_choice: bool = True,
    root_path: str = "",
) -> FastAPI:
    """An application that answers to the model ``names``. It neither starts nor closes the service: requests wait while it loads.

    With ``api_keys`` every path but /health and /ping needs one of them.
    """
    app = FastAPI(
        title="Octavo", version=octavo.__version__, summary="OpenAI-compatible API of the Octavo engine", root_path=root_path, redirect_slashes=False
    )
    app.state.served = ServedModel(service, tuple(names), trust_request_chat_template, auto_tool_choice, int(time.time()))
    app.include_router(router)
    app.add_middleware(Authentication, keys=list(api_keys))
    errors.install(app)
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        """FastAPI's own schema plus the request bodies, which msgspec decodes."""
        schema = plain()
        _, components = msgspec.json.schema_components([ChatRequest, CompletionRequest], ref_template="#/components/schemas/{name}")
        schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app
