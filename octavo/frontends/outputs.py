"""Results of the offline library: vLLM's names and shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.service.types import ReplyDelta

if TYPE_CHECKING:
    from octavo.service.generation import Generation
    from octavo.service.types import Logprob, TextDelta


@dataclass(slots=True)
class ToolCall:
    """A function that the model calls. ``arguments``: JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class CompletionOutput:
    """One sequence. ``finish_reason``: "stop", "length", "abort" or "error" (then ``error`` says why).

    ``text`` is all that was generated. Of a chat whose model's format is known it is told apart as well: ``content`` (else equal to ``text``),
    ``reasoning`` (None: no thoughts) and ``tool_calls``. ``stop_reason``: the stop string or stop token id that ended it, None for the end
    token. ``logprobs[i]`` belongs to ``token_ids[i]``.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    content: str = ""
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Seconds since the request was admitted; None: no token came."""

    first_token_latency: float | None
    latency: float
    num_generation_tokens: int


@dataclass(slots=True)
class RequestOutput:
    """Result of one prompt. ``prompt`` is None if it was given as ids; ``prompt_logprobs[0]`` is None (nothing comes before it)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0


@dataclass(slots=True)
class OutputFold:
    """A RequestOutput from the deltas of a generation."""

    generation: Generation
    _texts: dict[int, list[str]] = field(default_factory=dict)
    _outputs: dict[int, CompletionOutput] = field(default_factory=dict)
    _parts: dict[int, ReplyDelta | None] = field(default_factory=dict)
    _prompt_logprobs: list[dict[int, Logprob] | None] | None = None

    def add(self, delta: TextDelta) -> None:
        output = self._outputs.get(delta.index)
        if output is None:
            output = self._outputs[delta.index] = CompletionOutput(delta.index, "", [])
            self._texts[delta.index] = []
            self._parts[delta.index] = ReplyDelta() if delta.parts is not None else None
        self._texts[delta.index].append(delta.text)
        parts = self._parts[delta.index]
        if parts is not None and delta.parts is not None:
            parts.add(delta.parts)
        output.token_ids.extend(delta.token_ids)
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs
        if delta.logprobs is not None:
            output.logprobs = output.logprobs or []
            output.logprobs.extend(delta.logprobs)
            gained = sum(position[token].logprob for token, position in zip(delta.token_ids, delta.logprobs, strict=True))
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + gained
        if delta.finish_reason is not None:
            output.finish_reason, output.stop_reason, output.error = delta.finish_reason, delta.stop_reason, delta.error

    def result(self) -> RequestOutput:
        for index, output in self._outputs.items():
            output.text = output.content = "".join(self._texts[index])
            parts = self._parts[index]
            if parts is not None:
                output.content, output.reasoning = parts.content, parts.reasoning or None
                output.tool_calls = _calls(parts)
        outputs = [self._outputs[i] for i in sorted(self._outputs)]
        generation = self.generation
        return RequestOutput(
            request_id=generation.request_id,
            prompt=generation.prompt,
            prompt_token_ids=generation.prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs,
            outputs=outputs,
            finished=all(o.finished for o in outputs),
            metrics=RequestMetrics(generation.first_token_latency, generation.latency, generation.usage.completion_tokens),
            num_cached_tokens=generation.usage.cached_tokens,
        )


def _calls(parts: ReplyDelta) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for step in parts.tool_calls:
        if step.name is not None:
            calls.append(ToolCall(step.id or "", step.name))
        calls[-1].arguments += step.arguments
    return calls
