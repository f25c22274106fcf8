"""The one validator of every front end: a GenerateRequest becomes an AddRequest, or a RequestError that carries the numbers."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.core.structured import Thinking
from octavo.engine.messages import AddRequest
from octavo.errors import InvalidParameter, Overloaded, PromptTooLong
from octavo.service.tools import chat_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.core.sampling_params import SamplingParams
    from octavo.engine.messages import EngineInfo
    from octavo.service.model_text import ModelText
    from octavo.service.tools import Chat
    from octavo.service.types import GenerateRequest
    from octavo.text.parsers.reply import ReplyFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that hold before anything is allocated for a request. None switches a bound off (the offline library has no queue bound).

    max_queued: sequences that may wait beyond those that run.   max_pending: prompts that may wait for the tokenizer threads.
    prompt_bytes_per_token: a prompt may have this many UTF-8 bytes for each token of the context; beyond, it is refused unread.
    """

    max_queued: int | None = 1024
    max_pending: int | None = 1024
    prompt_bytes_per_token: int = 64
    max_messages: int = 4096
    tokenizer_threads: int = 2


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may run: its wire form, its prompt as text (None if it came as ids), and how a chat reply is told apart into parts."""

    message: AddRequest
    prompt: str | None
    reply: ReplyFormat | None = None


def seed_source(seed: int | None) -> Callable[[], int]:
    """Draws seeds for requests that bring none: from the operating system, or the repeatable sequence that ``seed`` starts."""
    if seed is None:
        return lambda: secrets.randbits(63)
    generator = random.Random(seed)
    return lambda: generator.getrandbits(63)


def request_bytes(request: GenerateRequest) -> int:
    """UTF-8 bytes of all text in a request (ids count nothing: their number is bounded by the context)."""
    if request.prompt is not None:
        return len(request.prompt.encode("utf-8", "surrogatepass"))
    return sum(_text_bytes(m) for m in request.messages or ()) + _text_bytes(request.tools)


def _text_bytes(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, dict):
        return sum(_text_bytes(v) for v in value.values())
    if isinstance(value, list):
        return sum(_text_bytes(v) for v in value)
    return 0


class Admission:
    """Validates, renders and tokenizes. The slow part runs in a small bounded thread pool, off the event loop."""

    def __init__(self, text: ModelText, info: EngineInfo, limits: Limits, draw_seed: Callable[[], int]) -> None:
        self.info = info  # replaced when a restarted engine has another memory plan
        self._text, self._limits, self._draw_seed = text, limits, draw_seed
        self._pool = ThreadPoolExecutor(limits.tokenizer_threads, thread_name_prefix="octavo-text")
        self._pending = 0

    @property
    def context(self) -> int:
        """Tokens of prompt plus output that one request may hold."""
        return min(self.info.max_model_len, self.info.num_blocks * self.info.block_size)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def check_room(self, live_sequences: int, n: int) -> None:
        """Raise Overloaded if ``n`` more sequences do not fit beside the live ones."""
        limits = self._limits
        if limits.max_queued is not None:
            room = self.info.max_num_seqs + limits.max_queued
            if live_sequences + n > room:
                raise Overloaded(f"{live_sequences:,} sequences are live, {n:,} asked, the server takes {room:,}; try again later", retry_after=1.0)
        if limits.max_pending is not None and self._pending >= limits.max_pending:
            raise Overloaded(f"{self._pending:,} prompts wait for the tokenizer; try again later", retry_after=1.0)

    async def admit(self, request: GenerateRequest) -> Admitted:
        """Raises RequestError; changes nothing if it does."""
        # Drawn here, not in the pool, so that seeds follow the order of arrival.
        seed = self._draw_seed() if request.params.seed is None else request.params.seed
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._prepare, request, seed, time.time())
        finally:
            self._pending -= 1

    def _check_source(self, request: GenerateRequest) -> None:
        given = [n for n in ("prompt", "prompt_token_ids", "messages") if getattr(request, n) is not None]
        if len(given) != 1:
            raise InvalidParameter(f"give exactly one of prompt, prompt_token_ids and messages, got {' and '.join(given) or 'none'}", param="prompt")
        if request.messages is not None:
            if not request.messages:
                raise InvalidParameter("messages is empty", param="messages")
            if len(request.messages) > self._limits.max_messages:
                raise InvalidParameter(f"{len(request.messages):,} messages given, the limit is {self._limits.max_messages:,}", param="messages")
            if request.add_generation_prompt and request.continue_final_message:
                raise InvalidParameter(
                    "continue_final_message and add_generation_prompt exclude each other; set add_generation_prompt to false",
                    param="continue_final_message",
                )
        if request.prompt == "":
            raise InvalidParameter("the prompt is empty", param="prompt")
        most = self.context * self._limits.prompt_bytes_per_token
        size = request_bytes(request)
        if size > most:
            raise PromptTooLong(f"the prompt has {size:,} bytes, a context of {self.context:,} tokens takes at most {most:,}", param=given[0])

    def _prepare(self, request: GenerateRequest, seed: int, arrival: float) -> Admitted:
        """In a pool thread: text to ids, and every check that may take time."""
        self._check_source(request)
        request.params.check_vocab(self.info.vocab_size)
        chat = None
        if request.messages is not None:
            chat = chat_of(request, self._text)
            request = replace(request, params=chat.params)
        prompt, ids, reply = self._encode(request, chat)
        if not ids:
            raise InvalidParameter("the prompt is empty", param="messages" if request.messages is not None else "prompt")
        max_len = self._max_len(len(ids), request.params)
        message = AddRequest(
            request_id=request.request_id,
            prompt_token_ids=ids,
            params=self._complete(request.params, seed),
            max_len=max_len,
            eos_token_ids=list(self._text.eos_token_ids),
            priority=request.priority,
            arrival=arrival,
            cache_salt=request.cache_salt,
            thinking=self._thinking(request, ids),
        )
        return Admitted(message, prompt, reply)

    def _encode(self, request: GenerateRequest, chat: Chat | None) -> tuple[str | None, list[int], ReplyFormat | None]:
        reply = None
        if request.prompt_token_ids is not None:
            self._check_ids(request.prompt_token_ids, request.params)
            return None, list(request.prompt_token_ids), None
        if request.messages is not None and chat is not None:
            prompt = chat.template.render(
                request.messages,
                tools=chat.shown_tools,
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                template_kwargs=request.chat_template_kwargs,
            )
            reply = chat.reply(request, prompt)
            special = bool(request.add_special_tokens)
        else:
            prompt = request.prompt or ""
            special = request.add_special_tokens is not False
        return prompt, self._text.tokenizer.encode(prompt, add_special_tokens=special), reply

    def _check_ids(self, ids: list[int], params: SamplingParams) -> None:
        if len(ids) > self.context:
            self._max_len(len(ids), params)  # raises; no need to look at each of them
        vocab = self.info.vocab_size
        for i in ids:
            if isinstance(i, bool) or not isinstance(i, int):
                raise InvalidParameter(f"a prompt of token ids holds {type(i).__name__} {str(i)[:40]!r}", param="prompt")
            if not 0 <= i < vocab:
                raise InvalidParameter(f"the prompt holds token id {i:,}, the vocabulary has {vocab:,} entries", param="prompt")

    def _thinking(self, request: GenerateRequest, ids: list[int]) -> Thinking | None:
        """Where the grammar of a chat begins: behind thoughts that the prompt opened, or that the model may open with its first token."""
        tags = self._text.think_ids
        if tags is None or request.messages is None or request.params.structured_outputs is None:
            return None
        opening, closing = tags
        last = next((i for i in reversed(range(len(ids))) if ids[i] in tags), None)
        if last is not None and ids[last] == opening:
            return Thinking(closing)
        tail = [] if last is None else ids[last + 1 :]
        if last is not None and not self._text.tokenizer.decode(tail, skip_special_tokens=False).strip():
            return None  # the template closed them already: the model was told not to think
        return Thinking(closing, opening)

    def _max_len(self, prompt_len: int, params: SamplingParams) -> int:
        """Prompt plus output. ``max_tokens`` None takes the room left in the context."""
        asked = params.max_tokens if params.max_tokens is not None else max(1, params.min_tokens)
        if prompt_len + asked > self.context:
            raise PromptTooLong(f"prompt has {prompt_len:,} tokens, {asked:,} asked, the context holds {self.context:,}", param="max_tokens")
        return self.context if params.max_tokens is None else prompt_len + asked

    def _complete(self, params: SamplingParams, seed: int) -> SamplingParams:
        """Seed and bad words filled in; the caller's object stays as it is."""
        if params.seed is not None and not params.bad_words:
            return params
        return params.clone(seed=seed, bad_words_token_ids=self._bad_words(params.bad_words))

    def _bad_words(self, words: list[str]) -> list[list[int]]:
        """Each word as token ids, as it stands and after a space; the latter only where it has as many tokens and begins with another."""
        sequences: list[list[int]] = []
        for word in words:
            bare = self._text.tokenizer.encode(word.lstrip(), add_special_tokens=False)
            spaced = self._text.tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
            if bare:
                sequences.append(bare)
            if spaced and (not bare or (spaced[0] != bare[0] and len(spaced) == len(bare))):
                sequences.append(spaced)
        return sequences
