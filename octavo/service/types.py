"""What front ends say to the service and get back. A full reply is a fold over the same deltas that a stream sends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.text.parsers.reply import ReplyDelta as ReplyDelta  # noqa: TC001  also for front ends

if TYPE_CHECKING:
    from octavo.core.sampling_params import SamplingParams
    from octavo.text.parsers.reply import ToolCallDelta as ToolCallDelta  # also for front ends


@dataclass(slots=True, kw_only=True)
class GenerateRequest:
    """Exactly one of ``prompt``, ``prompt_token_ids`` and ``messages`` is set.

    ``tools`` and ``tool_choice`` ("auto", "none", "required" or ``{"type": "function", "function": {"name": ...}}``) go with messages.
    ``add_special_tokens`` None: true for ``prompt``, false for rendered messages. ``cache_salt`` separates prefix caches (per API key).
    """

    request_id: str
    params: SamplingParams
    prompt: str | None = None
    prompt_token_ids: list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    priority: int = 0
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class Logprob:
    """vLLM's shape: log-probability, 1-based rank, text of the token; ``bytes`` are the token's raw bytes."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None
    bytes: bytes = b""


@dataclass(slots=True)
class Usage:
    """Token accounting of one request, over all its sequences; one object serves every route.

    ``reasoning_tokens``: those of the completion that were thoughts, their markers not counted; None if thoughts are not told apart.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(slots=True)
class TextDelta:
    """What one step added to one sequence, as text. ``finish_reason`` set: the sequence's last delta ("stop", "length", "abort", "error").

    ``logprobs[i]`` belongs to ``token_ids[i]``: a map from token id to :class:`Logprob`, the sampled token first.
    ``text`` may be empty while a character or a possible stop string is incomplete; concatenated texts are the whole reply.
    ``parts``: the same reply told apart into content, reasoning and tool calls, as far as that is certain; None where nothing is told apart
    (a prompt that is no conversation, or a model whose template shows no format), and then all of ``text`` is content.
    """

    request_id: str
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    parts: ReplyDelta | None = None
    reasoning_tokens: int = 0
