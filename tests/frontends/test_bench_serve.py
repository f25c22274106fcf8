"""``octavo bench serve`` against the real application over a fake engine, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from octavo.engine.messages import AddRequest
from octavo.errors import ConfigError, OctavoError
from octavo.frontends.bench.datasets import Sample, Workload
from octavo.frontends.bench.http import Target
from octavo.frontends.bench.load import Asking, ask, run_load
from octavo.frontends.bench.metrics import Outcome
from octavo.frontends.bench.serve import ServeBench, bench_serve
from octavo.frontends.cli import main as cli
from tests.frontends.serving import Served
from tests.service.fake import FakeClient, fixed_script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from octavo.engine.messages import EngineInfo
    from octavo.service.model_text import ModelText

STEP = 0.01


@pytest.fixture(scope="module")
def served(text: ModelText, info: EngineInfo) -> Iterator[Served]:
    with Served(FakeClient(fixed_script([70, 71, 72]), info, step_seconds=STEP), text) as s:
        yield s


def workload(info: EngineInfo, **fields: Any) -> Workload:
    return Workload(**{"num_prompts": 6, "input_len": 12, "output_len": 5, "low_id": 20, "high_id": info.vocab_size, **fields})


def bench(url: str, load: Workload, **fields: Any) -> Any:
    return asyncio.run(bench_serve(ServeBench(target=Target.parse(url), workload=load, ready_timeout=5.0, **fields)))


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_burst_is_measured(served: Served, info: EngineInfo, endpoint: str) -> None:
    run = bench(served.url, workload(info), endpoint=endpoint, ignore_eos=True, goals={"e2el": 60_000.0})
    f = run.figures
    assert run.model == "fake" and f["token_counts"] == "server"
    assert (f["completed"], f["failed"], f["total_output_tokens"], f["max_concurrent_requests"]) == (6, 0, 30, 6)
    assert f["request_goodput"] == f["request_throughput"]
    if endpoint == "completions":
        assert f["total_input_tokens"] == 72
    for o in run.outcomes:
        assert len(o.itls) == 4 and o.latency == pytest.approx(o.ttft + sum(o.itls))
        assert o.ttft > 0 and sum(o.itls) >= 3 * STEP  # the engine's pace shows


def test_what_is_sent(served: Served, info: EngineInfo) -> None:
    served.client.sent.clear()
    bench(served.url, workload(info, num_prompts=2), num_warmups=3, ignore_eos=True, temperature=0.5, extra={"top_k": 4})
    sent = [m for m in served.client.sent if isinstance(m, AddRequest)]
    assert len(sent) == 5  # warm-ups and measured ones
    assert all(len(m.prompt_token_ids) == 12 and m.max_len == 17 for m in sent)
    assert all(m.params.ignore_eos and m.params.temperature == 0.5 and m.params.top_k == 4 for m in sent)


def test_the_concurrency_cap_holds(served: Served, info: EngineInfo) -> None:
    f = bench(served.url, workload(info, num_prompts=7), max_concurrency=2).figures
    assert (f["completed"], f["max_concurrent_requests"]) == (7, 2)


def test_arrivals_are_kept() -> None:
    async def send(sample: Sample, start: float) -> Outcome:
        return Outcome(prompt_tokens=1, sent=time.perf_counter() - start)

    times = [0.0, 0.05, 0.1]
    outcomes, duration = asyncio.run(run_load(send, [Sample("x", 1, 1)] * 3, times))
    assert all(0 <= o.sent - t < 0.05 for o, t in zip(outcomes, times, strict=True))
    assert duration >= 0.1


def test_refusals_are_counted_with_the_servers_words(served: Served, info: EngineInfo) -> None:
    too_long = workload(info, input_len=info.max_model_len + 1, num_prompts=2)
    run = bench(served.url, too_long, num_warmups=0)
    assert (run.figures["completed"], run.figures["failed"]) == (0, 2)
    assert all(o.error is not None and o.error.startswith("400:") and "256" in o.error for o in run.outcomes)
    with pytest.raises(OctavoError, match="a warm-up request failed: 400:"):
        bench(served.url, too_long, num_warmups=1)


def test_an_unknown_model_is_told(served: Served, info: EngineInfo) -> None:
    with pytest.raises(OctavoError, match=r"404: .*gpt-9"):
        bench(served.url, workload(info), model="gpt-9")


def test_nobody_there(info: EngineInfo) -> None:
    with pytest.raises(ConfigError, match=r"cannot reach http://127\.0\.0\.1:1"):
        asyncio.run(bench_serve(ServeBench(target=Target.parse("http://127.0.0.1:1"), workload=workload(info), ready_timeout=0.0)))


# --- servers that misbehave ---


@contextmanager
def canned(reply: bytes) -> Iterator[str]:
    """The address of a server that answers one connection with ``reply`` and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(5)


