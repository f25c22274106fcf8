"""Tool calls and thoughts through the official client: a stream, gathered as a client gathers it, equals the whole reply."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import msgspec
import openai
import pytest

from tests.frontends.serving import Served
from tests.service.fake import INFO, FakeClient
from tests.service.texts import TOOL_CHATML, make_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from octavo.engine.messages import AddRequest
    from octavo.service.model_text import ModelText

TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "get_time"}},
]
CALLS = [
    '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>',
    '<tool_call>\n{"arguments": {"zone": "é\\n"}, "name": "get_time"}\n</tool_call>',
    '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
]
ODD = ["<tool_call>{oops}</tool_call>", '<tool_call>{"name": "get_time", "arguments": {"a": nope}}</tool_call>', "<tool_", "{}", "<think>"]
TEXTS = ["the quick fox ", "héllo 你好 ", "\n", " ", "END"]


def reply_of(seed: int | None, index: int) -> str:
    generator = random.Random(f"{seed}/{index}")
    parts = ["<think>hm, " + generator.choice(TEXTS) + "</think>\n\n"] if generator.random() < 0.5 else []
    parts += [generator.choice(generator.choice((TEXTS, CALLS, ODD))) for _ in range(generator.randint(1, 4))]
    return "".join(parts)


@pytest.fixture(scope="module")
def tool_text(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    return make_text(tmp_path_factory.mktemp("tools"), template=TOOL_CHATML)


@pytest.fixture(scope="module")
def served(tool_text: ModelText) -> Iterator[Served]:
    tokenizer = tool_text.tokenizer

    def script(request: AddRequest, index: int) -> list[int]:
        text = reply_of(request.params.seed, index)
        return [*tokenizer.encode(text, add_special_tokens=False), tool_text.eos_token_ids[0]]

    info = msgspec.structs.replace(INFO, vocab_size=tokenizer.vocab_size, max_model_len=2048, num_blocks=1024)
    with Served(FakeClient(script, info, chunks=lambda step: random.Random(step).randint(1, 6)), tool_text) as s:
        yield s


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def gathered(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    made: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for c in chunk.choices:
            one = made.setdefault(c.index, {"content": "", "reasoning": "", "calls": [], "logprobs": 0, "end": None})
            assert one["end"] is None, "something came after finish_reason"
            one["content"] += c.delta.content or ""
            one["reasoning"] += getattr(c.delta, "reasoning", None) or ""
            one["logprobs"] += len(c.logprobs.content) if c.logprobs else 0
            for step in c.delta.tool_calls or []:
                if step.index == len(one["calls"]):
                    assert step.id and step.type == "function" and step.function.name and step.function.arguments == ""
                    one["calls"].append([step.id, step.function.name, ""])
                else:
                    assert step.index == len(one["calls"]) - 1 and step.id is None and step.function.name is None and step.function.arguments
                    one["calls"][-1][2] += step.function.arguments
            one["end"] = c.finish_reason
    return made


@pytest.mark.parametrize("seed", range(40))
def test_stream_equals_whole(client: openai.OpenAI, seed: int) -> None:
    draw = random.Random(seed)
    params: dict[str, Any] = {
        "model": "fake",
        "messages": [{"role": "user", "content": "hi"}],
        "seed": seed,
        "n": draw.choice([1, 2]),
        "max_tokens": draw.choice([4, 30, 60, 300]),
        "stop": draw.choice([None, None, "END", "fox"]),
        "logprobs": draw.random() < 0.5,
        "parallel_tool_calls": draw.random() < 0.7,
        "extra_body": {"request_id": f"same-{seed}", "include_reasoning": draw.random() < 0.8},
    }
    if draw.random() < 0.8:
        params["tools"] = TOOLS
        params["tool_choice"] = draw.choice(["auto", "none", "auto"])
    whole = client.chat.completions.create(**params)
    chunks = list(client.chat.completions.create(**params, stream=True, stream_options={"include_usage": True}))
    folded = gathered(chunks)
    assert len(folded) == params["n"] == len(whole.choices)
    for choice in whole.choices:
        one, message = folded[choice.index], choice.message
        calls = [[c.id, c.function.name, c.function.arguments] for c in message.tool_calls or []]  # type: ignore[union-attr]
        assert one["calls"] == calls and one["content"] == (message.content or "")
        assert one["reasoning"] == (getattr(message, "reasoning", None) or "")
        assert one["end"] == choice.finish_reason
        assert (message.content is None) == (bool(calls) and not one["content"])
        assert not calls or choice.finish_reason in ("tool_calls", "length")
        assert len(calls) <= 1 or params["parallel_tool_calls"]
        assert not calls or ("tools" in params and params["tool_choice"] == "auto")
        if params["logprobs"]:
            assert one["logprobs"] == len(choice.logprobs.content or [])  # type: ignore[union-attr]
    assert chunks[-1].usage == whole.usage
    details = whole.usage.completion_tokens_details  # type: ignore[union-attr]
    assert details is not None and details.reasoning_tokens is not None and details.reasoning_tokens <= whole.usage.completion_tokens  # type: ignore[union-attr]


def test_what_the_seeds_cover() -> None:
    """The test above must meet calls, thoughts, calls among text, and malformed ones."""
    replies = [reply_of(seed, 0) for seed in range(40)]
    for what in (*CALLS, *ODD[:2], "<think>hm"):
        assert any(what in reply for reply in replies), what
    assert sum(reply.count("<tool_call>") > 1 for reply in replies) > 5


def test_a_conversation_with_results_goes_back(client: openai.OpenAI, served: Served) -> None:
    first = next(c for seed in range(40) for c in [ask(client, seed)] if c.message.tool_calls)
    messages: Any = [
        {"role": "user", "content": "hi"},
        first.message.model_dump(),
        {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "sunny"},
    ]
    client.chat.completions.create(model="fake", messages=messages, tools=TOOLS, max_tokens=1)
    tokenizer = served.service.tokenizer
    prompt = tokenizer.decode(served.client.sent[-1].prompt_token_ids, skip_special_tokens=False)  # type: ignore[union-attr]
    arguments = json.dumps(json.loads(first.message.tool_calls[0].function.arguments), ensure_ascii=False)
    assert arguments in prompt and "<|im_start|>tool\nsunny<|im_end|>" in prompt


def ask(client: openai.OpenAI, seed: int) -> Any:
    return client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}], tools=TOOLS, seed=seed).choices[0]


def test_auto_can_be_switched_off(tool_text: ModelText) -> None:
    info = msgspec.structs.replace(INFO, vocab_size=tool_text.tokenizer.vocab_size, max_model_len=2048, num_blocks=1024)
    with Served(FakeClient(lambda request, index: [70], info), tool_text, auto_tool_choice=False) as s:
        client = openai.OpenAI(base_url=f"{s.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.BadRequestError, match="no-enable-auto-tool-choice"):
            client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}], tools=TOOLS, max_tokens=1)
        client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}], tools=TOOLS, tool_choice="none", max_tokens=1)
