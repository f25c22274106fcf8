"""Same request, same bytes: what shares the batch, the order of arrival, memory pressure and the prefix cache change nothing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from octavo import LLM, SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

COUNT, NEW_TOKENS = 32, 16
STEM = "The following is a conversation between a curious person and a patient teacher who answers every question with care and in detail. "
TOPICS = ["the moon", "volcanoes", "bread", "trains", "gravity", "bees", "paper", "rivers", "clocks", "salt", "glass", "owls"]


def requests() -> tuple[list[str], list[SamplingParams]]:
    rng = random.Random(7)
    prompts = [STEM * rng.choice([0, 1, 2]) + f"Question {i}: what do you know about {rng.choice(TOPICS)}?" for i in range(COUNT)]
    params = []
    for i in range(COUNT):
        sampled = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, seed=i, repetition_penalty=1.1, max_tokens=NEW_TOKENS, ignore_eos=True)
        params.append(sampled if i % 2 else SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True))
    return prompts, params


def run(llm: LLM, prompts: list[str], params: list[SamplingParams], order: list[int]) -> list[list[int]]:
    outputs = llm.generate([prompts[i] for i in order], [params[i] for i in order], use_tqdm=False)
    ids: list[list[int]] = [[] for _ in prompts]
    for i, output in zip(order, outputs, strict=True):
        ids[i] = list(output.outputs[0].token_ids)
    return ids


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_32_requests_in_every_company(smollm2: Path) -> None:
    prompts, params = requests()
    order = list(range(COUNT))
    shuffled = random.Random(1).sample(order, COUNT)
    with LLM(model=str(smollm2), max_model_len=512, threads=2) as llm:
        together = run(llm, prompts, params, order)
        again = run(llm, prompts, params, shuffled)  # the prefix cache is warm now
        alone = [run(llm, [prompts[i]], [params[i]], [0])[0] for i in order]
    assert again == together
    assert alone == together
    with LLM(model=str(smollm2), max_model_len=512, enable_prefix_caching=False, max_num_batched_tokens=48, threads=1, enforce_eager=True) as llm:
        assert run(llm, prompts, params, shuffled) == together
    token = 46_080  # bytes of one token's keys and values
    with LLM(model=str(smollm2), max_model_len=256, kv_cache_memory_bytes=token * 272) as llm:  # about three requests fit at a time
        assert run(llm, prompts, params, order) == together
        assert llm.get_metrics()["num_preemptions"] > 0, "the cache was meant to be too small"
