"""Sending requests to a server as they fall due, and timing what comes back."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.errors import OctavoError
from octavo.frontends.bench.http import post_events
from octavo.frontends.bench.metrics import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from octavo.frontends.bench.datasets import Sample
    from octavo.frontends.bench.http import Target

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How each request is put. ``endpoint``: "completions" or "chat"; ``extra`` joins every body."""

    target: Target
    model: str
    endpoint: str = "completions"
    temperature: float | None = 0.0
    ignore_eos: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    timeout: float = 3600.0

    def body(self, sample: Sample) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "max_tokens": sample.output_tokens, "stream": True, "stream_options": {"include_usage": True}}
        if self.endpoint == "completions":
            body["prompt"] = sample.prompt
        else:
            body["messages"] = [{"role": "user", "content": sample.prompt}]
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.ignore_eos:
            body["ignore_eos"] = True
        return body | self.extra


def brings_tokens(choice: dict[str, Any]) -> bool:
    """Whether a choice of a stream's chunk carries tokens: not the opening role nor the closing reason of a chat."""
    if "text" in choice:
        return bool(choice["text"]) or choice.get("finish_reason") is None
    delta = choice.get("delta") or {}
    if any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls")):
        return True
    return "role" not in delta and choice.get("finish_reason") is None


async def ask(asking: Asking, sample: Sample, start: float) -> Outcome:
    """Send one request and read its stream to the end. Whatever goes wrong is the outcome's ``error``."""
    outcome = Outcome(prompt_tokens=sample.prompt_tokens, sent=time.perf_counter() - start)
    try:
        await asyncio.wait_for(_read(asking, sample, outcome, start), asking.timeout)
    except asyncio.TimeoutError:
        outcome.error = f"no end within {asking.timeout:g} s"
    except (OctavoError, OSError, ValueError, KeyError, TypeError) as error:
        outcome.error = f"{type(error).__name__}: {error}" if not isinstance(error, OctavoError) else error.message
    if outcome.error is not None:
        outcome.latency = time.perf_counter() - start - outcome.sent
    return outcome


@dataclass(slots=True)
class Times:
    """When tokens came. ``opened``: the first chunk that carries none, for a reply whose only chunk is its end."""

    opened: float | None = None
    first: float | None = None
    last: float | None = None
    chunks: int = 0
    itls: list[float] = field(default_factory=list)

    def add(self, now: float, has_tokens: bool) -> None:
        if not has_tokens:
            self.opened = self.opened or now
            return
        if self.last is None:
            self.first = now
        else:
            self.itls.append(now - self.last)
        self.last = now
        self.chunks += 1


async def _read(asking: Asking, sample: Sample, outcome: Outcome, start: float) -> None:
    body = json.dumps(asking.body(sample)).encode()
    sent = time.perf_counter()
    outcome.sent = sent - start
    times, usage = Times(), None
    async with aclosing(post_events(asking.target, PATHS[asking.endpoint], body)) as events:
        async for arrival, data in events:
            chunk = json.loads(data)
            if "error" in chunk:
                error = chunk["error"]
                raise OctavoError(str(error["message"] if isinstance(error, dict) and "message" in error else error))
            usage = chunk.get("usage") or usage
            if chunk.get("choices"):
                times.add(arrival, any(map(brings_tokens, chunk["choices"])))
    first = times.first or times.opened
    if first is None:
        raise OctavoError("the stream ended without a token")
    outcome.ttft, outcome.latency, outcome.itls = first - sent, (times.last or first) - sent, times.itls
    outcome.output_tokens, outcome.counted = max(times.chunks, 1), False
    if usage is not None:
        outcome.prompt_tokens, outcome.output_tokens, outcome.counted = usage["prompt_tokens"], usage["completion_tokens"], True


async def run_load(
    send: Callable[[Sample, float], Awaitable[Outcome]],
    samples: Sequence[Sample],
    times: Sequence[float],
    max_concurrency: int | None = None,
    done: Callable[[Outcome], None] = lambda outcome: None,
) -> tuple[list[Outcome], float]:
    """Send ``samples[i]`` at ``times[i]`` seconds, at most ``max_concurrency`` at once (the others wait, and their clocks start when they are sent).

    (outcomes in the order of the samples, seconds from the start to the last end).
    """
    gate = asyncio.Semaphore(max_concurrency or len(samples))
    start = time.perf_counter()

    async def one(sample: Sample, due: float) -> Outcome:
        await asyncio.sleep(max(0.0, start + due - time.perf_counter()))
        async with gate:
            outcome = await send(sample, start)
        done(outcome)
        return outcome

    outcomes = await asyncio.gather(*(one(s, t) for s, t in zip(samples, times, strict=True)))
    return outcomes, time.perf_counter() - start
