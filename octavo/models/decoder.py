"""What all decoders share: sizes and rotary parameters from their configurations, and the order of computation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.backend.base import AttentionSpec
from octavo.errors import FormatError, UnsupportedModel
from octavo.layers.block import add_norm
from octavo.layers.linear import Embedding, Linear, LMHead
from octavo.layers.rope import Rope, RopeParameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from octavo.layers.block import Layer
    from octavo.layers.norm import RMSNorm
    from octavo.layers.positions import LearnedPositions
    from octavo.layers.scope import Scope
    from octavo.layers.step import Step
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


@dataclass(frozen=True, slots=True)
class Names:
    """What a checkpoint calls the parts of a decoder: ``embed``, ``layers`` and ``norm`` lie in ``body``, ``head`` beside it."""

    body: str = "model"
    embed: str = "embed_tokens"
    layers: str = "layers"
    norm: str = "norm"
    head: str = "lm_head"
    projection: str = "project"


class Decoder:
    """Token embeddings, layers, a norm, and a head that gives logits.

    ``layer(scope, i)`` builds layer i, ``norm(scope)`` the last norm, if there is one. ``positions`` are added to the embeddings, which
    ``embed_norm`` then norms. Embeddings of another ``embed_width`` than the layers' are projected, and so is what the head sees.
    """

    def __init__(
        self,
        scope: Scope,
        sizes: Sizes,
        layer: Callable[[Scope, int], Layer],
        norm: Callable[[Scope], RMSNorm] | None,
        *,
        tied: bool,
        names: Names = Names(),
        embed_scale: float = 1.0,
        embed_width: int | None = None,
        positions: LearnedPositions | None = None,
        embed_norm: RMSNorm | None = None,
        head_bias: bool = False,
        logit_scale: float = 1.0,
        softcap: float | None = None,
        unit_rows: bool = False,
    ) -> None:
        body, width = scope.optional(names.body), embed_width or sizes.hidden
        self.embed_tokens = Embedding(body / names.embed, sizes.vocab, width, scale=embed_scale)
        self.project_in = self.project_out = None
        if width != sizes.hidden:
            self.project_in = Linear(body / f"{names.projection}_in", width, sizes.hidden)
            self.project_out = Linear(body / f"{names.projection}_out", sizes.hidden, width)
        self.positions, self.embed_norm = positions, embed_norm
        self.layers = [layer(body / names.layers / i, i) for i in range(sizes.layers)]
        self.norm = norm(body / names.norm) if norm is not None else None
        shared = self.embed_tokens if tied else None
        self.lm_head = LMHead(
            scope / names.head, sizes.vocab, width, tied=shared, bias=head_bias, scale=logit_scale, softcap=softcap, unit_rows=unit_rows
        )
        self.vocab_size = sizes.vocab
        self.max_positions = scope.max_positions
        self.attention_layers = scope.attention_layers()

    def __call__(self, step: Step) -> Tensor:
        x, residual = self.embed_tokens(step.token_ids), None
        if self.project_in is not None:
            x = self.project_in(x)
        if self.positions is not None:
            x = x + self.positions(step.positions)
        if self.embed_norm is not None:
            x, _ = self.embed_norm(x)
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        x = add_norm(self.norm, x, residual)[0]
        return x if self.project_out is None else self.project_out(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)


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


def window_layers(config: ModelConfig, layers: int, otherwise: list[bool]) -> list[bool]:
    """Which layers slide: from ``layer_types`` if there is one, else ``otherwise``."""
    types = config.texts("layer_types", layers)
    if types is None:
        return otherwise
    for unknown in set(types) - {"sliding_attention", "full_attention"}:
        raise UnsupportedModel(f"attention of type {unknown!r} is not supported")
    return [kind == "sliding_attention" for kind in types]
