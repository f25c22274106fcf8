"""Granite 3 and MiniCPM: Llama with multipliers of embeddings, of each half of a layer, and of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.models.llama import Variant, build
from octavo.models.sizes import Sizes

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig
    from octavo.models.decoder import Decoder


def granite(scope: Scope, config: ModelConfig) -> Decoder:
    bias = config.flag("attention_bias", False)
    variant = Variant(
        bias,
        bias,
        config.flag("mlp_bias", False),
        embed_scale=config.positive("embedding_multiplier", 1.0),
        residual_scale=config.positive("residual_multiplier", 1.0),
        logit_scale=1.0 / config.positive("logits_scaling", 1.0),
        attention_scale=config.positive("attention_multiplier", 1.0),
    )
    return build(scope, config, variant)


def minicpm(scope: Scope, config: ModelConfig) -> Decoder:
    """Hu et al., "MiniCPM", 2024: the depth scale is spread over the layers, and the head computes as if the model were as wide as its base."""
    sizes = Sizes.read(config)
    bias = config.flag("attention_bias", False)
    variant = Variant(
        bias,
        bias,
        tied=True,
        embed_scale=config.positive("scale_emb", 1.0),
        residual_scale=config.positive("scale_depth", sizes.layers**0.5) / sizes.layers**0.5,
        logit_scale=config.positive("dim_model_base", sizes.hidden) / sizes.hidden,
    )
    return build(scope, config, variant)
