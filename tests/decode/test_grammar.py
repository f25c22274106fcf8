"""Grammars over a real vocabulary: whatever their masks allow is in the language, by Python's own re and by other oracles; bounds hold."""

from __future__ import annotations

import ast
import itertools
import json
import random
import re
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from octavo.core.structured import StructuredOutputsParams, Thinking
from octavo.decode.constraint import grammar as module
from octavo.decode.constraint.grammar import MAX_COMPILE_SECONDS, GrammarCompiler, GrammarConstraint, Vocabulary
from octavo.decode.constraint.lark import references
from octavo.errors import GrammarError, InvalidParameter, Overloaded

if TYPE_CHECKING:
    from tests.decode.grammars import Grammars

REGEXES = [
    r"[A-Z][a-z]{2,8} [0-9]{3}-[0-9]{4}", r"(yes|no|maybe)(, (yes|no|maybe)){0,2}", r"[0-9]{4}-(0[1-9]|1[0-2])", r"a?b*c+(d|e){2}", r"#[0-9a-f]{6}",
    r"[^aeiou\s]{3,5}", r"(https?|ftp)://[a-z]+\.(org|com)(/[a-z]*)?", r"-?(0|[1-9]\d{0,3})(\.\d{1,2})?", r"(«[a-zé]{1,4}» ){1,3}",
    r"\[\]\\\.\*", r"(a|ab)(c|bcd)",
]  # fmt: skip


@pytest.mark.parametrize("pattern", REGEXES)
def test_a_regex_is_matched_by_the_whole_text(grammars: Grammars, pattern: str) -> None:
    rng = random.Random(pattern)
    grammar = grammars.compile(regex=pattern)
    written = {text for _ in range(30) if (text := grammars.write(grammar.constraint(), rng)) is not None}
    assert written
    for text in written:
        assert re.fullmatch(pattern, text), text


AWKWARD = ['"', "\\", "/", "\n", "(", "[x]", "{", "a|b", "é", "🎉", "$", "^", " ", "#", "-", "&", "~"]


@pytest.mark.parametrize("choices", [["yes", "no"], ["a", "ab", "abc", "b"], AWKWARD, ["same", "same"]])
def test_a_choice_gives_one_of_the_texts_and_any_of_them(grammars: Grammars, choices: list[str]) -> None:
    grammar = grammars.compile(choice=choices)
    rng = random.Random(1)
    assert {grammars.write(grammar.constraint(), rng) for _ in range(60)} <= set(choices)
    for choice in choices:
        assert grammars.accepts(grammar, choice), choice
    assert not grammars.accepts(grammar, choices[0] + choices[0] + "?")


LISTS = """start: list
list: "[" [item ("," item)*] "]"
item: NUMBER | list | STRING
NUMBER: /-?(0|[1-9][0-9]{0,4})/
STRING: /"[a-z]{0,5}"/
"""
LISTS_GBNF = """root ::= list
list ::= "[" (item ("," item)*)? "]"
item ::= number | list | string
number ::= "-"? ("0" | [1-9] [0-9]{0,4})
string ::= "\\"" [a-z]{0,5} "\\""
"""


