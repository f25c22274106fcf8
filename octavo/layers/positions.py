"""Learned embeddings of positions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.weights.loader import Part, Rows

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.backend.base import PackedWeight
    from octavo.layers.scope import Scope


class LearnedPositions:
    """Row ``offset`` + p of a table [``stored``, hidden] for position p."""

    weight: PackedWeight

    def __init__(self, scope: Scope, stored: int, hidden_size: int, *, offset: int = 0) -> None:
        self.backend = scope.backend
        table = Part(scope.tensor("weight"), stored - offset, Rows(stored, stored, offset, stored - offset))
        scope.loader.matrix([table], hidden_size, partial(setattr, self, "weight"), scheme=scope.scheme)

    def __call__(self, positions: Tensor) -> Tensor:
        """positions int64 [T] -> float32 [T, hidden]."""
        return self.backend.embed(positions, self.weight)
