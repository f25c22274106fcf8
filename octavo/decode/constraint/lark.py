"""What must be known of a Lark grammar before the engine reads it: how deep its rules refer to each other.

The engine follows references one call deep each, and an error found at depth d costs it time that grows with the cube of d.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from octavo.core.structured import MAX_GRAMMAR_DEPTH, MAX_RULE_DEPTH
from octavo.errors import GrammarError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN = re.compile(r"""//[^\n]*|\#[^\n]*|"(?:\\.|[^"\\\n])*"|/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+/[a-z]*|(?P<name>[A-Za-z_]\w*)""")
_RULE = re.compile(r"^[ \t]*[?!]?(?P<rule>[A-Za-z_]\w*)[ \t]*(?:\[[^\]\n]*\]|\.-?\d+|[ \t])*:", re.MULTILINE)


def check_depth(text: str, what: str) -> None:
    """Brackets within brackets, literal ones counted too: a bound, not a parse. Raises GrammarError."""
    depth = 0
    for found in re.finditer(r"[()\[\]{}]", text):
        depth = depth + 1 if found[0] in "([{" else max(0, depth - 1)
        if depth > MAX_GRAMMAR_DEPTH:
            raise GrammarError(f"{what} nests brackets deeper than {MAX_GRAMMAR_DEPTH} levels (at character {found.start():,})")


def check_rules(text: str, what: str) -> None:
    """Raise GrammarError if rules refer to rules more than MAX_RULE_DEPTH deep, in the order in which the engine follows them from ``start``."""
    rules = references(text)
    seen: set[str] = {"start"}
    path: list[Iterator[str]] = [iter(rules.get("start", ()))]
    while path:
        name = next((n for n in path[-1] if n in rules and n not in seen), None)
        if name is None:
            path.pop()
            continue
        seen.add(name)
        path.append(iter(rules[name]))
        if len(path) > MAX_RULE_DEPTH:
            raise GrammarError(f"{what}: rules refer to rules more than {MAX_RULE_DEPTH} deep (at {name!r})")


def references(text: str) -> dict[str, list[str]]:
    """The names that each rule or terminal mentions, in order."""
    heads = list(_RULE.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    found: dict[str, list[str]] = {}
    for head, end in zip(heads, ends, strict=True):
        names = [m["name"] for m in _TOKEN.finditer(text, head.end(), end) if m["name"]]
        found.setdefault(head["rule"], []).extend(names)
    return found
