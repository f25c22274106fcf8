"""Enforced tool calls of every format that can be: whatever the masks allow is read back as calls that validate against their schemas."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from octavo.errors import GrammarError
from octavo.text.parsers.formats import TOOL_FORMATS, ToolFormat
from octavo.text.parsers.grammar import BARE, required_calls, strict_calls
from octavo.text.parsers.reply import ReplyFormat, ReplyParser
from tests.decode.grammars import Grammars
from tests.service.texts import make_text

if TYPE_CHECKING:
    from octavo.decode.constraint.grammar import CompiledGrammar
    from octavo.text.parsers.formats import Spelling

TOOLS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 4}, "unit": {"enum": ["c", "f"]}, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
    "ping": {"type": "object", "properties": {}, "additionalProperties": False},
}
PATHS = {name: f"tools[{i}].function.parameters" for i, name in enumerate(TOOLS)}
FORMS = [f for f in TOOL_FORMATS.values() if isinstance(f, ToolFormat) and f.spellings]
WAYS = [(form, way) for form in FORMS for way in form.spellings]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    """A small vocabulary in which every marker that a family makes a control token is one."""
    markers = sorted({m for f in FORMS for m in f.markers if m[0] in "<[" and m not in ("<tool_call>", "</tool_call>")})
    return Grammars(make_text(tmp_path_factory.mktemp("markers"), tuple(markers)).tokenizer)


def read(form: ToolFormat, text: str) -> tuple[list[tuple[str, Any]], str]:
    parser = ReplyParser(ReplyFormat(tool_format=form, tools=TOOLS))
    whole = parser.push(text)
    whole.add(parser.finish())
    calls: list[tuple[str, str]] = []
    for step in whole.tool_calls:
        if step.name is not None:
            calls.append((step.name, ""))
        calls[-1] = (calls[-1][0], calls[-1][1] + step.arguments)
    return [(name, json.loads(arguments)) for name, arguments in calls], whole.content


def write(grammars: Grammars, grammar: CompiledGrammar, rng: random.Random, endings: set[int | None]) -> str:
    """A random text of the grammar, which ends soon after it can: one of ``endings`` is taken every second time it may be."""
    constraint, taken = grammar.constraint(), list[int]()
    for _ in range(3000):
        allowed = grammars.allowed(constraint).tolist()
        ends = [t for t in allowed if t in endings]
        token = rng.choice(ends if ends and rng.random() < 0.5 else allowed)
        if token in grammars.vocabulary.eos_token_ids:
            return grammars.tokenizer.decode(taken, skip_special_tokens=False)
        taken.append(token)
        constraint.accept(token)
    raise AssertionError("no end within 3,000 tokens")


def fits(grammars: Grammars, grammar: CompiledGrammar, text: str) -> bool:
    """As Grammars.accepts, of a text whose control tokens are tokens."""
    constraint = grammar.constraint()
    for token in grammars.tokenizer.encode(text, add_special_tokens=False):
        if token not in grammars.allowed(constraint):
            return False
        constraint.accept(token)
    return bool(set(grammars.vocabulary.eos_token_ids) & set(grammars.allowed(constraint).tolist()))


@pytest.mark.parametrize(("form", "way"), WAYS, ids=[f"{f.name}-{i}" for i, (f, _) in enumerate(WAYS)])
@pytest.mark.parametrize("single", [False, True])
def test_required_calls_are_read_and_valid(wide: Grammars, form: ToolFormat, way: Spelling, single: bool) -> None:
    rng = random.Random(form.name)
    grammar = wide.compile(structural_tag=required_calls(way, TOOLS, PATHS, single=single))
    seen: set[str] = set()
    for _ in range(12):
        text = write(wide, grammar, rng, {*wide.vocabulary.eos_token_ids, wide.tokenizer.token_to_id(way.section_end) if way.section_end else None})
        calls, content = read(form, text)
        assert calls and not content.strip(), text
        for name, arguments in calls:
            jsonschema.validate(arguments, TOOLS[name])
            seen.add(name)
    assert seen == set(TOOLS)
    begin, end = way.begin.replace("NAME", "ping") + "{}" + way.end, way.section_end
    for count in (0, 1, 2, 3):
        text = way.section + way.separator.join([begin] * count) + end
        assert fits(wide, grammar, text) is (count == 1 or (count > 1 and not single and not way.once)), text
    for wrong in ("Sure. " + way.section + begin + end, way.section + begin.replace("ping", "pong") + end):
        assert not fits(wide, grammar, wrong), wrong


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_strict_calls_bind_once_they_begin_and_leave_text_free(wide: Grammars, form: ToolFormat) -> None:
    way = form.spellings[0]
    grammar = wide.compile(structural_tag=strict_calls(form, way, TOOLS, PATHS, frozenset({"get_weather"})))
    plain = wide.tokenizer.encode("the fox, {1} <b>", add_special_tokens=False)
    marker = "" if form.name == "llama3_json" else form.section or form.begin
    for begin in [marker] * bool(marker) + [BARE] * bool(form.bare):
        constraint = grammar.constraint()
        for token in [*plain, *wide.tokenizer.encode(begin, add_special_tokens=False)]:
            assert token in wide.allowed(constraint), begin
            constraint.accept(token)
        assert not set(wide.vocabulary.eos_token_ids) & set(wide.allowed(constraint).tolist()), "a call that has begun must be finished"
        assert len(wide.allowed(constraint)) < 12, "only the names of the tools may follow"
    free = grammar.constraint()
    for token in plain:
        free.accept(token)
    assert set(wide.vocabulary.eos_token_ids) & set(wide.allowed(free).tolist())


def test_a_schema_that_cannot_be_enforced_is_named_where_the_request_gave_it(wide: Grammars) -> None:
    tag = required_calls(FORMS[0].spellings[0], {"f": {"type": "object", "not": {}}}, {"f": "tools[3].function.parameters"}, single=True)
    with pytest.raises(GrammarError, match=r"tools\[3\]\.function\.parameters\.not: the keyword 'not' is not supported"):
        wide.compile(structural_tag=tag)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"separator": 3}, "separator must be a text"),
        ({"stop_after_first": 1}, "stop_after_first must be true or false"),
        ({"triggers": ["x"]}, "unknown fields triggers"),
        ({"begin": None}, "begin must be a text"),
    ],
)
def test_malformed_lists_of_structures(wide: Grammars, change: dict[str, Any], message: str) -> None:
    tag = json.loads(required_calls(FORMS[0].spellings[0], TOOLS, PATHS, single=True)) | change
    with pytest.raises(GrammarError, match=message):
        wide.compile(structural_tag=tag)
