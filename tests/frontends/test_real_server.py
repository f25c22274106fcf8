"""``octavo serve`` as users run it: real processes, a real model, the official client."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import psutil
import pytest

import octavo

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.model

QUESTION: Any = [{"role": "user", "content": "Tell me about the sea."}]


class RealServer:
    def __init__(self, model: Path, context: int = 512) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        options = ["--port", str(self.port), "--max-model-len", str(context), "--kv-cache-memory-bytes", "64MiB", "--served-model-name", "m"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "octavo", "serve", str(model), *options],
            cwd=Path(octavo.__file__).parent.parent, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.told: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.told.append(line)

    def wait_for(self, words: str) -> None:
        end = time.monotonic() + 120
        while not any(words in line for line in self.told):
            assert self.process.poll() is None and time.monotonic() < end, "".join(self.told)
            time.sleep(0.02)

    def engine(self) -> psutil.Process:
        return next(p for p in psutil.Process(self.process.pid).children() if p.status() != psutil.STATUS_ZOMBIE)

    def answer(self, **fields: Any) -> str:
        reply = self.client.chat.completions.create(model="m", messages=QUESTION, temperature=0, max_tokens=40, **fields)
        return reply.choices[0].message.content or ""


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[RealServer]:
    server = RealServer(smollm2)
    server.wait_for("listening on")
    yield server
    if server.process.poll() is None:
        server.process.kill()
    server.process.wait()
    server.reader.join()


def test_a_request_that_comes_while_the_model_loads_is_answered(server: RealServer) -> None:
    assert len(server.answer()) > 40
    told = "".join(server.told)
    assert re.search(r"weights +[\d,]+ bytes", told) and re.search(r"KV cache +[\d,]+ bytes", told) and "import torch" in told


def test_stream_and_logprobs(server: RealServer) -> None:
    chunks = server.client.chat.completions.create(
        model="m", messages=QUESTION, temperature=0, max_tokens=40, stream=True, logprobs=True, top_logprobs=2
    )
    text, best = "", []
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            best += choice.logprobs.content or [] if choice.logprobs else []
    assert text == server.answer() and len(best) == 40
    assert all(e.token == e.top_logprobs[0].token and e.logprob <= 0 for e in best), "greedy takes the best"


def test_an_engine_that_is_killed_comes_back_and_the_stream_goes_on(server: RealServer) -> None:
    whole = server.answer()
    stream = server.client.chat.completions.create(model="m", messages=QUESTION, temperature=0, max_tokens=40, stream=True)
    text = ""
    for number, chunk in enumerate(stream):
        text += chunk.choices[0].delta.content or ""
        if number == 10:
            server.engine().kill()
    assert text == whole


def test_nothing_outlives_a_killed_server(server: RealServer) -> None:
    engine = server.engine()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    psutil.wait_procs([engine], timeout=10)
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE
