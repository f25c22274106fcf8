"""From what a request asks to the one grammar language of the engine: Lark as llguidance writes it, with ``%json`` for schemas."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

from octavo.core.structured import MAX_TAGS
from octavo.decode.constraint.lark import check_depth, check_rules
from octavo.decode.constraint.schema import OWN_OPTIONS, check_schema, parse_json, prepared
from octavo.errors import GrammarError

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.core.structured import StructuredOutputsParams

    SpecialId = Callable[[str], int | None]

# Between the parts of JSON. Bounded: a model that has nothing to say would otherwise fill its context with line feeds.
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,32}"
ANY_TEXT = r"(.|\n)*"
CONTROL = re.compile(r"(<[|｜][^<>|｜]+[|｜]>|</?[a-z_:]+>|\[/?[A-Z_]+\])")  # what a control token looks like
REGEX_SPECIAL = re.compile(r"([\\^$.|?*+()\[\]{}/])")


def to_grammar(params: StructuredOutputsParams, special_id: SpecialId = lambda text: None) -> str:
    """The grammar as text. ``special_id``: id of a text that is one control token of the model, else None. Raises GrammarError that says where."""
    kind = params.kind
    text: Any = getattr(params, kind)
    if kind == "json":
        schema = parse_json(text, "structured_outputs.json")
        check_schema(schema, "$")
        return json_grammar(schema, params)
    if kind == "json_object":
        return json_grammar({"type": "object"}, params)
    if kind == "regex":
        check_depth(text, "structured_outputs.regex")
        return llguidance.LLMatcher.grammar_from_regex(text)
    if kind == "choice":
        # One terminal: as alternatives of a rule, thousands of choices would be thousands of parser items.
        pattern = "|".join(_literal(choice) for choice in dict.fromkeys(text))
        return llguidance.LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: /{pattern}/\n")
    if kind == "grammar":
        return llguidance.LLMatcher.grammar_from_lark(lark_of(text))
    return llguidance.LLMatcher.grammar_from_lark(tags_grammar(text, params, special_id))


def json_options(params: StructuredOutputsParams) -> dict[str, Any]:
    """How the JSON of a schema may be written, in the grammar engine's words."""
    if params.disable_any_whitespace:
        return {"whitespace_flexible": False}
    return {"whitespace_flexible": True, "whitespace_pattern": params.whitespace_pattern or WHITESPACE}


def json_grammar(schema: Any, params: StructuredOutputsParams) -> str:
    if schema is False:
        raise GrammarError("structured_outputs.json at $: no text fits the schema false")
    schema = prepared(schema, close=params.disable_additional_properties)
    return llguidance.LLMatcher.grammar_from_json_schema(json.dumps({} if schema is True else schema), overrides=json_options(params))  # type: ignore[arg-type]


def lark_of(text: str) -> str:
    """A Lark grammar as it is; GBNF (llama.cpp's notation, which has ``::=``) rewritten as Lark."""
    check_depth(text, "structured_outputs.grammar")
    lark = _as_lark(text)
    check_rules(lark, "structured_outputs.grammar")
    return lark


def _as_lark(text: str) -> str:
    if OWN_OPTIONS in text:
        raise GrammarError(f"structured_outputs.grammar: {OWN_OPTIONS} sets options of the grammar engine, which a request may not")
    if re.search(r"(?m)^\s*(start\s*:|%llguidance\b)", text) and "::=" not in text:
        return text
    if "::=" not in text:
        raise GrammarError("structured_outputs.grammar: a Lark grammar needs a rule named start; a GBNF grammar defines its rules with ::=")
    try:
        return str(any_to_lark(text))
    except RecursionError:
        raise GrammarError("structured_outputs.grammar: the GBNF grammar is nested too deep") from None
    except Exception as error:
        raise GrammarError(f"structured_outputs.grammar: this is not GBNF: {error}") from None


def _literal(text: str) -> str:
    """The regular expression of exactly this text, as it stands between slashes."""
    return REGEX_SPECIAL.sub(r"\\\1", text).replace("\n", "\\n").replace("\r", "\\r")


# --- structural tags


