"""The command: arguments, messages, the chat's commands, a server's signals."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from typer.testing import CliRunner

import octavo
from octavo.errors import ConfigError, OctavoError, PromptTooLong
from octavo.frontends.cli import main as cli
from octavo.frontends.cli.chat import Conversation, run_chat
from octavo.frontends.cli.complete import run_complete
from octavo.frontends.cli.doctor import examine
from octavo.frontends.cli.serve import ServeOptions, bind, checked, url_of
from octavo.frontends.cli.talk import RemoteTalk, Reply
from octavo.frontends.sizes import parse_size, show_bytes
from tests.frontends.serving import Served
from tests.service.fake import FakeClient, fixed_script

if TYPE_CHECKING:
    from collections.abc import Iterator

    from octavo.engine.messages import EngineInfo
    from octavo.service.model_text import ModelText

ROOT = Path(octavo.__file__).parent.parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    return tmp_path


def octavo_command(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments), prog_name="octavo")


def failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """(exit status, standard error) of a command through the real entry point."""
    monkeypatch.setattr(sys, "argv", ["octavo", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.run()
    code = end.value.code
    return int(code) if isinstance(code, int) else -1, capsys.readouterr().err


# --- sizes ---


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("8k", 8000), ("8K", 8192), ("2GiB", 2**31), ("1.5GB", 1_500_000_000), ("512 MiB", 2**29), ("3m", 3_000_000), ("10B", 10)],
)
def test_sizes_are_read_as_people_write_them(text: str, value: int) -> None:
    assert parse_size("x", text) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "2 GiBs", "1e9", "0x10"])
def test_other_sizes_are_errors_that_name_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        parse_size("max_model_len", text)


def test_bytes_are_shown_in_binary_units() -> None:
    assert [show_bytes(n) for n in (0, 1023, 1536, 98_362_432, 3 * 2**40)] == ["0 B", "1,023 B", "1.5 KiB", "93.8 MiB", "3,072.0 GiB"]


# --- commands ---


def test_version_and_help() -> None:
    assert octavo_command("--version").stdout.strip() == f"octavo {octavo.__version__}"
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{octavo.__version__}"' in pyproject
    text = octavo_command("--help").stdout
    assert all(name in text for name in ("serve", "chat", "complete", "pull", "list", "rm", "doctor"))
    for name in ("serve", "chat", "complete", "pull", "list", "rm", "doctor"):
        assert octavo_command(name, "--help").exit_code == 0


def test_list_and_rm(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    listed = octavo_command("list").stdout
    assert "smollm2-135m-instruct" in listed and "93.8 MiB" in listed
    status, told = failure(monkeypatch, capsys, "rm", "smollm2-135m-instruct")
    assert status == 1 and "is not in the cache" in told


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["serve", "no-such-model"], 1, "cannot find the model 'no-such-model'"),
        (["serve", "smolm2"], 1, "did you mean smollm2"),
        (["serve", "--host", "0.0.0.0"], 1, "--host 0.0.0.0 lets other machines in"),
        (["serve", "--host", "no.such.host.invalid", "--insecure"], 1, "cannot listen on no.such.host.invalid"),
        (["serve", "--max-model-len", "many"], 1, "max_model_len: cannot read 'many'"),
        (["serve", "--backend", "cray"], 1, "unknown backend 'cray'"),
        (["serve", "--block-size", "17"], 1, "power of two"),
        (["serve", "--uvicorn-log-level", "loud"], 1, "--uvicorn-log-level"),
        (["serve", "--port", "70000"], 2, "65535"),
        (["serve", "--chat-template", "/no/such/file"], 2, "/no/such/file"),
        (["serve", "--frobnicate"], 2, "frobnicate"),
        (["pull", "nope"], 1, "no model is called 'nope'"),
        (["complete", "x", "--url", "ftp://x"], 1, "--url must look like"),
        (["complete", "x", "--url", "http://127.0.0.1:1"], 1, "cannot reach http://127.0.0.1:1"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_errors_are_one_line_and_a_status(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    if arguments[0] == "serve" and "--port" not in arguments:
        arguments = [*arguments, "--port", "0"]
    code, told = failure(monkeypatch, capsys, *arguments)
    assert code == status and "Traceback" not in told
    assert message in re.sub(r"\s+", " ", told.replace("│", " "))
    if status == 1:
        assert told.startswith("octavo: ") and told.count("\n") == 1


def test_a_port_in_use_is_told_before_anything_loads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, told = failure(monkeypatch, capsys, "serve", "--port", str(port))
        assert code == 1 and f"cannot listen on 127.0.0.1 port {port}: Address already in use" in told and f"--port {port + 1}" in told


def test_keys_and_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "sk-env")
    assert checked(ServeOptions(host="0.0.0.0")).api_keys == ("sk-env",)
    assert checked(ServeOptions(api_keys=("a", "b"))).api_keys == ("a", "b")
    monkeypatch.setenv("OCTAVO_API_KEY", "")
    assert checked(ServeOptions(host="0.0.0.0", insecure=True)).api_keys == ()
    for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1"):
        assert checked(ServeOptions(host=host)).host == host
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(ConfigError, match="set a key"):
            checked(ServeOptions(host=host))
    with pytest.raises(ConfigError, match="non-empty"):
        checked(ServeOptions(api_keys=(" ",)))
    with bind("0.0.0.0", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_doctor_looks_at_everything(cache: Path) -> None:
    findings = {f.name: f for f in examine()}
    assert findings.keys() >= {"octavo", "python", "processor", "native kernels", "cores", "memory", "packages", "model cache"}
    assert not any(f.fatal for f in findings.values())
    assert "torch" in findings["packages"].value and "0 models" in findings["model cache"].value
    assert octavo_command("doctor").exit_code == 0


def test_the_http_side_imports_no_torch() -> None:
    code = "import sys, octavo.frontends.cli.server, octavo.frontends.cli.chat, octavo.frontends.llm; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_serve_starts_the_engine_before_it_imports_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys\n"
        "from octavo.service import launch\n"
        "def start():\n"
        "    heavy = {'fastapi', 'uvicorn', 'tokenizers', 'zmq', 'rich', 'numpy', 'jinja2', 'prometheus_client', 'typer'} & sys.modules.keys()\n"
        "    print(sorted(heavy)); raise SystemExit\n"
        "launch.start_waiting = start\n"
        "from octavo.frontends.cli.entry import main\n"
        "sys.argv = ['octavo', 'serve', '--port', '0']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- chat and complete ---


class FakeTalk:
    """Answers with what it was asked; an OctavoError in ``errors`` is raised instead."""

    name = "fake"

    def __init__(self, *errors: OctavoError | None) -> None:
        self.reply = Reply("stop", 1, 2)
        self.asked: list[Any] = []
        self.errors = list(errors)
        self.closed = False

    def chat(self, messages: list[dict[str, Any]], params: dict[str, Any]) -> Iterator[str]:
        self.asked.append((list(messages), dict(params)))
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        yield "you said "
        yield messages[-1]["content"]

    def complete(self, prompt: str, params: dict[str, Any]) -> Iterator[str]:
        self.asked.append((prompt, params))
        yield from (" and", " so", " on")

    def close(self) -> None:
        self.closed = True


def talk_through(talk: FakeTalk, lines: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    run_chat(talk, "be brief", {"temperature": 0.5, "seed": None})
    assert talk.closed
    done = capsys.readouterr()
    return done.out, done.err


def test_chat_keeps_the_history(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    talk = FakeTalk()
    out, _ = talk_through(talk, "one\ntwo \\\nlines\n\n/undo\nthree\n/again\n/reset\nfour\n", monkeypatch, capsys)
    assert out == "you said one\nyou said two \nlines\nyou said three\nyou said three\nyou said four\n"
    contents = [[m["content"] for m in messages] for messages, _ in talk.asked]
    assert contents == [
        ["be brief", "one"],
        ["be brief", "one", "you said one", "two \nlines"],
        ["be brief", "one", "you said one", "three"],
        ["be brief", "one", "you said one", "three"],
        ["be brief", "four"],
    ]


def test_a_failed_answer_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    talk = FakeTalk(PromptTooLong("prompt has 9 tokens, 1 asked, the context holds 8"), None)
    _, err = talk_through(talk, "long\nshort\n", monkeypatch, capsys)
    assert "the context holds 8; /reset or /undo makes room" in err
    assert [m["content"] for m in talk.asked[1][0]] == ["be brief", "short"]


def test_chat_commands() -> None:
    c = Conversation(None, {"temperature": None})
    assert "/reset" in c.command("/help")
    assert c.command("/set temperature 0.2") == "temperature = 0.2" and c.params["temperature"] == 0.2
    assert "must be in [0, 2]" in c.command("/set temperature 9")
    assert "write /set NAME VALUE" in c.command("/set color red")
    assert c.command("/set temperature default") == "temperature = default" and c.params["temperature"] is None
    assert "top_k = default" in c.command("/set")
    assert c.command("/system be kind") == "system message set" and c.messages == [{"role": "system", "content": "be kind"}]
    assert c.command("/system") == "no system message" and c.messages == []
    assert c.command("/frob") == "unknown command /frob; /help lists them"
    assert c.command("/undo") == "there is nothing to undo"
    c.command("/quit")
    assert c.ended


def test_complete_prints_the_continuation_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    talk = FakeTalk()
    monkeypatch.setattr(sys, "stdin", io.StringIO("from standard input"))
    run_complete(talk, "-", {"seed": 1})
    assert capsys.readouterr().out == " and so on\n"
    assert talk.asked == [("from standard input", {"seed": 1})]


def test_talking_to_a_server(text: ModelText, info: EngineInfo) -> None:
    ids = text.tokenizer.encode("the quick fox", add_special_tokens=False)
    with Served(FakeClient(fixed_script([*ids, *text.eos_token_ids]), info), text, api_keys=["k"]) as s:
        with pytest.raises(OctavoError, match="the server says 401"):
            RemoteTalk(s.url, None)
        talk = RemoteTalk(f"{s.url}/v1/", "k")
        assert talk.name == "fake"
        assert "".join(talk.chat([{"role": "user", "content": "hi"}], {"temperature": 0, "seed": None})) == "the quick fox"
        assert (talk.reply.finish_reason, talk.reply.completion_tokens) == ("stop", len(ids) + 1)
        assert "".join(talk.complete("x", {"stop": [" fox"]})) == "the quick"
        with pytest.raises(OctavoError, match="the server says 400: temperature must be"):
            list(talk.complete("x", {"temperature": 3}))
        s.client.step_seconds = 0.01
        pieces = talk.complete("x", {"ignore_eos": True})
        next(pieces)
        pieces.close()  # type: ignore[attr-defined]
        s.until(lambda: not s.client.live)


def test_talking_to_an_engine_of_its_own(text: ModelText, info: EngineInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    import octavo.frontends.cli.talk as module
    from octavo.service.service import Service

    ids = text.tokenizer.encode("the quick fox", add_special_tokens=False)
    client = FakeClient(fixed_script([*ids, *text.eos_token_ids]), info)
    monkeypatch.setattr(module, "model_path", lambda model: Path(model))
    monkeypatch.setattr(module, "start_engine", lambda config: SimpleNamespace(kill=lambda: None))
    monkeypatch.setattr(module, "process_service", lambda engine, options: Service(client, lambda: text, options))
    talk = module.LocalTalk({"model": "fake"})
    for _ in range(20):
        assert "".join(talk.complete("x", {"temperature": 0, "seed": None})) == "the quick fox"
    assert "".join(talk.chat([{"role": "user", "content": "hi"}], {"stop": [" fox"]})) == "the quick"
    assert (talk.reply.finish_reason, talk.reply.completion_tokens) == ("stop", len(ids))
    with pytest.raises(PromptTooLong, match="the context holds 256"):
        list(talk.complete("x", {"max_tokens": 1000}))
    client.step_seconds = 0.005
    pieces = talk.complete("x", {"ignore_eos": True})
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    client.step_seconds = 0
    assert "".join(talk.complete("x", {})) == "the quick fox"
    assert client.live == {}
    talk.close()
    assert client.closed


# --- signals ---


@contextmanager
def serving(folder: Path, step_seconds: float, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """(process, url, lines of its standard error so far)."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tests.frontends.serve_fake", str(folder), str(step_seconds), "--port", str(port), *options]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    lines: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stderr.readline, "")))
    reader.start()
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1500):
            if process.poll() is not None or any("curl" in line for line in lines):
                break
            time.sleep(0.02)
        assert process.poll() is None, "".join(lines)
        yield process, url, lines
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join()


