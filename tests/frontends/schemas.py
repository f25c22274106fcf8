"""Random JSON schemas of the keywords that Octavo enforces, many of them nested, all of them with some valid document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

NAMES = ("id", "name", "größe", "a b", "items", "x-y", "价格", "type", "$ref name", 'quo"te')
PATTERNS = (r"^[a-z]{1,6}$", r"[0-9]{2}", r"^(ab|cd)+$", r"^\d{3}-\d{2}$", r"^[A-Z][a-z]*( [A-Z][a-z]*)?$")
FORMATS = ("date", "date-time", "ipv4", "ipv6", "time", "uuid")
LONG_FORMATS = ("duration", "email", "hostname", "uri")


def scalar(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    return rng.choice([
        lambda: {"type": "string", "maxLength": rng.randint(0, 12)},
        lambda: {"type": "string", "minLength": rng.randint(1, 4), "maxLength": rng.randint(4, 9)},
        lambda: {"type": "string", "pattern": rng.choice(PATTERNS), "maxLength": 12},
        lambda: {"type": "string", "format": rng.choice(FORMATS)},
        lambda: {"type": "string", "format": rng.choice(LONG_FORMATS), "maxLength": 16},
        lambda: {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 200)},
        lambda: {"type": "integer", "multipleOf": rng.randint(2, 12), "minimum": 0, "maximum": 10_000},
        lambda: {"type": "number", "minimum": low, "exclusiveMaximum": low + rng.choice([0.5, 1, 20])},
        lambda: {"type": "number", "multipleOf": rng.choice([0.01, 0.25, 0.5]), "minimum": 0, "maximum": 100},
        lambda: {"type": "boolean"},
        lambda: {"type": "null"},
        lambda: {"enum": rng.sample([1, "one", None, True, 2.5, "ünï", [1, {"a": []}], {"k": "v"}, ""], rng.randint(1, 4))},
        lambda: {"const": rng.choice(["fixed", 7, [1, 2], {"b": 1, "a": None}, "\"\\\n", "🎉"])},
        lambda: {"type": ["string", "null"], "maxLength": 5},
    ])()  # fmt: skip


def schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """``depth`` levels at most."""
    if depth == 0 or rng.random() < 0.3:
        return scalar(rng)
    return rng.choice([thing, thing, array, choice_of, both])(rng, depth - 1)


def thing(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(0, 4))
    made: dict[str, Any] = {"type": "object", "properties": {name: schema(rng, depth) for name in names}}
    if names:
        made["required"] = rng.sample(names, rng.randint(0, len(names)))
    made |= rng.choice([
        {"additionalProperties": False}, {"additionalProperties": False}, {"additionalProperties": scalar(rng), "maxProperties": len(names) + 2},
        {"patternProperties": {"^z_[a-z]{1,3}$": scalar(rng)}, "additionalProperties": False},
    ])  # fmt: skip
    if "maxProperties" in made and sorted(made.get("required", [])) != sorted(names):
        del made["maxProperties"]  # only where every named property is required
        made["additionalProperties"] = False
    return made


def array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randint(0, 2)
    made: dict[str, Any] = {"type": "array", "minItems": least, "maxItems": least + rng.randint(0, 3)}
    if rng.random() < 0.3:
        made["prefixItems"] = [scalar(rng) for _ in range(rng.randint(1, 2))]
    made["items"] = schema(rng, depth)
    return made


def choice_of(rng: random.Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.3:  # alternatives told apart by a tag
        tags = rng.sample(["cat", "dog", "cow"], 2)
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": t}, "v": schema(rng, depth)}, "required": ["kind", "v"]} for t in tags]}
    return {"anyOf": [schema(rng, depth) for _ in range(rng.randint(2, 3))]}


def both(rng: random.Random, depth: int) -> dict[str, Any]:
    """allOf, and references into $defs."""
    return {
        "allOf": [
            {"type": "object", "properties": {"left": {"$ref": "#/$defs/part"}}, "required": ["left"]},
            {"type": "object", "properties": {"right": schema(rng, depth)}, "required": ["right"]},
        ]
    }


def document_schema(rng: random.Random) -> dict[str, Any]:
    """A whole schema, with the definition that parts refer to."""
    return {**schema(rng), "$defs": {"part": scalar(rng)}}
