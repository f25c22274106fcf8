"""A real model calls functions, over HTTP with the official client and in process."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from octavo import LLM, SamplingParams
from tests.frontends.test_real_server import RealServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def agent() -> ModuleType:
    spec = importlib.util.spec_from_file_location("agent", Path(__file__).parents[2] / "examples" / "agent.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def server(qwen2_coder: Path) -> Iterator[RealServer]:
    server = RealServer(qwen2_coder, context=2048)
    server.wait_for("ready after")
    yield server
    server.process.terminate()
    server.process.wait(60)
    server.reader.join()


def check(agent: ModuleType, name: str, arguments: str) -> dict[str, Any]:
    """The arguments, if they are what the schema of the function promises."""
    schema = next(t["function"]["parameters"] for t in agent.TOOLS if t["function"]["name"] == name)
    value: dict[str, Any] = json.loads(arguments)
    jsonschema.validate(value, schema)
    return value


def test_the_model_calls_a_function_of_its_own_accord(server: RealServer, agent: ModuleType) -> None:
    ask: Any = {"model": "m", "messages": [{"role": "user", "content": "How many pears are in stock?"}], "temperature": 0, "max_tokens": 100}
    choice = server.client.chat.completions.create(**ask, tools=agent.TOOLS).choices[0]
    (call,) = choice.message.tool_calls or []
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert (call.function.name, check(agent, "get_stock", call.function.arguments)) == ("get_stock", {"fruit": "pears"})  # type: ignore[union-attr]
    with server.client.chat.completions.stream(**ask, tools=agent.TOOLS) as stream:  # the client's own gathering of the deltas
        done = stream.get_final_completion().choices[0]
    assert done.message.tool_calls[0].function.arguments == call.function.arguments  # type: ignore[union-attr, index]
    assert done.finish_reason == "tool_calls" and done.message.tool_calls[0].function.name == "get_stock"  # type: ignore[index]


@pytest.mark.parametrize("forced", ["required", "get_total"])
def test_forced_calls_follow_their_schema(server: RealServer, agent: ModuleType, forced: str) -> None:
    choice: Any = forced if forced == "required" else {"type": "function", "function": {"name": forced}}
    for seed in range(6):
        reply = server.client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Tell me a joke about fruit."}], tools=agent.TOOLS, tool_choice=choice,
            parallel_tool_calls=False, temperature=1.5, seed=seed, max_tokens=150,
        ).choices[0]  # fmt: skip
        (call,) = reply.message.tool_calls or []
        check(agent, call.function.name, call.function.arguments)  # type: ignore[union-attr]
        assert reply.finish_reason == "tool_calls" and not reply.message.content and forced in ("required", call.function.name)  # type: ignore[union-attr]


def test_an_agent_of_five_turns(server: RealServer, agent: ModuleType) -> None:
    messages: list[Any] = [{"role": "system", "content": agent.SYSTEM}]
    wanted = [("get_stock", "apples"), ("get_total", "plums"), ("get_stock", "pears"), ("get_total", "apples"), ("get_stock", "plums")]
    for question, (name, fruit) in zip(agent.QUESTIONS, wanted, strict=True):
        messages.append({"role": "user", "content": question})
        calls = agent.turn(server.client, "m", messages)
        assert (name, fruit) in [(n, a["fruit"]) for n, a, _ in calls], question
        assert all(result == agent.FUNCTIONS[n](**a) for n, a, result in calls)
        assert messages[-1]["role"] == "assistant" and messages[-1]["content"]


def test_the_library_calls_functions(qwen2_coder: Path, agent: ModuleType) -> None:
    question = [{"role": "user", "content": "How many pears are in stock?"}]
    with LLM(str(qwen2_coder), max_model_len=1024) as llm:
        params = SamplingParams(temperature=0, max_tokens=100)
        (free,) = llm.chat(question, params, tools=agent.TOOLS, use_tqdm=False)[0].outputs
        (forced,) = llm.chat(question, params, tools=agent.TOOLS, tool_choice="required", use_tqdm=False)[0].outputs
        (none,) = llm.chat(question, params, tools=agent.TOOLS, tool_choice="none", use_tqdm=False)[0].outputs
    for output in (free, forced):
        (call,) = output.tool_calls
        assert (call.name, check(agent, call.name, call.arguments)) == ("get_stock", {"fruit": "pears"})
        assert call.id and output.content == "" and call.arguments in output.text and output.reasoning is None
    assert not none.tool_calls and none.content == none.text != ""