def streamed(url: str, **fields: Any) -> tuple[Iterator[str], httpx.Response, httpx.Client]:
    client = httpx.Client(timeout=30)
    request = client.build_request("POST", f"{url}/v1/completions", json={"prompt": "x", "stream": True, **fields})
    response = client.send(request, stream=True)
    lines = (line for line in response.iter_lines() if line)
    next(lines)
    return lines, response, client


def last_finish(lines: list[str]) -> str:
    assert lines[-1] == "data: [DONE]"
    return str(json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"])


def test_serve_says_what_it_does(tmp_path: Path) -> None:
    with serving(tmp_path, 0.001, "--served-model-name", "a", "--served-model-name", "b") as (process, url, lines):
        told = "".join(lines)
        assert f"listening on {url} after" in told and "ready after" in told and "curl" in told and "model: fake" in told
        assert [m["id"] for m in httpx.get(f"{url}/v1/models").json()["data"]] == ["a", "b"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_drains(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path, 0.01) as (process, url, lines):
        stream, _, client = streamed(url, max_tokens=60)
        process.send_signal(number)
        rest = list(stream)
        assert last_finish(rest) == "length", "the live request ran to its end"
        assert process.wait(10) == 0
        client.close()
        assert any("1 live requests have 30 s to finish" in line for line in lines)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_the_drain_ends_and_aborts(tmp_path: Path) -> None:
    with serving(tmp_path, 0.05, "--drain-timeout", "0.2") as (process, url, _):
        stream, _, client = streamed(url, max_tokens=200)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert last_finish(list(stream)) == "abort"
        assert process.wait(10) == 0 and time.monotonic() - began < 5
        client.close()


def test_two_signals_stop_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, 0.05) as (process, url, _):
        _, _, client = streamed(url, max_tokens=200)
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(2) == 130
        client.close()
        assert os.getpgid(0) != process.pid
