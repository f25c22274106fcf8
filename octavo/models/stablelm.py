"""StableLM: Llama with layer norms, part of each head rotated, and in some models norms of each head with weights of its own and parallel blocks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.layers.attention import Attention
from octavo.layers.block import Block, ParallelBlock
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import LayerNorm
from octavo.models.decoder import Decoder
from octavo.models.rotation import make_rope
from octavo.models.sizes import Sizes

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig


def stablelm(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = Sizes.read(config, eps=1e-5)
    rope = make_rope(scope, config, sizes, partial=0.25)
    norm = partial(LayerNorm, size=sizes.hidden, eps=sizes.eps, bias=True)
    head_norm = partial(LayerNorm, size=sizes.head_dim, eps=sizes.eps, apart=not config.flag("stacked_head_norms", False))
    normed, parallel = config.flag("qk_layernorm", False), config.flag("use_parallel_residual", False)
    bias = config.flag("use_qkv_bias", False)

    def layer(place: Scope, i: int) -> Block | ParallelBlock:
        attn = place / "self_attn"
        attention = Attention(
            attn,
            sizes.hidden,
            sizes.attention(),
            rope,
            bias=bias,
            q_norm=head_norm(attn / "q_layernorm" / "norms", heads=sizes.heads) if normed else None,
            k_norm=head_norm(attn / "k_layernorm" / "norms", heads=sizes.kv_heads) if normed else None,
        )
        mlp = GatedMLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation)
        before = norm(place / "input_layernorm")
        return ParallelBlock(attention, mlp, before) if parallel else Block(attention, mlp, before, norm(place / "post_attention_layernorm"))

    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", False))
