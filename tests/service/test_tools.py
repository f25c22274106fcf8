"""Tools in the service: what is refused, how replies are told apart, and what is enforced. The engine is a stand-in that plays texts."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from octavo.errors import InvalidParameter
from octavo.text.chat import ChatTemplate
from octavo.text.parsers.formats import TOOL_FORMATS, ToolFormat
from octavo.text.parsers.grammar import required_calls
from octavo.text.parsers.reply import ReplyDelta, ReplyFormat, ReplyParser
from tests.service.fake import INFO, FakeClient, fixed_script
from tests.service.harness import ask, collect, running
from tests.service.texts import TOOL_CHATML, make_text

if TYPE_CHECKING:
    from octavo.service.model_text import ModelText
    from octavo.service.types import TextDelta

WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}
TIME = {"type": "function", "function": {"name": "get_time"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
QUESTION = [{"role": "user", "content": "the weather?"}]


@pytest.fixture(scope="module")
def tool_text(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    return make_text(tmp_path_factory.mktemp("tools"), ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"), TOOL_CHATML)


def play(text: ModelText, reply: str, *, chunk: int = 1, **fields: Any) -> tuple[list[TextDelta], FakeClient, Any]:
    """The deltas of a chat to which the engine plays ``reply``."""
    ids = [*text.tokenizer.encode(reply, add_special_tokens=False), text.eos_token_ids[0]]
    info = msgspec.structs.replace(INFO, vocab_size=text.tokenizer.vocab_size, max_model_len=1024)
    client = FakeClient(fixed_script(ids), info, chunks=lambda step: chunk)

    async def run() -> tuple[list[TextDelta], Any]:
        async with running(client, text) as service:
            generation = await service.generate(ask(QUESTION, **fields))
            return await collect(generation), generation.usage

    deltas, usage = asyncio.run(run())
    return deltas, client, usage


def fold(deltas: list[TextDelta]) -> tuple[str, str, list[tuple[str, str]]]:
    whole, calls = ReplyDelta(), []
    for delta in deltas:
        assert delta.parts is not None
        whole.add(delta.parts)
    for step in whole.tool_calls:
        if step.name is not None:
            calls.append((step.name, ""))
        calls[-1] = (calls[-1][0], calls[-1][1] + step.arguments)
    return whole.content, whole.reasoning, calls


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
def test_a_call_among_text(tool_text: ModelText, chunk: int) -> None:
    deltas, _, usage = play(tool_text, "Let me see. " + CALL, chunk=chunk, tools=[WEATHER])
    assert fold(deltas) == ("Let me see.", "", [("get_weather", '{"city": "Paris"}')])
    assert "".join(d.text for d in deltas) == "Let me see. " + CALL
    assert deltas[-1].finish_reason == "stop" and usage.completion_tokens == sum(len(d.token_ids) for d in deltas)


@pytest.mark.parametrize("chunk", [1, 3])
def test_thoughts_and_their_tokens(tool_text: ModelText, chunk: int) -> None:
    deltas, _, usage = play(tool_text, "<think>\nhm, the fox</think>\n\nYes.", chunk=chunk)
    assert fold(deltas) == ("Yes.", "hm, the fox", [])
    before = len(tool_text.tokenizer.encode("<think>", add_special_tokens=False))
    upto = len(tool_text.tokenizer.encode("<think>\nhm, the fox", add_special_tokens=False))
    after = len(tool_text.tokenizer.encode("<think>\nhm, the fox</think>", add_special_tokens=False))
    assert upto - before - 1 <= usage.reasoning_tokens <= after - before
    deltas, _, usage = play(tool_text, "hm</think>Yes.", chunk=chunk, chat_template_kwargs={"thinking": True})
    assert fold(deltas) == ("Yes.", "hm", []) and usage.reasoning_tokens > 0
    _, _, usage = play(dataclasses.replace(tool_text, reasoning_parser="none"), "hm")
    assert usage.reasoning_tokens is None


def test_markers_that_are_control_tokens(tool_text: ModelText) -> None:
    """The detokenizer hides control tokens; those of the format are for the parser to see."""
    text = dataclasses.replace(tool_text, tool_call_parser="mistral", reasoning_parser="mistral")
    reply = '[THINK]hm[/THINK]So.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'
    assert len(set(text.tokenizer.encode(reply, add_special_tokens=False)) & text.tokenizer.special_token_ids) == 4
    deltas, _, _ = play(text, reply, tools=[WEATHER])
    assert fold(deltas) == ("So.", "hm", [("get_weather", '{"city": "Paris"}')])
    deltas, _, _ = play(dataclasses.replace(text, reasoning_parser="none"), reply)
    assert all(d.parts is None for d in deltas) and "[" not in "".join(d.text for d in deltas)


def test_one_call_at_most_ends_the_sequence(tool_text: ModelText) -> None:
    deltas, client, usage = play(tool_text, CALL + "\n" + CALL, tools=[WEATHER], parallel_tool_calls=False)
    assert [c[0] for c in fold(deltas)[2]] == ["get_weather"] and deltas[-1].finish_reason == "stop" and deltas[-1].stop_reason is None
    assert not client.live, "the engine was told"
    assert usage.completion_tokens < len(tool_text.tokenizer.encode(CALL + CALL))
    most = usage.completion_tokens + 3  # a step that runs into this limit after the call has ended has not been cut by it
    for chunk in (1, 1000):
        deltas, _, _ = play(tool_text, CALL + "\n" + CALL, chunk=chunk, tools=[WEATHER], parallel_tool_calls=False, max_tokens=most)
        assert deltas[-1].finish_reason == "stop" and sum(len(d.token_ids) for d in deltas) == most - 3
    deltas, _, _ = play(tool_text, CALL + "\n" + CALL, tools=[WEATHER])
    assert len(fold(deltas)[2]) == 2


def test_no_tools_no_calls(tool_text: ModelText) -> None:
    for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        deltas, client, _ = play(tool_text, CALL, **fields)
        assert fold(deltas) == (CALL, "", [])
        assert "get_weather" not in tool_text.tokenizer.decode(client.sent[0].prompt_token_ids)


def test_ids_differ_between_sequences_and_calls(tool_text: ModelText) -> None:
    deltas, _, _ = play(tool_text, CALL + "\n" + CALL, tools=[WEATHER], n=3)
    ids = [c.id for d in deltas for c in d.parts.tool_calls if c.name]  # type: ignore[union-attr]
    assert len(ids) == len(set(ids)) == 6


def function(**changes: Any) -> dict[str, Any]:
    return {"type": "function", "function": {**WEATHER["function"], **changes}}  # type: ignore[dict-item]


def deep(levels: int) -> dict[str, Any]:
    return {"properties": {"a": deep(levels - 1)}} if levels else {}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type", "must be 'function', got 'custom'"),
        ({"tools": [WEATHER, "x"]}, "tools[1]", "must be an object, got str"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "must be an object"),
        ({"tools": [function(name="a b")]}, "tools[0].function.name", "letters, digits"),
        ({"tools": [function(name="a" * 129)]}, "tools[0].function.name", "1 to 128"),
        ({"tools": [function(name=3)]}, "tools[0].function.name", "letters"),
        ({"tools": [function(description=3)]}, "tools[0].function.description", "must be a string"),
        ({"tools": [function(strict="yes")]}, "tools[0].function.strict", "true or false"),
        ({"tools": [function(parameters=[])]}, "tools[0].function.parameters", "must be a JSON schema object"),
        ({"tools": [function(parameters={"type": "string"})]}, "tools[0].function.parameters.type", "must be 'object'"),
        ({"tools": [function(parameters=deep(40))]}, "tools[0]", "nested deeper than 64"),
        ({"tools": [function(description="\ud800")]}, "tools", "half of a surrogate pair"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name", "defined twice"),
        ({"tools": [WEATHER] * 129}, "tools", "has 129 entries, the limit is 128"),
        ({"tools": [function(description="x" * 2**20)]}, "tools", "bytes, the limit is 1,048,576"),
        ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice", "must be auto, none, required"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice", "must be auto, none, required"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name", "names 'x', tools has"),
        ({"tool_choice": "required"}, "tool_choice", "'required' needs tools"),
        ({"tools": [WEATHER], "structured_outputs": {"json_object": True}}, "response_format", "exclude each other"),
    ],
)
def test_refusals(tool_text: ModelText, fields: dict[str, Any], param: str, message: str) -> None:
    big = dataclasses.replace(tool_text)
    info = msgspec.structs.replace(INFO, vocab_size=big.tokenizer.vocab_size, max_model_len=10**6, num_blocks=10**6)

    async def run() -> None:
        async with running(FakeClient(fixed_script([1]), info), big) as service:
            await service.generate(ask(QUESTION, **fields))

    with pytest.raises(InvalidParameter) as caught:
        asyncio.run(run())
    assert caught.value.param == param and message in caught.value.message


def test_a_model_without_a_format_refuses_tools(text: ModelText) -> None:
    with pytest.raises(InvalidParameter, match=r"the chat template shows none that is known; start with --tool-call-parser, one of .*hermes"):
        play(text, "x", tools=[WEATHER])
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "none"}
    assert "".join(d.text for d in play(text, "x", **fields)[0]) == "x"
    deltas, _, _ = play(dataclasses.replace(text, tool_call_parser="hermes"), CALL, tools=[WEATHER])
    assert fold(deltas)[2] == [("get_weather", '{"city": "Paris"}')]


@pytest.mark.parametrize("name", ["pythonic", "harmony", "qwen3_coder"])
def test_what_cannot_be_enforced_is_refused(tool_text: ModelText, name: str) -> None:
    text = dataclasses.replace(tool_text, tool_call_parser=name)
    with pytest.raises(InvalidParameter, match="tool_choice 'required' needs calls that a grammar can hold") as caught:
        play(text, "x", tools=[WEATHER], tool_choice="required")
    assert caught.value.param == "tool_choice"
    with pytest.raises(InvalidParameter, match="strict: true needs calls") as caught:
        play(text, "x", tools=[TIME, function(strict=True)])
    assert caught.value.param == "tools[1].function.strict"


def grammar(client: FakeClient) -> Any:
    given = client.sent[0].params.structured_outputs  # type: ignore[union-attr]
    return None if given is None else json.loads(given.structural_tag)


def test_the_grammar_that_is_asked_for(tool_text: ModelText) -> None:
    named = {"type": "function", "function": {"name": "get_time"}}
    _, client, _ = play(tool_text, CALL, tools=[WEATHER, TIME], tool_choice="required")
    tag = grammar(client)
    assert [s["path"] for s in tag["structures"]] == ["tools[0].function.parameters", "tools[1].function.parameters"]
    assert tag["structures"][0]["schema"] == WEATHER["function"]["parameters"] and not tag["stop_after_first"]  # type: ignore[index]
    _, client, _ = play(tool_text, CALL, tools=[WEATHER, TIME], tool_choice=named)
    assert [s["path"] for s in grammar(client)["structures"]] == ["tools[1].function.parameters"] and grammar(client)["stop_after_first"]
    _, client, _ = play(tool_text, CALL, tools=[WEATHER, TIME])
    assert grammar(client) is None
    _, client, _ = play(tool_text, CALL, tools=[function(strict=True), TIME])
    assert grammar(client)["triggers"] == ["<tool_call>", '{"name": "']
    assert [s["schema"] == {"type": "object"} for s in grammar(client)["structures"]] == [False, True, False, True]


@pytest.mark.parametrize("name", [n for n, f in TOOL_FORMATS.items() if isinstance(f, ToolFormat) and f.spellings])
def test_what_is_enforced_is_what_is_read(name: str) -> None:
    form = TOOL_FORMATS[name]
    assert isinstance(form, ToolFormat)
    for way in form.spellings:
        tag = json.loads(required_calls(way, {"f": None, "g": {"type": "object"}}, {"f": "a", "g": "b"}, single=False))
        calls = [s["begin"] + '{"x": 1}' + s["end"] for s in tag["structures"][: 1 if tag["stop_after_first"] else 2]]
        parser = ReplyParser(ReplyFormat(tool_format=form, tools={"f": None, "g": None}))
        whole = parser.push(tag["begin"] + tag["separator"].join(calls) + tag["end"])
        whole.add(parser.finish())
        assert [c.name for c in whole.tool_calls if c.name] == ["f", "g"][: len(calls)] and not whole.content.strip()
        assert [c.arguments for c in whole.tool_calls if not c.name] == ['{"x": 1}'] * len(calls)


def test_the_templates_of_each_family() -> None:
    """Phrases of published templates, each of which must give its own format away."""
    for source, tool, thoughts in (
        ("<tool_call>\\n{\"name\": <function-name>}\\n</tool_call>", "hermes", None),
        ("<tool_call> ... <think>\\n\\n</think>", "hermes", "think"),
        ("<|start|>assistant<|channel|>analysis<|message|> to=functions.", "harmony", "harmony"),
        ("'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + '```json' <think>", "deepseek_v3", "think"),
        ("'<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' </think>", "deepseek_v31", "think"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral", None),
        ("<tool_call>{name} <arg_key>k</arg_key> </think>", "glm45", "think"),
        ("<|tool_calls_section_begin|>", "kimi_k2", None),
        ("<tool_call>\\n<function=example>\\n<parameter=p>", "qwen3_coder", None),
        ("<|start_of_role|> <|tool_call|>", "granite", None),
        ('<|eot_id|> ipython "parameters"', "llama3_json", None),
        ("<|python_tag|>", "llama3_json", None),
        ("[func_name1(params_name1=...)] <|python_tag|>", "pythonic", None),
        ("plain", None, None),
    ):
        text = dataclasses.replace(make_plain(), template=ChatTemplate(source, make_plain().tokenizer))
        form = text.reply_format(text.template)
        assert (form.tool_format and form.tool_format.name, form.reasoning_format and form.reasoning_format.name) == (tool, thoughts), source


def make_plain() -> ModelText:
    from types import SimpleNamespace

    from octavo.service.model_text import ModelText

    return ModelText(SimpleNamespace(special_tokens={}), None, ())  # type: ignore[arg-type]
