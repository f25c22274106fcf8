"""JSON schemas against the official test suite: what compiles accepts no invalid document, and what does not is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from octavo.decode.constraint.schema import check_schema
from octavo.errors import GrammarError

if TYPE_CHECKING:
    from tests.decode.grammars import Grammars

SUITE: dict[str, list[dict[str, Any]]] = json.loads((Path(__file__).parent.parent / "data/json_schema/draft2020-12.json").read_text())
# Keywords that cannot be enforced, and the suite's files about them. Each group of these files is refused, or does not use the keyword.
REFUSED = {
    "contains": "contains", "dependentRequired": "dependentRequired", "dependentSchemas": "dependentSchemas", "dynamicRef": "$dynamicRef",
    "if-then-else": "if", "maxContains": "maxContains", "minContains": "minContains", "not": "not", "propertyNames": "propertyNames",
    "unevaluatedItems": "unevaluatedItems", "unevaluatedProperties": "unevaluatedProperties", "uniqueItems": "uniqueItems",
}  # fmt: skip
# A generator may be stricter than a validator. Valid documents that the grammar cannot write, by their reason.
STRICTER = {
    "keys come in the order of the schema": {
        ("allOf", '{"foo": "baz", "bar": 2}'), ("allOf", '{"foo": "quux", "bar": 2, "baz": null}'), ("const", '{"baz": "bax", "foo": "bar"}'),
    },
    "whole numbers have no decimal point": {
        ("const", "0.0"), ("const", "1.0"), ("const", "-2.0"), ("const", "9007199254740992.0"), ("enum", "0.0"), ("enum", "[0.0]"),
        ("enum", "1.0"), ("enum", "[1.0]"), ("type", "1.0"), ("const", "[1.0]"), ("const", '{"a": 1.0}'),
    },
}  # fmt: skip
UNMET_FILES = ("format", *(name for name in SUITE if name.startswith("format/")))  # "format" alone calls every text valid: an annotation there


def mentions(schema: Any, keyword: str) -> bool:
    if isinstance(schema, dict):
        return keyword in schema or any(mentions(value, keyword) for value in schema.values())
    return isinstance(schema, list) and any(mentions(value, keyword) for value in schema)


@pytest.mark.parametrize("name", [name for name in SUITE if name not in REFUSED])
def test_a_grammar_agrees_with_the_suite(grammars: Grammars, name: str) -> None:
    stricter = {document for documents in STRICTER.values() for file, document in documents if file == name}
    compiled = 0
    for group in SUITE[name]:
        try:
            grammar = grammars.compile(json=group["schema"])
        except GrammarError as error:
            assert "$" in error.message, error.message
            continue
        compiled += 1
        for case in group["tests"]:
            document = json.dumps(case["data"], ensure_ascii=False)
            accepted = grammars.accepts(grammar, document)
            where = f"{group['description']}: {case['description']}: {document}"
            if accepted and name != "format":
                assert case["valid"], where
            if case["valid"] and name not in UNMET_FILES and document not in stricter:
                assert accepted, where
    if name not in ("defs", "refRemote", "vocabulary"):  # these fetch other schemas
        assert compiled >= len(SUITE[name]) * (0.4 if name != "oneOf" else 0.1), f"only {compiled} of {len(SUITE[name])} schemas compiled"


def test_formats_are_not_emptied(grammars: Grammars) -> None:
    """The suite's valid texts of a format are mostly writable: strictness has its limit."""
    for name in UNMET_FILES[1:]:
        [group] = SUITE[name]
        grammar = grammars.compile(json=group["schema"])
        valid = [json.dumps(c["data"], ensure_ascii=False) for c in group["tests"] if c["valid"] and isinstance(c["data"], str)]
        written = sum(grammars.accepts(grammar, text) for text in valid)
        assert written >= len(valid) / 3, f"{name}: {written} of {len(valid)}"


