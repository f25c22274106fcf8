"""Clients over real engines with a tiny model: on a thread, in a process, and supervised."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from octavo.config import EngineConfig
from octavo.core.sampling_params import SamplingParams
from octavo.engine.client import InProcessClient, ProcessClient
from octavo.engine.messages import Abort, AddRequest, Deltas, EngineLost, Fatal, GetStats, Progress, Ready, Shutdown, Stats
from octavo.engine.spawn import spawn_engine
from octavo.engine.supervisor import SupervisedClient
from octavo.errors import CheckpointError, ConfigError, EngineDied
from tests.tiny_llama import CONTEXT, VOCAB

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from octavo.engine.client import EngineClient
    from octavo.engine.messages import ClientEvent

PROMPT = [1, 2, 3, 4, 5]
CLIENTS: dict[str, Callable[[EngineConfig], EngineClient]] = {"thread": InProcessClient, "process": ProcessClient, "supervised": SupervisedClient}


def add(request_id: str, prompt: list[int] = PROMPT, count: int = 16, **fields: Any) -> AddRequest:
    params = fields.pop("params", None) or SamplingParams(temperature=1.0, seed=7)
    return AddRequest(request_id=request_id, prompt_token_ids=prompt, params=params, max_len=len(prompt) + count, **fields)


class Reader:
    """Collects events until told otherwise; tokens and ends by (request id, index)."""

    def __init__(self, client: EngineClient) -> None:
        self.events: AsyncIterator[ClientEvent] = client.events()
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.ends: dict[tuple[str, int], tuple[str, str | None]] = {}
        self.seen: list[ClientEvent] = []

    async def until(self, done: Callable[[], bool], timeout: float = 60.0) -> None:
        async def read() -> None:
            while not done():
                event = await anext(self.events)
                self.seen.append(event)
                for delta in event.deltas if isinstance(event, Deltas) else ():
                    key = delta.request_id, delta.index
                    assert key not in self.ends
                    self.tokens.setdefault(key, []).extend(delta.token_ids)
                    if delta.finish_reason:
                        self.ends[key] = delta.finish_reason, delta.error

        await asyncio.wait_for(read(), timeout)

    async def rest(self) -> None:
        """Read to the end of the stream."""
        try:
            await self.until(lambda: False)
        except StopAsyncIteration:
            return

    def last(self, kind: type) -> Any:
        return next(event for event in reversed(self.seen) if isinstance(event, kind))


@pytest.fixture(scope="module")
def expected(tiny_folder: Path) -> dict[int, list[int]]:
    """What each seed gives, from an engine that does nothing else."""

    async def run() -> dict[int, list[int]]:
        client = InProcessClient(EngineConfig(model=str(tiny_folder), threads=1, max_num_seqs=8, kv_cache_memory_bytes=1 << 20))
        await client.start()
        reader = Reader(client)
        for seed in range(4):
            client.send(add(f"r{seed}", params=SamplingParams(temperature=1.0, seed=seed), count=60))
        await reader.until(lambda: len(reader.ends) == 4)
        await client.close()
        return {seed: reader.tokens[f"r{seed}", 0] for seed in range(4)}

    return asyncio.run(run())


@pytest.mark.parametrize("kind", CLIENTS)
def test_every_client_serves_alike(config: EngineConfig, expected: dict[int, list[int]], kind: str) -> None:
    async def run() -> None:
        client = CLIENTS[kind](config)
        reader = Reader(client)
        info = await client.start()
        assert (info.vocab_size, info.max_model_len, info.model_type) == (VOCAB, CONTEXT, "llama")
        assert info.weight_bytes > 0 and info.num_blocks * info.block_size >= info.max_model_len and info.notes and info.phases
        for seed in range(4):
            client.send(add(f"r{seed}", params=SamplingParams(temperature=1.0, seed=seed), count=60))
        client.send(add("bad", [VOCAB]))
        await reader.until(lambda: len(reader.ends) == 5)
        assert {seed: reader.tokens[f"r{seed}", 0] for seed in range(4)} == expected
        assert reader.ends["bad", 0][0] == "error" and str(VOCAB) in (reader.ends["bad", 0][1] or "")
        assert [type(event) for event in reader.seen[:2]] == [Progress, Progress]
        assert reader.last(Ready).info == info
        client.send(GetStats())
        await reader.until(lambda: isinstance(reader.seen[-1], Stats))
        assert reader.last(Stats).kv_blocks_used == 0 and reader.last(Stats).generation_tokens == 240
        client.send(add("aborted", count=CONTEXT - 5))
        client.send(Abort("aborted"))
        await reader.until(lambda: ("aborted", 0) in reader.ends)
        assert reader.ends["aborted", 0] == ("abort", None)
        client.send(add("long", count=CONTEXT - 5))
        await reader.until(lambda: ("long", 0) in reader.tokens)
        await client.close()
        await reader.rest()
        assert reader.ends["long", 0][0] == "abort"
        await client.close()

    asyncio.run(run())


BROKEN = {
    "no such model": ({"model": "./nowhere"}, CheckpointError, "nowhere"),
    "context": ({"max_model_len": CONTEXT + 1}, ConfigError, "129"),
    "scheduler": ({"scheduler": "no_such_module:Thing"}, ConfigError, "no_such_module"),
}


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(("options", "error", "named"), BROKEN.values(), ids=BROKEN.keys())
def test_a_start_that_fails_raises_the_engines_own_error(
    tiny_folder: Path, kind: str, options: dict[str, Any], error: type[Exception], named: str
) -> None:
    async def run() -> None:
        client = CLIENTS[kind](EngineConfig(**{"model": str(tiny_folder)} | options))
        reader = Reader(client)
        with pytest.raises(error, match=named):
            await client.start()
        await reader.rest()
        assert isinstance(reader.seen[-1], Fatal)
        await client.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", CLIENTS)
def test_close_during_the_start(config: EngineConfig, kind: str) -> None:
    async def run() -> None:
        client = CLIENTS[kind](config)
        starting = asyncio.ensure_future(client.start())
        await asyncio.sleep(0.05)
        await asyncio.wait_for(client.close(), 20)
        try:
            await starting
        except EngineDied:
            return
        assert kind == "thread"  # loading is not interrupted there

    asyncio.run(run())


def test_close_without_a_start_ends_an_engine_spawned_before(config: EngineConfig) -> None:
    async def run() -> None:
        handle = spawn_engine(config)
        await ProcessClient(config, handle).close()
        assert handle.process.returncode is not None
        assert not Path(handle.folder.name).exists()

    asyncio.run(run())


def test_an_engine_spawned_early_is_taken_over(config: EngineConfig, expected: dict[int, list[int]]) -> None:
    """Also by a client on the event loop of another thread."""
    handle = spawn_engine(config)
    folder = Path(handle.folder.name)
    assert folder.stat().st_mode & 0o777 == 0o700
    tokens: list[int] = []

    async def run() -> None:
        client = SupervisedClient(config, handle)
        await client.start()
        assert client.pid == handle.process.pid
        assert not folder.exists()  # nothing is left to clean up, whatever happens now
        reader = Reader(client)
        client.send(add("r", params=SamplingParams(temperature=1.0, seed=2), count=60))
        await reader.until(lambda: bool(reader.ends))
        tokens.extend(reader.tokens["r", 0])
        await client.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    thread.join(120)
    assert tokens == expected[2]


def test_signals_to_the_engine_are_the_parents_business(config: EngineConfig) -> None:
    async def run() -> None:
        client = ProcessClient(config)
        await client.start()
        reader = Reader(client)
        assert client.pid is not None
        client.send(add("r", count=CONTEXT - 5))
        await reader.until(lambda: bool(reader.tokens))
        os.kill(client.pid, signal.SIGINT)
        os.kill(client.pid, signal.SIGTERM)
        await reader.until(lambda: bool(reader.ends))
        assert reader.ends == {("r", 0): ("length", None)}
        await client.close()

    asyncio.run(run())


def test_the_last_messages_of_an_engine_arrive(config: EngineConfig) -> None:
    async def run() -> None:
        client = ProcessClient(config)
        await client.start()
        reader = Reader(client)
        assert client.pid is not None
        names = [f"r{i}" for i in range(8)]
        for name in names:
            client.send(add(name, count=CONTEXT - 5))
        await reader.until(lambda: bool(reader.tokens))
        client.send(Shutdown())
        while alive(client.pid):
            time.sleep(0.02)  # this event loop hears of the end and of the last messages at the same time
        with pytest.raises(EngineDied, match="status 0"):
            await reader.rest()
        assert reader.ends == {(name, 0): ("abort", None) for name in names}
        await client.close()

    asyncio.run(run())


def test_closing_while_the_engine_loads_does_not_wait(config: EngineConfig) -> None:
    async def run() -> None:
        client = ProcessClient(config, grace=60.0)
        starting = asyncio.ensure_future(client.start())
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await client.close()
        assert time.monotonic() - began < 5
        with pytest.raises(EngineDied):
            await starting

    asyncio.run(run())


def test_a_killed_engine_comes_back_and_requests_go_on(config: EngineConfig, expected: dict[int, list[int]]) -> None:
    async def run() -> None:
        client = SupervisedClient(config)
        await client.start()
        reader = Reader(client)
        requests = {seed: add(f"r{seed}", params=SamplingParams(temperature=1.0, seed=seed), count=60) for seed in range(4)}
        for request in requests.values():
            client.send(request)
        await reader.until(lambda: sum(map(len, reader.tokens.values())) >= 20)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        await reader.until(lambda: isinstance(reader.seen[-1], EngineLost))
        assert "SIGKILL" in reader.last(EngineLost).message and reader.last(EngineLost).attempt == 1
        client.send(add("r0"))  # goes nowhere: the new engine gets it below, once
        await reader.until(lambda: isinstance(reader.seen[-1], Ready))
        for seed, request in requests.items():
            key = f"r{seed}", 0
            if key not in reader.ends:
                emitted = list(reader.tokens.get(key, []))
                client.send(add(request.request_id, params=request.params, count=60, resumed={0: emitted}))
        await reader.until(lambda: len(reader.ends) == 4)
        assert {seed: reader.tokens[f"r{seed}", 0] for seed in range(4)} == expected
        await client.close()
        await reader.rest()

    asyncio.run(run())


class MortalClient:
    """An engine that starts, says Ready and dies after ``life`` seconds, or fails to start."""

    made = 0

    def __init__(self, config: EngineConfig, life: float = 0.01) -> None:
        type(self).made += 1
        self.life, self.closed = life, False
        self.sent: list[Any] = []
        self.ready = asyncio.Event()

    async def start(self) -> Any:
        self.ready.set()
        return None

    def send(self, message: Any) -> None:
        self.sent.append(message)

    async def events(self) -> AsyncIterator[ClientEvent]:
        await self.ready.wait()
        yield Ready(info=None)  # type: ignore[arg-type]
        await asyncio.sleep(self.life)
        raise EngineDied("the engine process ended with status 3")

    async def close(self) -> None:
        self.closed = True


def test_an_engine_that_keeps_dying_is_given_up() -> None:
    class Client(MortalClient):
        made = 0

    async def run() -> None:
        client = SupervisedClient(EngineConfig(), max_restarts=2, delays=(0.0, 0.05), make_client=Client)
        reader = Reader(client)
        supervisor = asyncio.ensure_future(client.start())
        await reader.rest()
        assert [type(event) for event in reader.seen] == [Ready, EngineLost, Ready, EngineLost, Ready, Fatal]
        assert [event.delay for event in reader.seen if isinstance(event, EngineLost)] == [0.0, 0.05]
        assert "3 times within 60 s" in reader.last(Fatal).message and "status 3" in reader.last(Fatal).message
        assert Client.made == 3
        supervisor.cancel()
        await client.close()

    asyncio.run(run())


def test_deaths_outside_the_window_do_not_count() -> None:
    class Client(MortalClient):
        made = 0

    async def run() -> None:
        client = SupervisedClient(EngineConfig(), max_restarts=1, window=0.02, delays=(0.03,), make_client=Client)
        reader = Reader(client)
        starting = asyncio.ensure_future(client.start())
        await reader.until(lambda: Client.made == 5)
        starting.cancel()
        await client.close()

    asyncio.run(run())


def test_messages_reach_an_engine_only_after_its_ready_was_read() -> None:
    """Else what the service resubmits on Ready would arrive twice."""
    made: list[MortalClient] = []

    def make(config: EngineConfig) -> MortalClient:
        made.append(MortalClient(config, 0.01 if not made else 100))
        return made[-1]

    async def run() -> None:
        client = SupervisedClient(EngineConfig(), delays=(0.0,), make_client=make)
        reader = Reader(client)
        starting = asyncio.ensure_future(client.start())
        await reader.until(lambda: isinstance(reader.seen[-1:][0] if reader.seen else None, EngineLost))
        await asyncio.sleep(0.05)  # the second engine is up; its Ready waits to be read
        assert len(made) == 2
        client.send("early")  # type: ignore[arg-type]
        await reader.until(lambda: isinstance(reader.seen[-1], Ready))
        client.send("late")  # type: ignore[arg-type]
        assert made[0].sent == ["early"] and made[1].sent == ["late"]
        starting.cancel()
        client._task.cancel()  # type: ignore[union-attr]

    asyncio.run(run())


PARENT = """
    import asyncio, sys, time
    from octavo.config import EngineConfig
    from octavo.engine.messages import Deltas
    from octavo.engine.spawn import spawn_engine
    from octavo.engine.client import ProcessClient
    from octavo.core.sampling_params import SamplingParams
    from octavo.engine.messages import AddRequest

    async def run():
        config = EngineConfig(model=sys.argv[1], threads=1, max_num_seqs=8, kv_cache_memory_bytes=1 << 20)
        client = ProcessClient(config, spawn_engine(config))
        if sys.argv[2] == "loading":
            print(client.pid, flush=True)
            time.sleep(60)
        await client.start()
        print(client.pid, flush=True)
        for i in range(10**6):
            client.send(AddRequest(request_id=str(i), prompt_token_ids=[1], params=SamplingParams(seed=1), max_len=100))
            await asyncio.sleep(0.01)

    asyncio.run(run())
