"""How attention and feed-forward network make a layer. Every kind maps (x, residual) to (x, residual): the layer's input and output are their sum,
so that the next norm adds them in passing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.backend.base import Backend
    from octavo.layers.attention import Attention
    from octavo.layers.norm import RMSNorm
    from octavo.layers.step import Step


class FeedForward(Protocol):
    def __call__(self, x: Tensor) -> Tensor: ...


class Layer(Protocol):
    def __call__(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor | None]: ...


class Block:
    """s += multiplier * after(f(before(s))) for attention and then the feed-forward network; a norm that is None does nothing."""

    def __init__(
        self,
        attention: Attention,
        mlp: FeedForward,
        before_attention: RMSNorm | None,
        before_mlp: RMSNorm | None,
        *,
        after_attention: RMSNorm | None = None,
        after_mlp: RMSNorm | None = None,
        multiplier: float = 1.0,
    ) -> None:
        self.attention, self.mlp, self.multiplier = attention, mlp, multiplier
        self.before_attention, self.after_attention = before_attention, after_attention
        self.before_mlp, self.after_mlp = before_mlp, after_mlp

    def __call__(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        backend = self.attention.backend
        x, residual = add_norm(backend, self.before_attention, x, residual)
        x = self._leave(self.after_attention, self.attention(x, step))
        x, residual = add_norm(backend, self.before_mlp, x, residual)
        return self._leave(self.after_mlp, self.mlp(x)), residual

    def _leave(self, norm: RMSNorm | None, x: Tensor) -> Tensor:
        if norm is not None:
            x, _ = norm(x)
        return x if self.multiplier == 1.0 else self.attention.backend.add(x, scale=self.multiplier)


class ParallelBlock:
    """s += attention(norm(s)) + mlp(mlp_norm(s)); without ``mlp_norm`` both see the same values (GPT-J)."""

    def __init__(self, attention: Attention, mlp: FeedForward, norm: RMSNorm, mlp_norm: RMSNorm | None = None) -> None:
        self.attention, self.mlp, self.norm, self.mlp_norm = attention, mlp, norm, mlp_norm

    def __call__(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = self.norm(x, residual)
        other = x if self.mlp_norm is None else self.mlp_norm(residual)[0]
        return self.attention.backend.add(self.attention(x, step), self.mlp(other)), residual


class PostNormBlock:
    """s = norm(s + f(s)) for attention and then the feed-forward network: the first Transformer (Vaswani et al., 2017)."""

    def __init__(self, attention: Attention, mlp: FeedForward, attention_norm: RMSNorm, mlp_norm: RMSNorm) -> None:
        self.attention, self.mlp, self.attention_norm, self.mlp_norm = attention, mlp, attention_norm, mlp_norm

    def __call__(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, None]:
        x, _ = add_norm(self.attention.backend, None, x, residual)
        x, _ = self.attention_norm(self.attention(x, step), x)
        x, _ = self.mlp_norm(self.mlp(x), x)
        return x, None


def add_norm(backend: Backend, norm: RMSNorm | None, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """(norm of x + residual, that sum); without a norm, the sum twice."""
    if norm is not None:
        return norm(x, residual)
    total = x if residual is None else backend.add(x, residual)
    return total, total