@pytest.mark.parametrize("text", [LISTS, LISTS_GBNF], ids=["lark", "gbnf"])
def test_a_grammar_writes_its_language(grammars: Grammars, text: str) -> None:
    rng = random.Random(3)
    grammar = grammars.compile(grammar=text)
    written = [t for _ in range(40) if (t := grammars.write(grammar.constraint(), rng, most=80)) is not None]
    assert len(set(written)) > 10
    for one in written:
        assert isinstance(ast.literal_eval(one), list), one
        assert json.loads(one) == ast.literal_eval(one)
    assert grammars.accepts(grammar, '[1,[],["abc",-20]]') and not grammars.accepts(grammar, "[01]") and not grammars.accepts(grammar, "[1,]")


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"regex": "a(b"}, "unclosed group"),
        ({"regex": r"(?=a)b"}, "look-around"),
        ({"regex": r"(a)\1"}, "backreferences"),
        ({"grammar": "start: a\na: b"}, 'unknown name: "b"'),
        ({"grammar": 'start: "a" (\nx: "b"'}, r"1\(13\)"),
        ({"grammar": 'rule: "a"'}, "named start"),
        ({"grammar": 'root ::= "a" | b'}, "GBNF"),
        ({"grammar": 'start: %json {"x-guidance": {}}'}, "x-guidance"),
        ({"json": "{"}, "line 1, column 2"),
        ({"json": '{"minimum": NaN}'}, "NaN"),
        ({"json": "[" * 3000}, "JSON"),
        ({"json": False}, "false"),
        ({"structural_tag": "[]"}, "must be an object"),
        ({"structural_tag": {"structures": [{"begin": "<a>", "schema": {}, "end": "x"}], "triggers": ["<b"]}}, r"structures\[0\].begin"),
        ({"structural_tag": {"structures": [{"begin": "<a>", "schema": {"not": {}}}], "triggers": ["<a"]}}, r"structures\[0\].schema.not"),
        ({"structural_tag": {"format": {}}}, "format is not supported"),
        ({"structural_tag": {"structures": [{"begin": "<a>", "schema": {}, "until": 3}], "triggers": ["<"]}}, "until"),
    ],
)
def test_what_is_wrong_is_said(grammars: Grammars, form: dict[str, Any], words: str) -> None:
    with pytest.raises(GrammarError, match=words) as caught:
        grammars.compile(**form)
    assert caught.value.status == 400 and caught.value.param == "structured_outputs" and len(caught.value.message) < 700


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({}, "exactly one"),
        ({"regex": "a", "json": {}}, "exactly one"),
        ({"regex": ""}, "not empty"),
        ({"regex": "a" * 20_000}, "20,000 bytes, the limit is 16,384"),
        ({"grammar": "a" * 70_000}, "limit is 65,536"),
        ({"json": '"' + "a" * 2**20 + '"'}, "limit is 1,048,576"),
        ({"json": {"enum": ["a" * 2**20]}}, "limit is 1,048,576"),
        ({"choice": []}, "list of texts"),
        ({"choice": ["a"] * 10_001}, "10,001 entries"),
        ({"choice": ["a" * 2**20, "b"]}, "1,048,577 bytes"),
        ({"choice": ["a", ""]}, "none of them empty"),
        ({"json": 3}, "object or its text"),
        ({"json": {"const": float("nan")}}, "not JSON"),
        ({"regex": "a", "disable_any_whitespace": True}, "does nothing with regex"),
        ({"json": {}, "disable_any_whitespace": True, "whitespace_pattern": " "}, "exclude"),
        ({"json_object": True, "disable_additional_properties": True}, "nothing but"),
        ({"json": {}, "whitespace_pattern": " " * 300}, "300 bytes"),
        ({"json_object": 1}, "true or false"),
    ],
)
def test_limits_hold_before_anything_is_compiled(form: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        StructuredOutputsParams(**form)


def test_deep_values_are_refused_without_recursion() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(InvalidParameter, match="deeper than 64"):
        StructuredOutputsParams(json=deep)


def doubling(levels: int) -> str:
    return "start: R0\n" + "".join(f"R{i}: R{i + 1} R{i + 1}\n" for i in range(levels)) + f'R{levels}: "a"\n'


def chain(levels: int, end: str) -> str:
    return "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(levels)) + end


ADVERSARIAL: dict[str, dict[str, Any]] = {
    "long repetition": {"regex": "a{1,100000}"},
    "nested repetition": {"regex": "((a{1,300}b){1,300}c){1,300}"},
    "words without end": {"regex": r"(\w+\s*){1,500}\."},
    "catastrophic for backtracking": {"regex": "(a|aa|ab|b)*(a+)+(.*a.{30}b)"},
    "nested too deep": {"regex": "(" * 5_000 + "a" + ")" * 5_000},
    "nested repetition of rules": {"grammar": 'start: (("a"{1,500} "b"){1,500} "c"){1,500}'},
    "doubling terminals": {"grammar": doubling(20)},
    "doubling terminals, more": {"grammar": doubling(100)},
    "a long chain of rules": {"grammar": chain(3_000, 'r3000: "a"\n')},
    "a chain that ends wrongly": {"grammar": chain(100, "")},
    "brackets": {"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "ambiguous": {"grammar": 'start: e\ne: e e | e e e | "a" | ""'},
    "no text": {"grammar": 'start: a\na: a "b"'},
    "a loop of references": {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
    "a chain of references": {
        "json": {"$ref": "#/$defs/d0", "$defs": {**{f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(20_000)}, "d20000": {}}}
    },
    "many optional properties": {"json": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(3_000)}}},
    "alternatives that multiply": {"json": {"allOf": [{"anyOf": [{"required": [f"a{i}_{j}"]} for j in range(6)]} for i in range(12)]}},
    "patterns that meet": {"json": {"allOf": [{"pattern": f"^(.*{c}.{{{9 + i}}}){{3}}$"} for i, c in enumerate("abcdefgh")]}},
    "many remainders": {"json": {"allOf": [{"type": "integer", "multipleOf": p} for p in (97, 101, 103, 107)]}},
    "a long text": {"json": {"type": "string", "minLength": 1_000_000}},
    "a long list": {"json": {"type": "array", "minItems": 100_000, "items": {"type": "integer"}}},
    "many choices": {"choice": [f"choice number {i} {i * 7919}" for i in range(10_000)]},
    "a big enum": {"json": {"enum": [f"value {i}" for i in range(20_000)]}},
}  # fmt: skip


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_hostile_grammars_end_in_time_one_way_or_the_other(grammars: Grammars, name: str) -> None:
    """Compiled, or refused with a typed error; and what compiles gives its masks without failing the process."""
    began = time.monotonic()
    try:
        constraint = grammars.start(**ADVERSARIAL[name])
    except (GrammarError, InvalidParameter) as error:
        assert error.status == 400 and len(error.message) < 700
    else:
        rng = random.Random(0)
        try:
            grammars.write(constraint, rng, most=20)
        except GrammarError as error:  # found later: it ends the one sequence
            assert "grammar" in error.message
    assert time.monotonic() - began < MAX_COMPILE_SECONDS + 5


def test_references_of_a_lark_grammar() -> None:
    text = 'start: a "b: c" /d: e/ // f\n  | B.2 # g\n?a[lazy]: start\nB.3: "x" | /[/]y/ C\nC: %json {"z": 1}\n'
    assert references(text) == {"start": ["a", "B"], "a": ["start"], "B": ["C"], "C": ["json"]}


# --- state


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"enum": ["x", "yy"]}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def test_rollback_is_as_if_it_had_not_been(grammars: Grammars) -> None:
    """Random walks that go back and forth have the masks of a constraint that went straight there."""
    rng = random.Random(5)
    grammar = grammars.compile(json=SCHEMA)
    for _ in range(20):
        walker, taken = grammar.constraint(), list[int]()
        for _ in range(30):
            if taken and rng.random() < 0.3:
                count = rng.randint(1, len(taken))
                walker.rollback(count)
                del taken[len(taken) - count :]
            allowed = grammars.allowed(walker)
            taken.append(int(rng.choice(allowed.tolist())))
            if taken[-1] in grammars.vocabulary.eos_token_ids:
                taken.pop()
                continue
            walker.accept(taken[-1])
            straight = grammar.constraint()
            for token in taken:
                straight.accept(token)
            assert np.array_equal(grammars.mask(walker), grammars.mask(straight))
            assert walker.forced() == straight.forced()


