"""OPT: learned positions from row 2 on; the 350M model norms after each half of a layer and has narrower embeddings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.layers.attention import Attention
from octavo.layers.block import Block, PostNormBlock
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm
from octavo.layers.positions import LearnedPositions
from octavo.models.decoder import Decoder, Names
from octavo.models.sizes import Sizes

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig

FIRST_POSITION = 2  # rows before it are of no use


def opt(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = Sizes.read(config, activation="relu", eps=1e-5)
    affine, bias = config.flag("layer_norm_elementwise_affine", True), config.flag("enable_bias", True)
    before = config.flag("do_layer_norm_before", True)
    norm = partial(LayerNorm, size=sizes.hidden, eps=sizes.eps, scale=affine, bias=affine)

    def layer(place: Scope, i: int) -> Block | PostNormBlock:
        attention = Attention(
            place / "self_attn", sizes.hidden, sizes.attention(), None, output="out_proj", bias=bias, output_bias=bias
        )
        mlp = MLP(place, sizes.hidden, sizes.intermediate, sizes.activation, names=("fc1", "fc2"), bias=bias)
        norms = norm(place / "self_attn_layer_norm"), norm(place / "final_layer_norm")
        return Block(attention, mlp, *norms) if before else PostNormBlock(attention, mlp, *norms)

    table = scope.optional("model") / "decoder" / "embed_positions"
    return Decoder(
        scope,
        sizes,
        layer,
        norm if before and not config.flag("_remove_final_layer_norm", False) else None,
        tied=config.flag("tie_word_embeddings", True),
        names=Names(embed="decoder.embed_tokens", layers="decoder.layers", norm="decoder.final_layer_norm", projection="decoder.project"),
        embed_width=config.integer("word_embed_proj_dim", sizes.hidden),
        positions=LearnedPositions(table, config.integer("max_position_embeddings") + FIRST_POSITION, sizes.hidden, offset=FIRST_POSITION),
    )
