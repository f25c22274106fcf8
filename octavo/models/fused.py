"""InternLM2 and Baichuan: Llama with queries, keys and values in one tensor, under names of their own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.layers.attention import Attention, alibi_slopes, fused_qkv
from octavo.layers.block import Block
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.models.decoder import Decoder, Names, Sizes, make_rope
from octavo.weights.loader import Part

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig

ROTARY_HIDDEN = 4096  # of Baichuan 7B; 13B has another size and ALiBi, and its configuration does not say so
NORM_HEAD_VOCAB = 125696  # of Baichuan 2, whose head counts every row with length 1


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


def baichuan(scope: Scope, config: ModelConfig) -> Decoder:
    return _baichuan(scope, config, rotary=config.integer("hidden_size") == ROTARY_HIDDEN)


def baichuan_7b(scope: Scope, config: ModelConfig) -> Decoder:
    """The first release, known by another spelling of its name."""
    return _baichuan(scope, config, rotary=True)


def _baichuan(scope: Scope, config: ModelConfig, rotary: bool) -> Decoder:
    sizes = Sizes.read(config)
    rope = make_rope(scope, config, sizes) if rotary else None
    norm = partial(RMSNorm, size=sizes.hidden, eps=sizes.eps)
    spec = sizes.attention(alibi_slopes=None if rotary else alibi_slopes(sizes.heads))
    qkv = fused_qkv(spec, "W_pack")

    def layer(place: Scope, i: int) -> Block:
        attention = Attention(place / "self_attn", sizes.hidden, spec, rope, qkv=qkv)
        mlp = GatedMLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation)
        return Block(attention, mlp, norm(place / "input_layernorm"), norm(place / "post_attention_layernorm"))

    tied, unit_rows = config.flag("tie_word_embeddings", False), sizes.vocab == NORM_HEAD_VOCAB
    return Decoder(scope, sizes, layer, norm, tied=tied, unit_rows=unit_rows)
