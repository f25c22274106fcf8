"""OLMo (layer norms without weights, clipped projections) and OLMo 2 (norms after each half of a layer, and of all queries and keys as one)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.layers.attention import Attention
from octavo.layers.block import Block
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import LayerNorm, RMSNorm
from octavo.models.decoder import Decoder
from octavo.models.rotation import make_rope
from octavo.models.sizes import Sizes

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig


def olmo(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = Sizes.read(config)
    rope = make_rope(scope, config, sizes)
    bias, clip = config.flag("attention_bias", False), config.positive("clip_qkv", None)
    norm = partial(LayerNorm, size=sizes.hidden, eps=1e-5, scale=False)

    def layer(place: Scope, i: int) -> Block:
        attention = Attention(place / "self_attn", sizes.hidden, sizes.attention(), rope, bias=bias, output_bias=bias, clip=clip)
        mlp = GatedMLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation)
        return Block(attention, mlp, norm(place / "input_layernorm"), norm(place / "post_attention_layernorm"))

    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", False))


def olmo2(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = Sizes.read(config, eps=1e-5)
    rope = make_rope(scope, config, sizes)
    bias = config.flag("attention_bias", False)

    def norm(place: Scope, size: int = sizes.hidden) -> RMSNorm:
        return RMSNorm(place, size, sizes.eps)

    def layer(place: Scope, i: int) -> Block:
        attn = place / "self_attn"
        attention = Attention(
            attn,
            sizes.hidden,
            sizes.attention(),
            rope,
            bias=bias,
            output_bias=bias,
            q_norm=norm(attn / "q_norm", sizes.heads * sizes.head_dim),
            k_norm=norm(attn / "k_norm", sizes.kv_heads * sizes.head_dim),
        )
        mlp = GatedMLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation)
        after = norm(place / "post_attention_layernorm"), norm(place / "post_feedforward_layernorm")
        return Block(attention, mlp, None, None, after_attention=after[0], after_mlp=after[1])

    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", False))
