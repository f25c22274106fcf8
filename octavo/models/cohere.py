"""Cohere's Command R (attention beside the feed-forward network, neighbours rotated, scaled logits) and Command R7B (local layers rotate, global
ones do not)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.layers.attention import Attention
from octavo.layers.block import ParallelBlock
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import LayerNorm
from octavo.models.decoder import Decoder
from octavo.models.rotation import make_rope
from octavo.models.sizes import Sizes, window_layers

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig

LOGIT_SCALE = 0.0625
WINDOW, PATTERN = 4096, 4  # every fourth layer of R7B is global


def cohere(scope: Scope, config: ModelConfig) -> Decoder:
    return _cohere(scope, config, slides=None)


def cohere2(scope: Scope, config: ModelConfig) -> Decoder:
    layers, pattern = Sizes.read(config).layers, config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", PATTERN))
    return _cohere(scope, config, window_layers(config, layers, otherwise=[(i + 1) % pattern != 0 for i in range(layers)]))


def _cohere(scope: Scope, config: ModelConfig, slides: list[bool] | None) -> Decoder:
    sizes = Sizes.read(config, eps=1e-5)
    rope = make_rope(scope, config, sizes, interleaved=True)
    norm = partial(LayerNorm, size=sizes.hidden, eps=sizes.eps)
    head_norm = partial(LayerNorm, size=sizes.head_dim, eps=sizes.eps)
    normed, bias = config.flag("use_qk_norm", False), config.flag("attention_bias", False)
    window = config.integer("sliding_window", WINDOW)

    def layer(place: Scope, i: int) -> ParallelBlock:
        attn = place / "self_attn"
        attention = Attention(
            attn,
            sizes.hidden,
            sizes.attention(window=window if slides is not None and slides[i] else None),
            rope if slides is None or slides[i] else None,
            bias=bias,
            output_bias=bias,
            q_norm=head_norm(attn / "q_norm", heads=sizes.heads) if normed else None,
            k_norm=head_norm(attn / "k_norm", heads=sizes.kv_heads) if normed else None,
        )
        mlp = GatedMLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation)
        return ParallelBlock(attention, mlp, norm(place / "input_layernorm"))

    tied, logit_scale = config.flag("tie_word_embeddings", True), config.positive("logit_scale", LOGIT_SCALE)
    return Decoder(scope, sizes, layer, norm, tied=tied, logit_scale=logit_scale)
