"""Text deltas to wire objects, as pure functions of the deltas. A full reply is a fold over the very chunks that a stream would send."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from octavo.frontends.openai.schema import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionTokensDetails,
    Function,
    FunctionDelta,
    PromptLogprob,
    PromptLogprobs,
    PromptTokensDetails,
    TokenLogprob,
    ToolCall,
    ToolCallChunk,
    TopLogprob,
    UsageBody,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.service.types import Logprob, TextDelta, ToolCallDelta, Usage

FLOOR = -9999.0  # JSON has no minus infinity
DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Shape:
    """How the client wants its reply. ``prompt_logprobs`` is what it asked for (an echo may make the engine compute more)."""

    id: str
    model: str
    fingerprint: str
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def token(self, token_id: int, logprob: Logprob) -> str:
        return f"token_id:{token_id}" if self.tokens_as_ids else logprob.decoded_token or ""


def usage_body(usages: Sequence[Usage]) -> UsageBody:
    """The sum over the prompts of one HTTP request."""
    prompt, completion = sum(u.prompt_tokens for u in usages), sum(u.completion_tokens for u in usages)
    body = UsageBody(prompt, completion, prompt + completion, PromptTokensDetails(sum(u.cached_tokens for u in usages)))
    thoughts = [u.reasoning_tokens for u in usages if u.reasoning_tokens is not None]
    if thoughts:
        body.completion_tokens_details = CompletionTokensDetails(sum(thoughts))
    return body


def prompt_logprobs(values: list[dict[int, Logprob] | None], k: int) -> PromptLogprobs:
    """vLLM's form: per position a map from token id (as text) to its logprob; the token itself and the ``k`` best."""
    return [
        None
        if position is None
        else {
            str(token): PromptLogprob(max(lp.logprob, FLOOR), lp.rank, lp.decoded_token)
            for i, (token, lp) in enumerate(position.items())
            if i == 0 or (lp.rank is not None and lp.rank <= k)
        }
        for position in values
    ]


# --- chat ---


def chat_logprobs(logprobs: list[dict[int, Logprob]], shape: Shape) -> ChatLogprobs:
    content: list[TokenLogprob] = []
    for position in logprobs:
        entries = [TopLogprob(shape.token(t, lp), max(lp.logprob, FLOOR), list(lp.bytes)) for t, lp in position.items()]
        best = sorted(position.values(), key=lambda lp: lp.rank or 0)[: shape.top_logprobs or 0]
        kept = {id(lp) for lp in best}
        top = sorted((e for e, lp in zip(entries, position.values(), strict=True) if id(lp) in kept), key=lambda e: -e.logprob)
        content.append(TokenLogprob(entries[0].token, entries[0].logprob, entries[0].bytes, top))
    return ChatLogprobs(content)


def tool_call_chunk(call: ToolCallDelta) -> ToolCallChunk:
    if call.name is None:
        return ToolCallChunk(index=call.index, function=FunctionDelta(arguments=call.arguments))
    return ToolCallChunk(index=call.index, id=call.id or "", type="function", function=FunctionDelta(call.name, call.arguments))


class ChatStream:
    """Chunks of one chat reply: first the role of each choice, then its deltas: thoughts, content, and each step of a tool call by itself."""

    def __init__(self, shape: Shape, prompt_token_ids: list[int], include_reasoning: bool = True) -> None:
        self._shape, self._prompt_token_ids, self._include_reasoning = shape, prompt_token_ids, include_reasoning
        self._begun: set[int] = set()
        self._called: set[int] = set()  # choices with a tool call

    def chunks(self, delta: TextDelta) -> list[ChatChunk]:
        shape = self._shape
        made: list[ChatChunk] = []
        if delta.index not in self._begun:
            first = self._chunk(ChatChunkChoice(index=delta.index, delta=ChatDelta(role="assistant", content="")))
            if not self._begun:
                if shape.return_token_ids:
                    first.prompt_token_ids = self._prompt_token_ids
                if delta.prompt_logprobs is not None and shape.prompt_logprobs is not None:
                    first.prompt_logprobs = prompt_logprobs(delta.prompt_logprobs, shape.prompt_logprobs)
            self._begun.add(delta.index)
            made.append(first)
        steps = self._deltas(delta)
        if not steps and delta.finish_reason is None and not delta.logprobs and not shape.return_token_ids:
            return made
        choices = [ChatChunkChoice(index=delta.index, delta=d) for d in steps or [ChatDelta()]]
        last = choices[-1]  # what belongs to the whole step goes with its last chunk
        last.logprobs = chat_logprobs(delta.logprobs, shape) if delta.logprobs else None
        last.finish_reason, last.stop_reason = delta.finish_reason, delta.stop_reason
        if delta.finish_reason == "stop" and delta.index in self._called:
            last.finish_reason = "tool_calls"
        if shape.return_token_ids:
            last.token_ids = delta.token_ids
        made += [self._chunk(choice) for choice in choices]
        return made

    def _deltas(self, delta: TextDelta) -> list[ChatDelta]:
        """What there is to tell; nothing while a marker or a name is incomplete."""
        parts = delta.parts
        if parts is None:
            return [ChatDelta(content=delta.text) if delta.text or delta.finish_reason is None else ChatDelta()]
        made: list[ChatDelta] = []
        if parts.reasoning and self._include_reasoning:
            made.append(ChatDelta(reasoning=parts.reasoning))
        if parts.content:
            made.append(ChatDelta(content=parts.content))
        if parts.tool_calls:
            self._called.add(delta.index)
            made += [ChatDelta(tool_calls=[tool_call_chunk(call)]) for call in parts.tool_calls]
        return made

    def usage_chunk(self, usage: UsageBody) -> ChatChunk:
        """The last chunk when the client asked for usage: no choices."""
        chunk = self._chunk()
        chunk.usage = usage
        return chunk

    def _chunk(self, *choices: ChatChunkChoice) -> ChatChunk:
        s = self._shape
        return ChatChunk(
            id=s.id, object="chat.completion.chunk", created=s.created, model=s.model, choices=list(choices), system_fingerprint=s.fingerprint
        )


