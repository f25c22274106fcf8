"""From one AddRequest to the sequences the scheduler runs. Everything wrong with a request is found here, before anything is allocated."""

from __future__ import annotations

import copy
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.core.request import Request
from octavo.errors import InvalidParameter, PromptTooLong

if TYPE_CHECKING:
    from octavo.core.sampling_params import SamplingParams
    from octavo.engine.messages import AddRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must respect. ``kv_tokens``: tokens the whole KV cache holds."""

    vocab_size: int
    max_model_len: int
    kv_tokens: int


def sequences(message: AddRequest, limits: Limits) -> list[Request]:
    """One Request a sequence that is still to run, in order of index.

    The first runs as parent and the others fork from it when its prompt is computed. A resumed request has no parent unless nothing was emitted
    yet: its sequences have gone different ways, and what they share is found again in the prefix cache. Raises RequestError.
    """
    check(message, limits)
    params = _seeded(message.params)
    prompt = message.prompt_token_ids
    forks = not message.finished and not any(message.resumed.values())
    made: list[Request] = []
    for index in range(params.n):
        if index in message.finished:
            continue
        made.append(
            Request(
                message.request_id,
                prompt + message.resumed.get(index, []),
                params,
                index=index,
                prompt_len=len(prompt),
                max_len=message.max_len,
                eos_token_ids=message.eos_token_ids,
                priority=message.priority,
                arrival=message.arrival,
                cache_salt=message.cache_salt,
                parent=made[0] if forks and made else None,
            )
        )
    return made


def check(message: AddRequest, limits: Limits) -> None:
    """Raise InvalidParameter or PromptTooLong with the numbers, or return."""
    prompt, params = message.prompt_token_ids, message.params
    if not prompt:
        raise InvalidParameter("the prompt is empty", param="prompt")
    _check_ids("prompt", prompt, limits.vocab_size)
    params.check_vocab(limits.vocab_size)
    for index, ids in message.resumed.items():
        if not 0 <= index < params.n:
            raise InvalidParameter(f"resumed names sequence {index}, the request has {params.n}", param="resumed")
        _check_ids("resumed", ids, limits.vocab_size)
    for index in message.finished:
        if not 0 <= index < params.n:
            raise InvalidParameter(f"finished names sequence {index}, the request has {params.n}", param="finished")
    if message.max_len > limits.max_model_len:
        raise PromptTooLong(f"prompt plus output may reach {message.max_len:,} tokens, the context is {limits.max_model_len:,}", param="max_tokens")
    if message.max_len > limits.kv_tokens:
        raise PromptTooLong(f"prompt plus output may reach {message.max_len:,} tokens, the KV cache holds {limits.kv_tokens:,}", param="max_tokens")
    if len(prompt) >= message.max_len:
        raise PromptTooLong(f"prompt has {len(prompt):,} tokens, prompt plus output are limited to {message.max_len:,}", param="prompt")


def _check_ids(name: str, ids: list[int], vocab_size: int) -> None:
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        wrong = next(i for i in ids if not 0 <= i < vocab_size)
        raise InvalidParameter(f"{name} holds token id {wrong:,}, the vocabulary has {vocab_size:,} entries", param=name)


def _seeded(params: SamplingParams) -> SamplingParams:
    """A seed for a request that came without one. The sender's object stays as it was: it may be shared between requests."""
    if params.seed is not None:
        return params
    params = copy.copy(params)
    params.seed = secrets.randbits(63)
    return params
