"""Groups of ranks that compute one model together. A layer adds up or collects through its group and never asks how many ranks there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Group(Protocol):
    """``rank`` of this process, 0 .. ``size`` - 1. Every rank makes the same calls in the same order."""

    rank: int
    size: int

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of every rank's ``x``, added in the order of ranks; may work in place and returns what to use."""
        ...

    def gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """Every rank's ``x`` concatenated along ``dim`` in the order of ranks, on every rank."""
        ...
