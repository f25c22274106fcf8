"""BLOOM: biases of attention that grow with distance (ALiBi) in place of positions, and a norm of the embeddings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.errors import UnsupportedModel
from octavo.layers.attention import Attention, alibi_slopes, fused_qkv
from octavo.layers.block import Block
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm
from octavo.models.decoder import Decoder, Names
from octavo.models.sizes import Sizes

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig

BODY = Names(body="transformer", embed="word_embeddings", layers="h", norm="ln_f")
MLP_NAMES = ("dense_h_to_4h", "dense_4h_to_h")


def bloom(scope: Scope, config: ModelConfig) -> Decoder:
    if config.flag("apply_residual_connection_post_layernorm", False):
        raise UnsupportedModel("BLOOM with apply_residual_connection_post_layernorm is not supported; no published model has it")
    sizes = Sizes.read(config, activation="gelu_tanh", eps=1e-5)
    norm = partial(LayerNorm, size=sizes.hidden, eps=sizes.eps, bias=True)
    spec = sizes.attention(alibi_slopes=alibi_slopes(sizes.heads))
    qkv = fused_qkv(spec, "query_key_value", groups=sizes.heads)

    def layer(place: Scope, i: int) -> Block:
        attention = Attention(place / "self_attention", sizes.hidden, spec, None, qkv=qkv, output="dense", bias=True, output_bias=True)
        mlp = MLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation, names=MLP_NAMES, bias=True)
        return Block(attention, mlp, norm(place / "input_layernorm"), norm(place / "post_attention_layernorm"))

    embed_norm = norm(scope.optional(BODY.body) / "word_embeddings_layernorm")
    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", True), names=BODY, embed_norm=embed_norm)