class ChatFold:
    """A full reply from the chunks of its stream."""

    def __init__(self) -> None:
        self._head: ChatChunk | None = None
        self._choices: dict[int, ChatChoice] = {}
        self._texts: dict[int, list[str]] = {}
        self._thoughts: dict[int, list[str]] = {}
        self._arguments: dict[int, list[str]] = {}  # by the identity of the call

    def add(self, chunk: ChatChunk) -> None:
        self._head = self._head or chunk
        for part in chunk.choices:
            choice = self._choices.get(part.index)
            if choice is None:
                role = part.delta.role if isinstance(part.delta.role, str) else "assistant"
                choice = self._choices[part.index] = ChatChoice(index=part.index, message=ChatMessage(role, ""))
                self._texts[part.index] = []
            if isinstance(part.delta.content, str):
                self._texts[part.index].append(part.delta.content)
            if isinstance(part.delta.reasoning, str):
                self._thoughts.setdefault(part.index, []).append(part.delta.reasoning)
            if isinstance(part.delta.tool_calls, list):
                self._add_calls(choice.message, part.delta.tool_calls)
            if part.logprobs is not None:
                choice.logprobs = ChatLogprobs([*(choice.logprobs.content if choice.logprobs else ()), *part.logprobs.content])
            if isinstance(part.token_ids, list):
                choice.token_ids = [*(choice.token_ids if isinstance(choice.token_ids, list) else ()), *part.token_ids]
            choice.finish_reason = part.finish_reason or choice.finish_reason
            choice.stop_reason = part.stop_reason if part.stop_reason is not None else choice.stop_reason

    def _add_calls(self, message: ChatMessage, steps: list[ToolCallChunk]) -> None:
        calls = message.tool_calls = message.tool_calls if isinstance(message.tool_calls, list) else []
        for step in steps:
            if step.index == len(calls):
                calls.append(ToolCall(step.id or "", step.type or "", Function(step.function.name or "", "")))
            self._arguments.setdefault(id(calls[step.index]), []).append(step.function.arguments)

    def result(self, usage: UsageBody) -> ChatCompletion:
        head = self._head
        assert head is not None
        for index, choice in self._choices.items():
            message, calls = choice.message, choice.message.tool_calls or []
            message.content = "".join(self._texts[index]) or (None if calls else "")
            if index in self._thoughts:
                message.reasoning = "".join(self._thoughts[index])
            for call in calls:
                call.function.arguments = "".join(self._arguments[id(call)])
        return ChatCompletion(
            id=head.id,
            object="chat.completion",
            created=head.created,
            model=head.model,
            choices=[self._choices[i] for i in sorted(self._choices)],
            usage=usage,
            system_fingerprint=head.system_fingerprint,
            prompt_token_ids=head.prompt_token_ids,
            prompt_logprobs=head.prompt_logprobs,
        )


