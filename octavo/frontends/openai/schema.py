"""Bodies of the OpenAI routes: requests with vLLM's extra fields, replies, and stream chunks. JSON stops here; typed objects go inward."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

# --- requests ---


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerateFields(Struct, kw_only=True):
    """What both routes take. None means: not given, so the model's or the library's default holds."""

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None  # accepted as OpenAI does; it names the end user for the operator and changes nothing
    # vLLM's
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool | None = None
    priority: int = 0
    cache_salt: str | None = None
    request_id: str | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None


class ChatRequest(GenerateFields, kw_only=True):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool = True


class CompletionRequest(GenerateFields, kw_only=True):
    """Body of ``POST /v1/completions``. ``prompt``: text, a list of texts, token ids, or a list of lists of token ids."""

    prompt: Any
    logprobs: int | None = None
    echo: bool = False


# --- replies ---


class PromptTokensDetails(Struct):
    cached_tokens: int


class CompletionTokensDetails(Struct):
    reasoning_tokens: int


class UsageBody(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class PromptLogprob(Struct):
    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[TokenLogprob]
    refusal: None = None


class FunctionDelta(Struct):
    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallChunk(Struct, kw_only=True):
    """A step of a streamed call: id, type and name come first, then pieces of the arguments."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallChunk] | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class Head(Struct, kw_only=True):
    """What every object of one reply repeats."""

    id: str
    object: str
    created: int
    model: str


class ChatChunk(Head, kw_only=True):
    """One event of a chat stream. ``usage``: absent unless asked for; then null but in the chunks that carry it."""

    choices: list[ChatChunkChoice]
    usage: UsageBody | UnsetType | None = UNSET
    system_fingerprint: str
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Function(Struct):
    name: str
    arguments: str


class ToolCall(Struct):
    id: str
    type: str
    function: Function


class ChatMessage(Struct):
    """``content`` is null where a reply holds tool calls alone."""

    role: str
    content: str | None
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Head, kw_only=True):
    choices: list[ChatChoice]
    usage: UsageBody
    system_fingerprint: str
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class CompletionLogprobs(Struct):
    """Parallel lists; the first token of an echoed prompt has no logprob. ``text_offset`` counts characters of the token texts."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


class CompletionChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Head, kw_only=True):
    """A completions reply, and one event of its stream: they have the same shape."""

    choices: list[CompletionChoice]
    usage: UsageBody | UnsetType | None = UNSET
    system_fingerprint: str


class ModelCard(Struct, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: None = None
    max_model_len: int | None


class ModelList(Struct, kw_only=True):
    object: str = "list"
    data: list[ModelCard]


class ErrorInfo(Struct, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: int


class ErrorBody(Struct):
    error: ErrorInfo
