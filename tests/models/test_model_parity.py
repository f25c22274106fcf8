"""Logits of every family against transformers, and that neither chunking, nor company in the batch, nor block size changes a bit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

from octavo.checkpoint.open import open_checkpoint
from octavo.models.registry import load_model
from tests.models.sequences import Sequence, Sequences, logits_of
from tests.models.tiny_models import FAMILIES, VOCAB, Oracle

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.backend.base import Backend
    from octavo.models.base import Model

LENGTH = 60  # beyond every window and beyond the context that llama-3 is stretched from
CHUNKS = {"whole": [LENGTH], "ragged": [3, 1, 17, 2, 9, 1, 1, 19, 7], "decode": [5] + [1] * (LENGTH - 5)}
TOLERANCE = 5e-6  # of the largest logit


def prompt(length: int = LENGTH, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=length)


def load(oracle: Oracle, backend: Backend) -> Model:
    return load_model(open_checkpoint(str(oracle.path)), backend)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    scale = expected.abs().max().item()
    assert found.dtype == torch.float32
    assert (found - expected).abs().max().item() <= TOLERANCE * scale, f"{(found - expected).abs().max():.3g} of {scale:.3g}"


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_agree_with_transformers_however_the_prompt_is_cut(family: str, oracle: Callable[[str], Oracle], backend: Backend) -> None:
    it = oracle(family)
    model = load(it, backend)
    whole, ragged, decode = (logits_of(model, backend, prompt(), counts) for counts in CHUNKS.values())
    expected = it.logits(prompt())
    assert_close(whole, expected)
    assert torch.equal(whole.argmax(-1), expected.argmax(-1))
    assert torch.equal(ragged, whole)
    assert torch.equal(decode, whole)


@pytest.mark.parametrize("family", ["llama-3", "qwen2-window", "gemma3"])
def test_interleaved_requests_do_not_touch_each_other(family: str, oracle: Callable[[str], Oracle], backend: Backend) -> None:
    it = oracle(family)
    model = load(it, backend)
    cuts = random.Random(5)
    sequences = [Sequence(prompt(length, seed)) for seed, length in enumerate((LENGTH, 33, 47, 1))]
    together = Sequences(model, backend)
    while waiting := [s for s in sequences if s.computed < len(s.token_ids)]:
        cuts.shuffle(waiting)
        together.step([(s, min(cuts.choice((1, 1, 4, 13)), len(s.token_ids) - s.computed)) for s in waiting])
    for sequence in sequences:
        found = torch.cat(sequence.logits)
        assert_close(found, it.logits(sequence.token_ids))
        assert torch.equal(found, logits_of(model, backend, sequence.token_ids, [len(sequence.token_ids)]))


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_the_block_size_does_not_show(family: str, oracle: Callable[[str], Oracle], backend: Backend) -> None:
    model = load(oracle(family), backend)
    expected = logits_of(model, backend, prompt(), CHUNKS["whole"], block_size=8)
    for block_size in (1, 16):
        assert torch.equal(logits_of(model, backend, prompt(), CHUNKS["ragged"], block_size), expected)


def test_positions_far_into_the_context(oracle: Callable[[str], Oracle], backend: Backend) -> None:
    it = oracle("llama-3")
    model = load(it, backend)
    ids = prompt(160)
    assert_close(logits_of(model, backend, ids, [100, 60]), it.logits(ids))


def test_a_model_says_what_it_is(oracle: Callable[[str], Oracle], reference: Backend) -> None:
    model = load(oracle("gemma3"), reference)
    assert (model.vocab_size, model.max_positions) == (VOCAB, 160)
    assert [spec.window for spec in model.attention_layers] == [11, 11, None, 11]
    assert {(s.num_heads, s.num_kv_heads, s.head_dim, s.scale, s.softcap) for s in model.attention_layers} == {(4, 2, 24, 20**-0.5, None)}


def test_tied_embeddings_share_one_packed_weight(oracle: Callable[[str], Oracle], reference: Backend) -> None:
    tied, untied = load(oracle("qwen2"), reference), load(oracle("llama"), reference)
    assert tied.lm_head.weight is tied.embed_tokens.weight  # type: ignore[attr-defined]
    assert untied.lm_head.weight is not untied.embed_tokens.weight  # type: ignore[attr-defined]
