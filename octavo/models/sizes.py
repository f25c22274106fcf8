"""What configurations of all decoders say alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.backend.base import AttentionSpec
from octavo.errors import FormatError, UnsupportedModel

if TYPE_CHECKING:
    from octavo.models.config import ModelConfig

_MOST_LAYERS = 4096
_LARGEST_HEAD = 4096


@dataclass(frozen=True, slots=True)
class Sizes:
    """What every decoder's configuration says, under the same keys."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    activation: str

    @classmethod
    def read(
        cls, config: ModelConfig, head_dim: int | None = None, activation: str = "silu", eps: float = 1e-6, kv_heads: int | None = None
    ) -> Sizes:
        """``head_dim``, ``activation`` and ``eps`` are the family's defaults; a head is hidden_size / num_attention_heads without one.
        ``kv_heads`` is what a family that does not say num_key_value_heads has."""
        hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        kv_heads = kv_heads or config.integer("num_key_value_heads", heads)
        if heads % kv_heads:
            raise FormatError(f"the configuration has {heads} num_attention_heads, which {kv_heads} num_key_value_heads do not divide")
        if head_dim is None and config.integer("head_dim", None) is None and hidden % heads:
            raise FormatError(f"the configuration has hidden_size {hidden}, which {heads} num_attention_heads do not divide, and no head_dim")
        return cls(
            vocab=config.integer("vocab_size"),
            hidden=hidden,
            intermediate=config.integer("intermediate_size"),
            layers=config.integer("num_hidden_layers", most=_MOST_LAYERS),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=config.integer("head_dim", head_dim or hidden // heads, most=_LARGEST_HEAD),
            eps=config.positive("rms_norm_eps", eps),
            activation=config.text("hidden_activation", config.text("hidden_act", activation)),
        )

    def attention(
        self,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        alibi_slopes: tuple[float, ...] | None = None,
    ) -> AttentionSpec:
        """Attention with these heads; ``scale`` is 1 / sqrt(head size) unless given."""
        scale = self.head_dim**-0.5 if scale is None else scale
        return AttentionSpec(self.heads, self.kv_heads, self.head_dim, scale, window, softcap, alibi_slopes)


def window_layers(config: ModelConfig, layers: int, otherwise: list[bool]) -> list[bool]:
    """Which layers slide: from ``layer_types`` if there is one, else ``otherwise``."""
    types = config.texts("layer_types", layers)
    if types is None:
        return otherwise
    for unknown in set(types) - {"sliding_attention", "full_attention"}:
        raise UnsupportedModel(f"attention of type {unknown!r} is not supported")
    return [kind == "sliding_attention" for kind in types]
