"""When a sequence ends by itself: a stop token, or its length. Stop strings are text and belong to the service."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.core.request import Request

STOP, LENGTH, ABORT, ERROR = "stop", "length", "abort", "error"


def cut(request: Request, tokens: list[int]) -> tuple[list[int], str | None, int | None]:
    """Cut ``tokens`` (new ones, not yet appended) after the first that ends the request.

    Returns (kept, finish reason or None, stop token or None). The stop token itself is kept. Stop tokens count only beyond ``min_tokens``
    outputs; a token that both stops and fills the length stops.
    """
    length = len(request.token_ids)
    for count, token in enumerate(tokens, 1):
        length += 1
        if length > request.min_len and token in request.stop_ids:
            return tokens[:count], STOP, token
        if length >= request.max_len:
            return tokens[:count], LENGTH, None
    return tokens, None, None


def over_at_arrival(request: Request) -> tuple[str, str | None] | None:
    """(finish reason, error) of a request that cannot produce a token, else None."""
    known = len(request.token_ids)
    if known == 0 or request.prompt_len == 0:
        return ERROR, "the prompt is empty; at least one token is needed"
    if known < request.max_len:
        return None
    if request.num_output > 0:
        return LENGTH, None  # resumed, and nothing was left to do
    return ERROR, f"the prompt has {known:,} tokens, but prompt and output together may have {request.max_len:,}"


def too_large(request: Request, max_tokens: int) -> str:
    """What to tell a request that does not fit the whole KV cache."""
    return f"the sequence needs {len(request.token_ids):,} tokens of KV cache, the whole cache holds {max_tokens:,}; enlarge kv_cache_memory_bytes"
