"""The HTTP face: every bad input has its status and OpenAI's error shape, keys, health, disconnects, errors after the start."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from octavo.engine.messages import Abort, AddRequest
from octavo.errors import CheckpointError
from tests.frontends.serving import Served
from tests.service.fake import FakeClient, fixed_script

if TYPE_CHECKING:
    from collections.abc import Iterator

    from octavo.engine.messages import EngineInfo
    from octavo.service.model_text import ModelText

HELLO = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def served(text: ModelText, info: EngineInfo) -> Iterator[Served]:
    with Served(FakeClient(fixed_script([70, 71, 72]), info), text) as s:
        yield s


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=20) as client:
        yield client


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": HELLO, **fields}


def complete(**fields: Any) -> dict[str, Any]:
    return {"prompt": "the", **fields}


DEEP: dict[str, Any] = {"type": "json_schema", "json_schema": {"schema": {}}}
_inner = DEEP["json_schema"]["schema"]
for _ in range(70):
    _inner["items"] = _inner = {}

# (path, body, status, param, a part of the message)
BAD: list[tuple[str, Any, int, str | None, str]] = [
    (CHAT, b"{", 400, None, "not valid JSON"),
    (CHAT, b"", 400, None, "not valid JSON"),
    (CHAT, b'{"messages": [], "temperature": NaN}', 400, None, "not valid JSON"),
    (CHAT, b"\xff\xfe", 400, None, "not valid JSON"),
    (CHAT, b"[1]", 400, None, "must be a JSON object"),
    (CHAT, b'{"messages": ' + b"[" * 100_000, 400, None, "not valid JSON"),
    (CHAT, b'{"messages": [], "seed": 1e999}', 400, None, "out of range"),
    (CHAT, {}, 400, "messages", "messages"),
    (CHAT, chat(messages=[]), 400, "messages", "messages is empty"),
    (CHAT, chat(messages="hi"), 400, "messages", "Expected `array`, got `str`"),
    (CHAT, chat(messages=["hi"]), 400, "messages[0]", "Expected `object`, got `str`"),
    (CHAT, chat(messages=[{"content": "hi"}]), 400, "messages[0].role", "role"),
    (CHAT, chat(messages=[{"role": "user"}]), 400, "messages[0].content", "content is missing"),
    (CHAT, chat(messages=[{"role": "user", "content": 5}]), 400, "messages[0].content", "must be a string"),
    (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400, "messages[0].content[0].type", "image_url"),
    (CHAT, chat(messages=[{"role": "user", "content": "x", "tool_calls": [{}]}]), 400, "messages[0].tool_calls", "not supported"),
    (CHAT, chat(model="gpt-5"), 404, "model", "'gpt-5' does not exist; served: fake, alias"),
    (CHAT, chat(n=-1), 400, "n", "between 1 and 128, got -1"),
    (CHAT, chat(n=10**6), 400, "n", "between 1 and 128, got 1,000,000"),
    (CHAT, chat(n="2"), 400, "n", "Expected `int"),
    (CHAT, chat(n=True), 400, "n", "got `bool`"),
    (CHAT, chat(temperature=-0.1), 400, "temperature", "[0, 2], got -0.1"),
    (CHAT, chat(temperature=9), 400, "temperature", "[0, 2]"),
    (CHAT, chat(top_p=0), 400, "top_p", "(0, 1]"),
    (CHAT, chat(top_k=-2), 400, "top_k", "top_k"),
    (CHAT, chat(min_p=2), 400, "min_p", "min_p"),
    (CHAT, chat(presence_penalty=3), 400, "presence_penalty", "[-2, 2]"),
    (CHAT, chat(repetition_penalty=0), 400, "repetition_penalty", "repetition_penalty"),
    (CHAT, chat(max_tokens=0), 400, "max_tokens", "max_tokens"),
    (CHAT, chat(max_completion_tokens=0), 400, "max_completion_tokens", "max_completion_tokens must be between 1"),
    (CHAT, chat(max_tokens=5, max_completion_tokens=6), 400, "max_tokens", "give one of them"),
    (CHAT, chat(max_tokens=1000), 400, "max_tokens", "1,000 asked, the context holds 256"),
    (CHAT, chat(top_logprobs=3), 400, "top_logprobs", "needs logprobs"),
    (CHAT, chat(logprobs=True, top_logprobs=21), 400, "top_logprobs", "top_logprobs must be between 0 and 20"),
    (CHAT, chat(logprobs=5), 400, "logprobs", "Expected `bool"),
    (CHAT, chat(stop=["a"] * 17), 400, "stop", "at most 16"),
    (CHAT, chat(stop=[""]), 400, "stop", "empty string"),
    (CHAT, chat(logit_bias={"x": 1}), 400, "logit_bias", "'x' is not a token id"),
    (CHAT, chat(logit_bias={"5": 101}), 400, "logit_bias", "[-100, 100]"),
    (CHAT, chat(logit_bias={"99999999": 1}), 400, "logit_bias", "99,999,999, the vocabulary has"),
    (CHAT, chat(seed=2**70), 400, "seed", "seed"),
    (CHAT, chat(stream_options={"include_usage": True}), 400, "stream_options", "stream: true"),
    (CHAT, chat(stream=True, stream_options={"usage": True}), 400, "stream_options", "unknown field `usage`"),
    (CHAT, chat(tools=[{"type": "function"}]), 400, "tools[0].function", "must be an object, got NoneType"),
    (CHAT, chat(tools=[TOOL]), 400, "tools", "the chat template shows none that is known"),
    (CHAT, chat(tools="x"), 400, "tools", "Expected `array"),
    (CHAT, chat(tools=[TOOL], tool_choice=3), 400, "tool_choice", "Expected"),
    (CHAT, chat(tool_choice="required"), 400, "tool_choice", "'required' needs tools"),
    (CHAT, chat(parallel_tool_calls="no"), 400, "parallel_tool_calls", "Expected"),
    (CHAT, chat(messages=[{"role": "tool", "content": "x", "tool_call_id": 3}]), 400, "messages[0].tool_call_id", "must be a string"),
    (CHAT, chat(messages=[{"role": "tool", "tool_call_id": "x"}]), 400, "messages[0].content", "is missing"),
    (CHAT, chat(messages=[{"role": "assistant", "tool_calls": [{}]}]), 400, "messages[0].tool_calls[0].function", "an object with a name"),
    (CHAT, chat(messages=[{"role": "user", "content": "x", "reasoning": "y"}]), 400, "messages[0].reasoning", "not supported"),
    (COMPLETIONS, complete(tools=[TOOL]), 400, "tools", "tools is not supported"),
    (CHAT, chat(response_format={"type": "xml"}), 400, "response_format.type", "must be one of text, json_object, json_schema"),
    (CHAT, chat(response_format={"type": "json_object", "schema": {}}), 400, "response_format.schema", "schema is not known"),
    (CHAT, chat(response_format={"type": "json_schema"}), 400, "response_format.json_schema", "with a schema"),
    (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": 3}}), 400, "response_format.json_schema.schema", "JSON schema"),
    (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}), 400, "response_format.json_schema.strict", ""),
    (CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {}, "x": 1}}), 400, "response_format.json_schema.x", "not known"),
    (CHAT, chat(response_format=DEEP), 400, "response_format", "nested deeper than 64"),
    (CHAT, chat(response_format={"type": "json_object"}, structured_outputs={"regex": "a"}), 400, "structured_outputs", "both give a form"),
    (CHAT, chat(response_format={"type": "json_object"}, ignore_eos=True), 400, "ignore_eos", "exclude each other"),
    (COMPLETIONS, complete(structured_outputs={"regexp": "a"}), 400, "structured_outputs.regexp", "unknown field"),
    (COMPLETIONS, complete(structured_outputs={"regex": "a", "json": {}}), 400, "structured_outputs", "exactly one"),
    (COMPLETIONS, complete(structured_outputs={"regex": "a" * 20_000}), 400, "structured_outputs.regex", "limit is 16,384"),
    (COMPLETIONS, complete(structured_outputs={"choice": ["a"] * 10_001}), 400, "structured_outputs.choice", "10,001 entries"),
    (COMPLETIONS, complete(structured_outputs={"regex": "a"}, min_tokens=2), 400, "min_tokens", "exclude each other"),
    (COMPLETIONS, complete(guided_json={}), 400, "guided_json", 'write "structured_outputs": {"json"'),
    (CHAT, chat(reasoning_effort="low"), 400, "reasoning_effort", "not supported"),
    (CHAT, chat(echo=True), 400, "echo", "echo is not supported"),
    (CHAT, chat(temprature=1), 400, "temprature", "did you mean 'temperature'?"),
    (CHAT, chat(zzz=1), 400, "zzz", "unknown field 'zzz'"),
    (CHAT, chat(chat_template="x"), 400, "chat_template", "--trust-request-chat-template"),
    (CHAT, chat(chat_template_kwargs={"messages": []}), 400, "chat_template_kwargs", "must not set"),
    (CHAT, chat(continue_final_message=True, add_generation_prompt=True), 400, "continue_final_message", "exclude each other"),
    (CHAT, chat(request_id="a\nb"), 400, "request_id", "printable"),
    (CHAT, chat(cache_salt="x" * 2000), 400, "cache_salt", "at most 1,024"),
    (COMPLETIONS, {}, 400, "prompt", "prompt"),
    (COMPLETIONS, complete(prompt=""), 400, "prompt", "the prompt is empty"),
    (COMPLETIONS, complete(prompt=[]), 400, "prompt", "the prompt is empty"),
    (COMPLETIONS, complete(prompt=[[]]), 400, "prompt", "the prompt is empty"),
    (COMPLETIONS, complete(prompt=["a", ""]), 400, "prompt", "prompt 1: the prompt is empty"),
    (COMPLETIONS, complete(prompt=5), 400, "prompt", "prompt must be text"),
    (COMPLETIONS, complete(prompt=["a", 5]), 400, "prompt[1]", "prompt[1]"),
    (COMPLETIONS, complete(prompt=["a"] * 1025), 400, "prompt", "1,025 prompts, the limit is 1,024"),
    (COMPLETIONS, complete(prompt=[10**9]), 400, "prompt", "token id 1,000,000,000, the vocabulary has"),
    (COMPLETIONS, complete(prompt=[5] * 300), 400, "max_tokens", "prompt has 300 tokens, 1 asked, the context holds 256"),
    (COMPLETIONS, complete(prompt="x" * 100_000), 400, "prompt", "100,000 bytes"),
    (COMPLETIONS, complete(logprobs=21), 400, "logprobs", "between 0 and 20"),
    (COMPLETIONS, complete(max_tokens=0), 400, "max_tokens", "max_tokens"),
    (COMPLETIONS, complete(suffix="x"), 400, "suffix", "suffix is not supported"),
    (COMPLETIONS, complete(best_of=3), 400, "best_of", "best_of is not supported"),
    (COMPLETIONS, complete(top_logprobs=1), 400, "top_logprobs", "not supported"),
    (COMPLETIONS, complete(messages=HELLO), 400, "messages", "unknown field"),
    (COMPLETIONS, complete(allowed_token_ids=[]), 400, "allowed_token_ids", "must not be empty"),
    (COMPLETIONS, complete(min_tokens=9, max_tokens=5), 400, "min_tokens", "min_tokens 9 exceeds max_tokens 5"),
]


@pytest.mark.parametrize(("path", "body", "status", "param", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_is_told_and_the_server_goes_on(
    served: Served, http: httpx.Client, path: str, body: Any, status: int, param: str | None, message: str
) -> None:
    before = len(served.client.sent)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = http.post(path, content=raw, headers={"Content-Type": "application/json"})
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert message in error["message"]
    assert (error["param"], error["code"]) == (param, status)
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    assert len(served.client.sent) == before, "nothing of it reached the engine"
    assert http.post(COMPLETIONS, json=complete(max_tokens=1)).status_code == 200


def test_fields_that_ask_for_nothing_pass(http: httpx.Client) -> None:
    body = chat(
        max_tokens=2, tools=None, tool_choice="none", response_format={"type": "text"}, best_of=1, store=False, user="u", service_tier="auto",
        parallel_tool_calls=True, modalities=["text"], use_beam_search=False, logit_bias=None, stop=None, model=None, stream=False,
    )  # fmt: skip
    assert http.post(CHAT, json=body).status_code == 200
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [], "function_call": None, "annotations": []}
    assert http.post(CHAT, json=chat(messages=[*HELLO, message, *HELLO], max_tokens=2)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nope", 404), ("GET", CHAT, 405), ("POST", "/v1/models", 405), ("GET", "/v1/models/x/y", 404)]
)
def test_unknown_paths_and_methods_have_the_same_shape(http: httpx.Client, method: str, path: str, status: int) -> None:
    reply = http.request(method, path)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, status)


def test_content_type_must_be_json(http: httpx.Client) -> None:
    reply = http.post(CHAT, content=b"{}", headers={"Content-Type": "text/plain"})
    assert reply.status_code == 400 and "application/json" in reply.json()["error"]["message"]
    assert http.post(CHAT, content=b"{}").status_code == 400, "none at all"


def test_large_bodies_are_refused_before_they_are_read(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n")
        assert b"413" in s.recv(4096).split(b"\r\n")[0]


def test_large_chunked_bodies_are_refused(http: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 2**20

    try:
        reply = http.post(CHAT, content=chunks(), headers={"Content-Type": "application/json"})
    except httpx.WriteError:
        return  # the server answered and closed while the client was still sending
    assert reply.status_code == 413


# --- keys ---


def test_every_path_but_health_needs_a_key(text: ModelText, info: EngineInfo) -> None:
    with Served(FakeClient(fixed_script([70]), info), text, api_keys=["sk-one", "sk-two"]) as s, httpx.Client(base_url=s.url) as http:
        s.until(lambda: s.service.health().status == "ready")
        for path in ("/v1/models", "/metrics", "/version", "/docs", "/openapi.json", "/nope", "/v1/models/fake", "/"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sk-one"}, {"Authorization": "Basic sk-one"}):
                reply = http.get(path, headers=headers)
                assert reply.status_code == 401 and reply.json()["error"]["type"] == "authentication_error"
                assert reply.headers["WWW-Authenticate"] == "Bearer"
        assert http.post(CHAT, json=chat()).status_code == 401
        assert http.get("/health").status_code == http.get("/ping").status_code == 200
        for key in ("sk-one", "sk-two"):
            assert http.post(CHAT, json=chat(max_tokens=1), headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert http.get("/v1/models", headers={"Authorization": "bearer sk-two"}).status_code == 200


def test_prefix_caches_are_separate_per_key_and_salt(text: ModelText, info: EngineInfo) -> None:
    client = FakeClient(fixed_script([70]), info)
    with Served(client, text, api_keys=["a", "b"]) as s, httpx.Client(base_url=s.url) as http:
        for key, salt in (("a", None), ("b", None), ("a", "s"), ("b", "s"), ("a", None)):
            http.post(COMPLETIONS, json=complete(max_tokens=1, cache_salt=salt), headers={"Authorization": f"Bearer {key}"})
        salts = [m.cache_salt for m in client.sent if isinstance(m, AddRequest)]
        assert len({*salts}) == 4 and salts[0] == salts[4] and all(salts)
        assert not any(x in salt for salt in salts for x in ("sk", " ")) and all(len(s) == 32 for s in salts)


# --- other routes ---


def test_health_while_loading_and_after_a_failed_start(text: ModelText, info: EngineInfo) -> None:
    client = FakeClient(fixed_script([70]), info, start_seconds=0.3)
    with Served(client, text) as s, httpx.Client(base_url=s.url) as http:
        reply = http.get("/health")
        assert (reply.status_code, reply.json()) == (503, {"status": "loading", "phase": "loading weights 25%"})
        assert http.post(COMPLETIONS, json=complete(max_tokens=1)).status_code == 200, "it waited for the model"
        assert http.get("/health").json() == {"status": "ready"}
    client = FakeClient(fixed_script([70]), info, start_error=CheckpointError("no such file"))
    with Served(client, text) as s, httpx.Client(base_url=s.url) as http:
        s.until(lambda: s.service.health().status == "dead")
        assert http.get("/health").json() == {"status": "dead", "detail": "no such file"}
        reply = http.post(CHAT, json=chat())
        assert (reply.status_code, reply.json()["error"]["type"]) == (500, "checkpoint_error")


def test_version_metrics_docs(http: httpx.Client) -> None:
    import octavo

    assert http.get("/version").json() == {"version": octavo.__version__}
    page = http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain") and 'octavo:num_requests_running{model_name="fake"}' in page.text
    assert http.get("/docs").status_code == 200
    schema = http.get("/openapi.json").json()
    reference = schema["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert "messages" in schema["components"]["schemas"][reference.rsplit("/", 1)[1]]["properties"]


def test_ids_follow_the_client(http: httpx.Client) -> None:
    reply = http.post(CHAT, json=chat(max_tokens=1), headers={"X-Request-Id": "abc"})
    assert reply.json()["id"] == reply.headers["X-Request-Id"] == "chatcmpl-abc"
    reply = http.post(COMPLETIONS, json=complete(max_tokens=1, request_id="q"))
    assert reply.json()["id"] == reply.headers["X-Request-Id"] == "cmpl-q"


def test_defaults_of_the_models_generation_config_hold(text: ModelText, info: EngineInfo) -> None:
    from dataclasses import replace

    client = FakeClient(fixed_script([70]), info)
    with Served(client, replace(text, default_params={"temperature": 0.25, "top_k": 7})) as s, httpx.Client(base_url=s.url) as http:
        s.until(lambda: s.service.health().status == "ready")
        http.post(COMPLETIONS, json=complete(max_tokens=1, top_k=3))
        (message,) = [m for m in client.sent if isinstance(m, AddRequest)]
        assert (message.params.temperature, message.params.top_k, message.params.top_p) == (0.25, 3, 1.0)


# --- what goes wrong later ---


def test_a_client_that_leaves_a_stream_is_aborted(text: ModelText, info: EngineInfo) -> None:
    client = FakeClient(fixed_script([70]), info, step_seconds=0.05)
    with Served(client, text) as s:
        with httpx.Client(base_url=s.url) as http, http.stream("POST", CHAT, json=chat(stream=True, n=2)) as reply:
            lines = reply.iter_lines()  # closes the response when it is dropped
            next(lines)
            assert s.on_loop(lambda: len(client.live)) == 2
        s.until(lambda: not client.live)
        assert any(isinstance(m, Abort) for m in client.sent) and s.service.health().live_requests == 0


@pytest.mark.parametrize("body", [chat(), chat(stream=True), complete(prompt=["a", "b"])])
def test_a_client_that_leaves_before_the_first_token_is_aborted(text: ModelText, info: EngineInfo, body: dict[str, Any]) -> None:
    client = FakeClient(fixed_script([70]), info)
    with Served(client, text) as s:
        s.on_loop(client.gate.clear)
        data = json.dumps(body).encode()
        path = CHAT if "messages" in body else COMPLETIONS
        with socket.create_connection(("127.0.0.1", s.port)) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            connection.sendall(head.encode() + data)
            s.until(lambda: bool(client.live))
        s.until(lambda: not client.live)
        assert s.service.health().live_requests == 0


def test_an_error_before_the_first_token_is_an_http_error(text: ModelText, info: EngineInfo) -> None:
    client = FakeClient(fixed_script([70]), info)
    with Served(client, text) as s, httpx.Client(base_url=s.url) as http:
        for stream in (False, True):
            client.failing["chatcmpl-x"] = "a kernel failed"
            reply = http.post(CHAT, json=chat(stream=stream), headers={"X-Request-Id": "x"})
            assert reply.status_code == 500 and reply.json()["error"]["message"] == "a kernel failed"
        assert http.post(CHAT, json=chat(max_tokens=1)).status_code == 200


def test_an_error_after_the_start_is_an_event_before_done(text: ModelText, info: EngineInfo) -> None:
    client = FakeClient(fixed_script([70]), info, step_seconds=0.005)
    with Served(client, text) as s, httpx.Client(base_url=s.url) as http:
        with http.stream("POST", CHAT, json=chat(stream=True), headers={"X-Request-Id": "x"}) as reply:
            assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/event-stream")
            lines = reply.iter_lines()
            next(lines)
            s.on_loop(lambda: client.failing.update({"chatcmpl-x": "a kernel failed"}))
            events = [line for line in lines if line]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["error"]["message"] == "a kernel failed"


def test_a_stream_goes_on_over_an_engine_restart(text: ModelText, info: EngineInfo) -> None:
    ids = text.tokenizer.encode("the quick brown fox jumps over the lazy dog and the hen", add_special_tokens=False)
    client = FakeClient(fixed_script([*ids, *text.eos_token_ids]), info, step_seconds=0.004)
    with Served(client, text) as s, httpx.Client(base_url=s.url) as http:
        got = ""
        with http.stream("POST", COMPLETIONS, json=complete(stream=True)) as reply:
            for number, line in enumerate(line for line in reply.iter_lines() if line):
                if line == "data: [DONE]":
                    break
                got += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                if number in (2, 5):
                    s.on_loop(client.die)
                    time.sleep(0.02)
                    assert http.get("/health").json()["status"] == "restarting"
                    s.on_loop(client.come_back)
        assert got == text.tokenizer.decode(ids)


def test_a_full_queue_says_when_to_come_back(text: ModelText, info: EngineInfo) -> None:
    from octavo.service.admission import Limits

    client = FakeClient(fixed_script([70]), info)
    with Served(client, text, options={"limits": Limits(max_queued=0)}) as s, httpx.Client(base_url=s.url) as http:
        s.on_loop(client.gate.clear)
        done: list[int] = []
        thread = threading.Thread(target=lambda: done.append(httpx.post(s.url + CHAT, json=chat(n=8, max_tokens=2)).status_code))
        thread.start()
        s.until(lambda: len(client.live) == 8)
        reply = http.post(CHAT, json=chat())
        assert (reply.status_code, reply.headers["Retry-After"]) == (503, "1")
        assert reply.json()["error"]["type"] == "overloaded_error" and "8 sequences are live" in reply.json()["error"]["message"]
        s.on_loop(client.gate.set)
        thread.join()
        assert done == [200]


def test_an_unexpected_error_is_a_500_without_details(text: ModelText, info: EngineInfo) -> None:
    client = FakeClient(fixed_script([70]), info)
    with Served(client, text) as s, httpx.Client(base_url=s.url) as http:

        async def explode(requests: Any) -> Any:
            raise KeyError("/secret/path")

        s.service.generate_all = explode  # type: ignore[method-assign, assignment]
        reply = http.post(CHAT, json=chat())
        assert reply.status_code == 500 and "secret" not in reply.text and reply.json()["error"]["type"] == "internal_error"


def test_a_template_of_the_request_needs_trust(text: ModelText, info: EngineInfo) -> None:
    client = FakeClient(fixed_script([70]), info)
    with Served(client, text, trust_request_chat_template=True) as s, httpx.Client(base_url=s.url) as http:
        body = chat(max_tokens=1, chat_template="{{ messages[0].content }} the {{ word }}", chat_template_kwargs={"word": "fox"})
        assert http.post(CHAT, json=body).status_code == 200
        (message,) = [m for m in client.sent if isinstance(m, AddRequest)]
        assert text.tokenizer.decode(message.prompt_token_ids) == "hi the fox"