def test_copies_do_not_touch_each_other(grammars: Grammars) -> None:
    grammar = grammars.compile(choice=["left", "right"])
    one, two = grammar.constraint(), grammar.constraint()
    before = grammars.mask(two)
    one.accept(int(grammars.allowed(one)[0]))
    assert np.array_equal(grammars.mask(two), before)


def test_forced_tokens_spell_the_only_text(grammars: Grammars) -> None:
    constraint = grammars.start(json=SCHEMA, disable_any_whitespace=True)
    assert grammars.tokenizer.decode(constraint.forced()).startswith('{"name')
    for token in constraint.forced():
        assert token in grammars.allowed(constraint)
        constraint.accept(token)
    assert grammars.start(regex=".*").forced() == []


def test_the_end_is_allowed_exactly_where_the_grammar_ends(grammars: Grammars) -> None:
    ends = set(grammars.vocabulary.eos_token_ids)
    constraint = grammars.start(regex="ab?")
    [a] = grammars.tokenizer.encode("a", add_special_tokens=False)
    [b] = grammars.tokenizer.encode("b", add_special_tokens=False)
    assert not ends & set(grammars.allowed(constraint).tolist())
    constraint.accept(a)
    assert set(grammars.allowed(constraint).tolist()) == ends | {b}
    constraint.accept(b)
    assert set(grammars.allowed(constraint).tolist()) == ends


