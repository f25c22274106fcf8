"""One set of configuration keys. Families named the same sizes differently before Llama's names became usual; here the older ones are translated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Older key -> the usual one, which wins where both are present. The order decides between several of one meaning.
ALIASES = {
    "n_embd": "hidden_size", "d_model": "hidden_size",
    "n_layer": "num_hidden_layers", "n_layers": "num_hidden_layers", "num_layers": "num_hidden_layers",
    "n_head": "num_attention_heads", "n_heads": "num_attention_heads",
    "n_inner": "intermediate_size", "ffn_dim": "intermediate_size", "ffn_hidden_size": "intermediate_size",
    "n_positions": "max_position_embeddings", "max_seq_len": "max_position_embeddings", "seq_length": "max_position_embeddings",
    "n_ctx": "max_position_embeddings", "model_max_length": "max_position_embeddings",
    "padded_vocab_size": "vocab_size",
    "layer_norm_eps": "rms_norm_eps", "layer_norm_epsilon": "rms_norm_eps", "layernorm_epsilon": "rms_norm_eps", "norm_epsilon": "rms_norm_eps",
    "norm_eps": "rms_norm_eps",
    "activation_function": "hidden_act", "activation": "hidden_act",
    "rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta",
}  # fmt: skip

# What configurations of a model type leave out because every model of that type has it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "bloom": {"max_position_embeddings": 2048},
    "falcon": {"max_position_embeddings": 2048},
    "RefinedWeb": {"max_position_embeddings": 2048},
    "RefinedWebModel": {"max_position_embeddings": 2048},
}


def canonical(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with its usual keys filled in; nothing is taken away. A feed-forward network of no stated size is ``expansion_ratio`` (4) times as
    wide as the model."""
    result = dict(config)
    for old, usual in ALIASES.items():
        if result.get(old) is not None and result.get(usual) is None:
            result[usual] = result[old]
    for key, value in DEFAULTS.get(str(result.get("model_type")), {}).items():
        if result.get(key) is None:
            result[key] = value
    hidden = result.get("hidden_size")
    if result.get("intermediate_size") is None and isinstance(hidden, int) and any(key in config for key in ALIASES):
        ratio = config.get("expansion_ratio", 4)
        result["intermediate_size"] = hidden * ratio if isinstance(ratio, int) else None
    _stretch(result)
    return result


def _stretch(config: dict[str, Any]) -> None:
    """``max_position_embeddings`` becomes the context that a configuration stretches it to: with "dynamic" it is the original one, with "yarn" it may
    be, and then ``factor`` times as many positions can be computed."""
    key = next((key for key in ("rope_parameters", "rope_scaling") if isinstance(config.get(key), dict)), None)
    most = config.get("max_position_embeddings")
    if key is None or not isinstance(most, int):
        return
    rope = config[key]
    kind, factor, original = rope.get("rope_type", rope.get("type")), rope.get("factor"), rope.get("original_max_position_embeddings")
    if kind == "dynamic":
        original = most if original is None else original
        config[key] = {**rope, "original_max_position_embeddings": original}
    if kind in ("dynamic", "yarn") and isinstance(factor, int | float) and isinstance(original, int) and 1 < factor * original < 1 << 31:
        config["max_position_embeddings"] = max(most, int(original * factor))
