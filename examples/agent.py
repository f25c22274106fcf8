"""An agent: the model asks for functions, this program runs them, the model answers. Five turns, two tools, the official OpenAI client.

Run `octavo serve qwen2.5-coder-0.5b-instruct` in one shell, then: python examples/agent.py
"""

from __future__ import annotations

import json
import os
from typing import Any

from openai import OpenAI

STOCK = {"apples": 12, "pears": 0, "plums": 7}
PRICES = {"apples": 0.5, "pears": 0.8, "plums": 0.2}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_stock",
            "description": "How many pieces of a fruit are in stock",
            "parameters": {
                "type": "object",
                "properties": {"fruit": {"type": "string", "enum": list(STOCK)}},
                "required": ["fruit"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_total",
            "description": "What a number of pieces of a fruit costs in euros",
            "parameters": {
                "type": "object",
                "properties": {"fruit": {"type": "string", "enum": list(PRICES)}, "count": {"type": "integer", "minimum": 1, "maximum": 1000}},
                "required": ["fruit", "count"],
                "additionalProperties": False,
            },
        },
    },
]
FUNCTIONS: Any = {"get_stock": lambda fruit: STOCK[fruit], "get_total": lambda fruit, count: round(PRICES[fruit] * count, 2)}
SYSTEM = "You run a fruit shop. Answer in one short sentence from what the tools say."
QUESTIONS = (
    "How many apples are in stock?",
    "What do 4 plums cost?",
    "How many pears are in stock?",
    "What is the total for 10 apples?",
    "How many plums are in stock?",
)


def turn(client: OpenAI, model: str, messages: list[Any]) -> list[tuple[str, dict[str, Any], Any]]:
    """Let the model call what it needs and answer; ``messages`` grow by what was said. Returns (function, arguments, result) of each call."""
    first = client.chat.completions.create(
        model=model, messages=messages, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=200
    )
    calls = []
    messages.append(first.choices[0].message.model_dump(exclude_none=True))
    for call in first.choices[0].message.tool_calls or []:
        arguments = json.loads(call.function.arguments)
        result = FUNCTIONS[call.function.name](**arguments)
        calls.append((call.function.name, arguments, result))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    answer = ""
    for chunk in client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=60, stream=True):
        answer += chunk.choices[0].delta.content or "" if chunk.choices else ""
    messages.append({"role": "assistant", "content": answer})
    return calls


def main() -> None:
    client = OpenAI(base_url=os.environ.get("OCTAVO_URL", "http://127.0.0.1:8000/v1"), api_key=os.environ.get("OCTAVO_API_KEY", "none"))
    model = client.models.list().data[0].id
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        print(f"> {question}")
        for name, arguments, result in turn(client, model, messages):
            print(f"  {name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())}) = {result}")
        print(messages[-1]["content"])


if __name__ == "__main__":
    main()