@pytest.mark.parametrize(("name", "keyword"), REFUSED.items())
def test_what_cannot_be_enforced_is_refused_by_name(name: str, keyword: str) -> None:
    refused = 0
    for group in SUITE[name]:
        if mentions(group["schema"], keyword):
            with pytest.raises(GrammarError) as caught:
                check_schema(group["schema"])
            refused += 1
            assert caught.value.status == 400 and caught.value.message.startswith("$")
    assert refused


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "properties": {"a b": {"items": [{}, {"uniqueItems": True}]}}}, '$.properties["a b"].items[1].uniqueItems'),
        ({"anyOf": [{"type": "string"}, {"not": {}}]}, "$.anyOf[1].not"),
        ({"$defs": {"x": {"if": {}}}, "$ref": "#/$defs/x"}, "$.$defs.x.if"),
        ({"properties": {"a": {"nullable": True}}}, "$.properties.a.nullable"),
        ({"additionalProperties": {"madeUp": 1}}, "$.additionalProperties.madeUp"),
        ({"x-guidance": {"lenient": True}}, '$["x-guidance"]'),
        ({"type": "string", "format": "regex"}, "$.format"),
        ({"format": "made-up"}, "$.format"),
        ({"type": "int"}, "$.type"),
        ({"required": "a"}, "$.required"),
        ({"minLength": True}, "$.minLength"),
        ({"properties": {"a": 3}}, "$.properties.a"),
        ({"$ref": "https://example.org/schema"}, "$.$ref"),
        ({"type": "object", "minProperties": 2}, "$.minProperties"),
        ({"multipleOf": 0}, "$.multipleOf"),
        ({"multipleOf": 0.10001}, "$.multipleOf"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "$.allOf[1].multipleOf"),
    ],
)
def test_the_place_is_named(schema: Any, place: str) -> None:
    with pytest.raises(GrammarError) as caught:
        check_schema(schema)
    assert caught.value.message.split(" ")[0].rstrip(":") == place or caught.value.message.startswith(place)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "(?=a)"}}}, "$.properties.a.pattern"),
        ({"properties": {"a": {"oneOf": [{"type": "string"}, {"minLength": 1}]}}}, "$.properties.a.oneOf"),
        ({"properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["a"], "type": "object"}, "$.properties.a"),
        ({"items": {"$ref": "#/$defs/nothing"}, "type": "array"}, "$.items.$ref"),
    ],
)
def test_the_place_of_what_only_the_compiler_sees(grammars: Grammars, schema: Any, place: str) -> None:
    with pytest.raises(GrammarError, match=r"^structured_outputs\.json at ") as caught:
        grammars.compile(json=schema)
    assert caught.value.message.removeprefix("structured_outputs.json at ").startswith(place)


def test_annotations_pass(grammars: Grammars) -> None:
    schema = {"title": "t", "description": "d", "default": 1, "examples": [1], "x-order": 3, "readOnly": True, "$comment": "c", "type": "integer"}
    jsonschema.Draft202012Validator.check_schema(schema)
    assert grammars.accepts(grammars.compile(json=schema), "12")


def test_how_json_may_be_written(grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}
    loose = grammars.compile(json=schema)
    assert grammars.accepts(loose, '{"a":[1,2]}') and grammars.accepts(loose, '{\n  "a": [\n    1 ,\n    2\n  ]\n}')
    assert not grammars.accepts(loose, '{"a":' + " " * 200 + "[1]}"), "spaces without end"
    tight = grammars.compile(json=schema, disable_any_whitespace=True)
    assert grammars.accepts(tight, '{"a":[1,2]}') and not grammars.accepts(tight, '{"a": [1,2]}')
    dots = grammars.compile(json=schema, whitespace_pattern="[ ]{1,2}")
    assert grammars.accepts(dots, '{"a":  [1]}') and not grammars.accepts(dots, '{"a":   [1]}') and not grammars.accepts(dots, '{"a":\n[1]}')


def test_additional_properties_can_be_closed(grammars: Grammars) -> None:
    inner = {"type": "object", "properties": {"b": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"a": inner, "free": {"type": "object"}}}
    open_, closed = grammars.compile(json=schema), grammars.compile(json=schema, disable_additional_properties=True)
    for text, inside in {'{"a": {"b": 1}}': True, '{"a": {"c": 1}}': False, '{"z": 1}': False, '{"free": {"z": 1}}': True}.items():
        assert grammars.accepts(open_, text)
        assert grammars.accepts(closed, text) is inside
