"""RMS normalization (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.weights.loader import Part

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.layers.scope import Scope


class RMSNorm:
    """s / sqrt(mean(s^2) + eps) * (offset + weight) over the last dimension. Gemma stores its weights less one: ``offset`` 1."""

    weight: Tensor

    def __init__(self, scope: Scope, size: int, eps: float, *, offset: float = 0.0) -> None:
        self.backend = scope.backend
        self.eps = eps
        self.offset = offset
        scope.loader.vector([Part(scope.tensor("weight"), size)], self._place)

    def _place(self, stored: Tensor) -> None:
        self.weight = stored + self.offset if self.offset else stored

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """s = x + residual (or x); returns (norm of s, s). x float32 [T, size] or [T, H, size]."""
        return self.backend.norm(x, self.weight, self.eps, residual)
