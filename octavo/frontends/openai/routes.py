"""The OpenAI routes: parse, generate, and either stream the chunks or fold them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

import octavo
from octavo.errors import InvalidParameter, ModelNotFound, OctavoError, RequestFailed
from octavo.frontends.openai import body as bodies
from octavo.frontends.openai.errors import ClientGone, error_body
from octavo.frontends.openai.merge import Merged
from octavo.frontends.openai.schema import ChatRequest, CompletionRequest, GenerateFields, ModelCard, ModelList
from octavo.frontends.openai.stream import (
    DONE,
    ChatFold,
    ChatStream,
    CompletionFold,
    CompletionStream,
    Echo,
    Shape,
    event,
    usage_body,
)
from octavo.service.types import GenerateRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from octavo.frontends.openai.schema import StreamOptions, UsageBody
    from octavo.service.generation import Generation
    from octavo.service.service import Service
    from octavo.service.types import TextDelta

T = TypeVar("T")
router = APIRouter()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the routes know: the service, the names it answers to (the first one is shown), and what a request may bring along."""

    service: Service
    names: tuple[str, ...]
    trust_request_chat_template: bool = False
    auto_tool_choice: bool = True
    created: int = 0

    def name(self, asked: str | None) -> str:
        """The name to answer with; none given is the first. Raises ModelNotFound."""
        if not asked:
            return self.names[0]
        if asked not in self.names:
            raise ModelNotFound(f"the model {asked[:200]!r} does not exist; served: {', '.join(self.names)}", param="model")
        return asked


def _documented(schema: str) -> dict[str, Any]:
    """The request body for the OpenAPI page; its schema comes from msgspec, see :mod:`octavo.frontends.openai.app`."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}}


class ChunkStream(Protocol):
    """What turns deltas into chunks, see :mod:`octavo.frontends.openai.stream`."""

    def chunks(self, delta: TextDelta) -> Sequence[Any]: ...

    def usage_chunk(self, usage: UsageBody) -> Any: ...


class Fold(Protocol):
    def add(self, chunk: Any) -> None: ...

    def result(self, usage: UsageBody) -> Any: ...


@router.post("/v1/chat/completions", openapi_extra=_documented("ChatRequest"))
async def chat_completions(request: Request) -> Response:
    """Create a chat completion, streamed or whole."""
    served: ServedModel = request.app.state.served
    body = bodies.parse(await bodies.read_body(request), ChatRequest)
    model = served.name(body.model)
    if body.chat_template is not None and not served.trust_request_chat_template:
        message = "a chat_template in a request needs a server that was started with --trust-request-chat-template"
        raise InvalidParameter(message, param="chat_template")
    if body.tools and body.tool_choice in (None, "auto") and not served.auto_tool_choice:
        raise InvalidParameter('tool_choice "auto" is off: the server was started with --no-enable-auto-tool-choice', param="tool_choice")
    base = _base(request, body, "chatcmpl")
    ask = replace(
        base,
        params=bodies.chat_params(body, served.service.default_params),
        messages=bodies.chat_messages(body.messages),
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs or {},
        add_generation_prompt=not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        tools=body.tools,
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
    )
    _check_stream_options(body)

    async def answer() -> Response:
        generations = await served.service.generate_all([ask])
        shape = _shape(body, base.request_id, model, body.top_logprobs or 0 if body.logprobs else None)
        streams = [ChatStream(shape, generations[0].prompt_token_ids, body.include_reasoning)]
        return await _reply(base.request_id, body, generations, streams, ChatFold())

    return await unless_disconnected(request, answer())


@router.post("/v1/completions", openapi_extra=_documented("CompletionRequest"))
async def completions(request: Request) -> Response:
    """Create completions of one prompt or several, streamed or whole."""
    served: ServedModel = request.app.state.served
    body = bodies.parse(await bodies.read_body(request), CompletionRequest)
    model = served.name(body.model)
    base = _base(request, body, "cmpl")
    base.params = bodies.completion_params(body, served.service.default_params)
    _check_stream_options(body)
    asks = [
        replace(base, request_id=f"{base.request_id}-{i}", prompt=p)
        if isinstance(p, str)
        else replace(base, request_id=f"{base.request_id}-{i}", prompt_token_ids=p)
        for i, p in enumerate(bodies.prompts(body.prompt))
    ]

    async def answer() -> Response:
        generations = await served.service.generate_all(asks)
        shape = _shape(body, base.request_id, model, body.logprobs)
        streams = [_completion_stream(served.service, body, shape, g, i) for i, g in enumerate(generations)]
        return await _reply(base.request_id, body, generations, streams, CompletionFold())

    return await unless_disconnected(request, answer())


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The names this server answers to."""
    served: ServedModel = request.app.state.served
    return _json(ModelList(data=[_card(served, name) for name in served.names]))


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    """One served model."""
    served: ServedModel = request.app.state.served
    return _json(_card(served, served.name(name)))


