"""JSON schemas before they are compiled: what the grammar engine cannot enforce is refused by name and place, and nothing is dropped.

Keywords of JSON Schema 2020-12 and draft 7. Annotations (section 9 of the validation specification) have no effect on what is valid and pass.
The grammar engine ignores keywords it does not know, so everything else is refused here.
"""

from __future__ import annotations

import json
from decimal import Decimal
from math import prod
from typing import TYPE_CHECKING, Any

from octavo.core.structured import MAX_MULTIPLE, MAX_MULTIPLES, MAX_SCHEMA_DEPTH, depth_of
from octavo.errors import GrammarError

if TYPE_CHECKING:
    from collections.abc import Iterator

    Schema = dict[str, Any] | bool

ANNOTATIONS = frozenset({
    "$anchor", "$comment", "$id", "$schema", "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema", "default", "deprecated",
    "description", "discriminator", "example", "examples", "id", "readOnly", "title", "writeOnly",
})  # fmt: skip
MAPS = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("additionalProperties", "additionalItems")
# Assertions and the JSON types their values must have.
ASSERTIONS: dict[str, tuple[type, ...]] = {
    "$ref": (str,), "const": (object,), "enum": (list,), "type": (str, list), "required": (list,), "pattern": (str,), "format": (str,),
    "minItems": (int,), "maxItems": (int,), "minProperties": (int,), "maxProperties": (int,), "minLength": (int,), "maxLength": (int,),
    "minimum": (int, float), "maximum": (int, float), "exclusiveMinimum": (int, float), "exclusiveMaximum": (int, float),
    "multipleOf": (int, float),
}  # fmt: skip
KNOWN = frozenset({*ANNOTATIONS, *MAPS, *LISTS, *SINGLE, *ASSERTIONS, "items"})
FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
# RFC 3339 to the last digit, where the engine's own expressions let a 29 February and a leap second come any time. No leap seconds at all, since
# they depend on the time zone, and none of the year 0, which calendars disagree on.
_LEAP = r"(\d\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DAY = r"((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
_DATE = rf"((\d\d\d[1-9]|\d\d[1-9]\d|\d[1-9]\d\d|[1-9]\d\d\d)-{_DAY}|{_LEAP}-02-29)"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
PATTERNS = {"date": _DATE, "time": _TIME, "date-time": f"{_DATE}T{_TIME}"}
OWN_OPTIONS = "x-guidance"  # the grammar engine's options within a schema; a request may not set them


def parse_json(text: str, what: str) -> Any:
    """A JSON text as a value, within the depth that is allowed. Raises GrammarError."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise GrammarError(f"{what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise GrammarError(f"{what} is not JSON that can be read: {error}") from None
    if depth_of(value) > MAX_SCHEMA_DEPTH:
        raise GrammarError(f"{what} is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def children(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(path from here, subschema) of every direct subschema."""
    for name in MAPS:
        if isinstance(schema.get(name), dict):
            for key, value in schema[name].items():
                yield f".{name}{_step(key)}", value
    for name in LISTS:
        if isinstance(schema.get(name), list):
            for i, value in enumerate(schema[name]):
                yield f".{name}[{i}]", value
    for name in (*SINGLE, "items"):
        value = schema.get(name)
        if isinstance(value, list):  # draft 7: one schema a position
            for i, item in enumerate(value):
                yield f".{name}[{i}]", item
        elif value is not None:
            yield f".{name}", value


def _step(key: str) -> str:
    return f".{key}" if key.replace("_", "a").replace("$", "a").isalnum() else f"[{json.dumps(key, ensure_ascii=False)}]"


def check_schema(schema: Any, path: str = "$") -> None:
    """Raise GrammarError with the path of the first keyword that would not be enforced."""
    stack = [(path, schema)]
    multiples: set[int] = set()
    while stack:
        where, node = stack.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise GrammarError(f"{where} must be a schema (an object, true or false), got {type(node).__name__}")
        for name, value in node.items():
            _check_keyword(where, name, value)
        _check_format(where, node)
        _check_count(where, node)
        _check_multiple(where, node, multiples)
        stack += reversed([(where + step, child) for step, child in children(node)])


def _check_keyword(where: str, name: str, value: Any) -> None:
    at = where + _step(name)
    if name == OWN_OPTIONS:
        raise GrammarError(f"{at} sets options of the grammar engine, which a request may not")
    if name == "nullable":
        raise GrammarError(f'{at} is not a keyword of JSON Schema and would change nothing; write "type": ["...", "null"]')
    if name not in KNOWN and not name.startswith("x-"):
        raise GrammarError(f"{at}: the keyword {name!r} is not supported, so it could not be enforced")
    wanted = (dict,) if name in MAPS else (list,) if name in LISTS else ASSERTIONS.get(name)
    if wanted is not None and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted != (object,))):
        names = {str: "a string", list: "a list", int: "a whole number", float: "a number", dict: "an object"}
        raise GrammarError(f"{at} must be {' or '.join(names[t] for t in wanted)}, got {type(value).__name__}")
    if name == "type":
        for one in value if isinstance(value, list) else [value]:
            if one not in TYPES:
                raise GrammarError(f"{at}: {one!r} is not a type; there are {', '.join(TYPES)}")
    if name == "$ref" and not value.startswith("#") and "://" in value:
        raise GrammarError(f"{at}: {value!r} would have to be fetched; refer to $defs of this schema")


