"""Request bodies: bytes to typed objects to SamplingParams. Nothing is accepted and ignored: a field that has no effect is refused by name."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidParameter
from octavo.frontends.openai.errors import HTTPError
from octavo.frontends.openai.schema import ChatRequest, CompletionRequest, GenerateFields
from octavo.frontends.openai.structured import GUIDED, structured_outputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import Request

Body = TypeVar("Body", bound=GenerateFields)

MAX_BODY_BYTES = 32 * 2**20
MAX_PROMPTS = 1024
MAX_TEXT_FIELD = 1024

# Fields that OpenAI or vLLM know and this server does not: name -> the values that ask for nothing, beside null.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template_content_format": ("auto", "string"),
    "documents": ([],),
    "function_call": ("none",),
    "functions": ([],),
    "include_reasoning": (),
    "length_penalty": (1, 1.0),
    "logprob_token_ids": ([],),
    "metadata": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_embeds": (),
    "reasoning_effort": (),
    "repetition_detection": (),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "session_id": (),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "stream_interval": (1,),
    "suffix": ("",),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "vllm_xargs": ({},),
    "web_search_options": (),
}
CHAT_ONLY = {"echo": (False,), "prompt": (), "suffix": ("",)}
# Fields that go into SamplingParams under their own name.
SAMPLING_FIELDS = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "stop",
    "stop_token_ids", "bad_words", "ignore_eos", "min_tokens", "logit_bias", "allowed_token_ids", "skip_special_tokens",
    "include_stop_str_in_output", "prompt_logprobs", "max_tokens",
)  # fmt: skip
# Fields of a message, beyond those of all messages, by its role.
MESSAGE_FIELDS = ("role", "content", "name")
ROLE_FIELDS = {"assistant": ("tool_calls", "reasoning", "reasoning_content"), "tool": ("tool_call_id",)}


async def read_body(request: Request) -> bytes:
    """The whole body, or 413 as soon as it is known to be too large."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise HTTPError(413, f"the body has {int(declared):,} bytes, the limit is {MAX_BODY_BYTES:,}")
    # Other types, and none, are what a browser sends to a foreign site without asking it first.
    media = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        raise HTTPError(400, f"Content-Type must be application/json, got {media[:80]!r}")
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise HTTPError(413, f"the body has more than {MAX_BODY_BYTES:,} bytes, which is the limit")
    return bytes(data)


