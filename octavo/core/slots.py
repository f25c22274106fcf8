"""The worker's slot table as the scheduler sees it: who sits where, and when a seat may be given to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.plan import Row

if TYPE_CHECKING:
    from octavo.core.request import Request


class SlotTable:
    """``requests[slot]`` is the request in a slot or None. A slot that a plan in flight may name is not given away before its commit."""

    __slots__ = ("_cooling", "_drops", "free", "requests")

    def __init__(self, num_slots: int) -> None:
        self.requests: list[Request | None] = [None] * num_slots
        self.free = list(range(num_slots - 1, -1, -1))
        self._drops: list[int] = []
        self._cooling: list[tuple[int, int]] = []  # (step, slot): free once that step is committed

    def begin(self, committed: int) -> list[int]:
        """A new plan is made and steps up to ``committed`` are over: free what may be freed; returns the slots that the plan drops."""
        if self._cooling:
            self.free += [slot for step, slot in self._cooling if step <= committed]
            self._cooling = [entry for entry in self._cooling if entry[0] > committed]
        drops, self._drops = self._drops, []
        return drops

    def take(self, request: Request) -> None:
        request.slot = self.free.pop()
        self.requests[request.slot] = request

    def leave(self, request: Request, step: int) -> None:
        """``step``: number of the last plan that may name the slot."""
        slot, request.slot = request.slot, -1
        self.requests[slot] = None
        if request.row.slot < 0:
            self.free.append(slot)  # the worker never heard of it
        else:
            self._drops.append(slot)
            self._cooling.append((step, slot))
            request.row = Row(-1, 0, 0)  # the old one may still lie in a plan