def _check_format(where: str, node: dict[str, Any]) -> None:
    """A format asserts something about strings alone."""
    name, types = node.get("format"), node.get("type", "string")
    if name is not None and name not in FORMATS and "string" in types:
        raise GrammarError(f"{where}.format: the format {name!r} is not supported; there are {', '.join(FORMATS)}")


def _check_count(where: str, node: dict[str, Any]) -> None:
    """Keys that the schema does not name may repeat in the text, and a reader keeps one of them: they cannot be counted."""
    least = node.get("minProperties", 0)
    named = len(node.get("properties", ())) if node.get("additionalProperties") is False and not node.get("patternProperties") else 1
    if least > max(named, len(set(map(str, node.get("required", ()))))):
        raise GrammarError(f"{where}.minProperties: {least:,} properties cannot be enforced where their names are free; name them in required")


def _check_multiple(where: str, node: dict[str, Any], seen: set[int]) -> None:
    """The engine has a state for each remainder, and for each pair of remainders where two of them meet."""
    value = node.get("multipleOf")
    if value is None:
        return
    if value <= 0:
        raise GrammarError(f"{where}.multipleOf must be greater than 0, got {value}")
    digits = Decimal(str(value)).normalize()
    whole = max(int(digits.scaleb(-int(digits.as_tuple().exponent))), int(digits) if digits <= MAX_MULTIPLE else MAX_MULTIPLE + 1)
    seen.add(whole)
    if whole > MAX_MULTIPLE or prod(seen) > MAX_MULTIPLES:
        several = f", and all of the schema together {prod(seen):,} of {MAX_MULTIPLES:,}" if len(seen) > 1 else ""
        raise GrammarError(f"{where}.multipleOf {value} counts as {whole:,}, the limit is {MAX_MULTIPLE:,}{several}")


def prepared(schema: Any, *, close: bool) -> Any:
    """A copy as the engine shall read it: dates exact to the day (:data:`PATTERNS`), and if ``close``, ``additionalProperties: false`` wherever an
    object names its properties and says nothing of others."""
    if isinstance(schema, list):
        return [prepared(item, close=close) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for name in (*MAPS, *LISTS, *SINGLE, "items"):
        value = schema.get(name)
        if name in MAPS and isinstance(value, dict):
            made[name] = {key: prepared(child, close=close) for key, child in value.items()}
        elif isinstance(value, (dict, list)):
            made[name] = prepared(value, close=close)
    if close and "additionalProperties" not in schema and "properties" in schema:
        made["additionalProperties"] = False
    pattern = PATTERNS.get(schema.get("format", ""))
    if pattern is not None:
        made["allOf"] = [*made.get("allOf", ()), {"pattern": f"^{pattern}$"}]
    return made
