"""Baichuan 1 and 2: Llama with queries, keys and values in one tensor; 7B rotates, 13B has ALiBi."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.layers.attention import Attention, alibi_slopes, fused_qkv
from octavo.layers.block import Block
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.models.decoder import Decoder
from octavo.models.rotation import make_rope
from octavo.models.sizes import Sizes

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig

ROTARY_HIDDEN = 4096  # of Baichuan 7B; 13B has another size and ALiBi, and its configuration does not say so
NORM_HEAD_VOCAB = 125696  # of Baichuan 2, whose head counts every row with length 1


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
