"""BLOOM, MPT and Falcon: biases of attention that grow with distance (ALiBi) in place of positions, except in the larger Falcons, which rotate."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.errors import UnsupportedModel
from octavo.layers.attention import Attention, alibi_slopes, fused_qkv
from octavo.layers.block import Block, ParallelBlock
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm
from octavo.models.config import ModelConfig
from octavo.models.decoder import Decoder, Names, Sizes, make_rope

if TYPE_CHECKING:
    from octavo.layers.scope import Scope

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