def outcome_of(reply: bytes, timeout: float = 5.0) -> Outcome:
    with canned(reply) as url:
        asking = Asking(target=Target.parse(url), model="m", timeout=timeout)
        return asyncio.run(ask(asking, Sample("x", 3, 2), time.perf_counter()))


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text_event(text: str, reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": reason}]})


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_servers_without_usage_are_counted_by_chunks() -> None:
    o = outcome_of(HEAD + text_event("a") + text_event("b") + text_event("", "length") + b"data: [DONE]\n\n")
    assert (o.error, o.prompt_tokens, o.output_tokens, o.counted, len(o.itls)) == (None, 3, 2, False, 1)


def test_a_stream_in_awkward_pieces() -> None:
    usage = event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}})
    body = b": comment\r\n\r\n" + text_event("a").replace(b"\n", b"\r\n") + usage
    pieces = b"".join(b"%x;x=1\r\n%s\r\n" % (len(p), p) for p in (body[:7], body[7:30], body[30:])) + b"0\r\n\r\n"
    o = outcome_of(CHUNKED + pieces)
    assert (o.error, o.prompt_tokens, o.output_tokens, o.counted) == (None, 9, 4, True)


def test_a_reply_of_one_empty_chunk_has_a_first_token() -> None:
    o = outcome_of(HEAD + text_event("", "length"))
    assert o.error is None and 0 < o.ttft == o.latency


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"", "in the middle of its reply"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP/1.1"),
        (CHUNKED + b"zz\r\n", "not HTTP/1.1"),
        (CHUNKED + b"ff\r\ndata", "in the middle of its reply"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + text_event("a"), "in the middle of its reply"),
        (b'HTTP/1.1 503 X\r\nContent-Length: 30\r\n\r\n{"error": {"message": "busy!"}}'[:-1], "503: "),
        (HEAD, "without a token"),
        (HEAD + b"data: {oops\n\n", "JSONDecodeError"),
        (HEAD + text_event("a") + event({"error": {"message": "the engine died"}}), "the engine died"),
        (HEAD + text_event("a") + event({"choices": [], "usage": {}}) + event({"choices": [], "usage": {"x": 1}}), "KeyError"),
    ],
)
def test_what_goes_wrong_is_the_requests_error(reply: bytes, message: str) -> None:
    o = outcome_of(reply)
    assert o.error is not None and message in o.error


def test_a_silent_server_runs_into_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asking = Asking(target=Target.parse(f"127.0.0.1:{listener.getsockname()[1]}"), model="m", timeout=0.1)
        o = asyncio.run(ask(asking, Sample("x", 3, 2), time.perf_counter()))
    assert o.error == "no end within 0.1 s"


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://a:1", ("a", 1, False, "")),
        ("a:1", ("a", 1, False, "")),
        ("https://a/x/v1/", ("a", 443, True, "/x")),
        ("http://[::1]:9/v1", ("::1", 9, False, "")),
    ],
)
def test_addresses(url: str, parts: tuple[Any, ...]) -> None:
    t = Target.parse(url, "secret")
    assert (t.host, t.port, t.secure, t.base) == parts
    assert b"Authorization: Bearer secret" in t.request("GET", "/v1/models", b"")


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:b", "http://a:99999"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="must look like"):
        Target.parse(url)


# --- the command ---


def octavo_command(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["bench", *arguments], prog_name="octavo")


def serve_command(served: Served, *arguments: str) -> Any:
    lengths = ("--num-prompts", "4", "--random-input-len", "8", "--random-output-len", "3", "--prompt-format", "text")
    return octavo_command("serve", "--base-url", served.url, "--api-key", "k", *lengths, *arguments)


def test_the_command_leaves_table_json_and_picture(served: Served, tmp_path: Path) -> None:
    saved, picture = tmp_path / "run.json", tmp_path / "run.png"
    done = serve_command(served, "--goodput", "ttft:60000 tpot:60000", "--output-json", str(saved), "--plot", str(picture), "--save-detailed")
    assert done.exit_code == 0, done.output
    for words in ("requests finished", "good requests/s (ttft 60000 ms, tpot 60000 ms)", "time to first token", "p99"):
        assert words in done.stdout
    result = json.loads(saved.read_text())
    assert result["benchmark"] == "serve" and result["figures"]["completed"] == 4
    assert result["flags"]["request_rate"] == "inf" and result["flags"]["model"] == "fake" and "api_key" not in result["flags"]
    assert result["machine"]["cores"] >= 1 and result["versions"]["octavo"]
    assert len(result["requests"]) == 4 and len(result["requests"][0]["itls"]) == 2
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_run_without_one_success_fails(served: Served) -> None:
    done = serve_command(served, "--num-warmups", "0", "--random-input-len", "1000")
    assert done.exit_code == 1 and "4 failed: 400:" in done.stderr


def test_plots_need_matplotlib_before_anything_runs(served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = serve_command(served, "--plot", str(tmp_path / "x.png"))
    assert isinstance(done.exception, ConfigError) and "octavo[bench]" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--endpoint", "embeddings"], "--endpoint"),
        (["--max-concurrency", "0"], "--max-concurrency"),
        (["--extra-body", "[1]"], "--extra-body"),
        (["--request-rate", "0"], "--request-rate"),
        (["--goodput", "speed:1"], "--goodput"),
        (["--metric-percentiles", "200"], "--metric-percentiles"),
        (["--dataset-name", "sharegpt"], "--dataset-path"),
        (["--output-json", "/no/such/folder/x.json"], "cannot write"),
    ],
)
def test_wrong_options_are_named(served: Served, arguments: list[str], message: str) -> None:
    done = serve_command(served, *arguments)
    assert isinstance(done.exception, ConfigError) and message in str(done.exception)