def tags_grammar(text: str, params: StructuredOutputsParams, special_id: SpecialId) -> str:
    """Free text; wherever a trigger appears, one of the structures that begin with it follows: its schema, then its end.

    With ``separator`` there is no free text: ``begin``, structures with the separator between them (one if ``stop_after_first``), ``end``.
    """
    what = "structured_outputs.structural_tag"
    value = parse_json(text, what)
    structures, triggers = _tag_fields(value, what)
    lines, names = ["%llguidance {}"], []
    for i, structure in enumerate(structures):
        where = f"{what}.structures[{i}]"
        begin, end, schema, path = _structure(structure, where)
        check_schema(schema, path)
        schema = prepared(schema, close=params.disable_additional_properties)
        schema = {**schema, OWN_OPTIONS: json_options(params)} if isinstance(schema, dict) else {OWN_OPTIONS: json_options(params)}
        rest = f"%json {json.dumps(schema)} {_spelled(end, special_id)}"
        names.append(f"tag_{i}")
        if "separator" in value:
            lines.append(f"tag_{i}: {_spelled(begin, special_id)} {rest}")
            continue
        trigger = next((t for t in triggers if begin.startswith(t)), None)
        if trigger is None:
            raise GrammarError(f"{where}.begin: {begin!r} starts with none of the triggers {', '.join(map(repr, triggers))}")
        rest = f"{_spelled(begin[len(trigger) :], special_id)} {rest}"
        if special_id(trigger) is not None:
            lines.append(f"tag_{i}: TEXT {_spelled(trigger, special_id)} {rest}")
        else:
            lines += [f"trigger_{i}[lazy]: TEXT {_quoted(trigger)}", f"tag_{i}: trigger_{i} {rest}"]
    tags = f"({' | '.join(names)})"
    if "separator" in value:
        more = "" if value.get("stop_after_first") else f"({_spelled(value['separator'], special_id)} {tags})*"
        start = f"start: {_spelled(value.get('begin', ''), special_id)} {tags} {more} {_spelled(value.get('end', ''), special_id)}"
        lines.insert(1, start)
    else:
        lines[1:1] = [f"start: {tags}* rest", "rest: TEXT", f"TEXT: /{ANY_TEXT}/"]
    return "\n".join(lines) + "\n"


def _spelled(text: str, special_id: SpecialId) -> str:
    """A text in Lark: quoted, but control tokens within it as the tokens they are."""
    parts = re.split(CONTROL, text)
    ids = [special_id(part) for part in parts]
    return " ".join(_quoted(part) if token is None else f"<[{token}]>" for part, token in zip(parts, ids, strict=True) if part)


def _tag_fields(value: Any, what: str) -> tuple[list[Any], list[str]]:
    if not isinstance(value, dict):
        raise GrammarError(f"{what} must be an object")
    if "format" in value:
        raise GrammarError(f"{what}.format is not supported; give structures and triggers")
    alone = "separator" in value
    known = ("structures", "begin", "separator", "end", "stop_after_first") if alone else ("structures", "triggers")
    unknown = sorted(value.keys() - {"type", *known})
    if unknown:
        raise GrammarError(f"{what} has unknown fields {', '.join(unknown)}; known: {', '.join(known)}")
    for name in known[1:]:
        if alone and not isinstance(value.get(name, False), bool if name == "stop_after_first" else (str, bool)):
            raise GrammarError(f"{what}.{name} must be {'true or false' if name == 'stop_after_first' else 'a text'}")
    structures, triggers = value.get("structures"), value.get("triggers")
    if not isinstance(structures, list) or not 0 < len(structures) <= MAX_TAGS:
        raise GrammarError(f"{what}.structures must be a list of 1 to {MAX_TAGS} objects")
    if alone:
        return structures, []
    if not isinstance(triggers, list) or not triggers or not all(isinstance(t, str) and t for t in triggers):
        raise GrammarError(f"{what}.triggers must be a list of texts, none of them empty")
    return structures, triggers


def _structure(value: Any, where: str) -> tuple[str, str, Any, str]:
    """begin, end, schema, and the schema's place in what the user wrote."""
    if not isinstance(value, dict) or not isinstance(value.get("begin"), str) or not isinstance(value.get("end", ""), str):
        raise GrammarError(f"{where} must be an object with begin, schema and end")
    unknown = sorted(value.keys() - {"begin", "schema", "end", "path"})
    if unknown:
        raise GrammarError(f"{where} has unknown fields {', '.join(unknown)}; known: begin, schema, end")
    return value["begin"], value.get("end", ""), value.get("schema", True), str(value.get("path", f"{where}.schema"))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
