"""GPT-2 and GPT-BigCode (learned positions), GPT-NeoX and Pythia, and GPT-J (rotary, attention beside the feed-forward network)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.layers.attention import Attention, fused_qkv
from octavo.layers.block import Block, ParallelBlock
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm
from octavo.layers.positions import LearnedPositions
from octavo.models.decoder import Decoder, Names
from octavo.models.rotation import make_rope
from octavo.models.sizes import Sizes

if TYPE_CHECKING:
    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig

GPT = Names(body="transformer", embed="wte", layers="h", norm="ln_f")


def gpt2(scope: Scope, config: ModelConfig) -> Decoder:
    """Radford et al., 2019. Matrices of the original are stored as [inputs, outputs] ("Conv1D")."""
    return _learned(scope, config, Sizes.read(config, activation="gelu_new", eps=1e-5), 1, config.flag("conv1d", True))


def gpt_bigcode(scope: Scope, config: ModelConfig) -> Decoder:
    """StarCoder 1: one key/value head for all queries, or as many as there are."""
    heads = config.integer("num_attention_heads")
    kv_heads = 1 if config.flag("multi_query", True) else heads
    return _learned(scope, config, Sizes.read(config, activation="gelu_pytorch_tanh", eps=1e-5, kv_heads=kv_heads), kv_heads, False)


def _learned(scope: Scope, config: ModelConfig, sizes: Sizes, groups: int, transposed: bool) -> Decoder:
    norm = partial(LayerNorm, size=sizes.hidden, eps=sizes.eps, bias=True)
    scale = sizes.head_dim**-0.5 if config.flag("scale_attn_weights", True) else 1.0
    deeper = config.flag("scale_attn_by_inverse_layer_idx", False)

    def layer(place: Scope, i: int) -> Block:
        spec = sizes.attention(scale=scale / (i + 1) if deeper else scale)
        qkv = fused_qkv(spec, "c_attn", groups=groups)
        attn = Attention(
            place / "attn", sizes.hidden, spec, None, qkv=qkv, output="c_proj", bias=True, output_bias=True, transposed=transposed
        )
        names = ("c_fc", "c_proj")
        mlp = MLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation, names=names, bias=True, transposed=transposed)
        return Block(attn, mlp, norm(place / "ln_1"), norm(place / "ln_2"))

    table = scope.optional(GPT.body) / "wpe"
    positions = LearnedPositions(table, config.integer("max_position_embeddings"), sizes.hidden)
    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", True), names=GPT, positions=positions)


def gptj(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = Sizes.read(config, activation="gelu_new", eps=1e-5)
    rope = make_rope(scope, config, sizes, partial=config.integer("rotary_dim", sizes.head_dim) / sizes.head_dim, interleaved=True)
    norm = partial(LayerNorm, size=sizes.hidden, eps=sizes.eps, bias=True)

    def layer(place: Scope, i: int) -> ParallelBlock:
        attention = Attention(place / "attn", sizes.hidden, sizes.attention(), rope, output="out_proj")
        mlp = MLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation, names=("fc_in", "fc_out"), bias=True)
        return ParallelBlock(attention, mlp, norm(place / "ln_1"))

    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", False), names=GPT, head_bias=True)


def gpt_neox(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = Sizes.read(config, activation="gelu", eps=1e-5)
    rope = make_rope(scope, config, sizes, partial=0.25)
    norm = partial(LayerNorm, size=sizes.hidden, eps=sizes.eps, bias=True)
    bias, parallel = config.flag("attention_bias", True), config.flag("use_parallel_residual", True)
    spec = sizes.attention()
    qkv = fused_qkv(spec, "query_key_value", groups=sizes.heads)

    def layer(place: Scope, i: int) -> Block | ParallelBlock:
        attention = Attention(place / "attention", sizes.hidden, spec, rope, qkv=qkv, output="dense", bias=bias, output_bias=bias)
        names = ("dense_h_to_4h", "dense_4h_to_h")
        mlp = MLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation, names=names, bias=True)
        block = ParallelBlock if parallel else Block
        return block(attention, mlp, norm(place / "input_layernorm"), norm(place / "post_attention_layernorm"))

    names = Names(body="gpt_neox", embed="embed_in", norm="final_layer_norm", head="embed_out")
    return Decoder(scope, sizes, layer, norm, tied=config.flag("tie_word_embeddings", False), names=names)