@router.get("/health")
@router.get("/ping")
@router.post("/ping")
async def health(request: Request) -> Response:
    """200 when requests can run; else 503 with what is going on. Needs no key."""
    state = request.app.state.served.service.health()
    facts = {"status": state.status, **({"phase": state.phase} if state.phase else {}), **({"detail": state.detail} if state.detail else {})}
    return Response(msgspec.json.encode(facts), status_code=200 if state.status == "ready" else 503, media_type="application/json")


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text format."""
    page = await request.app.state.served.service.render_metrics()
    return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/version")
async def version() -> Response:
    return _json({"version": octavo.__version__})


# --- the common path ---


def _base(request: Request, body: GenerateFields, prefix: str) -> GenerateRequest:
    """What both routes fill in alike. The id is the client's (X-Request-Id, else request_id) or drawn; params come later."""
    given = bodies.short_text("X-Request-Id", request.headers.get("x-request-id")) or bodies.short_text("request_id", body.request_id)
    identity = request.scope.get("octavo.identity", "")
    salt = bodies.short_text("cache_salt", body.cache_salt)
    # A salt of the client's never leaves its own identity's part of the cache.
    cache_salt = hashlib.blake2b(f"{identity}\0{salt}".encode(), digest_size=16).hexdigest() if salt is not None else identity
    return GenerateRequest(
        request_id=f"{prefix}-{given or secrets.token_hex(16)}",
        params=octavo.SamplingParams(),
        add_special_tokens=body.add_special_tokens,
        priority=body.priority,
        cache_salt=cache_salt,
    )


def _check_stream_options(body: GenerateFields) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidParameter("stream_options needs stream: true", param="stream_options")


def _shape(body: GenerateFields, reply_id: str, model: str, top_logprobs: int | None) -> Shape:
    return Shape(
        id=reply_id,
        model=model,
        fingerprint=f"octavo-{octavo.__version__}",
        top_logprobs=top_logprobs,
        prompt_logprobs=body.prompt_logprobs,
        return_token_ids=body.return_token_ids,
        tokens_as_ids=body.return_tokens_as_token_ids,
    )


def _completion_stream(service: Service, body: CompletionRequest, shape: Shape, generation: Generation, position: int) -> CompletionStream:
    ids = generation.prompt_token_ids
    echo = None
    if body.echo:
        text = generation.prompt if generation.prompt is not None else service.tokenizer.decode(ids, skip_special_tokens=False)
        echo = Echo(text, only=body.max_tokens == 0)
    first = service.tokenizer.decode(ids[:1], skip_special_tokens=False)
    return CompletionStream(shape, ids, base=position * generation.num_sequences, echo=echo, first_text=first)


async def _reply(reply_id: str, body: GenerateFields, generations: list[Generation], streams: Sequence[ChunkStream], fold: Fold) -> Response:
    merged = Merged(generations)
    silent = isinstance(body, CompletionRequest) and body.max_tokens == 0

    def usage() -> UsageBody:
        return usage_body([replace(g.usage, completion_tokens=0) if silent else g.usage for g in generations])

    headers = {"X-Request-Id": reply_id}
    try:
        if body.stream:
            # An error before the first token is still an HTTP error; nothing has been sent.
            position, delta = await anext(merged)
            _raise_failure(generations[position], delta)
            chunks = _events(merged, (position, delta), generations, streams, body.stream_options, usage)
            return StreamingResponse(chunks, media_type="text/event-stream", headers={"Cache-Control": "no-cache", **headers})
        async for position, delta in merged:
            _raise_failure(generations[position], delta)
            for chunk in streams[position].chunks(delta):
                fold.add(chunk)
        return _json(fold.result(usage()), headers)
    except BaseException:
        await merged.aclose()
        raise


async def _events(
    merged: Merged,
    first: tuple[int, TextDelta],
    generations: list[Generation],
    streams: Sequence[ChunkStream],
    options: StreamOptions | None,
    usage: Callable[[], UsageBody],
) -> AsyncIterator[bytes]:
    """Server-sent events. A failure after the start is an error event; [DONE] always comes last."""
    include = options is not None and options.include_usage
    continuous = include and options is not None and options.continuous_usage_stats
    try:
        position, delta = first
        while True:
            _raise_failure(generations[position], delta)
            for chunk in streams[position].chunks(delta):
                if include:
                    chunk.usage = usage() if continuous else None
                yield event(chunk)
            try:
                position, delta = await anext(merged)
            except StopAsyncIteration:
                break
        if include:
            yield event(streams[0].usage_chunk(usage()))
    except OctavoError as error:
        yield event(error_body(error))
    finally:
        await merged.aclose()
    yield DONE


def _raise_failure(generation: Generation, delta: TextDelta) -> None:
    if delta.finish_reason == "error":
        raise generation.failure or RequestFailed(delta.error or "the engine could not finish this request")


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``; cancel it when the client goes away."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OctavoError):
                await task


async def _disconnect(request: Request) -> None:
    receive: Callable[[], Awaitable[Any]] = request.receive
    while (await receive())["type"] != "http.disconnect":
        pass


def _card(served: ServedModel, name: str) -> ModelCard:
    info = served.service.info
    return ModelCard(id=name, created=served.created or int(time.time()), root=served.names[0], max_model_len=info.max_model_len if info else None)


def _json(value: object, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers=headers)
