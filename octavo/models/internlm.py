"""InternLM2: Llama under names of its own, with queries, keys and values in one tensor."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.layers.attention import Attention, fused_qkv
from octavo.layers.block import Block
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.models.decoder import Decoder, Names
from octavo.models.rotation import make_rope
from octavo.models.sizes import Sizes
from octavo.weights.loader import Part

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig


def internlm2(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = Sizes.read(config)
    rope = make_rope(scope, config, sizes)
    norm = partial(RMSNorm, size=sizes.hidden, eps=sizes.eps)
    bias = config.flag("bias", False)
    spec = sizes.attention()
    qkv = fused_qkv(spec, "wqkv", groups=sizes.kv_heads)
    gate_up = [Part("w1", sizes.intermediate), Part("w3", sizes.intermediate)]

    def layer(place: Scope, i: int) -> Block:
        attention = Attention(place / "attention", sizes.hidden, spec, rope, qkv=qkv, output="wo", bias=bias, output_bias=bias)
        mlp = GatedMLP(place / "feed_forward", sizes.hidden, sizes.intermediate, sizes.activation, gate_up=gate_up, down="w2")
        return Block(attention, mlp, norm(place / "attention_norm"), norm(place / "ffn_norm"))

    names = Names(embed="tok_embeddings", head="output")
    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", False), names=names)
