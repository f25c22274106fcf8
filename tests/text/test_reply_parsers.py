"""Replies of every format, written as the families' templates and model cards show them, against what a reader would say they mean."""

from __future__ import annotations

import json
import random
import string
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.text.parsers.formats import REASONING_FORMATS, TOOL_FORMATS, reasoning_format, tool_format
from octavo.text.parsers.reply import ReplyFormat, ReplyParser, begins_thinking

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": "array"}, "live": {"type": "boolean"}},
}
TOOLS: dict[str, Any] = {"get_weather": WEATHER, "get_time": {"type": "object", "properties": {"zone": {"type": "string"}}}}
PARIS = ("get_weather", {"city": "Paris"})
TOKYO = ("get_time", {"zone": "Asia/Tokyo"})


@dataclass
class Reply:
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def parsed(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def fold(pieces: list[str], spec: ReplyFormat) -> Reply:
    """What a client gathers from the deltas; checks their order on the way."""
    parser, reply = ReplyParser(spec), Reply()
    deltas = [*(parser.push(piece) for piece in pieces), parser.finish()]
    for delta in deltas:
        reply.content += delta.content
        reply.reasoning += delta.reasoning
        for call in delta.tool_calls:
            if call.name is not None:
                assert call.index == len(reply.calls) and call.arguments == "" and call.id
                reply.calls.append((call.name, ""))
                reply.ids.append(call.id)
            else:
                assert call.index == len(reply.calls) - 1 and call.arguments
                name, arguments = reply.calls[-1]
                reply.calls[-1] = (name, arguments + call.arguments)
    return reply


def spec_for(name: str, *, tools: dict[str, Any] = TOOLS, thinking: str = "none", **more: Any) -> ReplyFormat:
    return ReplyFormat(tool_format=tool_format(name, None), reasoning_format=reasoning_format(thinking, None), tools=tools, id_seed="s", **more)


def cuts(text: str, seed: int) -> list[str]:
    generator = random.Random(seed)
    pieces, at = [], 0
    while at < len(text):
        size = generator.choice((1, 1, 2, 3, 5, 8, 40))
        pieces.append(text[at : at + size])
        at += size
    return pieces


# format, reply, content, calls
GOLDEN: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', "", [PARIS]),
    (
        "hermes",
        'I will look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n<tool_call>\n'
        '{"arguments": {"zone": "Asia/Tokyo"}, "name": "get_time"}\n</tool_call>',
        "I will look.",
        [PARIS, TOKYO],
    ),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>', "", [("get_time", {})]),
    ("hermes", '<tool_call>{"name": "get_time"}</tool_call>', "", [("get_time", {})]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": null}</tool_call>', "", [("get_time", {})]),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>', "", [PARIS]),
    ("hermes", '<tool_call>{"type": "function", "function": {"name": "get_weather", "parameters": {"city": "Paris"}}}</tool_call>', "", [PARIS]),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}', "", [PARIS]),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}\n</tool_call>', "", [PARIS]),
    (
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "a\nb\\u00e9 </tool_call> {\\"}", "n": [1, -2.5e3, {"x": null}, true]}}'
        "</tool_call>",
        "",
        [("get_weather", {"city": 'a\nbé </tool_call> {"}', "n": [1, -2500.0, {"x": None}, True]})],
    ),
    ("hermes", '{"name": "get_weather", "arguments": {"city": "Paris"}}\n{"name": "get_time", "arguments": {}}', "", [PARIS, ("get_time", {})]),
    (
        "hermes",
        '```json\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Paris"\n  }\n}\n{"name": "get_time", "arguments": {}}\n```',
        "",
        [PARIS, ("get_time", {})],
    ),
    (
        "hermes",
        'A\n<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>\nB',
        "A\n\nB",
        [PARIS],
    ),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    ("llama3_json", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    (
        "llama3_json",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "get_time", "parameters": {"zone": "Asia/Tokyo"}}',
        "",
        [PARIS, TOKYO],
    ),
    ("llama3_json", '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    ("pythonic", '[get_weather(city="Paris"), get_time(zone=\'Asia/Tokyo\')]', "", [PARIS, TOKYO]),
    (
        "pythonic",
        "<|python_tag|>[get_weather(city='it\\'s \"P\"\\n\\u00e9', days=3, units=['c', (1, 2.5,)], live=True, x={'k': None})]",
        "",
        [("get_weather", {"city": 'it\'s "P"\né', "days": 3, "units": ["c", [1, 2.5]], "live": True, "x": {"k": None}})],
    ),
    ("pythonic", "[get_time()]", "", [("get_time", {})]),
    ("llama4_pythonic", '<|python_start|>[get_weather(city="Paris")]<|python_end|>', "", [PARIS]),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_time", "arguments": {"zone": "Asia/Tokyo"}}]',
        "",
        [PARIS, TOKYO],
    ),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{"zone": "Asia/Tokyo"}', "", [PARIS, TOKYO]),
    ("mistral", 'Right.[TOOL_CALLS]get_weather{"city": "Paris"}', "Right.", [PARIS]),
    ("mistral", '[TOOL_CALLS]get_weather[CALL_ID]abcDEF123[ARGS]{"city": "Paris"}', "", [PARIS]),
    (
        "deepseek_v3",
        "Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n'
        '{"zone": "Asia/Tokyo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "Let me see.",
        [PARIS, TOKYO],
    ),
    (
        "deepseek_v31",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
        '<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{"zone": "Asia/Tokyo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "",
        [PARIS, TOKYO],
    ),
    (
        "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
        '<arg_key>units</arg_key>\n<arg_value>["c", "f"]</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>',
        "",
        [("get_weather", {"city": "Paris", "days": 3, "units": ["c", "f"]}), ("get_time", {})],
    ),
    ("glm45", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>3</arg_value></tool_call>", "", [("get_weather", {"city": "3"})]),
    (
        "kimi_k2",
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>'
        '<|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{"zone": "Asia/Tokyo"}<|tool_call_end|><|tool_calls_section_end|>',
        "",
        [PARIS, TOKYO],
    ),
    ("granite", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]', "", [PARIS]),
    ("granite4", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', "", [PARIS]),
    ("phi4_mini_json", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|/tool_call|>', "", [PARIS]),
    (
        "qwen3_coder",
        "Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nnew\n \"York\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "<parameter=live>\nTrue\n</parameter>\n<parameter=other>\n{\"a\": 1}\n</parameter>\n</function>\n</tool_call>",
        "Sure.",
        [("get_weather", {"city": 'new\n "York"', "days": 3, "live": True, "other": {"a": 1}})],
    ),
    ("qwen3_coder", "<tool_call>\n<function=get_time>\n</function>\n</tool_call>", "", [("get_time", {})]),
    ("seed_oss", "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>", "", [PARIS]),
    (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n<invoke name="get_time">\n'
        '<parameter name="zone">Asia/Tokyo</parameter>\n</invoke>\n</minimax:tool_call>',
        "",
        [PARIS, TOKYO],
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        "",
        [PARIS],
    ),
    (
        "harmony",
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris"}<|end|>'
        "<|start|>assistant<|channel|>final<|message|>It is fine.",
        "It is fine.",
        [PARIS],
    ),
]
REASONED = {"harmony": "Need the weather."}


@pytest.mark.parametrize(("name", "text", "content", "calls"), GOLDEN, ids=[f"{g[0]}-{i}" for i, g in enumerate(GOLDEN)])
def test_golden(name: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    reply = fold([text], spec_for(name))
    assert reply.content == content and reply.parsed() == calls
    assert reply.reasoning == (REASONED["harmony"] if "analysis" in text else "")
    assert len(set(reply.ids)) == len(reply.ids)
    for seed in range(12):
        assert fold(cuts(text, seed), spec_for(name)) == reply
    assert fold(list(text), spec_for(name)) == reply


def test_the_arguments_stream() -> None:
    parser = ReplyParser(spec_for("hermes"))
    told = [parser.push(c).tool_calls for c in '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>']
    arguments = [call.arguments for calls in told for call in calls if call.name is None]
    assert len(arguments) > 10 and max(map(len, arguments)) < 4
    parser = ReplyParser(spec_for("qwen3_coder"))
    told = [parser.push(c).tool_calls for c in "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis is a city\n</parameter>\n</function>"]
    assert sum(call.name is None for calls in told for call in calls) > 10


def test_plain_content_is_told_at_once() -> None:
    for name in TOOL_FORMATS:
        parser = ReplyParser(spec_for(name, thinking="think" if name != "harmony" else "none"))
        assert [parser.push(p).content for p in ("Hello", " world", "! 1", " +", " 2.")] == ["Hello", " world", "! 1", " +", " 2."]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>what</tool_call> <tool_call"),
        ("hermes", '<tool_call>{"nome": "x"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "a b(", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "get_time", "arguments": "oops"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "get_time", "arguments": '),
        ("hermes", '{"name": "get_news", "arguments": {"city": "Paris"}}'),
        ("hermes", '{"name": "get_weather"}'),
        ("hermes", '```json\n{"a": 1}\n```'),
        ("hermes", 'See: ```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```'),
        ("hermes", 'Say {"name": "get_weather", "arguments": {"city": "Paris"}}'),
        ("llama3_json", '{"name": "Bob", "parameters": {"age": 3}}'),
        ("llama3_json", '{"answer": 42}'),
        ("llama3_json", "<|python_tag|>print(1)"),
        ("llama3_json", 'So: {"name": "get_weather", "parameters": {"city": "Paris"}}'),
        ("pythonic", "[1, 2, 3]"),
        ("pythonic", "[a link](http://x)"),
        ("pythonic", "[get_weather(__import__('os').system('x'))]"),
        ("mistral", "[TOOL_CALLS] nothing here"),
        ("deepseek_v3", "<｜tool▁calls▁begin｜> hm"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_end|>"),
        ("glm45", "<tool_call>one two three</tool_call>"),
        ("qwen3_coder", "<tool_call>\n<function=get_time>\nhello</tool_call>"),
        ("harmony", "<|channel|>final"),
        ("harmony", "<|start|>assistant<|channel|>commentary to=functions.get_time<|message|>not json<|call|>"),
    ],
)
def test_what_is_no_call_is_content_to_the_letter(name: str, text: str) -> None:
    for seed in range(8):
        reply = fold(cuts(text, seed), spec_for(name))
        assert reply.content == text and not reply.calls and not reply.reasoning


def test_a_call_that_breaks_late_keeps_what_was_told() -> None:
    reply = fold(['<tool_call>{"name": "get_time", "arguments": {"zone": oops}}</tool_call> bye'], spec_for("hermes"))
    assert reply.calls == [("get_time", '{"zone": ')] and reply.content == "oops}}</tool_call> bye"
    cut = fold(['<tool_call>{"name": "get_time", "arguments": {"zone": "Asia/\\'], spec_for("hermes"))
    assert cut.calls == [("get_time", '{"zone": "Asia/\\')] and cut.content == ""
    cut = fold(["<tool_call>get_weather\n<arg_key>days</arg_key>\n<arg_value>12"], spec_for("glm45"))
    assert cut.calls == [("get_weather", '{"days": "12')] and cut.content == ""


def test_without_tools_markers_are_content() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
    assert fold([text], spec_for("hermes", tools={})) == Reply(content=text)


def test_a_single_call_ends_the_reply() -> None:
    text = GOLDEN[1][1]
    parser = ReplyParser(spec_for("hermes", single=True))
    seen = 0
    for c in text:
        parser.push(c)
        seen += 1
        if parser.done:
            break
    assert text[:seen].endswith('"Paris"}}')
    for name, reply, _, calls in GOLDEN:
        for seed in range(4):
            assert fold(cuts(reply, seed), spec_for(name, single=True)).parsed() == calls[:1]
        assert fold([reply], spec_for(name, single=True)).parsed() == calls[:1]


@pytest.mark.parametrize(
    ("thinking", "opened", "text", "reasoning", "content"),
    [
        ("think", False, "<think>\nSo.\n</think>\n\nYes.", "So.", "Yes."),
        ("think", False, "Yes, <think> is a tag.", "", "Yes, <think> is a tag."),
        ("think", False, "\n <think>a</think>b<think>c", "a", "b<think>c"),
        ("think", True, "So.\n</think>\n\nYes.", "So.", "Yes."),
        ("think", True, "<think>\nSo.</think>Yes.", "So.", "Yes."),
        ("think", True, "So, and so on ", "So, and so on ", ""),
        ("think", False, "<think></think>Yes.", "", "Yes."),
        ("deepseek_r1", True, "So. </think>\nYes.", "So.", "Yes."),
        ("qwen3", False, "<think>a</think>", "a", ""),
        ("mistral", False, "[THINK]a[/THINK]b", "a", "b"),
        ("seed_oss", False, "<seed:think>a</seed:think>b", "a", "b"),
        ("kimi_vl", False, "◁think▷a◁/think▷b", "a", "b"),
        ("granite", False, "Here is my thought process: a Here is my response: b", "a", "b"),
        ("harmony", False, "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>", "a", "b"),
        ("harmony", False, "<|channel|>commentary<|message|>Now I act.<|end|>", "", "Now I act."),
    ],
)
def test_reasoning(thinking: str, opened: bool, text: str, reasoning: str, content: str) -> None:
    spec = ReplyFormat(reasoning_format=reasoning_format(thinking, None), thinking=opened)
    for seed in range(12):
        assert fold(cuts(text, seed), spec) == Reply(content, reasoning)


def test_thoughts_and_calls() -> None:
    text = '<think>hm <tool_call>x</think>\n<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    reply = fold([text], spec_for("hermes", thinking="think"))
    assert reply.reasoning == "hm <tool_call>x" and reply.parsed() == [PARIS] and reply.content == ""
    # A special marker ends thoughts that were left open.
    text = '<think>I should look.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'
    reply = fold([text], spec_for("mistral", thinking="think"))
    assert reply.reasoning == "I should look." and reply.parsed() == [PARIS]


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": "string"}, "12", "12"),
        ({"type": ["string", "null"]}, "12", "12"),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "None", None),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "12", 12),
        ({"anyOf": [{"type": "string"}, {}]}, "12", 12),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"type": "boolean"}, "False", False),
        ({"type": "number"}, "12", 12),
        ({"type": "number"}, "twelve", "twelve"),
        ({"type": "array"}, "[1, NaN]", "[1, NaN]"),
        ({}, '{"a": "é"}', {"a": "é"}),
        (True, "x", "x"),
    ],
)
def test_a_value_in_tags_has_the_type_that_the_schema_wants(schema: Any, written: str, value: Any) -> None:
    text = f"<tool_call>f\n<arg_key>k</arg_key>\n<arg_value>{written}</arg_value>\n</tool_call>"
    reply = fold([text], spec_for("glm45", tools={"f": {"properties": {"k": schema}}}))
    assert reply.parsed() == [("f", {"k": value})]


