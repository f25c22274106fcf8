"""Qwen2 and Qwen2.5 (biases on queries, keys and values) and Qwen3 (norms of queries and keys instead); upper layers may slide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.models.llama import Variant, build
from octavo.models.sizes import Sizes, window_layers

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig
    from octavo.models.decoder import Decoder

QWEN3_HEAD_DIM = 128  # where a configuration says nothing else


def qwen2(scope: Scope, config: ModelConfig) -> Decoder:
    return build(scope, config, Variant(qkv_bias=True, windows=_windows(config)))


def qwen3(scope: Scope, config: ModelConfig) -> Decoder:
    bias = config.flag("attention_bias", False)
    variant = Variant(bias, bias, qk_norm=True, windows=_windows(config), head_dim=QWEN3_HEAD_DIM)
    return build(scope, config, variant)


def _windows(config: ModelConfig) -> list[int | None]:
    layers = Sizes.read(config).layers
    if not config.flag("use_sliding_window", False):
        return [None] * layers
    first = config.integer("max_window_layers", 28)
    slides = window_layers(config, layers, otherwise=[i >= first for i in range(layers)])
    window = config.integer("sliding_window", 4096)
    return [window if slide else None for slide in slides]
