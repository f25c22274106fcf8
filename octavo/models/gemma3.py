"""Gemma 3, text: local layers that slide between global ones, norms on both sides of every block and on queries and keys, scaled embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.backend.base import AttentionSpec
from octavo.errors import UnsupportedModel
from octavo.layers.attention import Attention
from octavo.layers.linear import Embedding, LMHead
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rope import Rope
from octavo.models.decoder import Sizes, rope_parameters, window_layers

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.layers.scope import Scope
    from octavo.layers.step import Step
    from octavo.models.config import ModelConfig

HEAD_DIM = 256  # where a configuration says nothing else
SCALAR = 256.0
WINDOW = 4096
PATTERN = 6  # every sixth layer is global
GLOBAL_THETA, LOCAL_THETA = 1e6, 1e4


def norm(scope: Scope, size: int, eps: float) -> RMSNorm:
    """Gemma's norms multiply by 1 + weight."""
    return RMSNorm(scope, size, eps, offset=1.0)


class DecoderLayer:
    def __init__(self, scope: Scope, config: ModelConfig, sizes: Sizes, rope: Rope, window: int | None) -> None:
        attn = scope / "self_attn"
        spec = AttentionSpec(
            sizes.heads,
            sizes.kv_heads,
            sizes.head_dim,
            scale=config.positive("query_pre_attn_scalar", SCALAR) ** -0.5,
            window=window,
            softcap=config.positive("attn_logit_softcapping", None),
        )
        bias = config.flag("attention_bias", False)
        self.input_layernorm = norm(scope / "input_layernorm", sizes.hidden, sizes.eps)
        self.self_attn = Attention(
            attn,
            sizes.hidden,
            spec,
            rope,
            bias=bias,
            output_bias=bias,
            q_norm=norm(attn / "q_norm", sizes.head_dim, sizes.eps),
            k_norm=norm(attn / "k_norm", sizes.head_dim, sizes.eps),
        )
        self.post_attention_layernorm = norm(scope / "post_attention_layernorm", sizes.hidden, sizes.eps)
        self.pre_feedforward_layernorm = norm(scope / "pre_feedforward_layernorm", sizes.hidden, sizes.eps)
        self.mlp = GatedMLP(scope / "mlp", sizes.hidden, sizes.intermediate, sizes.activation)
        self.post_feedforward_layernorm = norm(scope / "post_feedforward_layernorm", sizes.hidden, sizes.eps)

    def __call__(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = self.input_layernorm(x, residual)
        x = self.self_attn(x, step)
        x, _ = self.post_attention_layernorm(x)
        x, residual = self.pre_feedforward_layernorm(x, residual)
        x = self.mlp(x)
        x, _ = self.post_feedforward_layernorm(x)
        return x, residual


class Gemma3:
    def __init__(self, scope: Scope, config: ModelConfig) -> None:
        if config.flag("use_bidirectional_attention", False):
            raise UnsupportedModel("Gemma 3 with bidirectional attention (an embedding model) is not supported")
        sizes = Sizes.read(config, head_dim=HEAD_DIM, activation="gelu_pytorch_tanh")
        body = scope / "model"
        everywhere = Rope(scope, sizes.head_dim, rope_parameters(config, "rope_theta", GLOBAL_THETA, "full_attention"))
        nearby = Rope(scope, sizes.head_dim, rope_parameters(config, "rope_local_base_freq", LOCAL_THETA, "sliding_attention", scaled=False))
        window = config.integer("sliding_window", WINDOW)
        tied = config.flag("tie_word_embeddings", True)
        self.embed_tokens = Embedding(body / "embed_tokens", sizes.vocab, sizes.hidden, scale=sizes.hidden**0.5)
        self.layers = [
            DecoderLayer(body / "layers" / i, config, sizes, nearby if slides else everywhere, window if slides else None)
            for i, slides in enumerate(_slides(config, sizes.layers))
        ]
        self.norm = norm(body / "norm", sizes.hidden, sizes.eps)
        softcap = config.positive("final_logit_softcapping", None)
        self.lm_head = LMHead(scope / "lm_head", sizes.vocab, sizes.hidden, tied=self.embed_tokens if tied else None, softcap=softcap)
        self.vocab_size = sizes.vocab
        self.max_positions = scope.max_positions
        self.attention_layers = scope.attention_layers()

    def __call__(self, step: Step) -> Tensor:
        x, residual = self.embed_tokens(step.token_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        x, _ = self.norm(x, residual)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)


def _slides(config: ModelConfig, layers: int) -> list[bool]:
    """Which layers are local. Configurations written before ``layer_types`` give the distance between global layers."""
    pattern = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", PATTERN))
    return window_layers(config, layers, otherwise=[(i + 1) % pattern != 0 for i in range(layers)])