def test_a_forbidden_token_fails_the_constraint_with_a_typed_error(grammars: Grammars) -> None:
    constraint = grammars.start(regex="a")
    with pytest.raises(GrammarError, match="cannot go on"):
        constraint.accept(grammars.tokenizer.encode("b", add_special_tokens=False)[0])


def test_structural_tags_leave_the_text_free_and_bind_what_follows_a_tag(grammars: Grammars) -> None:
    structures = [{"begin": f"<f={name}>", "schema": {"type": kind}, "end": "</f>"} for name, kind in {"a": "integer", "b": "null"}.items()]
    grammar = grammars.compile(structural_tag={"structures": structures, "triggers": ["<f="]})
    fitting = ("free", "x <f=a>12</f> y <f=b>null</f>", "a < b")
    for text, fits in {**dict.fromkeys(fitting, True), **dict.fromkeys(("<f=a>x", "<f=c>", "<f=b>null</f"), False)}.items():
        assert grammars.accepts(grammar, text) is fits, text


# --- reasoning models


def test_the_grammar_begins_when_the_thoughts_end(grammars: Grammars) -> None:
    """<a> opens and <b> closes here: two tokens of the vocabulary stand in for the tags."""
    opening, closing, free = 100, 101, 102
    grammar = grammars.compile(regex="xy")
    start = set(grammars.allowed(grammar.constraint()).tolist())
    everything = np.full(-(-grammars.vocab_size // 32), 0xFFFFFFFF, np.uint32)

    inside = grammar.constraint(Thinking(closing))
    for token in (free, free, opening, closing):
        assert inside.fill(everything.copy()) is False and inside.forced() == []
        inside.accept(token)
    assert set(grammars.allowed(inside).tolist()) == start
    inside.rollback(2)
    assert inside.fill(everything.copy()) is False, "back among the thoughts"

    maybe = grammar.constraint(Thinking(closing, opening))
    assert set(grammars.allowed(maybe).tolist()) == start | {opening}
    maybe.accept(opening)
    assert maybe.fill(everything.copy()) is False
    maybe.accept(free)
    maybe.rollback(2)
    assert set(grammars.allowed(maybe).tolist()) == start | {opening}, "all is open again"
    [x] = grammars.tokenizer.encode("x", add_special_tokens=False)
    maybe.accept(x)
    assert opening not in grammars.allowed(maybe), "without thoughts the grammar holds from the first token"
    maybe.rollback(1)
    assert set(grammars.allowed(maybe).tolist()) == start | {opening}


# --- the compiler


def wait(compiler: GrammarCompiler, **form: Any) -> Any:
    compilation = compiler.start(StructuredOutputsParams(**form))
    while (grammar := compilation.poll()) is None:
        time.sleep(0.001)
    return grammar


def test_one_compilation_for_equal_texts_and_another_for_other_options(grammars: Grammars) -> None:
    compiler = GrammarCompiler(lambda: grammars.vocabulary)
    one = wait(compiler, json=SCHEMA)
    assert wait(compiler, json=json.dumps(SCHEMA, ensure_ascii=False)) is one
    assert wait(compiler, json=SCHEMA, disable_any_whitespace=True) is not one
    with pytest.raises(GrammarError):
        wait(compiler, regex="(")
    with pytest.raises(GrammarError):
        wait(compiler, regex="(")


def test_grammars_are_kept_by_size_and_the_least_recently_used_goes(grammars: Grammars) -> None:
    compiler = GrammarCompiler(lambda: grammars.vocabulary, max_bytes=300_000)
    first = wait(compiler, regex="a1")
    for i in itertools.count(2):
        wait(compiler, regex=f"a{i}")
        if i % 2:
            assert wait(compiler, regex="a1") is first, "what is used stays"
        assert compiler.nbytes <= 300_000 + first.nbytes
        if i == 12:
            break
    wait(compiler, regex="b" * 10_000)
    wait(compiler, regex="c")
    assert wait(compiler, regex="a1") is not first


class SlowVocabulary:
    """Loading it takes until it is told otherwise, as a compilation without end would."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, self.go = vocabulary, threading.Event()

    def __call__(self) -> Vocabulary:
        self.go.wait(30)
        return self.vocabulary


def test_a_compilation_beyond_its_time_fails_alone_and_too_many_of_them_are_overload(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COMPILE_SECONDS", 0.05)
    load = SlowVocabulary(grammars.vocabulary)
    compiler = GrammarCompiler(load)
    for i in range(module.MAX_STUCK + 1):
        compilation = compiler.start(StructuredOutputsParams(regex=f"x{i}"))
        assert compilation.poll() is None
        while compilation.began is None:
            time.sleep(0.001)
        time.sleep(0.06)
        with pytest.raises(GrammarError, match="longer than"):
            compilation.poll()
    with pytest.raises(Overloaded):
        compiler.start(StructuredOutputsParams(regex="y"))
    load.go.set()
    while compiler.start(StructuredOutputsParams(regex="x0")).result.done() is False:
        time.sleep(0.001)
    monkeypatch.setattr(module, "MAX_COMPILE_SECONDS", 10.0)
    assert wait(compiler, regex="z") is not None, "the threads serve again"


def test_a_failure_of_the_native_library_is_a_typed_error(grammars: Grammars) -> None:
    class Panic(BaseException):
        pass

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise Panic("at the disco")

    constraint = GrammarConstraint(Broken())  # type: ignore[arg-type]
    for call in (lambda: constraint.accept(1), lambda: constraint.forced(), lambda: constraint.fill(np.zeros(4, np.uint32))):
        with pytest.raises(GrammarError, match="Panic"):
            call()

    def load() -> Vocabulary:
        raise Panic("no vocabulary")

    with pytest.raises(GrammarError, match="no vocabulary"):
        wait(GrammarCompiler(load), regex="a")


def test_a_large_tool_set_compiles(grammars: Grammars) -> None:
    def tool(i: int) -> dict[str, Any]:
        fields = {f"p{j}": {"type": "string", "description": "what it is for " * 5} if j % 2 else {"type": "integer", "minimum": i} for j in range(8)}
        arguments = {"type": "object", "properties": fields, "required": ["p0", "p1"], "additionalProperties": False}
        return {"type": "object", "properties": {"name": {"const": f"tool_{i}"}, "arguments": arguments}, "required": ["name", "arguments"]}

    schema = {"anyOf": [tool(i) for i in range(130)]}
    assert len(json.dumps(schema)) > 100_000
    grammar = grammars.compile(json=schema)
    assert grammars.accepts(grammar, '{"name": "tool_7", "arguments": {"p0": 8, "p1": "x"}}')
    assert not grammars.accepts(grammar, '{"name": "tool_7", "arguments": {"p0": 6, "p1": "x"}}'), "below its minimum"
