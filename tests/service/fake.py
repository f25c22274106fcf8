"""A stand-in for the engine: plays tokens that depend on (prompt, seed, sequence index) alone, as the real one does."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.core.plan import PositionLogprobs, TokenDelta
from octavo.engine.faults import fatal_of
from octavo.engine.messages import Abort, AddRequest, Deltas, EngineInfo, EngineLost, GetStats, Progress, Ready, Stats
from octavo.errors import EngineDied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from octavo.engine.messages import ClientEvent, ToEngine

INFO = EngineInfo(
    model_type="fake",
    backend="fake",
    isa="none",
    threads=1,
    vocab_size=0,  # set by the fixture from its tokenizer
    max_model_len=256,
    block_size=16,
    num_blocks=64,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    weight_bytes=1_000,
    activation_bytes=100,
    kv_bytes=10_000,
    kv_bytes_per_token=10,
)


def random_script(tokens: list[int]) -> Callable[[AddRequest, int], list[int]]:
    """An endless enough random sequence over ``tokens``, fixed by prompt, seed and index."""

    def play(request: AddRequest, index: int) -> list[int]:
        generator = random.Random(f"{request.prompt_token_ids}/{request.params.seed}/{index}")
        return [generator.choice(tokens) for _ in range(request.max_len)]

    return play


def fixed_script(ids: list[int]) -> Callable[[AddRequest, int], list[int]]:
    """The same ids for every sequence."""
    return lambda request, index: list(ids)


@dataclass
class _Sequence:
    request: AddRequest
    index: int
    emitted: list[int]
    first: bool = True


@dataclass
class FakeClient:
    """An EngineClient. ``chunks(n)`` says how many tokens the n-th step gives each sequence; ``step_seconds`` is the pace.

    A script's end without an end token runs on to max_len with its last id. Set ``gate`` to hold the engine between steps.
    """

    script: Callable[[AddRequest, int], list[int]]
    info: EngineInfo = field(default_factory=lambda: INFO)
    chunks: Callable[[int], int] = lambda step: 1
    step_seconds: float = 0.0
    start_seconds: float = 0.0
    start_error: Exception | None = None

    def __post_init__(self) -> None:
        self.sent: list[ToEngine] = []
        self.live: dict[tuple[str, int], _Sequence] = {}
        self.queue: asyncio.Queue[ClientEvent | None] = asyncio.Queue()
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = False
        self.steps = 0
        self.failing: dict[str, str] = {}  # request id -> error message
        self._task: asyncio.Task[None] | None = None
        self._lost = False

    # --- EngineClient ---

    async def start(self) -> EngineInfo:
        self.queue.put_nowait(Progress("loading weights", 1, 4))
        await asyncio.sleep(self.start_seconds)
        if self.start_error is not None:
            self.queue.put_nowait(fatal_of(self.start_error))
            self.queue.put_nowait(None)
            raise self.start_error
        self.queue.put_nowait(Ready(self.info))
        self._task = asyncio.create_task(self._run())
        return self.info

    def send(self, message: ToEngine) -> None:
        self.sent.append(message)
        if self._lost or self.closed:
            return
        if isinstance(message, AddRequest):
            for index in range(message.params.n):
                if index not in message.finished:
                    self.live[message.request_id, index] = _Sequence(message, index, list(message.resumed.get(index, [])))
        elif isinstance(message, Abort):
            for key in [k for k in self.live if k[0] == message.request_id and message.index in (None, k[1])]:
                del self.live[key]
                self.queue.put_nowait(Deltas([TokenDelta(*key, [], "abort")]))
        elif isinstance(message, GetStats):
            used = 2 * len(self.live)
            self.queue.put_nowait(Stats(num_running=len(self.live), kv_blocks_used=used, kv_blocks_total=self.info.num_blocks, prefix_queries=7))

    async def events(self) -> AsyncIterator[ClientEvent]:
        while (event := await self.queue.get()) is not None:
            yield event

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            for key in list(self.live):
                self.queue.put_nowait(Deltas([TokenDelta(*key, [], "abort")]))
            self.live.clear()
            self.queue.put_nowait(None)
            if self._task is not None:
                self._task.cancel()

    # --- what a test does to it ---

    def die(self) -> None:
        """The engine process ends; what it held is gone."""
        self._lost = True
        self.live.clear()
        self.queue.put_nowait(EngineLost(message="the engine process was killed by SIGKILL", attempt=1, delay=0.0))

    def give_up(self) -> None:
        """No further engine."""
        self._lost = True
        self.live.clear()
        self.queue.put_nowait(fatal_of(EngineDied("the engine ended 4 times within 60 s and is not started again")))
        self.queue.put_nowait(None)

    def come_back(self) -> None:
        self._lost = False
        self.queue.put_nowait(Ready(self.info))

    # --- the engine ---

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.step_seconds)
            await self.gate.wait()
            if self.live:
                self.steps += 1
                self.queue.put_nowait(Deltas([d for s in list(self.live.values()) for d in self._advance(s)]))

    def _advance(self, sequence: _Sequence) -> list[TokenDelta]:
        request, key = sequence.request, (sequence.request.request_id, sequence.index)
        if request.request_id in self.failing:
            del self.live[key]
            return [TokenDelta(*key, [], "error", error=self.failing[request.request_id])]
        deltas = self._prompt_deltas(sequence)
        script, params = self.script(request, sequence.index), request.params
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else set(request.eos_token_ids))
        ids: list[int] = []
        reason, stop = None, None
        for _ in range(max(1, self.chunks(self.steps))):
            position = len(sequence.emitted)
            token = script[min(position, len(script) - 1)]
            sequence.emitted.append(token)
            ids.append(token)
            if token in stops and len(sequence.emitted) > params.min_tokens:
                reason, stop = "stop", token if token not in request.eos_token_ids else None
            elif len(request.prompt_token_ids) + len(sequence.emitted) >= request.max_len:
                reason = "length"
            if reason:
                del self.live[key]
                break
        logprobs = None if params.logprobs is None else [self._logprobs(t, params.logprobs) for t in ids]
        cached = (len(request.prompt_token_ids) - 1) // 16 * 16 if sequence.first else None
        sequence.first = False
        return [*deltas, TokenDelta(*key, ids, reason, stop, logprobs, None, cached)]

    def _prompt_deltas(self, sequence: _Sequence) -> list[TokenDelta]:
        """Logprobs of the prompt in two chunks before the first token, sequence 0 alone."""
        k = sequence.request.params.prompt_logprobs
        if k is None or not sequence.first or sequence.index:
            return []
        positions = [self._logprobs(t, k) for t in sequence.request.prompt_token_ids[1:]]
        half = len(positions) // 2
        key = (sequence.request.request_id, 0)
        return [TokenDelta(*key, [], prompt_logprobs=part) for part in (positions[:half], positions[half:])]

    def _logprobs(self, token: int, k: int) -> PositionLogprobs:
        """The token has rank 3; the best k are its followers in the vocabulary."""
        others = [(token + 1 + i) % self.info.vocab_size for i in range(k)]
        return PositionLogprobs([token, *others], [-2.0, *(-1.0 - i / 10 for i in range(k))], [3, *range(1, k + 1)])
