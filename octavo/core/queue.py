"""Requests that wait, in order of rank, and the rule about overtaking.

A request that does not fit is passed over, so that one giant does not hold up everybody; each time a later one is admitted first, it is counted,
and after ``max_overtaken`` times nobody may overtake it any more.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from octavo.core.request import Request

MAX_OVERTAKEN = 16
MAX_PASSED = 16  # so many requests that do not fit are looked at in one step

by_order = attrgetter("order")


class Queue:
    __slots__ = ("_max_overtaken", "_requests")

    def __init__(self, max_overtaken: int = MAX_OVERTAKEN) -> None:
        self._max_overtaken = max_overtaken
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def push(self, request: Request) -> None:
        insort(self._requests, request, key=by_order)

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def holders(self) -> Sequence[Request]:
        """Forks that hold blocks while they wait."""
        return [request for request in self._requests if request.block_ids]

    def admit(self, ready: Callable[[Request], bool], place: Callable[[Request], bool]) -> Iterator[Request]:
        """Take out, one by one, the requests that are ``ready`` and that ``place`` finds room for. ``ready`` may remove the one it is asked about."""
        requests = self._requests
        passed: list[Request] = []
        at = 0
        while at < len(requests):
            request = requests[at]
            if not ready(request):
                at += at < len(requests) and requests[at] is request
            elif place(request):
                del requests[at]
                request.skipped = 0
                for other in passed:
                    other.skipped += 1
                yield request
            elif request.skipped >= self._max_overtaken or len(passed) == MAX_PASSED:
                return
            else:
                passed.append(request)
                at += 1
