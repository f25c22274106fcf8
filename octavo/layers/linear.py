"""Linear layers, embeddings and the output head: the layers that own weight matrices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.backend.exact import tanh
from octavo.weights.loader import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from octavo.backend.base import PackedWeight
    from octavo.layers.scope import Scope
    from octavo.weights.loader import Shard


class Linear:
    """y = x @ W.T (+ bias), composed of fields: the packed weight brings the scheme, ``shard`` what ranks divide, ``reduce`` the sum over ranks.

    ``outputs`` is one size for a tensor called ``scope``, or a mapping from name to size for projections stored apart and computed as one
    (``{"q_proj": 576, "k_proj": 192, "v_proj": 192}``), whose results follow one another in the last dimension.
    """

    weight: PackedWeight
    bias: Tensor | None = None

    def __init__(self, scope: Scope, inputs: int, outputs: int | Mapping[str, int], *, bias: bool = False, shard: Shard | None = None) -> None:
        pieces = [(scope, outputs)] if isinstance(outputs, int) else [(scope / name, size) for name, size in outputs.items()]
        weights = [Part(piece.tensor("weight"), size) for piece, size in pieces]
        scope.loader.matrix(weights, inputs, partial(setattr, self, "weight"), shard=shard, scheme=scope.scheme)
        if bias:
            scope.loader.vector([Part(piece.tensor("bias"), size) for piece, size in pieces], partial(setattr, self, "bias"), shard=shard)
        self.reduce: Callable[[Tensor], Tensor] | None = scope.group.all_reduce if shard == "inputs" and scope.group.size > 1 else None

    def __call__(self, x: Tensor) -> Tensor:
        """x float32 [T, inputs of this rank] -> [T, outputs of this rank]."""
        if self.reduce is None:
            return self.weight.matmul(x, self.bias)
        y = self.reduce(self.weight.matmul(x))
        return y if self.bias is None else y.add_(self.bias)


class Embedding:
    """Token embeddings, whole on every rank. ``scale`` multiplies every row looked up."""

    weight: PackedWeight

    def __init__(self, scope: Scope, vocab_size: int, hidden_size: int, *, scale: float = 1.0) -> None:
        self.backend = scope.backend
        self.scale = scale
        self.part = Part(scope.tensor("weight"), vocab_size)
        scope.loader.matrix([self.part], hidden_size, partial(setattr, self, "weight"), scheme=scope.scheme)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids int64 [T] -> float32 [T, hidden]."""
        return self.backend.embed(token_ids, self.weight, self.scale)


class LMHead:
    """Logits over the vocabulary, whole on every rank. With ``tied`` it computes with the embedding's own packed weight."""

    weight: PackedWeight

    def __init__(self, scope: Scope, vocab_size: int, hidden_size: int, *, tied: Embedding | None = None, softcap: float | None = None) -> None:
        self.softcap = softcap
        own = Part(scope.tensor("weight"), vocab_size)
        if tied is not None:
            scope.loader.ignore(own.name)  # some exporters store the shared matrix twice
        scope.loader.matrix([tied.part if tied is not None else own], hidden_size, partial(setattr, self, "weight"), scheme=scope.scheme)

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden float32 [R, hidden] -> float32 [R, vocabulary]."""
        logits = self.weight.matmul(hidden)
        return logits if self.softcap is None else (tanh(logits.double() / self.softcap) * self.softcap).float()
