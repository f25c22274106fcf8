"""Rotary parameters from configurations of every age."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from octavo.errors import FormatError
from octavo.layers.rope import Rope, RopeParameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.layers.scope import Scope
    from octavo.models.config import ModelConfig
    from octavo.models.sizes import Sizes


def make_rope(scope: Scope, config: ModelConfig, sizes: Sizes, *, partial: float = 1.0, theta: float = 10000.0, interleaved: bool = False) -> Rope:
    """The rotation that a configuration describes; ``partial`` and ``theta`` are the family's defaults."""
    return Rope(scope, rotated(config, sizes.head_dim, partial), rope_parameters(config, theta=theta), interleaved=interleaved)


def rotated(config: ModelConfig, head_dim: int, partial: float = 1.0) -> int:
    """How many components of a head are rotated."""
    share = config.positive("partial_rotary_factor", partial)
    section = config.section("rope_parameters")
    if section is not None:
        share = section.positive("partial_rotary_factor", share)
    rot = int(head_dim * share)
    if rot % 2 or not 0 < rot <= head_dim:
        part = f"{rot} of head_dim {head_dim}" if rot != head_dim else f"head_dim {head_dim}"
        raise FormatError(f"the configuration rotates {part}; rotary embeddings need an even one")
    return rot


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
    if section is None:
        return RopeParameters(theta)
    theta = section.positive("rope_theta", theta)
    kind = section.text("rope_type", section.text("type", "default"))
    read = _READERS.get(_OLD_KINDS.get(kind, kind))
    return RopeParameters(theta, kind) if read is None else read(theta, section, config)


def _linear(theta: float, section: ModelConfig, config: ModelConfig) -> RopeParameters:
    return RopeParameters(theta, "linear", section.positive("factor"))


def _dynamic(theta: float, section: ModelConfig, config: ModelConfig) -> RopeParameters:
    original = section.integer("original_max_position_embeddings", config.integer("max_position_embeddings"))
    return RopeParameters(theta, "dynamic", section.positive("factor"), original_max_positions=original)


def _llama3(theta: float, section: ModelConfig, config: ModelConfig) -> RopeParameters:
    low, high = section.positive("low_freq_factor"), section.positive("high_freq_factor")
    if high <= low:
        raise FormatError(f"the configuration has {section.place}high_freq_factor {high}, which must exceed low_freq_factor {low}")
    original = section.integer("original_max_position_embeddings", config.integer("max_position_embeddings"))
    return RopeParameters(theta, "llama3", section.positive("factor"), low, high, original)


def _yarn(theta: float, section: ModelConfig, config: ModelConfig) -> RopeParameters:
    most = config.integer("max_position_embeddings")
    original = section.integer("original_max_position_embeddings", most)
    factor = section.positive("factor", most / original)
    attention = section.positive("attention_factor", None)
    mscale, all_dim = (section.positive(key, None) for key in ("mscale", "mscale_all_dim"))
    if attention is None and mscale and all_dim and factor > 1:
        attention = (0.1 * mscale * math.log(factor) + 1.0) / (0.1 * all_dim * math.log(factor) + 1.0)
    return RopeParameters(
        theta,
        "yarn",
        factor,
        original_max_positions=original,
        attention_factor=attention,
        beta_fast=section.positive("beta_fast", 32.0),
        beta_slow=section.positive("beta_slow", 1.0),
        truncate=section.flag("truncate", True),
    )


def _longrope(theta: float, section: ModelConfig, config: ModelConfig) -> RopeParameters:
    most = config.integer("max_position_embeddings")
    original = config.integer("original_max_position_embeddings", section.integer("original_max_position_embeddings", most))
    return RopeParameters(
        theta,
        "longrope",
        section.positive("factor", most / original),
        original_max_positions=original,
        attention_factor=section.positive("attention_factor", None),
        short_factor=section.positives("short_factor"),
        long_factor=section.positives("long_factor"),
    )


_READERS: dict[str, Callable[[float, ModelConfig, ModelConfig], RopeParameters]] = {
    "linear": _linear, "dynamic": _dynamic, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope,
}  # fmt: skip
_OLD_KINDS = {"su": "longrope", "ntk": "dynamic"}
