"""SmolLM3: Llama in which every fourth layer rotates nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.models.llama import Variant, build
from octavo.models.sizes import Sizes, window_layers

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig
    from octavo.models.decoder import Decoder

INTERVAL = 4
WINDOW = 4096


def smollm3(scope: Scope, config: ModelConfig) -> Decoder:
    layers = Sizes.read(config).layers
    bias = config.flag("attention_bias", False)
    rotates = config.flags("no_rope_layers", layers)  # despite its name: true where a layer rotates
    if rotates is None:
        interval = config.integer("no_rope_layer_interval", INTERVAL)
        rotates = [(i + 1) % interval != 0 for i in range(layers)]
    slides = [False] * layers
    if config.flag("use_sliding_window", False):
        slides = window_layers(config, layers, otherwise=rotates)
    window = config.integer("sliding_window", WINDOW)
    variant = Variant(
        bias,
        bias,
        config.flag("mlp_bias", False),
        windows=[window if slide else None for slide in slides],
        unrotated=frozenset(i for i, rotated in enumerate(rotates) if not rotated),
        tied=True,
    )
    return build(scope, config, variant)
