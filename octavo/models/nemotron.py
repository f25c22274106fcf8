"""Nemotron 3 and 4, Minitron: layer norms that multiply by 1 + weight, squared ReLU without a gate, half of each head rotated."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.layers.attention import Attention
from octavo.layers.block import Block
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm
from octavo.models.decoder import Decoder
from octavo.models.rotation import make_rope
from octavo.models.sizes import Sizes

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig


def nemotron(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = Sizes.read(config, activation="relu2", eps=1e-5)
    rope = make_rope(scope, config, sizes, partial=0.5)
    norm = partial(LayerNorm, size=sizes.hidden, eps=sizes.eps, offset=1.0, bias=True)
    bias = config.flag("attention_bias", False)

    def layer(place: Scope, i: int) -> Block:
        attention = Attention(place / "self_attn", sizes.hidden, sizes.attention(), rope, bias=bias, output_bias=bias)
        mlp = MLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation, bias=config.flag("mlp_bias", False))
        return Block(attention, mlp, norm(place / "input_layernorm"), norm(place / "post_attention_layernorm"))

    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", False))
