"""Rendering equals transformers' own; bad messages and templates give errors that name what is wrong."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from octavo.errors import InvalidParameter, TemplateError
from octavo.text.chat import MAX_TEMPLATE_CHARS, ChatTemplate
from tests.text.templates import CHATML, GEMMA, TOOLS, WILD

SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Says what the weather is: <sun> & \"rain\", 天気",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]},
    },
}
CALL = {"type": "function", "id": "c1", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}}
CHATS: dict[str, list[dict[str, Any]]] = {
    "user": [{"role": "user", "content": "  Hello <there> & \"you\" 天気 😀\n"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
    "turns": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two "},
        {"role": "user", "content": "Three\n\n"},
        {"role": "assistant", "content": "Four and"},
    ],
    "tool calls": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
        {"role": "tool", "content": "{\"t\": 20}"},
        {"role": "assistant", "content": "It is sunny."},
        {"role": "user", "content": "Thanks"},
    ],
    "reasoning": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning": "because"}, {"role": "user", "content": "r"}],
}

OPTIONS: list[dict[str, Any]] = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": False, "continue_final_message": True},
]


def template(source: str | None) -> ChatTemplate:
    return ChatTemplate(source, SimpleNamespace(special_tokens=SPECIAL))  # type: ignore[arg-type]


def oracle(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    tok = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=source, **SPECIAL)
    text = tok.apply_chat_template(messages, tokenize=False, **options)
    assert isinstance(text, str)
    return text.replace("CONTINUE_FINAL_MESSAGE_TAG", "")  # left behind where a template prints the final message twice


def outcome(render: Any) -> str | None:
    try:
        result: str = render()
    except Exception:
        return None
    return result


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", ["CHATML", "TOOLS", "GEMMA", "WILD"])
def test_rendering_equals_transformers(name: str, chat: str) -> None:
    source, messages = {"CHATML": CHATML, "TOOLS": TOOLS, "GEMMA": GEMMA, "WILD": WILD}[name], CHATS[chat]
    rendered = 0
    for tools in (None, [WEATHER], [WEATHER, WEATHER]):
        for options in OPTIONS:
            expected = outcome(lambda options=options, tools=tools: oracle(source, messages, tools=tools, **options))
            got = outcome(lambda options=options, tools=tools: template(source).render(messages, tools=tools, **options))
            assert got == expected
            rendered += expected is not None
    assert rendered or (name == "GEMMA" and chat == "tool calls")


def test_template_variables_and_constants_equal_transformers() -> None:
    source = TOOLS + "{{ flag }} {{ level + 1 }} {{ names | join(',') }} {{ documents | tojson }}"
    variables: dict[str, Any] = {"enable_thinking": False, "flag": True, "level": 2, "names": ["a", "b"], "documents": [{"title": "t", "text": "x"}]}
    assert template(source).render(CHATS["user"], template_kwargs=variables) == oracle(source, CHATS["user"], add_generation_prompt=True, **variables)


def test_openai_forms_of_content_and_arguments() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "now?"}]}]
    assert "user\nWeather\nnow?<|im_end|>" in template(TOOLS).render(parts)
    as_text = {**CALL, "function": {"name": "get_weather", "arguments": json.dumps(CALL["function"]["arguments"])}}  # type: ignore[index]
    none = {"type": "function", "function": {"name": "f", "arguments": ""}}
    messages = [{"role": "user", "content": "W"}, {"role": "assistant", "content": None, "tool_calls": [as_text, none]}]
    given = json.dumps(messages)
    text = template(TOOLS).render(messages)
    assert '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}' in text and '{"name": "f", "arguments": {}}' in text
    assert json.dumps(messages) == given, "the caller's messages stay as they are"


def test_absent_and_null_fields_are_one() -> None:
    messages = [{"role": "user", "name": None, "content": "x", "tool_calls": None}, {"role": "assistant", "content": None}]
    source = "{% for m in messages %}{{ m | tojson }}{{ 'tool_calls' in m }}{{ m.content is defined }}{% endfor %}"
    assert template(source).render(messages) == oracle(source, messages, add_generation_prompt=True)


def test_continuing_the_final_message() -> None:
    messages = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two, "}]
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert template(CHATML).render(messages, **options).endswith("<|im_start|>assistant\nOne, two, ")
    assert template(GEMMA).render(messages, **options).endswith("<start_of_turn>model\nOne, two,"), "a template that trims gives no last space"
    with pytest.raises(InvalidParameter, match="exclude each other"):
        template(CHATML).render(messages, continue_final_message=True)
    with pytest.raises(InvalidParameter, match="text to continue"):
        template(TOOLS).render([{"role": "assistant", "tool_calls": [CALL]}], **options)
    with pytest.raises(TemplateError, match="does not print the final message"):
        template("fixed").render(messages, **options)


def test_no_template() -> None:
    with pytest.raises(TemplateError, match=r"no chat template.*--chat-template.*completions"):
        template(None).render(CHATS["user"])


def test_refusals_name_the_message() -> None:
    source = "{% for m in messages %}{% if m.role == 'tool' %}\n{{ raise_exception('no tools here') }}{% endif %}{{ loop.last }}{% endfor %}"
    with pytest.raises(TemplateError) as caught:
        template(source).render([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, {"role": "tool", "content": "c"}])
    assert caught.value.message == "the chat template refused message 2 (role 'tool'): no tools here" and caught.value.param == "messages[2]"
    with pytest.raises(TemplateError, match="refused the messages: never"):
        template("{{ raise_exception('never') }}").render(CHATS["user"])
    with pytest.raises(TemplateError, match=r"refused message 1 \(role 'user'\): Conversation roles must alternate"):
        template(GEMMA).render([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])


def test_failures_name_line_and_message() -> None:
    with pytest.raises(TemplateError, match=r"failed \(line 3\) on message 1 \(role 'bot'\): can only concatenate str"):
        template("{% for m in messages %}\n\n{{ m.content + 3 if m.role == 'bot' }}{% endfor %}").render(
            [{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}]
        )
    with pytest.raises(TemplateError, match=r"failed \(line 1\) on message 0 \(role 'user'\).*undefined|no attribute"):
        template(CHATML).render([{"role": "user", "content": None}])
    with pytest.raises(TemplateError, match="malformed at line 2"):
        template("x\n{% if %}").render(CHATS["user"])
    with pytest.raises(TemplateError, match=f"has 70,000 characters, the limit is {MAX_TEMPLATE_CHARS:,}"):
        template("x" * 70_000).render(CHATS["user"])


def called(function: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "a", "tool_calls": [{"function": function}]}]


@pytest.mark.parametrize(
    ("messages", "param", "message"),
    [
        ([], "messages", "at least one message"),
        ("hi", "messages", "must be a list"),
        (["hi"], "messages[0]", "must be an object, got str"),
        ([{"content": "x"}], "messages[0].role", "must be a string, got NoneType"),
        ([{"role": 3, "content": "x"}], "messages[0].role", "must be a string, got int"),
        ([{"role": "user", "content": 3}], "messages[0].content", "a string or a list of parts, got int"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type", "type 'image_url'; only text"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]", "must be an object, got str"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "must be a string"),
        ([{"role": "user", "content": "x", "extra": object()}], "messages[0].extra", "holds a object"),
        ([{"role": "a", "tool_calls": {}}], "messages[0].tool_calls", "must be a list"),
        (called({"name": "f", "arguments": "{"}), "messages[0].tool_calls[0].function.arguments", "is not JSON"),
        (called({"name": "f", "arguments": "[]"}), "messages[0].tool_calls[0].function.arguments", "must be a JSON object"),
        (called({"arguments": "{}"}), "messages[0].tool_calls[0].function", "an object with a name"),
    ],
)
def test_malformed_messages(messages: Any, param: str, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message.replace("[", r"\[")) as caught:
        template(CHATML).render(messages)
    assert caught.value.param == param


def test_malformed_tools_and_variables() -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tools": "x"}, "tools must be a list of objects"),
        ({"tools": [{"a": deep}]}, "nested deeper than"),
        ({"template_kwargs": {"messages": []}}, "must not set 'messages'"),
        ({"template_kwargs": {"bos_token": ""}}, "must not set 'bos_token'"),
        ({"template_kwargs": {"raise_exception": 1}}, "must not set"),
        ({"template_kwargs": {"_x": 1}}, "'_x' is not a variable name"),
        ({"template_kwargs": {"a b": 1}}, "is not a variable name"),
        ({"template_kwargs": {"f": print}}, "which JSON has not"),
        ({"template_kwargs": {f"v{i}": 1 for i in range(65)}}, "at most 64"),
    ]
    for options, message in cases:
        with pytest.raises(InvalidParameter, match=message):
            template(CHATML).render(CHATS["user"], **options)


def test_one_template_serves_many_threads() -> None:
    shared = template(TOOLS)
    expected = {chat: shared.render(messages, tools=[WEATHER]) for chat, messages in CHATS.items()}
    wrong: list[str] = []

    def work() -> None:
        for _ in range(30):
            wrong.extend(chat for chat, messages in CHATS.items() if shared.render(messages, tools=[WEATHER]) != expected[chat])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_long_conversations_fit_the_limits() -> None:
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": "some words " * 100} for i in range(1001)]
    assert template(TOOLS).render(messages) == oracle(TOOLS, messages, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        ("{{ c.function.arguments | tojson }}", '{"a": "é"}'),
        ("{{ '<' + c.function.arguments + '>' }}", '<{"a": "é"}>'),
        ("{{ c.function.arguments }}", '{"a": "é"}'),
        ("{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}", "a=é"),
        ("{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}", '{"a": "é"}'),
    ],
)
def test_arguments_reach_each_template_in_the_form_it_prints(source: str, printed: str) -> None:
    chat = template("{% for m in messages %}{% for c in m.tool_calls or [] %}" + source + "{% endfor %}{% endfor %}")
    for arguments in ('{"a": "é"}', {"a": "é"}):
        messages = [{"role": "user", "content": "x"}, *called({"name": "f", "arguments": arguments})]
        assert chat.render(messages) == printed
