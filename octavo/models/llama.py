"""Llama 2 and 3, Mistral, and everything built like them (SmolLM2, TinyLlama, Yi)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.backend.base import AttentionSpec
from octavo.layers.attention import Attention
from octavo.layers.linear import Embedding, LMHead
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rope import Rope
from octavo.models.decoder import Sizes, rope_parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from octavo.layers.scope import Scope
    from octavo.layers.step import Step
    from octavo.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Variant:
    """Where relatives of Llama differ: biases, and the sliding window of each layer (none if empty)."""

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    windows: Sequence[int | None] = ()


class DecoderLayer:
    def __init__(self, scope: Scope, sizes: Sizes, rope: Rope, variant: Variant, window: int | None) -> None:
        spec = AttentionSpec(sizes.heads, sizes.kv_heads, sizes.head_dim, scale=sizes.head_dim**-0.5, window=window)
        self.input_layernorm = RMSNorm(scope / "input_layernorm", sizes.hidden, sizes.eps)
        self.self_attn = Attention(scope / "self_attn", sizes.hidden, spec, rope, bias=variant.qkv_bias, output_bias=variant.output_bias)
        self.post_attention_layernorm = RMSNorm(scope / "post_attention_layernorm", sizes.hidden, sizes.eps)
        self.mlp = GatedMLP(scope / "mlp", sizes.hidden, sizes.intermediate, sizes.activation, bias=variant.mlp_bias)

    def __call__(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = self.input_layernorm(x, residual)
        x = self.self_attn(x, step)
        x, residual = self.post_attention_layernorm(x, residual)
        return self.mlp(x), residual


class Llama:
    def __init__(self, scope: Scope, config: ModelConfig, variant: Variant) -> None:
        sizes = Sizes.read(config)
        body = scope / "model"
        rope = Rope(scope, sizes.head_dim, rope_parameters(config))
        windows = variant.windows or [None] * sizes.layers
        tied = config.flag("tie_word_embeddings", False)
        self.embed_tokens = Embedding(body / "embed_tokens", sizes.vocab, sizes.hidden)
        self.layers = [DecoderLayer(body / "layers" / i, sizes, rope, variant, window) for i, window in enumerate(windows)]
        self.norm = RMSNorm(body / "norm", sizes.hidden, sizes.eps)
        self.lm_head = LMHead(scope / "lm_head", sizes.vocab, sizes.hidden, tied=self.embed_tokens if tied else None)
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


def llama(scope: Scope, config: ModelConfig) -> Llama:
    bias = config.flag("attention_bias", False)
    return Llama(scope, config, Variant(qkv_bias=bias, output_bias=bias, mlp_bias=config.flag("mlp_bias", False)))


def mistral(scope: Scope, config: ModelConfig) -> Llama:
    window = config.integer("sliding_window", None)
    return Llama(scope, config, Variant(windows=[window] * Sizes.read(config).layers))
