"""Linear layers, embeddings and the output head: the layers that own weight matrices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from octavo.backend.exact import tanh
from octavo.weights.loader import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from octavo.backend.base import PackedWeight
    from octavo.layers.scope import Scope
    from octavo.weights.loader import Shard


_NORM_ROWS = 4096  # rows of a head whose lengths are taken at a time


class Linear:
    """y = x @ W.T (+ bias), composed of fields: the packed weight brings the scheme, ``shard`` what ranks divide, ``reduce`` the sum over ranks.

    ``outputs`` is one size for a tensor called ``scope``, or parts of projections computed as one, whose results follow one another in the last
    dimension; a part's name is relative to ``scope`` (``[Part("q_proj", 576), Part("k_proj", 192), Part("v_proj", 192)]``).
    """

    weight: PackedWeight
    bias: Tensor | None = None

    def __init__(
        self, scope: Scope, inputs: int, outputs: int | Sequence[Part], *, bias: bool = False, shard: Shard | None = None, transposed: bool = False
    ) -> None:
        parts = [Part("", outputs)] if isinstance(outputs, int) else outputs
        places = [scope / part.name if part.name else scope for part in parts]
        weights = [part._replace(name=place.tensor("weight"), transposed=transposed) for place, part in zip(places, parts, strict=True)]
        scope.loader.matrix(weights, inputs, partial(setattr, self, "weight"), shard=shard, scheme=scope.scheme)
        if bias:
            biases = [part._replace(name=place.tensor("bias")) for place, part in zip(places, parts, strict=True)]
            scope.loader.vector(biases, partial(setattr, self, "bias"), shard=shard)
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
    """Logits over the vocabulary, whole on every rank. With ``tied`` it computes with the embedding's own packed weight.

    Logits are scaled by ``scale``, then capped. ``unit_rows``: every row of the matrix counts with length 1 (Baichuan 2's NormHead).
    """

    weight: PackedWeight
    bias: Tensor | None = None
    row_scale: Tensor | None = None

    def __init__(
        self,
        scope: Scope,
        vocab_size: int,
        hidden_size: int,
        *,
        tied: Embedding | None = None,
        bias: bool = False,
        scale: float = 1.0,
        softcap: float | None = None,
        unit_rows: bool = False,
    ) -> None:
        self.softcap, self.scale, self.unit_rows = softcap, scale, unit_rows
        own = Part(scope.tensor("weight"), vocab_size)
        if tied is not None:
            scope.loader.ignore(own.name)  # some exporters store the shared matrix twice
        scope.loader.matrix([tied.part if tied is not None else own], hidden_size, self._place, scheme=scope.scheme)
        if bias:
            scope.loader.vector([Part(scope.tensor("bias"), vocab_size)], partial(setattr, self, "bias"))

    def _place(self, weight: PackedWeight) -> None:
        self.weight = weight
        if self.unit_rows:
            pieces = torch.split(torch.arange(weight.shape[0]), _NORM_ROWS)  # type: ignore[no-untyped-call]
            self.row_scale = 1.0 / torch.cat([weight.rows(ids).norm(dim=1) for ids in pieces]).clamp(min=1e-12)

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden float32 [R, hidden] -> float32 [R, vocabulary]."""
        logits = self.weight.matmul(hidden)
        if self.row_scale is not None:
            logits = logits.mul_(self.row_scale)
        if self.bias is not None:
            logits = logits.add_(self.bias)
        if self.scale != 1.0:
            logits = logits.mul_(self.scale)
        return logits if self.softcap is None else (tanh(logits.double() / self.softcap) * self.softcap).float()
