"""Structured output over HTTP, as users have it: `octavo serve` with a real model, the official client, an engine that dies on the way."""

from __future__ import annotations

import json
import re
import threading
import time
from typing import TYPE_CHECKING, Any

import jsonschema
import openai
import pytest

from tests.frontends.test_real_server import RealServer, server

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.model
__all__ = ["server"]

MESSAGES: Any = [{"role": "user", "content": "Describe a city of your choice: name, country, population, what it is known for."}]
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "country": {"type": "string", "maxLength": 30},
        "population": {"type": "integer", "minimum": 1, "maximum": 40_000_000},
        "known_for": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "country", "population", "known_for"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}


def ask(server: RealServer, **fields: Any) -> Any:
    return server.client.chat.completions.create(model="m", messages=MESSAGES, **{"temperature": 0, "max_tokens": 250, **fields})


def city(text: str) -> None:
    jsonschema.validate(json.loads(text), CITY)


@pytest.fixture(scope="module", autouse=True)
def warm(server: RealServer) -> Iterator[None]:
    server.wait_for("listening on")
    yield


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_schema_is_kept_and_the_stream_is_the_whole(server: RealServer, temperature: float) -> None:
    whole = ask(server, response_format=FORMAT, temperature=temperature, seed=3).choices[0]
    assert whole.finish_reason == "stop"
    city(whole.message.content)
    text, ends = "", []
    for chunk in ask(server, response_format=FORMAT, temperature=temperature, seed=3, stream=True):
        text += chunk.choices[0].delta.content or ""
        ends += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert (text, ends) == (whole.message.content, ["stop"])


def test_the_official_client_parses_into_a_model(server: RealServer) -> None:
    from pydantic import BaseModel, Field

    class Pet(BaseModel):
        name: str = Field(max_length=12)
        legs: int = Field(ge=0, le=8)

    reply = server.client.chat.completions.parse(model="m", messages=MESSAGES, response_format=Pet, temperature=0, max_tokens=80)
    pet = reply.choices[0].message.parsed
    assert isinstance(pet, Pet) and 0 <= pet.legs <= 8


def test_the_other_forms(server: RealServer) -> None:
    def text(**form: Any) -> str:
        return str(ask(server, extra_body={"structured_outputs": form}).choices[0].message.content)

    assert re.fullmatch(r"[A-Z][a-z]{2,9}, [0-9]{1,3} years", text(regex=r"[A-Z][a-z]{2,9}, [0-9]{1,3} years"))
    assert text(choice=["Paris", "Rome"]) in ("Paris", "Rome")
    assert re.fullmatch(r"SELECT [a-z]+ FROM [a-z]+", text(grammar='start: "SELECT " WORD " FROM " WORD\nWORD: /[a-z]+/'))
    assert set(json.loads(text(json={**CITY, "properties": {"name": CITY["properties"]["name"]}, "required": ["name"]}))) == {"name"}  # type: ignore[index]
    extra = {"structured_outputs": {"choice": ["yes", "no"]}}
    completion = server.client.completions.create(model="m", prompt="Yes or no?", max_tokens=5, extra_body=extra)
    assert completion.choices[0].text in ("yes", "no")
    whole = ask(server, response_format={"type": "json_object"}, max_tokens=200)
    assert whole.choices[0].message.content.startswith("{")


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_enforced_is_a_400_that_says_where(server: RealServer, stream: bool) -> None:
    schema = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(openai.BadRequestError, match=r"\$\.properties\.tags\.uniqueItems") as caught:
        ask(server, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, stream=stream)
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="unclosed group"):
        ask(server, extra_body={"structured_outputs": {"regex": "a(b"}}, stream=stream)
    city(ask(server, response_format=FORMAT).choices[0].message.content)


def test_compiling_a_large_tool_set_holds_nobody_up(server: RealServer) -> None:
    """Tokens of another stream keep coming while a hundred kilobytes of schema are compiled; no pause is longer than the compilation would be."""

    def tool(i: int) -> dict[str, Any]:
        fields = {f"p{j}": {"type": "string", "description": "what it is for " * 5} for j in range(8)}
        arguments = {"type": "object", "properties": fields, "required": ["p0", "p1"], "additionalProperties": False}
        return {"type": "object", "properties": {"name": {"const": f"tool_{i}"}, "arguments": arguments}, "required": ["name", "arguments"]}

    schema = {"anyOf": [tool(i) for i in range(140)]}
    assert len(json.dumps(schema)) > 100_000
    arrivals: list[float] = []

    def read() -> None:
        arrivals.extend(time.monotonic() for _ in ask(server, max_tokens=200, stream=True))

    reader = threading.Thread(target=read)
    reader.start()
    while len(arrivals) < 5:
        time.sleep(0.01)
    before = len(arrivals)
    form = {"type": "json_schema", "json_schema": {"name": "tools", "schema": schema}}
    text = ask(server, response_format=form, max_tokens=20).choices[0].message.content
    assert text.startswith("{") and len(arrivals) > before, "the other stream went on"
    reader.join()


def test_an_engine_that_dies_in_the_middle_of_a_document_continues_it(server: RealServer) -> None:
    """The matcher is rebuilt from the emitted ids: the same bytes as without the death, and valid."""
    whole = ask(server, response_format=FORMAT).choices[0].message.content
    text = ""
    for number, chunk in enumerate(ask(server, response_format=FORMAT, stream=True)):
        text += chunk.choices[0].delta.content or ""
        if number == 8:
            server.engine().kill()
    assert text == whole
    city(text)
