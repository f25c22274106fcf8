"""What the configurations of all decoders share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.errors import FormatError, UnsupportedModel
from octavo.layers.rope import RopeParameters

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
    max_positions: int
    eps: float
    activation: str

    @classmethod
    def read(cls, config: ModelConfig, head_dim: int | None = None, activation: str = "silu") -> Sizes:
        """``head_dim`` and ``activation`` are the family's defaults; a head is hidden_size / num_attention_heads without one."""
        hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        kv_heads = config.integer("num_key_value_heads", heads)
        if heads % kv_heads:
            raise FormatError(f"the configuration has {heads} num_attention_heads, which {kv_heads} num_key_value_heads do not divide")
        if head_dim is None and config.integer("head_dim", None) is None and hidden % heads:
            raise FormatError(f"the configuration has hidden_size {hidden}, which {heads} num_attention_heads do not divide, and no head_dim")
        size = config.integer("head_dim", head_dim or hidden // heads, most=_LARGEST_HEAD)
        if size % 2:
            raise FormatError(f"the configuration has head_dim {size}; rotary embeddings need an even one")
        return cls(
            vocab=config.integer("vocab_size"),
            hidden=hidden,
            intermediate=config.integer("intermediate_size"),
            layers=config.integer("num_hidden_layers", most=_MOST_LAYERS),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=size,
            max_positions=config.integer("max_position_embeddings"),
            eps=config.positive("rms_norm_eps", 1e-6),
            activation=config.text("hidden_activation", config.text("hidden_act", activation)),
        )


def rope_parameters(
    config: ModelConfig, theta_key: str = "rope_theta", theta: float = 10000.0, layer_type: str = "", scaled: bool = True
) -> RopeParameters:
    """Rotary parameters in either convention: ``rope_parameters`` (perhaps keyed by ``layer_type``), or ``theta_key`` beside ``rope_scaling``.

    ``theta`` is the family's default; ``scaled`` false means that the old ``rope_scaling`` does not concern these layers.
    """
    section = config.section("rope_parameters")
    if section is not None and layer_type in section.values:
        section = section.section(layer_type)
    elif section is None and scaled:
        section = config.section("rope_scaling")
    theta = config.positive(theta_key, theta)
    rotated = config.positive("partial_rotary_factor", 1.0)
    if rotated != 1.0:
        raise UnsupportedModel(f"rotating {rotated:g} of each head (partial_rotary_factor) is not supported for this architecture")
    if section is None:
        return RopeParameters(theta)
    theta = section.positive("rope_theta", theta)
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "linear":
        return RopeParameters(theta, kind, section.positive("factor"))
    if kind != "llama3":
        return RopeParameters(theta, kind)
    low, high = section.positive("low_freq_factor"), section.positive("high_freq_factor")
    if high <= low:
        raise FormatError(f"the configuration has {section.place}high_freq_factor {high}, which must exceed low_freq_factor {low}")
    original = section.integer("original_max_position_embeddings", config.integer("max_position_embeddings"))
    return RopeParameters(theta, kind, section.positive("factor"), low, high, original)


def window_layers(config: ModelConfig, layers: int, otherwise: list[bool]) -> list[bool]:
    """Which layers slide: from ``layer_types`` if there is one, else ``otherwise``."""
    types = config.texts("layer_types", layers)
    if types is None:
        return otherwise
    for unknown in set(types) - {"sliding_attention", "full_attention"}:
        raise UnsupportedModel(f"attention of type {unknown!r} is not supported")
    return [kind == "sliding_attention" for kind in types]
