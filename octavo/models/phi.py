"""Phi-1, 1.5 and 2 (attention and feed-forward network side by side, part of each head rotated) and Phi-3 and 4 (Llama with fused projections)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.layers.attention import Attention, fused_qkv
from octavo.layers.block import Block, ParallelBlock
from octavo.layers.mlp import MLP, GatedMLP, fused_gate_up
from octavo.layers.norm import LayerNorm, RMSNorm
from octavo.models.decoder import Decoder, Names
from octavo.models.rotation import make_rope
from octavo.models.sizes import Sizes

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig


def phi(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = Sizes.read(config, activation="gelu_new", eps=1e-5)
    rope = make_rope(scope, config, sizes, partial=0.5)
    norm = partial(LayerNorm, size=sizes.hidden, eps=sizes.eps, bias=True)
    head_norm = partial(LayerNorm, size=sizes.head_dim, eps=sizes.eps, bias=True)
    normed = config.flag("qk_layernorm", False)

    def layer(place: Scope, i: int) -> ParallelBlock:
        attn = place / "self_attn"
        attention = Attention(
            attn,
            sizes.hidden,
            sizes.attention(),
            rope,
            output="dense",
            bias=True,
            output_bias=True,
            q_norm=head_norm(attn / "q_layernorm") if normed else None,
            k_norm=head_norm(attn / "k_layernorm") if normed else None,
        )
        mlp = MLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation, names=("fc1", "fc2"), bias=True)
        return ParallelBlock(attention, mlp, norm(place / "input_layernorm"))

    names = Names(norm="final_layernorm")
    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", False), names=names, head_bias=True)


def phi3(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = Sizes.read(config, eps=1e-5)
    rope = make_rope(scope, config, sizes)
    spec = sizes.attention(window=config.integer("sliding_window", None))
    norm = partial(RMSNorm, size=sizes.hidden, eps=sizes.eps)
    gate_up = fused_gate_up("gate_up_proj", sizes.intermediate)

    def layer(place: Scope, i: int) -> Block:
        attention = Attention(place / "self_attn", sizes.hidden, spec, rope, qkv=fused_qkv(spec, "qkv_proj"))
        mlp = GatedMLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation, gate_up=gate_up)
        return Block(attention, mlp, norm(place / "input_layernorm"), norm(place / "post_attention_layernorm"))

    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", False))
