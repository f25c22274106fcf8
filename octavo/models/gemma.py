"""Gemma 1, 2 and 3, text: norms that multiply by 1 + weight, scaled embeddings; from 2 on norms on both sides of every block and local layers that
slide between global ones; 2 caps scores and logits, 3 norms queries and keys and rotates local layers differently."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from octavo.errors import UnsupportedModel
from octavo.layers.attention import Attention
from octavo.layers.block import Block
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rope import Rope
from octavo.models.decoder import Decoder
from octavo.models.rotation import make_rope, rope_parameters
from octavo.models.sizes import Sizes, window_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig

HEAD_DIM = 256  # where a configuration says nothing else
SCALAR = 256.0
WINDOW = 4096
PATTERN = 6  # every sixth layer of Gemma 3 is global
GLOBAL_THETA, LOCAL_THETA = 1e6, 1e4
ATTENTION_CAP, LOGIT_CAP = 50.0, 30.0  # of Gemma 2

Norm = partial(RMSNorm, offset=1.0)


def gemma(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = _sizes(config)
    rope = make_rope(scope, config, sizes)
    bias = config.flag("attention_bias", False)

    def layer(place: Scope, i: int) -> Block:
        attention = Attention(place / "self_attn", sizes.hidden, sizes.attention(), rope, bias=bias, output_bias=bias)
        mlp = GatedMLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation)
        before = [Norm(place / name, sizes.hidden, sizes.eps) for name in ("input_layernorm", "post_attention_layernorm")]
        return Block(attention, mlp, *before)

    return _decoder(scope, config, sizes, layer)


def gemma2(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = _sizes(config)
    rope = make_rope(scope, config, sizes)
    slides = window_layers(config, sizes.layers, otherwise=[i % 2 == 0 for i in range(sizes.layers)])
    caps = _cap(config, "attn_logit_softcapping", ATTENTION_CAP), _cap(config, "final_logit_softcapping", LOGIT_CAP)
    layer = partial(_sandwich, config, sizes, [rope] * sizes.layers, slides, caps[0], False)
    return _decoder(scope, config, sizes, layer, softcap=caps[1])


def gemma3(scope: Scope, config: ModelConfig) -> Decoder:
    sizes = _sizes(config)
    everywhere = Rope(scope, sizes.head_dim, rope_parameters(config, "rope_theta", GLOBAL_THETA, "full_attention"))
    nearby = Rope(scope, sizes.head_dim, rope_parameters(config, "rope_local_base_freq", LOCAL_THETA, "sliding_attention", scaled=False))
    # Configurations written before ``layer_types`` give the distance between global layers.
    pattern = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", PATTERN))
    slides = window_layers(config, sizes.layers, otherwise=[(i + 1) % pattern != 0 for i in range(sizes.layers)])
    ropes = [nearby if slide else everywhere for slide in slides]
    layer = partial(_sandwich, config, sizes, ropes, slides, config.positive("attn_logit_softcapping", None), True)
    return _decoder(scope, config, sizes, layer, softcap=config.positive("final_logit_softcapping", None))


def _sandwich(
    config: ModelConfig, sizes: Sizes, ropes: Sequence[Rope], slides: Sequence[bool], softcap: float | None, qk_norm: bool, place: Scope, i: int
) -> Block:
    attn = place / "self_attn"
    bias = config.flag("attention_bias", False)
    attention = Attention(
        attn,
        sizes.hidden,
        sizes.attention(
            scale=config.positive("query_pre_attn_scalar", SCALAR) ** -0.5,
            window=config.integer("sliding_window", WINDOW) if slides[i] else None,
            softcap=softcap,
        ),
        ropes[i],
        bias=bias,
        output_bias=bias,
        q_norm=Norm(attn / "q_norm", sizes.head_dim, sizes.eps) if qk_norm else None,
        k_norm=Norm(attn / "k_norm", sizes.head_dim, sizes.eps) if qk_norm else None,
    )
    mlp = GatedMLP(place / "mlp", sizes.hidden, sizes.intermediate, sizes.activation)
    names = "input_layernorm", "pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"
    before_attention, before_mlp, after_attention, after_mlp = (Norm(place / name, sizes.hidden, sizes.eps) for name in names)
    return Block(attention, mlp, before_attention, before_mlp, after_attention=after_attention, after_mlp=after_mlp)


def _sizes(config: ModelConfig) -> Sizes:
    if config.flag("use_bidirectional_attention", False):
        raise UnsupportedModel("Gemma with bidirectional attention (an embedding model) is not supported")
    return Sizes.read(config, head_dim=HEAD_DIM, activation="gelu_pytorch_tanh")


def _cap(config: ModelConfig, key: str, default: float) -> float | None:
    """Null means none here; only a missing key means the default."""
    return config.positive(key, None) if key in config.values else default


def _decoder(
    scope: Scope, config: ModelConfig, sizes: Sizes, layer: Callable[[Scope, int], Block], softcap: float | None = None
) -> Decoder:
    tied = config.flag("tie_word_embeddings", True)
    norm = partial(Norm, size=sizes.hidden, eps=sizes.eps)
    return Decoder(scope, sizes, layer, norm, tied=tied, embed_scale=sizes.hidden**0.5, softcap=softcap)
