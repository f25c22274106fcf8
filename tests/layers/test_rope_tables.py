"""Rotary tables against transformers' cosines and sines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from octavo.errors import UnsupportedModel
from octavo.layers.rope import RopeParameters, rope_table

HEAD, POSITIONS = 64, 4096
LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}


def assert_same(table: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """transformers computes angles in float32, so its error grows with the position: 2**-23 of the angle, from two roundings."""
    half = table.shape[1] // 2
    bound = torch.arange(table.shape[0]).unsqueeze(1) * 2.0**-23 + 2.0**-23
    assert ((table[:, :half] - cos[0, :, :half]).abs() <= bound).all()
    assert ((table[:, half:] - sin[0, :, :half]).abs() <= bound).all()


@pytest.mark.parametrize(
    ("given", "parameters"),
    [
        ({"rope_type": "default", "rope_theta": 10000.0}, RopeParameters(10000.0)),
        ({"rope_type": "default", "rope_theta": 1e6}, RopeParameters(1e6)),
        ({"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, RopeParameters(10000.0, "linear", 4.0)),
        ({"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}, RopeParameters(500000.0, "llama3", 32.0, 1.0, 4.0, 1024)),
    ],
    ids=["default", "theta", "linear", "llama3"],
)
def test_tables_match_transformers(given: dict[str, Any], parameters: RopeParameters) -> None:
    config = LlamaConfig(head_dim=HEAD, max_position_embeddings=POSITIONS, rope_parameters=given)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(POSITIONS).unsqueeze(0))
    assert_same(rope_table(parameters, HEAD, POSITIONS), cos, sin)


def test_tables_of_both_kinds_of_gemma_layers_match_transformers() -> None:
    everywhere, nearby = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, {"rope_type": "default", "rope_theta": 1e4}
    ropes = {"full_attention": everywhere, "sliding_attention": nearby}
    embedding = Gemma3RotaryEmbedding(Gemma3TextConfig(head_dim=HEAD, rope_parameters=ropes))
    positions = torch.arange(POSITIONS).unsqueeze(0)
    for kind, parameters in (("full_attention", RopeParameters(1e6, "linear", 8.0)), ("sliding_attention", RopeParameters(1e4))):
        assert_same(rope_table(parameters, HEAD, POSITIONS), *embedding(torch.zeros(1), positions, kind))


def test_the_first_position_is_not_rotated() -> None:
    table = rope_table(RopeParameters(), 8, 2)
    assert table.dtype == torch.float32
    assert table[0].tolist() == [1.0] * 4 + [0.0] * 4


def test_unknown_kinds_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedModel, match=r"'longrope' is not supported; known: default, linear, llama3"):
        rope_table(RopeParameters(kind="longrope"), 8, 2)