# --- completions ---


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt as it is to be repeated. ``only``: nothing is to follow it (max_tokens was 0)."""

    text: str
    only: bool = False


def completion_logprobs(tokens: Sequence[tuple[int, dict[int, Logprob] | None, str]], shape: Shape, offset: int) -> CompletionLogprobs:
    """``tokens``: id, its position's logprobs (None for a prompt's first token) and its text."""
    made = CompletionLogprobs([], [], [], [])
    for token, position, text in tokens:
        name = f"token_id:{token}" if shape.tokens_as_ids else text
        made.tokens.append(name)
        made.text_offset.append(offset)
        offset += len(text)
        if position is None:
            made.token_logprobs.append(None)
            made.top_logprobs.append(None)
            continue
        made.token_logprobs.append(max(position[token].logprob, FLOOR))
        kept = [(t, lp) for i, (t, lp) in enumerate(position.items()) if i == 0 or (lp.rank or 0) <= (shape.top_logprobs or 0)]
        made.top_logprobs.append({shape.token(t, lp): max(lp.logprob, FLOOR) for t, lp in kept})
    return made


class CompletionStream:
    """Chunks of one prompt's completions. ``base`` is the index of its first choice; ``first_text`` the text of the prompt's first token."""

    def __init__(self, shape: Shape, prompt_token_ids: list[int], *, base: int = 0, echo: Echo | None = None, first_text: str = "") -> None:
        self._shape, self._prompt_token_ids, self._base = shape, prompt_token_ids, base
        self._echo, self._first_text = echo, first_text
        self._offsets: dict[int, int] = {}
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None

    def chunks(self, delta: TextDelta) -> list[Completion]:
        shape, echo = self._shape, self._echo
        begins = delta.index not in self._offsets
        only = echo is not None and echo.only
        text, ids, logprobs = ("", [], None) if only else (delta.text, delta.token_ids, delta.logprobs)
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs
        tokens: list[tuple[int, dict[int, Logprob] | None, str]]
        tokens = [] if logprobs is None else [(i, lp, lp[i].decoded_token or "") for i, lp in zip(ids, logprobs, strict=True)]
        if begins:
            self._offsets[delta.index] = 0
            if echo is not None:
                text = echo.text + text
                if shape.top_logprobs is not None:
                    tokens = [*self._prompt_tokens(), *tokens]
        choice = CompletionChoice(
            index=self._base + delta.index,
            text=text,
            logprobs=None if shape.top_logprobs is None or not tokens else completion_logprobs(tokens, shape, self._offsets[delta.index]),
            finish_reason="length" if only and delta.finish_reason == "stop" else delta.finish_reason,
            stop_reason=None if only else delta.stop_reason,
        )
        self._offsets[delta.index] += sum(len(t) for _, _, t in tokens)
        if shape.return_token_ids:
            choice.token_ids = ids
        if begins:
            self._add_prompt(choice)
        return [self._chunk(choice)]

    def usage_chunk(self, usage: UsageBody) -> Completion:
        """The last chunk when the client asked for usage: no choices."""
        chunk = self._chunk()
        chunk.usage = usage
        return chunk

    def _prompt_tokens(self) -> list[tuple[int, dict[int, Logprob] | None, str]]:
        known = self._prompt_logprobs or []
        pairs = zip(self._prompt_token_ids, known, strict=True)
        return [(i, lp, self._first_text if lp is None else lp[i].decoded_token or "") for i, lp in pairs]

    def _add_prompt(self, choice: CompletionChoice) -> None:
        if self._shape.return_token_ids:
            choice.prompt_token_ids = self._prompt_token_ids
        if self._prompt_logprobs is not None and self._shape.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(self._prompt_logprobs, self._shape.prompt_logprobs)

    def _chunk(self, *choices: CompletionChoice) -> Completion:
        s = self._shape
        return Completion(
            id=s.id, object="text_completion", created=s.created, model=s.model, choices=list(choices), system_fingerprint=s.fingerprint
        )


class CompletionFold:
    """A full reply from the chunks of its stream."""

    def __init__(self) -> None:
        self._head: Completion | None = None
        self._choices: dict[int, CompletionChoice] = {}
        self._texts: dict[int, list[str]] = {}

    def add(self, chunk: Completion) -> None:
        self._head = self._head or chunk
        for part in chunk.choices:
            choice = self._choices.get(part.index)
            if choice is None:
                self._choices[part.index] = part
                self._texts[part.index] = [part.text]
                continue
            self._texts[part.index].append(part.text)
            if part.logprobs is not None:
                choice.logprobs = _joined(choice.logprobs, part.logprobs)
            if isinstance(part.token_ids, list):
                choice.token_ids = [*(choice.token_ids if isinstance(choice.token_ids, list) else ()), *part.token_ids]
            choice.finish_reason = part.finish_reason or choice.finish_reason
            choice.stop_reason = part.stop_reason if part.stop_reason is not None else choice.stop_reason

    def result(self, usage: UsageBody) -> Completion:
        head = self._head
        assert head is not None
        for index, choice in self._choices.items():
            choice.text = "".join(self._texts[index])
        choices = [self._choices[i] for i in sorted(self._choices)]
        return Completion(
            id=head.id, object=head.object, created=head.created, model=head.model, choices=choices, usage=usage,
            system_fingerprint=head.system_fingerprint,
        )  # fmt: skip


def _joined(left: CompletionLogprobs | None, right: CompletionLogprobs) -> CompletionLogprobs:
    if left is None:
        return right
    return CompletionLogprobs(
        left.tokens + right.tokens,
        left.token_logprobs + right.token_logprobs,
        left.top_logprobs + right.top_logprobs,
        left.text_offset + right.text_offset,
    )
