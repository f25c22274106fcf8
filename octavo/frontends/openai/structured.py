"""What the form of an answer must be: OpenAI's ``response_format`` and vLLM's ``structured_outputs``, as one object."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from octavo.core.structured import StructuredOutputsParams
from octavo.errors import InvalidParameter

# vLLM's former names, and the field of ``structured_outputs`` that took their place.
GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "guided_whitespace_pattern": "whitespace_pattern",
    "guided_decoding_backend": "json",
}
OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
KNOWN = tuple(f.name for f in fields(StructuredOutputsParams))
JSON_SCHEMA_FIELDS = ("name", "description", "schema", "strict")


def structured_outputs(response_format: dict[str, Any] | None, given: dict[str, Any] | None) -> StructuredOutputsParams | None:
    """None: the text is free. ``structured_outputs`` may add its options to a ``response_format``, not a second form. Raises InvalidParameter."""
    given = {name: value for name, value in (given or {}).items() if value is not None}
    unknown = sorted(given.keys() - set(KNOWN))
    if unknown:
        name = f"structured_outputs.{unknown[0][:80]}"
        raise InvalidParameter(f"unknown field {name!r}; known: {', '.join(KNOWN)}", param=name)
    form = _response_format(response_format) if response_format is not None else {}
    if not form and not given:
        return None
    if form and given.keys() - set(OPTIONS):
        raise InvalidParameter("response_format and structured_outputs both give a form; keep one", param="structured_outputs")
    try:
        return StructuredOutputsParams(**form, **given)
    except InvalidParameter as error:
        if not form:
            raise
        raise InvalidParameter(f"response_format: {error.message}", param="response_format") from None


def _response_format(value: dict[str, Any]) -> dict[str, Any]:
    """Fields of StructuredOutputsParams; empty for free text."""
    kind = value.get("type")
    allowed = {"text": (), "json_object": (), "json_schema": ("json_schema",), "structural_tag": ("structures", "triggers", "format")}
    if not isinstance(kind, str) or kind not in allowed:
        raise _wrong(f"type must be one of {', '.join(allowed)}, got {str(kind)[:80]!r}", ".type")
    _refuse_unknown(value, ("type", *allowed[kind]), "")
    if kind == "json_object":
        return {"json_object": True}
    if kind == "structural_tag":
        return {"structural_tag": value}
    return _json_schema(value.get("json_schema")) if kind == "json_schema" else {}


def _json_schema(value: Any) -> dict[str, Any]:
    """The schema is enforced whether ``strict`` is asked for or not."""
    if not isinstance(value, dict) or "schema" not in value:
        raise _wrong("json_schema must be an object with a schema", ".json_schema")
    _refuse_unknown(value, JSON_SCHEMA_FIELDS, ".json_schema")
    if not isinstance(value["schema"], (dict, bool)):
        raise _wrong("json_schema.schema must be a JSON schema", ".json_schema.schema")
    if not isinstance(value.get("strict"), (bool, type(None))):
        raise _wrong("json_schema.strict must be true or false", ".json_schema.strict")
    return {"json": value["schema"]}


def _refuse_unknown(value: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in value:
        if name not in known:
            raise _wrong(f"{where[1:] + '.' if where else ''}{name[:80]} is not known", f"{where}.{name[:80]}")


def _wrong(message: str, where: str) -> InvalidParameter:
    return InvalidParameter(f"response_format: {message}", param=f"response_format{where}")
