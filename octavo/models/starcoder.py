"""StarCoder2: rotary GPT with biases, grouped queries and a sliding window."""

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


def starcoder2(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = Sizes.read(config, activation="gelu_pytorch_tanh", eps=1e-5)
    rope = make_rope(scope, config, sizes)
    spec = sizes.attention(window=config.integer("sliding_window", None))
    norm = partial(LayerNorm, size=sizes.hidden, eps=sizes.eps, bias=True)
    bias = config.flag("use_bias", True)

    def layer(place: Scope, i: int) -> Block:
        attention = Attention(place / "self_attn", sizes.hidden, spec, rope, bias=bias, output_bias=bias)
        mlp = MLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation, names=("c_fc", "c_proj"), bias=bias)
        return Block(attention, mlp, norm(place / "input_layernorm"), norm(place / "post_attention_layernorm"))

    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", True))
