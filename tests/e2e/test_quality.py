"""Computing with quantized weights as they are stored costs next to no quality: perplexity of a fixed text against dequantized weights.

The text is the opening of "Alice's Adventures in Wonderland" by Lewis Carroll (1865), in the public domain.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams

TEXT = Path(__file__).parents[1] / "data" / "alice.txt"


def perplexity(model: Path, weights: str, kv_cache_dtype: str = "auto") -> float:
    """exp of the mean negative log probability of every token but the first."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    with LLM(model=str(model), max_model_len=1024, weights=weights, kv_cache_dtype=kv_cache_dtype) as llm:
        [output] = llm.generate([TEXT.read_text("utf-8")], params, use_tqdm=False)
    ids, logprobs = output.prompt_token_ids, output.prompt_logprobs
    assert ids is not None and logprobs is not None and len(ids) > 500
    values = [at[token].logprob for token, at in zip(ids[1:], logprobs[1:], strict=True) if at is not None]
    assert len(values) == len(ids) - 1
    return math.exp(-math.fsum(values) / len(values))


@pytest.mark.model
def test_smollm2_perplexity_is_that_of_dequantized_weights(smollm2: Path) -> None:
    exact, packed = perplexity(smollm2, "dense"), perplexity(smollm2, "auto")
    assert 2 < exact < 40
    assert abs(packed / exact - 1) < 0.005, f"perplexity {packed:.4f} with packed weights, {exact:.4f} with dequantized ones"
    assert packed != exact, "both runs computed alike: weights were not packed"


# What each type of the KV cache may add to the perplexity.
COSTS = {"float16": 0.005, "bfloat16": 0.01, "int8": 0.01, "fp8_e4m3": 0.03, "fp8_e5m2": 0.10}


@pytest.mark.model
def test_what_each_type_of_the_cache_costs(smollm2: Path) -> None:
    exact = perplexity(smollm2, "auto")
    found = {dtype: perplexity(smollm2, "auto", dtype) / exact - 1 for dtype in COSTS}
    print(f"perplexity {exact:.3f} with float32, then", {dtype: f"{cost:+.2%}" for dtype, cost in found.items()})
    assert all(abs(found[dtype]) < most for dtype, most in COSTS.items()), found
    assert len({exact, *found.values()}) == len(COSTS) + 1, "every type was meant to compute something of its own"
