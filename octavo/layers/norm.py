"""Normalization: by the root mean square (Zhang and Sennrich, 2019), or of layers (Ba et al., 2016)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from octavo.weights.loader import Part

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.layers.scope import Scope


class RMSNorm:
    """s / sqrt(mean(s^2) + eps) * (offset + weight) + bias over the last dimension.

    Gemma stores its weights less one: ``offset`` 1. ``scale`` and ``bias``: whether there is a weight, and a bias. With ``heads`` every head has
    a weight and bias of its own, stored as [heads, size], or in tensors ``0.weight``, ``1.weight`` ... if they are stored ``apart``.
    """

    center = False
    weight: Tensor
    bias: Tensor | None = None

    def __init__(
        self,
        scope: Scope,
        size: int,
        eps: float,
        *,
        offset: float = 0.0,
        scale: bool = True,
        bias: bool = False,
        heads: int | None = None,
        apart: bool = False,
    ) -> None:
        self.backend, self.group = scope.backend, scope.group
        self.size, self.eps, self.heads = size, eps, heads
        self.weight = torch.ones(size, device=scope.backend.device)
        for name, add in ([("weight", offset)] if scale else []) + ([("bias", 0.0)] if bias else []):
            if heads is None:
                parts = [Part(scope.tensor(name), size)]
            elif apart:
                parts = [Part((scope / head).tensor(name), size) for head in range(heads)]
            else:
                parts = [Part(scope.tensor(name), heads * size, shape=(heads, size))]
            scope.loader.vector(parts, partial(self._place, name, add))

    def _place(self, name: str, offset: float, stored: Tensor) -> None:
        if self.heads is not None:
            share = self.heads // self.group.size
            stored = stored.view(self.heads, self.size)[self.group.rank * share : (self.group.rank + 1) * share].contiguous()
        setattr(self, name, stored + offset if offset else stored)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """s = x + residual (or x); returns (norm of s, s). x float32 [T, size] or [T, H, size]."""
        return self.backend.norm(x, self.weight, self.eps, residual, bias=self.bias, center=self.center)


class LayerNorm(RMSNorm):
    """The same of s - mean(s)."""

    center = True
