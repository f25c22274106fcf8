"""Chat messages as front ends send them, checked and rebuilt from plain JSON values for a template to read."""

from __future__ import annotations

import json
from typing import Any

from octavo.errors import InvalidParameter

MAX_DEPTH = 64
_REASONING = ("reasoning_content", "thinking", "reasoning")  # one thing under three names; templates read the first two


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """A deep copy with one convention: roles are strings, contents strings, None is absent, tool-call arguments are objects.

    Raises InvalidParameter that names the message (counted from 0) and the field.
    """
    if not isinstance(messages, list) or not messages:
        raise InvalidParameter("messages must be a list with at least one message", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def plain_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Tool definitions as plain JSON, or None if there are none."""
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise InvalidParameter("tools must be a list of objects", param="tools")
    return [plain(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy made of JSON values only, so that a template meets no object with methods of its own."""
    if depth > MAX_DEPTH:
        raise InvalidParameter(f"{where} is nested deeper than {MAX_DEPTH} levels", param=where)
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise InvalidParameter(f"{where} has a key that is not a string", param=where)
        return {str.__str__(key): plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, where, depth + 1) for item in value]
    raise InvalidParameter(f"{where} holds a {type(value).__name__}, which JSON has not", param=where)


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidParameter(f"{where} must be an object, got {type(message).__name__}", param=where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidParameter(f"{where}.role must be a string, got {type(role).__name__}", param=f"{where}.role")
    content = _content(message.get("content"), f"{where}.content")
    rest = {key: plain(value, f"{where}.{key}") for key, value in message.items() if key != "content" and value is not None}
    # In the caller's order, so that templates which print a whole message print what was sent.
    out = {key: content if key == "content" else rest[key] for key in message if key in rest or (key == "content" and content is not None)}
    if "tool_calls" in out:
        _parse_arguments(out["tool_calls"], f"{where}.tool_calls")
    reasoning = next((out[key] for key in _REASONING if key in out), None)
    return out if reasoning is None else {"thinking": reasoning, **out, "reasoning_content": reasoning}


def _content(content: Any, where: str) -> str | None:
    """Text of a message. Parts of a list are joined by line feeds, as other servers do."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidParameter(f"{where} must be a string or a list of parts, got {type(content).__name__}", param=where)
    return "\n".join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise InvalidParameter(f"{where} must be an object, got {type(part).__name__}", param=where)
    kind = part.get("type")
    if kind != "text":
        raise InvalidParameter(f"{where} has type {str(kind)[:40]!r}; only text parts are supported", param=f"{where}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidParameter(f"{where}.text must be a string, got {type(text).__name__}", param=f"{where}.text")
    return text


def _parse_arguments(calls: Any, where: str) -> None:
    """Replace the JSON text of each call's arguments, which is OpenAI's form, by the object that templates print."""
    if not isinstance(calls, list):
        raise InvalidParameter(f"{where} must be a list, got {type(calls).__name__}", param=where)
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            name = f"{where}[{i}].function"
            raise InvalidParameter(f"{name} must be an object with a name", param=name)
        name = f"{where}[{i}].function.arguments"
        if isinstance(function.get("arguments"), str):
            try:
                function["arguments"] = plain(json.loads(function["arguments"] or "{}"), name)
            except (ValueError, RecursionError):
                raise InvalidParameter(f"{name} is not JSON", param=name) from None
        if not isinstance(function.setdefault("arguments", {}), dict):
            raise InvalidParameter(f"{name} must be a JSON object", param=name)
