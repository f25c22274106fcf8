"""KV cache accounting: which block holds whose tokens. Six verbs, integers only; the tensors live in the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from octavo.core.request import Request


class KVCache(Protocol):
    """The block ledger the scheduler drives. Every method keeps :meth:`check` true.

    A request owns ``block_ids`` (its block table) and ``capacity`` (tokens those blocks hold); only the cache writes them.
    """

    block_size: int
    num_blocks: int

    def match(self, request: Request) -> int:
        """Tokens of the request's prefix that are already cached: a multiple of ``block_size`` below ``len(token_ids)``. Changes nothing."""
        ...

    def adopt(self, request: Request, source: Request | None = None) -> int:
        """Give the request its cached prefix (``source`` None), or all blocks of ``source`` that hold its prompt (a fork). Returns tokens
        now computed; a fork gets ``prompt_len - 1`` so that it computes and samples its own last prompt token."""
        ...

    def reserve(self, request: Request, end: int) -> list[tuple[int, int]] | None:
        """Make positions ``[num_computed, end)`` writable: append blocks, and replace shared blocks in that range by fresh ones.
        Returns (source, destination) copies, or None if it does not fit (then nothing changed)."""
        ...

    def publish(self, request: Request) -> None:
        """Make full computed blocks findable by :meth:`match`."""
        ...

    def release(self, request: Request) -> None:
        """Drop the request's blocks; published ones stay findable until reused."""
        ...

    def check(self) -> None:
        """Raise AssertionError unless every block is accounted for exactly once."""
        ...