def test_ids() -> None:
    ids = {name: fold([text], spec_for(name)).ids for name, text, *_ in GOLDEN if "Tokyo" in text}
    assert ids["kimi_k2"] == ["functions.get_weather:0", "functions.get_time:1"]
    assert all(len(i) == 9 and i.isalnum() for i in ids["mistral"])
    assert all(len(i) == 29 and i.startswith("call_") for i in ids["hermes"])
    text = next(text for name, text, *_ in GOLDEN if "[CALL_ID]" in text)
    assert fold([text], spec_for("mistral")).ids == ["abcDEF123"]


PIECES = [
    *sorted({m for f in TOOL_FORMATS.values() for m in f.markers} | {"<think>", "</think>"}),
    '{"name": "get_weather", "arguments": ', '{"city": "Paris"}', "get_weather", "get_time(", "zone='x'", ")", "[", "]", "{", "}", '"', "\\",
    ",", ";", " ", "\n", "\n\n", "text", "é", "🎉", "<", "<function=get_time>", "<parameter=zone>", "</parameter>", "</function>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "12", "-", "null", "\\u12", "to=functions.get_time", "analysis", "\ufffd",
    "(" * 70, "[" * 70, '{"a":' * 70,
]  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(
    name=st.sampled_from(sorted(TOOL_FORMATS)),
    thinking=st.sampled_from([n for n in sorted(REASONING_FORMATS) if n != "harmony"] + ["none"]),
    opened=st.booleans(),
    single=st.booleans(),
    pieces=st.lists(st.one_of(st.sampled_from(PIECES), st.text(string.printable, max_size=6)), max_size=24),
    seed=st.integers(0, 10**6),
)
def test_every_cut_gives_the_same_and_nothing_is_lost(name: str, thinking: str, opened: bool, single: bool, pieces: list[str], seed: int) -> None:
    text = "".join(pieces)
    thoughts = reasoning_format(thinking, None)
    spec = ReplyFormat(tool_format=tool_format(name, None), reasoning_format=thoughts, tools=TOOLS, thinking=opened, single=single)
    whole = fold([text], spec)
    assert fold(cuts(text, seed), spec) == whole == fold(list(text), spec)
    json_safe = json.dumps([whole.content, whole.reasoning, whole.calls]).encode()
    assert json_safe
    if not whole.calls:
        told = whole.reasoning + whole.content
        hidden = set(spec.markers)
        left = text
        for marker in hidden:
            left, told = left.replace(marker, ""), told.replace(marker, "")
        if name != "harmony":  # whose headers are more than markers
            assert sorted("".join(left.split())) == sorted("".join(told.split())), "a character was lost or made up"


