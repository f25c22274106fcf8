"""MPT: biases of attention that grow with distance (ALiBi), and no biases elsewhere."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.errors import UnsupportedModel
from octavo.layers.attention import Attention, alibi_slopes, fused_qkv
from octavo.layers.block import Block
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm
from octavo.models.config import ModelConfig
from octavo.models.decoder import Decoder, Names
from octavo.models.sizes import Sizes

if TYPE_CHECKING:
    from octavo.layers.scope import Scope


def mpt(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = Sizes.read(config, activation="gelu", eps=1e-5)
    attn = config.section("attn_config") or ModelConfig({})
    kind = attn.text("attn_type", "multihead_attention")
    if kind != "multihead_attention" or not attn.flag("alibi", True) or attn.flag("qk_ln", False) or attn.flag("prefix_lm", False):
        raise UnsupportedModel(f"MPT with {kind} and alibi {attn.flag('alibi', True)}, qk_ln or prefix_lm is not supported")
    if config.values.get("logit_scale") is not None:
        raise UnsupportedModel("MPT with logit_scale is not supported")
    bias = not config.flag("no_bias", True)
    norm = partial(LayerNorm, size=sizes.hidden, eps=sizes.eps, bias=bias)
    slopes = alibi_slopes(sizes.heads, attn.positive("alibi_bias_max", 8.0))
    spec = sizes.attention(scale=attn.positive("softmax_scale", None), alibi_slopes=slopes)
    clip = attn.positive("clip_qkv", None)

    def layer(place: Scope, i: int) -> Block:
        qkv = fused_qkv(spec, "Wqkv")
        attention = Attention(place / "attn", sizes.hidden, spec, None, qkv=qkv, output="out_proj", bias=bias, output_bias=bias, clip=clip)
        mlp = MLP(place / "ffn", sizes.hidden, sizes.intermediate, sizes.activation, bias=bias)
        return Block(attention, mlp, norm(place / "norm_1"), norm(place / "norm_2"))

    names = Names(body="transformer", embed="wte", layers="blocks", norm="norm_f")
    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", True), names=names)
