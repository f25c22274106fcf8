"""Tool calls that must come, or must follow their schemas when they come: the reply's form as a structural tag for the grammar engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from octavo.text.parsers.formats import Spelling, ToolFormat

ANYTHING: dict[str, Any] = {"type": "object"}
BARE = '{"name": "'  # how a call without a marker begins where calls are enforced


def spelling(form: ToolFormat, has_token: Callable[[str], bool]) -> Spelling | None:
    """How calls are to be written by a model with this vocabulary; None if they cannot be enforced."""
    return next((s for s in form.spellings if not s.needs or has_token(s.needs)), None)


def required_calls(way: Spelling, tools: Mapping[str, Any], paths: Mapping[str, str], *, single: bool) -> str:
    """Calls and nothing else, at least one. ``tools``: name to schema (None: any object); ``paths``: name to where the request gives it."""
    tag = {
        "structures": [_structure(way, name, schema, paths[name]) for name, schema in tools.items()],
        "begin": way.section,
        "separator": way.separator,
        "end": way.section_end,
        "stop_after_first": single or way.once,
    }
    return json.dumps(tag, ensure_ascii=False)


def strict_calls(form: ToolFormat, way: Spelling, tools: Mapping[str, Any], paths: Mapping[str, str], strict: frozenset[str]) -> str:
    """Free text in which a call, once it begins, follows the schema of its tool if that is strict."""
    marker = next((m for m in (form.section, form.begin) if m and (way.section + way.begin).startswith(m)), "")
    ways = [(way.section + way.begin, way.end + way.section_end, marker)] if marker else []
    if form.bare:
        ways.append((way.begin[way.begin.index("{") :], "}", BARE))
    structures = [
        {"begin": begin.replace("NAME", name), "schema": (schema if name in strict else None) or ANYTHING, "end": end, "path": paths[name]}
        for begin, end, _ in ways
        for name, schema in tools.items()
    ]
    return json.dumps({"structures": structures, "triggers": [trigger for *_, trigger in ways]}, ensure_ascii=False)


def _structure(way: Spelling, name: str, schema: Any, path: str) -> dict[str, Any]:
    return {"begin": way.begin.replace("NAME", name), "schema": ANYTHING if schema is None else schema, "end": way.end, "path": path}
