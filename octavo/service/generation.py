"""One admitted request on its way: the stream that its reader pulls, and the state behind it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

from octavo.service.output import SequenceOutput, decode_logprobs
from octavo.service.types import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.core.plan import TokenDelta
    from octavo.errors import OctavoError
    from octavo.service.admission import Admitted
    from octavo.service.types import Logprob, TextDelta
    from octavo.text.tokenizer import Tokenizer


class Live:
    """State of a live request, shared by the service (writer) and its :class:`Generation` (reader), on one event loop."""

    def __init__(self, admitted: Admitted, tokenizer: Tokenizer) -> None:
        message = admitted.message
        self.message = message
        reply = admitted.reply
        self.outputs = [
            SequenceOutput(message.request_id, i, message.params, tokenizer, message.prompt_token_ids, reply) for i in range(message.params.n)
        ]
        thoughts = reply is not None and reply.reasoning_format is not None
        self.usage = Usage(prompt_tokens=len(message.prompt_token_ids), reasoning_tokens=0 if thoughts else None)
        self.failure: OctavoError | None = None
        self.arrival = time.monotonic()
        self.first_token: list[float | None] = [None] * message.params.n
        self.last_token: list[float] = [self.arrival] * message.params.n
        self.started = False  # the first token of any sequence has come
        self._tokenizer = tokenizer
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None if message.params.prompt_logprobs is None else [None]
        self._repeated = 0  # prompt positions that a restarted engine will tell once more
        self._pending: deque[TextDelta] = deque()
        self._wake = asyncio.Event()

    @property
    def finished(self) -> bool:
        return all(o.finish_reason is not None for o in self.outputs)

    def take(self, delta: TokenDelta) -> TextDelta | None:
        """Fold a token delta in and queue its text delta."""
        if delta.num_cached_tokens is not None and not self.started:
            self.usage.cached_tokens = max(self.usage.cached_tokens, delta.num_cached_tokens)
        if delta.prompt_logprobs is not None and self._prompt_logprobs is not None:
            fresh = delta.prompt_logprobs[self._repeated :]
            self._repeated -= len(delta.prompt_logprobs) - len(fresh)
            self._prompt_logprobs.extend(decode_logprobs(p, self._tokenizer) for p in fresh)
        text = self.outputs[delta.index].take(delta)
        if text is not None:
            self.usage.completion_tokens += len(text.token_ids)
            if self.usage.reasoning_tokens is not None:
                self.usage.reasoning_tokens += text.reasoning_tokens
            self.put(text)
        return text

    def put(self, delta: TextDelta) -> None:
        """Queue a delta; the first one of a request carries the logprobs of its prompt."""
        if not self.started:
            self.started = True
            delta.prompt_logprobs = self._prompt_logprobs
        self._pending.append(delta)
        self._wake.set()

    def engine_restarts(self) -> None:
        """The engine will compute the prompt again from its first position."""
        self._repeated = len(self._prompt_logprobs) - 1 if self._prompt_logprobs else 0

    async def get(self) -> TextDelta:
        while not self._pending:
            self._wake.clear()
            await self._wake.wait()
        return self._pending.popleft()


class Generation:
    """An asynchronous iterator of :class:`TextDelta` with the facts of its request. Ends after the last sequence's terminal delta.

    Close it (``aclose``, or ``async with``) when you stop reading early: the engine then stops computing and its blocks come back.
    ``usage`` is complete when the iteration has ended; ``failure`` is set when a sequence ended with "error".
    """

    def __init__(self, live: Live, prompt: str | None, close: Callable[[str], object]) -> None:
        self._live, self._close = live, close
        self._open = live.message.params.n
        self._loop = asyncio.get_running_loop()
        self.request_id = live.message.request_id
        self.prompt = prompt
        self.prompt_token_ids = live.message.prompt_token_ids
        self.params = live.message.params
        self.num_sequences = live.message.params.n
        self.usage = live.usage

    @property
    def failure(self) -> OctavoError | None:
        return self._live.failure

    @property
    def first_token_latency(self) -> float | None:
        """Seconds from arrival to the first token of any sequence."""
        times = [t for t in self._live.first_token if t is not None]
        return min(times) - self._live.arrival if times else None

    @property
    def latency(self) -> float:
        """Seconds from arrival to the latest token."""
        return max(self._live.last_token) - self._live.arrival

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> TextDelta:
        if not self._open:
            raise StopAsyncIteration
        delta = await self._live.get()
        if delta.finish_reason is not None:
            self._open -= 1
        return delta

    async def aclose(self) -> None:
        """Stop reading. An unfinished request is aborted; a finished one stays as it is."""
        if self._open:
            self._open = 0
            self._close(self.request_id)

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # A reader that was dropped without closing must not leave its request running.
        if getattr(self, "_open", 0) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._close, self.request_id)
