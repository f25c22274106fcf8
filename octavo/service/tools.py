"""What a request says of tools, checked: definitions within limits, and the choice among them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from octavo.core.structured import StructuredOutputsParams
from octavo.errors import InvalidParameter
from octavo.text.messages import plain
from octavo.text.parsers.formats import TOOL_FORMATS, ChannelFormat
from octavo.text.parsers.grammar import BARE, required_calls, spelling, strict_calls
from octavo.text.parsers.reply import begins_thinking

if TYPE_CHECKING:
    from octavo.core.sampling_params import SamplingParams
    from octavo.service.model_text import ModelText
    from octavo.service.types import GenerateRequest
    from octavo.text.chat import ChatTemplate
    from octavo.text.parsers.formats import ToolFormat
    from octavo.text.parsers.reply import ReplyFormat

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 1 << 20  # of all definitions together, as JSON
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
AUTO, NONE, REQUIRED, NAMED = "auto", "none", "required", "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """``tools``: name to schema of the arguments, of those that may be called. ``mode``: "auto", "none", "required" or "named".

    ``strict``: names of those whose schema holds even where none must be called. ``paths``: name to where the request gives its schema.
    """

    mode: str
    tools: dict[str, Any]
    strict: frozenset[str] = frozenset()
    paths: dict[str, str] = field(default_factory=dict)


def checked_tools(request: GenerateRequest) -> ToolChoice:
    """Raises InvalidParameter with the path to what is wrong."""
    tools, strict = _definitions(request.tools or [])
    paths = {name: f"tools[{i}].function.parameters" for i, name in enumerate(tools)}
    choice = request.tool_choice
    if isinstance(choice, str):
        if choice not in (AUTO, NONE, REQUIRED):
            raise _wrong(f"must be auto, none, required or a named function, got {choice[:40]!r}", "tool_choice")
        if choice == REQUIRED and not tools:
            raise _wrong("'required' needs tools", "tool_choice")
        return ToolChoice(choice, {} if choice == NONE else tools, strict, paths)
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _wrong('must be auto, none, required or {"type": "function", "function": {"name": ...}}', "tool_choice")
    if name not in tools:
        raise _wrong(f"names {name[:80]!r}, tools has {', '.join(list(tools)[:20]) or 'none'}", "tool_choice.function.name")
    return ToolChoice(NAMED, {name: tools[name]}, strict, paths)


@dataclass(frozen=True, slots=True)
class Chat:
    """What a conversation needs beyond its prompt. ``params``: the request's, with the grammar that its calls must follow."""

    template: ChatTemplate
    choice: ToolChoice
    form: ReplyFormat
    params: SamplingParams
    shown_tools: list[dict[str, Any]] | None

    def reply(self, request: GenerateRequest, prompt: str) -> ReplyFormat | None:
        """How the reply is to be read; None if all of it is content."""
        choice, form = self.choice, self.form
        if form.reasoning_format is None and not choice.tools:
            return None
        final = request.messages[-1].get("content") if request.messages and request.continue_final_message else None
        return replace(
            form,
            tool_format=form.tool_format if choice.tools else None,
            tools=choice.tools,
            thinking=begins_thinking(form.reasoning_format, prompt, final if isinstance(final, str) else None),
            single=bool(choice.tools) and (choice.mode == NAMED or not request.parallel_tool_calls),
            id_seed=f"{request.request_id}/{len(prompt)}",
        )


def chat_of(request: GenerateRequest, text: ModelText) -> Chat:
    """Raises InvalidParameter for tools that are malformed, or that this model's format cannot serve as the request asks."""
    template = text.chat_template(request.chat_template)
    choice, form, params = checked_tools(request), text.reply_format(template), request.params
    if choice.tools:
        if form.tool_format is None:
            message = "tools need a format for calls, and the chat template shows none that is known; start with --tool-call-parser, one of "
            raise InvalidParameter(message + ", ".join(sorted(TOOL_FORMATS)), param="tools")
        form, grammar = _enforced(request, choice, form, form.tool_format, text)
        if grammar is not None:
            params = params.clone(structured_outputs=StructuredOutputsParams(structural_tag=grammar))
    return Chat(template, choice, form, params, None if choice.mode == NONE else request.tools)


