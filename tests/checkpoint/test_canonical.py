"""Older keys of configurations against the usual ones."""

from __future__ import annotations

import pytest
from transformers import BloomConfig, FalconConfig, GPT2Config, GPTJConfig, MptConfig, OPTConfig

from octavo.checkpoint.canonical import canonical

SIZES = {"hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 3}


@pytest.mark.parametrize(
    ("config", "more"),
    [
        (GPT2Config(n_embd=48, n_layer=5, n_head=3, n_positions=77), {"max_position_embeddings": 77, "intermediate_size": 192}),
        (GPT2Config(n_embd=48, n_layer=5, n_head=3, n_inner=50, layer_norm_epsilon=1e-3), {"intermediate_size": 50, "rms_norm_eps": 1e-3}),
        (GPTJConfig(n_embd=48, n_layer=5, n_head=3, activation_function="relu"), {"hidden_act": "relu"}),
        (MptConfig(d_model=48, n_layers=5, n_heads=3, max_seq_len=99, expansion_ratio=2), {"max_position_embeddings": 99, "intermediate_size": 96}),
        (BloomConfig(hidden_size=48, n_layer=5, n_head=3), {"max_position_embeddings": 2048, "intermediate_size": 192}),
        (FalconConfig(**SIZES, activation="gelu"), {"hidden_act": "gelu", "intermediate_size": 192}),
        (OPTConfig(**SIZES, ffn_dim=60), {"intermediate_size": 60}),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_older_names_are_translated(config: object, more: dict[str, object]) -> None:
    found = canonical(config.to_dict())  # type: ignore[attr-defined]
    for key, value in (SIZES | more).items():
        assert found[key] == value, key


def test_the_usual_name_wins_and_nothing_is_taken_away() -> None:
    config = {"hidden_size": 8, "n_embd": 4, "other": [1]}
    assert canonical(config) == {"hidden_size": 8, "n_embd": 4, "other": [1], "intermediate_size": 32}
    assert canonical({"hidden_size": 8}) == {"hidden_size": 8}  # Llama-like: its size must be stated


@pytest.mark.parametrize(
    ("rope", "most"),
    [
        ({"rope_type": "dynamic", "factor": 4.0}, 4000),
        ({"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 600}, 1200),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}, 4000),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 250}, 1000),
        ({"rope_type": "yarn", "factor": float("inf"), "original_max_position_embeddings": 1000}, 1000),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 1000}, 1000),
        ({"rope_type": "linear", "factor": 8.0}, 1000),
    ],
    ids=str,
)
def test_stretched_contexts(rope: dict[str, object], most: int) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        found = canonical({"max_position_embeddings": 1000, key: rope})
        assert found["max_position_embeddings"] == most
        original = 1000 if rope == {"rope_type": "dynamic", "factor": 4.0} else rope.get("original_max_position_embeddings")
        assert found[key].get("original_max_position_embeddings") == original
