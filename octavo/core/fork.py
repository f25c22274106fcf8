"""Sequences of one request share their prompt: the first computes it, the others wait and fork from its blocks.

    add ──► waits for parent ──parent's first token──► holds the parent's prompt blocks ──► runs
                  │                                          │
                  └── parent ended, or blocks were taken back: an ordinary request that computes its own prompt
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.request import FINISHED, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.core.kv import KVCache


def attach(request: Request) -> None:
    """Let a new request wait for its parent, if it has one whose prompt is the same and not yet computed."""
    parent = request.parent
    if parent is None:
        return
    same = request.cache_salt == parent.cache_salt and request.token_ids == parent.token_ids[: parent.prompt_len]
    if same and parent.unreported and parent.status != FINISHED:
        parent.forks.append(request)
        request.gate = _after_parent(request, request.gate)
    else:
        request.parent = None


def resolve(parent: Request, cache: KVCache) -> None:
    """The parent's prompt is computed: its forks hold it too. To be called before the parent gives up its blocks."""
    for child in parent.forks:
        child.num_computed = cache.adopt(child, parent)
        child.num_cached, child.prompt_logprobs, child.parent = 0, None, None
    parent.forks = []


def detach(request: Request) -> None:
    """The request is over: it waits for nobody, and nobody waits for it."""
    for child in request.forks:
        child.parent = None
    request.forks = []
    if request.parent is not None:
        request.parent.forks.remove(request)
        request.parent = None


def _after_parent(request: Request, gate: Callable[[], bool] | None) -> Callable[[], bool]:
    """The parent's prompt is there (or will never be), and whatever else the request waits for."""
    return lambda: request.parent is None and (gate is None or gate())