def _enforced(
    request: GenerateRequest, choice: ToolChoice, form: ReplyFormat, tool: ToolFormat | ChannelFormat, text: ModelText
) -> tuple[ReplyFormat, str | None]:
    """The format, and the structural tag that calls follow: all of them where one must come, strict ones wherever they come."""
    if request.params.structured_outputs is not None:
        name = "response_format" if choice.mode == AUTO else "tool_choice"
        raise InvalidParameter("tools and a structured output exclude each other; set tool_choice to none, or leave the text free", param=name)
    forced, strict = choice.mode != AUTO, choice.strict & choice.tools.keys()
    if not forced and not strict:
        return form, None
    param = "tool_choice" if forced else f"{choice.paths[min(strict)].rpartition('.')[0]}.strict"
    what = f"tool_choice {choice.mode!r}" if forced else "strict: true"
    way = None if isinstance(tool, ChannelFormat) else spelling(tool, lambda token: text.tokenizer.token_to_id(token) is not None)
    if way is None or isinstance(tool, ChannelFormat):
        raise InvalidParameter(f"{what} needs calls that a grammar can hold to their schema, which those of format {tool.name} are not", param=param)
    if forced:
        single = choice.mode == NAMED or not request.parallel_tool_calls
        return form, required_calls(way, choice.tools, choice.paths, single=single)
    grammar = strict_calls(tool, way, choice.tools, choice.paths, strict)
    return (replace(form, tool_format=replace(tool, bare=BARE)) if tool.bare else form), grammar


def _definitions(tools: Any) -> tuple[dict[str, Any], frozenset[str]]:
    if not isinstance(tools, list):
        raise _wrong(f"must be a list, got {type(tools).__name__}", "tools")
    if len(tools) > MAX_TOOLS:
        raise _wrong(f"has {len(tools):,} entries, the limit is {MAX_TOOLS:,}", "tools")
    for i, tool in enumerate(tools):
        plain(tool, f"tools[{i}]")  # JSON values alone, and not too deep
    try:
        size = len(json.dumps(tools, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        raise _wrong("holds half of a surrogate pair, which is no character", "tools") from None
    if size > MAX_TOOLS_BYTES:
        raise _wrong(f"has {size:,} bytes, the limit is {MAX_TOOLS_BYTES:,}", "tools")
    made: dict[str, Any] = {}
    strict: set[str] = set()
    for i, tool in enumerate(tools):
        function = _function(tool, f"tools[{i}]")
        name = function["name"]
        if name in made:
            raise _wrong(f"{name!r} is defined twice", f"tools[{i}].function.name")
        made[name] = function.get("parameters")
        if function.get("strict"):
            strict.add(name)
    return made, frozenset(strict)


def _function(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise _wrong(f"must be an object, got {type(tool).__name__}", where)
    if tool.get("type") != "function":
        raise _wrong(f"must be 'function', got {str(tool.get('type'))[:40]!r}", f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise _wrong(f"must be an object, got {type(function).__name__}", f"{where}.function")
    name = function.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise _wrong("must be 1 to 128 letters, digits, _ . : / or -", f"{where}.function.name")
    if not isinstance(function.get("description", ""), (str, type(None))):
        raise _wrong("must be a string", f"{where}.function.description")
    if not isinstance(function.get("strict"), (bool, type(None))):
        raise _wrong("must be true or false", f"{where}.function.strict")
    schema = function.get("parameters")
    if schema is not None and not isinstance(schema, dict):
        raise _wrong(f"must be a JSON schema object, got {type(schema).__name__}", f"{where}.function.parameters")
    if schema is not None and schema.get("type", "object") != "object":
        raise _wrong("must be 'object': arguments are named", f"{where}.function.parameters.type")
    return function


def _wrong(message: str, where: str) -> InvalidParameter:
    return InvalidParameter(f"{where} {message}", param=where)
