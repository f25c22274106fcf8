"""Llama 2 and 3, Mistral, and everything built like them (SmolLM2, TinyLlama, Yi, Seed-OSS, Ernie 4.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.layers.attention import Attention
from octavo.layers.block import Block
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.models.decoder import Decoder
from octavo.models.rotation import make_rope
from octavo.models.sizes import Sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Variant:
    """Where relatives of Llama differ: biases, norms of each head's queries and keys, the usual head size, the sliding window of each layer (none
    if empty), whether neighbours are rotated, layers without rotation, whether embeddings are usually tied; then the multipliers of embeddings, of
    each half of a layer and of logits, and the scale of attention scores (1 / sqrt(head size) if None)."""

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None
    windows: Sequence[int | None] = ()
    interleaved: bool = False
    unrotated: frozenset[int] = frozenset()
    tied: bool = False
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    attention_scale: float | None = None


def build(scope: Scope, config: ModelConfig, variant: Variant) -> Decoder:
    sizes = Sizes.read(config, head_dim=variant.head_dim)
    rope = make_rope(scope, config, sizes, interleaved=variant.interleaved)
    windows = variant.windows or [None] * sizes.layers

    def norm(place: Scope, size: int = sizes.hidden) -> RMSNorm:
        return RMSNorm(place, size, sizes.eps)

    def layer(place: Scope, i: int) -> Block:
        attn = place / "self_attn"
        attention = Attention(
            attn,
            sizes.hidden,
            sizes.attention(scale=variant.attention_scale, window=windows[i]),
            None if i in variant.unrotated else rope,
            bias=variant.qkv_bias,
            output_bias=variant.output_bias,
            q_norm=norm(attn / "q_norm", sizes.head_dim) if variant.qk_norm else None,
            k_norm=norm(attn / "k_norm", sizes.head_dim) if variant.qk_norm else None,
        )
        mlp = GatedMLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation, bias=variant.mlp_bias)
        norms = norm(place / "input_layernorm"), norm(place / "post_attention_layernorm")
        return Block(attention, mlp, *norms, multiplier=variant.residual_scale)

    tied = config.flag("tie_word_embeddings", variant.tied)
    return Decoder(scope, sizes, layer, norm, tied=tied, embed_scale=variant.embed_scale, logit_scale=variant.logit_scale)


def llama(scope: Scope, config: ModelConfig) -> Decoder:
    bias = config.flag("attention_bias", False)
    return build(scope, config, Variant(qkv_bias=bias, output_bias=bias, mlp_bias=config.flag("mlp_bias", False)))


def mistral(scope: Scope, config: ModelConfig) -> Decoder:
    window = config.integer("sliding_window", None)
    return build(scope, config, Variant(windows=[window] * Sizes.read(config).layers))


def seed_oss(scope: Scope, config: ModelConfig) -> Decoder:
    biases = config.flag("attention_bias", True), config.flag("attention_out_bias", False), config.flag("mlp_bias", False)
    return build(scope, config, Variant(*biases))


def ernie(scope: Scope, config: ModelConfig) -> Decoder:
    """Rotates neighbours."""
    bias = config.flag("use_bias", False)
    return build(scope, config, Variant(bias, bias, bias, interleaved=True, tied=True))
