"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, and a sliding window that its upper layers may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.models.decoder import Sizes, window_layers
from octavo.models.llama import Llama, Variant

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig


def qwen2(scope: Scope, config: ModelConfig) -> Llama:
    return Llama(scope, config, Variant(qkv_bias=True, windows=_windows(config)))


def _windows(config: ModelConfig) -> list[int | None]:
    layers = Sizes.read(config).layers
    if not config.flag("use_sliding_window", False):
        return [None] * layers
    first = config.integer("max_window_layers", 28)
    slides = window_layers(config, layers, otherwise=[i >= first for i in range(layers)])
    window = config.integer("sliding_window", 4096)
    return [window if slide else None for slide in slides]