@settings(max_examples=300, deadline=None)
@given(
    arguments=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=12)),
            lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
            max_leaves=8,
        ),
        max_size=4,
    ),
    ascii_only=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_any_json_object_passes_as_arguments(arguments: dict[str, Any], ascii_only: bool, seed: int) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only).encode("utf-8", "replace").decode()
    wanted = json.loads(written)
    for name, text in (
        ("hermes", f'<tool_call>\n{{"name": "get_weather", "arguments": {written}}}\n</tool_call>'),
        ("mistral", f"[TOOL_CALLS]get_weather[ARGS]{written}"),
        ("kimi_k2", f"<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{written}<|tool_call_end|>"),
        ("harmony", f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{written}<|call|>"),
        ("pythonic", f"[get_weather(a={arguments!r})]".encode("utf-8", "replace").decode()),
    ):
        reply = fold(cuts(text, seed), spec_for(name))
        assert reply.parsed() == [("get_weather", {"a": json.loads(json.dumps(arguments))} if name == "pythonic" else wanted)] and not reply.content


def test_what_the_prompt_says_of_thoughts() -> None:
    think, implicit = reasoning_format("think", None), reasoning_format("deepseek_r1", None)
    for prompt, opened, implied in (("<|a|><think>\n", True, True), ("hi<|a|>", False, True), ("<think>\n\n</think>\n\n", False, False)):
        assert begins_thinking(think, prompt) is opened and begins_thinking(implicit, prompt) is implied
    assert begins_thinking(think, "x", "<think>so") and not begins_thinking(think, "x", "<think>so</think> yes")
    assert not begins_thinking(None, "<think>") and not begins_thinking(reasoning_format("harmony", None), "x")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"tool_call_parser must be auto, none or one of .*hermes"):
        tool_format("hermis", None)
    with pytest.raises(ConfigError, match="reasoning_parser"):
        reasoning_format("thonk", None)
    assert tool_format("none", "<tool_call>") is None and reasoning_format("none", "<think>") is None


def test_long_texts_end() -> None:
    """A reader whose work grows with the square of the text would run into the test's time limit."""
    for text in ("<tool_call>" * 20_000, "\n" * 200_000, '<tool_call>{"arguments": {"a": "' + "x" * 200_000, "<" * 200_000):
        for spec in (spec_for("hermes", thinking="think"), spec_for("glm45")):
            assert fold([text[i : i + 4] for i in range(0, len(text), 4)], spec) == Reply(content=text)
