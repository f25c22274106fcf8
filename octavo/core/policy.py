"""Who goes first, and who gives way when blocks run out.

Ranks are fixed when a request arrives. Ageing that is linear in waiting time needs no more: if waiting t seconds earns t / s, then of any two
requests the order by (value - waited / s) never changes, and equals the order by (value * s + arrival).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.core.request import Request

_MAX_PRIORITY = 2**40  # keeps ranks exact to the microsecond and away from overflow


class Policy(Protocol):
    """Two choices. Policies hold no state about requests."""

    def rank(self, request: Request) -> float:
        """Lowest first; ties go to the earlier arrival. Asked once, when the request is added."""
        ...

    def victim(self, candidates: Sequence[Request]) -> Request:
        """Which running request loses its blocks. ``candidates``: not empty, in order of rank, all of them after the one in need."""
        ...


class FirstComeFirstServed:
    """In order of arrival; who has computed least gives way, because least work is lost."""

    def rank(self, request: Request) -> float:
        return request.arrival

    def victim(self, candidates: Sequence[Request]) -> Request:
        return min(reversed(candidates), key=lambda request: request.num_computed)


class PriorityFirst:
    """Lower ``priority`` first. ``seconds_per_level`` of waiting make up for one level, so nobody starves. The last in order gives way."""

    def __init__(self, seconds_per_level: float = 30.0) -> None:
        self._seconds_per_level = seconds_per_level

    def rank(self, request: Request) -> float:
        priority = max(-_MAX_PRIORITY, min(_MAX_PRIORITY, request.priority))
        return priority * self._seconds_per_level + request.arrival

    def victim(self, candidates: Sequence[Request]) -> Request:
        return candidates[-1]


class ShortestFirst:
    """Fewest known tokens first. A second of waiting makes up for ``tokens_per_second`` tokens. The last in order gives way."""

    def __init__(self, tokens_per_second: float = 256.0) -> None:
        self._tokens_per_second = tokens_per_second

    def rank(self, request: Request) -> float:
        return len(request.token_ids) + self._tokens_per_second * request.arrival

    def victim(self, candidates: Sequence[Request]) -> Request:
        return candidates[-1]
