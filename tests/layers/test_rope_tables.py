"""Rotary tables against transformers' cosines and sines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from octavo.errors import FormatError, UnsupportedModel
from octavo.layers.rope import RopeParameters, rope_table
from octavo.models.config import ModelConfig
from octavo.models.rotation import rope_parameters, rotated

HEAD, POSITIONS = 64, 4096
LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 512}
LONGROPE = {
    "short_factor": [1 + 0.03 * i for i in range(HEAD // 2)],
    "long_factor": [1 + 0.9 * i for i in range(HEAD // 2)],
    "original_max_position_embeddings": 512,
}


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


@pytest.mark.parametrize(
    "given",
    [
        YARN,
        {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        {**YARN, "attention_factor": 0.7},
        {**YARN, "mscale": 0.8, "mscale_all_dim": 0.4},
        {**YARN, "partial_rotary_factor": 0.5},
        {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0, "partial_rotary_factor": 0.25},
        {"rope_type": "longrope", "rope_theta": 10000.0, **LONGROPE},
        {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 6.0, **LONGROPE},
        {"rope_type": "longrope", "rope_theta": 10000.0, "attention_factor": 1.3, **LONGROPE},
    ],
    ids=["yarn", "betas", "factor", "mscale", "partial", "dynamic", "linear-partial", "longrope", "longrope-factor", "longrope-attention"],
)
def test_configurations_give_the_frequencies_of_transformers(given: dict[str, Any]) -> None:
    """Of models loaded for fewer positions than they were made for, for as many, and for more: two kinds look at that."""
    config = LlamaConfig(head_dim=HEAD, max_position_embeddings=POSITIONS, rope_parameters=dict(given))
    read = ModelConfig({"max_position_embeddings": POSITIONS, "rope_parameters": given})
    for length in (256, POSITIONS, 4 * POSITIONS):
        frequencies, factor = ROPE_INIT_FUNCTIONS[given["rope_type"]](config, torch.device("cpu"), seq_len=length)
        table = rope_table(rope_parameters(read), rotated(read, HEAD), length)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies.double()
        expected = torch.cat([angles.cos(), angles.sin()], dim=1) * factor
        assert table.shape == expected.shape
        bound = (torch.arange(length)[:, None] * 3 + 3) * 2.0**-23  # their frequencies are float32
        assert ((table - expected).abs() <= bound).all(), length


def test_longrope_needs_a_factor_for_every_frequency() -> None:
    with pytest.raises(FormatError, match="longrope has 3 factors for 4 frequencies"):
        rope_table(RopeParameters(kind="longrope", short_factor=(1.0,) * 3, long_factor=(1.0,) * 3), 8, 16)


@pytest.mark.parametrize(
    "parameters",
    [
        RopeParameters(1.0, "yarn", 2.0, original_max_positions=64),
        RopeParameters(1e4, "longrope", 2.0, original_max_positions=1, short_factor=(1.0,), long_factor=(1.0,)),
        RopeParameters(1e4, "dynamic", 2.0, original_max_positions=64),
    ],
    ids=lambda parameters: parameters.kind,
)
def test_numbers_without_sense_are_format_errors(parameters: RopeParameters) -> None:
    with pytest.raises(FormatError, match=f"rope type '{parameters.kind}' cannot be computed"):
        rope_table(parameters, 2, 128)


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
    with pytest.raises(UnsupportedModel, match=r"'spiral' is not supported; known: default, linear, dynamic, yarn, llama3, longrope"):
        rope_table(RopeParameters(kind="spiral"), 8, 2)
