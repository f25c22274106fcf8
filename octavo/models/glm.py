"""GLM-4 as published in three forms: ChatGLM 2 to 4 (its own names, everything fused), Glm, and Glm4 (norms on both sides of each half of a layer).
All rotate neighbours in half of each head."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.errors import UnsupportedModel
from octavo.layers.attention import Attention, fused_qkv
from octavo.layers.block import Block
from octavo.layers.mlp import GatedMLP, fused_gate_up
from octavo.layers.norm import RMSNorm
from octavo.models.decoder import Decoder, Names
from octavo.models.rotation import make_rope
from octavo.models.sizes import Sizes

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig

EPS = 1.5625e-7
HEAD_DIM = 128
THETA = 10000.0


def glm(scope: Scope, config: ModelConfig) -> Decoder:
    return _glm(scope, config, sandwich=False)


def glm4(scope: Scope, config: ModelConfig) -> Decoder:
    return _glm(scope, config, sandwich=True)


def _glm(scope: Scope, config: ModelConfig, sandwich: bool) -> Decoder:
    sizes = Sizes.read(config, head_dim=HEAD_DIM, eps=EPS)
    rope = make_rope(scope, config, sizes, partial=0.5, interleaved=True)
    norm = partial(RMSNorm, size=sizes.hidden, eps=sizes.eps)
    bias = config.flag("attention_bias", True)
    gate_up = fused_gate_up("gate_up_proj", sizes.intermediate)

    def layer(place: Scope, i: int) -> Block:
        attention = Attention(place / "self_attn", sizes.hidden, sizes.attention(), rope, bias=bias)
        mlp = GatedMLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation, gate_up=gate_up)
        return Block(
            attention,
            mlp,
            norm(place / "input_layernorm"),
            norm(place / "post_attention_layernorm"),
            after_attention=norm(place / "post_self_attn_layernorm") if sandwich else None,
            after_mlp=norm(place / "post_mlp_layernorm") if sandwich else None,
        )

    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", False))


def chatglm(scope: Scope, config: ModelConfig) -> Decoder:
    needed = {"rmsnorm": True, "post_layer_norm": True, "apply_residual_connection_post_layernorm": False}
    for key, value in needed.items():
        if config.flag(key, value) != value:
            raise UnsupportedModel(f"ChatGLM with {key} {not value} is not supported")
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("multi_query_group_num", heads) if config.flag("multi_query_attention", False) else heads
    sizes = Sizes.read(config, head_dim=config.integer("kv_channels", None), eps=1e-5, kv_heads=kv_heads)
    rope = make_rope(scope, config, sizes, partial=0.5, theta=THETA * config.positive("rope_ratio", 1.0), interleaved=True)
    norm = partial(RMSNorm, size=sizes.hidden, eps=sizes.eps)
    bias = config.flag("add_bias_linear", False)
    spec = sizes.attention()
    gate_up = fused_gate_up("dense_h_to_4h", sizes.intermediate)
    scope.loader.ignore("transformer.rotary_pos_emb.inv_freq")

    def layer(place: Scope, i: int) -> Block:
        attention = Attention(
            place / "self_attention",
            sizes.hidden,
            spec,
            rope,
            qkv=fused_qkv(spec, "query_key_value"),
            output="dense",
            bias=bias or config.flag("add_qkv_bias", False),
            output_bias=bias,
        )
        mlp = GatedMLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation, bias=bias, gate_up=gate_up, down="dense_4h_to_h")
        return Block(attention, mlp, norm(place / "input_layernorm"), norm(place / "post_attention_layernorm"))

    names = Names("transformer", "embedding.word_embeddings", "encoder.layers", "encoder.final_layernorm", "transformer.output_layer")
    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", False), names=names)
