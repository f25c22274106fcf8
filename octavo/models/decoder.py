"""The order of computation that all decoders share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.layers.block import add_norm
from octavo.layers.linear import Embedding, Linear, LMHead

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from octavo.layers.block import Layer
    from octavo.layers.norm import RMSNorm
    from octavo.layers.positions import LearnedPositions
    from octavo.layers.scope import Scope
    from octavo.layers.step import Step
    from octavo.models.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Names:
    """What a checkpoint calls the parts of a decoder: ``embed``, ``layers`` and ``norm`` lie in ``body``, ``head`` beside it."""

    body: str = "model"
    embed: str = "embed_tokens"
    layers: str = "layers"
    norm: str = "norm"
    head: str = "lm_head"
    projection: str = "project"


class Decoder:
    """Token embeddings, layers, a norm, and a head that gives logits.

    ``layer(scope, i)`` builds layer i, ``norm(scope)`` the last norm, if there is one. ``positions`` are added to the embeddings, which
    ``embed_norm`` then norms. Embeddings of another ``embed_width`` than the layers' are projected, and so is what the head sees.
    """

    def __init__(
        self,
        scope: Scope,
        sizes: Sizes,
        layer: Callable[[Scope, int], Layer],
        norm: Callable[[Scope], RMSNorm] | None,
        *,
        tied: bool,
        names: Names = Names(),
        embed_scale: float = 1.0,
        embed_width: int | None = None,
        positions: LearnedPositions | None = None,
        embed_norm: RMSNorm | None = None,
        head_bias: bool = False,
        logit_scale: float = 1.0,
        softcap: float | None = None,
        unit_rows: bool = False,
    ) -> None:
        self.backend = scope.backend
        body, width = scope.optional(names.body), embed_width or sizes.hidden
        self.embed_tokens = Embedding(body / names.embed, sizes.vocab, width, scale=embed_scale)
        self.project_in = self.project_out = None
        if width != sizes.hidden:
            self.project_in = Linear(body / f"{names.projection}_in", width, sizes.hidden)
            self.project_out = Linear(body / f"{names.projection}_out", sizes.hidden, width)
        self.positions, self.embed_norm = positions, embed_norm
        self.layers = [layer(body / names.layers / i, i) for i in range(sizes.layers)]
        self.norm = norm(body / names.norm) if norm is not None else None
        shared = self.embed_tokens if tied else None
        self.lm_head = LMHead(
            scope / names.head, sizes.vocab, width, tied=shared, bias=head_bias, scale=logit_scale, softcap=softcap, unit_rows=unit_rows
        )
        self.vocab_size = sizes.vocab
        self.max_positions = scope.max_positions
        self.attention_layers = scope.attention_layers()

    def __call__(self, step: Step) -> Tensor:
        x, residual = self.embed_tokens(step.token_ids), None
        if self.project_in is not None:
            x = self.project_in(x)
        if self.positions is not None:
            x = self.backend.add(x, self.positions(step.positions))
        if self.embed_norm is not None:
            x, _ = self.embed_norm(x)
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        x = add_norm(self.backend, self.norm, x, residual)[0]
        return x if self.project_out is None else self.project_out(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)
