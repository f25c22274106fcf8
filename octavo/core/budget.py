"""What one step may spend. Waiting requests ask each budget in turn; the first that says no passes them over.

Budgets are recomputed from the running requests each step, so aborts and preemptions need no bookkeeping here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.core.kv import KVCache
    from octavo.core.request import Request


class Budget(Protocol):
    def begin(self, running: Sequence[Request]) -> None:
        """A step starts with these requests running (in order of rank)."""
        ...

    @property
    def full(self) -> bool:
        """Nobody more fits, whoever it is."""
        ...

    def fits(self, request: Request) -> bool:
        """Would this waiting request fit?"""
        ...

    def take(self, request: Request) -> None:
        """It was admitted."""
        ...


def fair_shares(wants: Sequence[int], total: int) -> list[int]:
    """Max-min fair division: nobody gets more than it wants, and what the small leave goes to the large in equal parts. All of ``total`` is
    given if it is wanted; each gets at least 1 if ``total >= len(wants)``."""
    shares = [0] * len(wants)
    for done, i in enumerate(sorted(range(len(wants)), key=wants.__getitem__)):
        shares[i] = min(wants[i], -(-total // (len(wants) - done)))
        total -= shares[i]
    return shares


class RowBudget:
    """Rows of a step: at most ``limit`` requests run, each in a slot of its own. ``free_slots`` is the scheduler's list, read only here."""

    def __init__(self, limit: int, free_slots: Sequence[int]) -> None:
        self._limit, self._free_slots = limit, free_slots
        self._used = 0

    def begin(self, running: Sequence[Request]) -> None:
        self._used = len(running)

    @property
    def full(self) -> bool:
        return self._used >= self._limit or not self._free_slots

    def fits(self, request: Request) -> bool:
        return not self.full

    def take(self, request: Request) -> None:
        self._used += 1


class TokenBudget:
    """Tokens of a step. A request that wants one token (it decodes) always gets it; prompts share what is left.

    While others decode, prompts together get at most ``prompt_share`` of the budget. ``sharers`` prompts are served side by side, the first
    in order; the next ones get what these leave, so that many prompts do not all crawl.
    """

    def __init__(self, limit: int, *, prompt_share: float = 0.5, sharers: int = 4) -> None:
        self._limit, self._prompt_limit, self._sharers = limit, max(1, int(limit * prompt_share)), sharers
        self._prompts: list[Request] = []
        self._wanted = 0  # tokens the prompts want
        self._decoding = 0
        self._drafted = 0

    def begin(self, running: Sequence[Request]) -> None:
        prompts, drafted, wanted = [], 0, 0
        for request in running:
            want = len(request.token_ids) - request.num_computed
            if want > 1:
                prompts.append(request)
                wanted += want
            elif request.draft:
                drafted += len(request.draft)
        self._prompts, self._wanted, self._drafted = prompts, wanted, drafted
        self._decoding = len(running) - len(prompts)

    @property
    def full(self) -> bool:
        spare = self._limit - self._decoding
        return len(self._prompts) >= spare or (len(self._prompts) >= self._sharers and self._wanted >= self._for_prompts())

    def fits(self, request: Request) -> bool:
        return not self.full

    def take(self, request: Request) -> None:
        want = len(request.token_ids) - request.num_computed
        if want > 1:
            self._prompts.append(request)
            self._wanted += want
        else:
            self._decoding += 1

    def shares(self) -> dict[Request, int]:
        """Tokens each prompt may compute in this step; prompts that get none are absent. The first in order gets at least one."""
        given: dict[Request, int] = {}
        if not self._prompts:
            return given
        left = self._for_prompts()
        prompts = sorted(self._prompts, key=lambda request: request.order)
        for begin in range(0, len(prompts), self._sharers):
            if left < 1:
                break
            group = prompts[begin : begin + self._sharers]
            for request, share in zip(group, fair_shares([len(r.token_ids) - r.num_computed for r in group], left), strict=True):
                if share:
                    given[request] = share
                    left -= share
        return given

    def drafts(self) -> int:
        """Draft tokens that may be verified in this step; beside prompts they get at most half of what decoding leaves."""
        if not self._drafted:
            return 0
        spare = self._limit - self._decoding
        return min(self._drafted, (spare - len(self._prompts)) // 2 if self._prompts else spare)

    def _for_prompts(self) -> int:
        spare = self._limit - self._decoding - self.drafts()
        return min(spare, max(self._prompt_limit, len(self._prompts))) if self._decoding else spare


class BlockBudget:
    """KV blocks. A request is admitted only if all its known tokens fit beside what the running ones still need for theirs.

    ``margin`` of the blocks (and one more) stays free for decoding while anything runs, so that a newcomer is not preempted at once.
    """

    def __init__(self, cache: KVCache, margin: float = 0.01) -> None:
        self._cache, self._margin = cache, 1 + int(cache.num_blocks * margin)
        self._promised = 0
        self._idle = True

    def begin(self, running: Sequence[Request]) -> None:
        self._promised = sum(self._missing(request) for request in running)
        self._idle = not running

    @property
    def full(self) -> bool:
        return not self._idle and self._cache.num_free - self._promised < self._margin

    def fits(self, request: Request) -> bool:
        """Before the request has its prefix this is an upper bound of what fits (cached blocks may be free ones); after, it is exact."""
        missing = self._missing(request)
        if not request.block_ids and request.prompt_logprobs is None:
            missing -= self._cache.match(request) // self._cache.block_size
        return missing + (0 if self._idle else self._margin) <= self._cache.num_free - self._promised

    def take(self, request: Request) -> None:
        self._promised += self._missing(request)
        self._idle = False

    def _missing(self, request: Request) -> int:
        return max(0, -(-len(request.token_ids) // self._cache.block_size) - len(request.block_ids))
