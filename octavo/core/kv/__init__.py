"""KV cache accounting: which block holds whose tokens. Six verbs, integers only; the tensors live in the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from octavo.core.request import Request


class KVUsage(NamedTuple):
    """What the cache holds now. Blocks that only the prefix cache remembers are free, not used."""

    blocks_used: int
    slots_allocated: int  # token slots of the used blocks
    slots_filled: int  # of these, the ones that hold a token

    @property
    def waste(self) -> float:
        """Share of allocated slots that hold no token, 0 when nothing is allocated."""
        return 1.0 - self.slots_filled / self.slots_allocated if self.slots_allocated else 0.0


class ReportsUsage(Protocol):
    def usage(self) -> KVUsage: ...


class KVCache(ReportsUsage, Protocol):
    """The block ledger the scheduler drives. Every method keeps :meth:`check` true.

    A request owns ``block_ids`` (its block table) and ``capacity`` (positions below it may be written without asking); only the cache
    writes them. ``num_free`` counts the blocks that :meth:`reserve` could take now, ``max_tokens`` the tokens one request may hold when
    it has the cache to itself.
    """

    block_size: int
    num_blocks: int
    num_free: int
    max_tokens: int

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


def reserve_up_to(cache: KVCache, request: Request, end: int) -> tuple[int, list[tuple[int, int]] | None]:
    """Reserve up to ``end``, else as far as the free blocks reach, else one token. Returns (new end, copies); copies is None, and the end is
    ``num_computed``, if not even one token fits."""
    start = request.num_computed
    end = min(end, (len(request.block_ids) + cache.num_free) * cache.block_size)
    while end > start:
        copies = cache.reserve(request, end)
        if copies is not None:
            return end, copies
        end = min(end - 1, start + 1)
    return start, None
