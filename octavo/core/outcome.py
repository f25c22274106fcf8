"""The rare parts of a step's result: log-probabilities, draft tokens, and what the first delta of a sequence carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core import fork

if TYPE_CHECKING:
    from octavo.core.kv import KVCache
    from octavo.core.plan import StepResult, TokenDelta
    from octavo.core.request import Request


def take_extras(request: Request, i: int, start: int, delta: TokenDelta | None, result: StepResult) -> None:
    """Take in the optional columns of row ``i``, which began at position ``start``. ``delta`` is None if the row did not sample."""
    scored = request.prompt_logprobs
    if scored is not None and i in result.prompt_logprobs:
        scored += result.prompt_logprobs[i][len(scored) - start :]  # a preempted prompt is scored again from its beginning
        del scored[request.prompt_len - 1 :]
    if delta is not None:
        if i in result.logprobs:
            delta.logprobs = result.logprobs[i][: len(delta.token_ids)]
        if i in result.draft:
            request.draft = result.draft[i][: max(0, request.max_len - len(request.token_ids) - 1)]


def report_first(request: Request, delta: TokenDelta, cache: KVCache) -> None:
    """First delta of a sequence: it carries what was learnt about the prompt, and opens the way for the forks."""
    request.unreported = False
    delta.num_cached_tokens = request.num_cached
    delta.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
    fork.resolve(request, cache)