"""


def alive(pid: int) -> bool:
    """A zombie that nobody has reaped yet is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z" if sys.platform == "linux" else not os.kill(pid, 0)
    except (OSError, ProcessLookupError):
        return False


@pytest.mark.parametrize("state", ["loading", "busy"])
def test_a_killed_parent_leaves_no_engine_behind(tiny_folder: Path, tmp_path: Path, state: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PARENT), str(tiny_folder), state]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], env=environment, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.1)
        assert alive(child)
        parent.kill()
        until = time.monotonic() + 2
        while alive(child) and time.monotonic() < until:
            time.sleep(0.02)
        assert not alive(child)
        assert state == "loading" or not list(tmp_path.iterdir())  # a connected engine leaves no file either


def test_a_closed_pipe_ends_the_engine_too(config: EngineConfig) -> None:
    """What other systems than Linux rely on: here the parent lives on."""
    handle = spawn_engine(config)
    assert handle.process.stdin is not None
    handle.process.stdin.close()
    assert handle.process.wait(timeout=20) == 0
    handle.remove_folder()


def test_the_client_side_imports_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "import octavo.engine.client, octavo.engine.supervisor, octavo.engine.spawn\n"
        "assert 'zmq' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_spawning_needs_the_standard_library_only() -> None:
    code = (
        "import sys\nfor name in ('torch', 'numpy', 'msgspec', 'zmq', 'asyncio'): sys.modules[name] = None\n"
        "import octavo.engine.spawn, octavo.config\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
