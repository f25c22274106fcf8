"""Greedy text of the real models equals that of transformers on the same dequantized weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from octavo import LLM, SamplingParams
from tests.e2e.gguf_oracle import transformers_model

if TYPE_CHECKING:
    from pathlib import Path

NEW_TOKENS = 32
TIE = 1e-4  # two logits closer than this may legitimately be ordered either way

CHAT_PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain what a hash table is in one sentence.",
    "Translate 'good morning' to Spanish.",
    "List three prime numbers.",
    "Why is the sky blue?",
    "Write a Python function that adds two numbers.",
    "Who wrote Romeo and Juliet?",
    "Name a fruit that is yellow.",
    "What is 12 times 12?",
]
PLAIN_PROMPTS = ["The three primary colours are", "Once upon a time, in a village by the sea,", "def fibonacci(n):"]


@torch.inference_mode()
def explain_difference(model: Any, prompt: list[int], ours: list[int], theirs: list[int]) -> None:
    """Passes if the sequences are equal, or first differ where transformers' two logits are within TIE of each other."""
    if ours == theirs:
        return
    at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    logits = model(torch.tensor([prompt + theirs[:at]])).logits[0, -1]
    gap = float(logits[theirs[at]] - logits[ours[at]])
    assert gap < TIE, f"token {at}: ours {ours[at]}, theirs {theirs[at]}, their logits differ by {gap:.6f}"


@torch.inference_mode()
def greedy(model: Any, prompt: list[int], stop: set[int]) -> list[int]:
    out = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=sorted(stop) or None, pad_token_id=0)
    return [int(i) for i in out[0, len(prompt) :]]


def compare(path: Path, prompts: list[str], *, chat: bool) -> None:
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
    with LLM(model=str(path), max_model_len=512, weights="dense") as llm:
        stop = set(llm.get_tokenizer().eos_token_ids)
        if chat:
            outputs = llm.chat([[{"role": "user", "content": p}] for p in prompts], params, use_tqdm=False)
        else:
            outputs = llm.generate(prompts, params, use_tqdm=False)
    model = transformers_model(path)
    for output in outputs:
        ours = list(output.outputs[0].token_ids)
        theirs = greedy(model, list(output.prompt_token_ids), stop)
        explain_difference(model, list(output.prompt_token_ids), ours, theirs)


@pytest.mark.model
def test_smollm2_ten_prompts(smollm2: Path) -> None:
    compare(smollm2, CHAT_PROMPTS, chat=True)


@pytest.mark.model
@pytest.mark.slow
def test_qwen2(qwen2_coder: Path) -> None:
    compare(qwen2_coder, CHAT_PROMPTS[:3], chat=True)


@pytest.mark.model
@pytest.mark.slow
def test_gemma3(gemma3: Path) -> None:
    compare(gemma3, PLAIN_PROMPTS, chat=False)
