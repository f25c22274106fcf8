"""Falcon: attention beside the feed-forward network, key/value heads shared by all or by groups of queries."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.layers.attention import Attention, alibi_slopes, fused_qkv
from octavo.layers.block import Block, ParallelBlock
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm
from octavo.models.decoder import Decoder, Names
from octavo.models.rotation import make_rope
from octavo.models.sizes import Sizes

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig

BODY = Names(body="transformer", embed="word_embeddings", layers="h", norm="ln_f")
MLP_NAMES = ("dense_h_to_4h", "dense_4h_to_h")


def falcon(scope: Scope, config: ModelConfig) -> Decoder:
    """Falcon 7B has one key/value head, 40B ("new decoder architecture") a few, 1B (RefinedWeb) as many as there are queries, and ALiBi."""
    heads, stated = config.integer("num_attention_heads"), config.integer("num_kv_heads", config.integer("n_head_kv", None))
    new = config.flag("new_decoder_architecture", "n_head_kv" in config.values)
    kv_heads = (stated or heads) if new else 1 if config.flag("multi_query", True) else heads
    sizes = Sizes.read(config, activation="gelu", eps=1e-5, kv_heads=kv_heads)
    parallel, alibi, bias = config.flag("parallel_attn", True), config.flag("alibi", False), config.flag("bias", False)
    two_norms = new and config.integer("num_ln_in_parallel_attn", 2) == 2
    norm = partial(LayerNorm, size=sizes.hidden, eps=sizes.eps, bias=True)
    rope = None if alibi else make_rope(scope, config, sizes)
    # Falcon scales scores after adding the bias, so the bias is scaled as well.
    slopes = tuple(slope * sizes.head_dim**-0.5 for slope in alibi_slopes(heads)) if alibi else None
    spec = sizes.attention(alibi_slopes=slopes)
    qkv = fused_qkv(spec, "query_key_value", groups=kv_heads)

    def layer(place: Scope, i: int) -> Block | ParallelBlock:
        attention = Attention(place / "self_attention", sizes.hidden, spec, rope, qkv=qkv, output="dense", bias=bias, output_bias=bias)
        mlp = MLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation, names=MLP_NAMES, bias=bias)
        if not parallel:
            return Block(attention, mlp, norm(place / "input_layernorm"), norm(place / "post_attention_layernorm"))
        if two_norms:
            return ParallelBlock(attention, mlp, norm(place / "ln_attn"), norm(place / "ln_mlp"))
        return ParallelBlock(attention, mlp, norm(place / "input_layernorm"))

    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", True), names=BODY)