def parse(data: bytes, kind: type[Body]) -> Body:
    """A typed body. Raises InvalidParameter that names the field."""
    try:
        raw = msgspec.json.decode(data)
    except msgspec.ValidationError as error:
        raise InvalidParameter(f"the body holds a number out of range: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidParameter(f"the body is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise InvalidParameter("the body must be a JSON object")
    known = kind.__struct_fields__
    for name in [n for n in raw if n not in known]:
        _refuse(name, raw.pop(name), known)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None


def _refuse(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Pass a field that asks for nothing; refuse every other one."""
    if name in GUIDED and value is not None:
        raise InvalidParameter(f'{name} is an old name; write "structured_outputs": {{"{GUIDED[name]}": ...}}', param=name)
    neutral = UNSUPPORTED.get(name, CHAT_ONLY.get(name, () if name in GUIDED else None))
    if neutral is None:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InvalidParameter(f"unknown field {name[:80]!r}{hint}", param=name[:80])
    if value is not None and not any(value == n and type(value) is type(n) for n in neutral):
        raise InvalidParameter(f"{name} is not supported here", param=name)


def _invalid(text: str) -> InvalidParameter:
    """msgspec's "Expected `int`, got `str` - at `$.n`" with the path as ``param``."""
    found = re.search(r" - at `\$\.?([^`]*)`$", text)
    if found is None:
        missing = re.search(r"missing required field `([^`]+)`", text)
        return InvalidParameter(text, param=missing[1] if missing else None)
    return InvalidParameter(f"{found[1]}: {text[: found.start()]}", param=found[1])


def chat_params(body: ChatRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters of a chat request. Raises InvalidParameter with the name of the field as the client wrote it."""
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidParameter("top_logprobs needs logprobs: true", param="top_logprobs")
    if body.max_completion_tokens is not None and body.max_tokens not in (None, body.max_completion_tokens):
        raise InvalidParameter(
            f"max_tokens is {body.max_tokens:,} and max_completion_tokens {body.max_completion_tokens:,}; give one of them", param="max_tokens"
        )
    extra: dict[str, Any] = {}
    names = {"logprobs": "top_logprobs"}
    if body.logprobs:
        extra["logprobs"] = body.top_logprobs or 0
    if body.max_completion_tokens is not None:
        extra["max_tokens"] = body.max_completion_tokens
        names["max_tokens"] = "max_completion_tokens"
    return _params(body, defaults, extra, names)


def completion_params(body: CompletionRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters of a completion request. An echo with ``max_tokens`` 0 scores the prompt: one token is made, and not shown."""
    extra: dict[str, Any] = {}
    if body.logprobs is not None:
        extra["logprobs"] = body.logprobs
        if body.echo:
            extra["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    if body.echo and body.max_tokens == 0:
        extra["max_tokens"] = 1
    return _params(body, defaults, extra, {})


def _params(body: GenerateFields, defaults: Mapping[str, Any], extra: dict[str, Any], names: dict[str, str]) -> SamplingParams:
    given = {name: value for name in SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    structured = structured_outputs(body.response_format, body.structured_outputs)
    try:
        return SamplingParams(**{**defaults, **given, **extra}, structured_outputs=structured)
    except InvalidParameter as error:
        name = names.get(error.param or "")
        if name is None:
            raise
        raise InvalidParameter(error.message.replace(error.param or "", name, 1), param=name) from None


def chat_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, once nothing in them would be ignored; the template's side checks the rest. Raises InvalidParameter with the place."""
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        known = message_fields(message)
        for name, value in message.items():
            if name not in known and value not in (None, [], ""):
                raise InvalidParameter(f"{where}.{name[:80]} is not supported here", param=f"{where}.{name[:80]}")
        if message.get("content") is None and message.get("role") != "assistant":
            raise InvalidParameter(f"{where}.content is missing", param=f"{where}.content")
        if not isinstance(message.get("tool_call_id", ""), (str, type(None))):
            raise InvalidParameter(f"{where}.tool_call_id must be a string", param=f"{where}.tool_call_id")
    return [{name: m[name] for name in message_fields(m) if m.get(name) not in (None, [])} for m in messages]


def message_fields(message: dict[str, Any]) -> tuple[str, ...]:
    """What a message of this role may hold, in the order in which templates see it."""
    role = message.get("role")
    return (*MESSAGE_FIELDS, *(ROLE_FIELDS.get(role, ()) if isinstance(role, str) else ()))


def prompts(value: Any) -> list[str | list[int]]:
    """The prompts of a completion request, each text or token ids."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise InvalidParameter("prompt must be text, a list of texts, token ids, or a list of lists of token ids", param="prompt")
    if not value:
        raise InvalidParameter("the prompt is empty", param="prompt")
    if _are_ids(value):
        return [value]
    if len(value) > MAX_PROMPTS:
        raise InvalidParameter(f"prompt holds {len(value):,} prompts, the limit is {MAX_PROMPTS:,}", param="prompt")
    for i, item in enumerate(value):
        if not isinstance(item, str) and not (isinstance(item, list) and _are_ids(item)):
            raise InvalidParameter(f"prompt[{i}] must be text or a list of token ids", param=f"prompt[{i}]")
    return value


def _are_ids(value: list[Any]) -> bool:
    try:
        msgspec.convert(value, list[int])
    except msgspec.ValidationError:
        return False
    return True


def short_text(name: str, value: str | None) -> str | None:
    """A field that becomes part of a key or header: bounded and printable."""
    if value is not None and (len(value) > MAX_TEXT_FIELD or not value.isprintable()):
        raise InvalidParameter(f"{name} must be printable text of at most {MAX_TEXT_FIELD:,} characters", param=name)
    return value
