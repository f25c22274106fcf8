"""Log-probabilities against torch, ranks and order against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from octavo.decode.logprobs import log_softmax, position_logprobs


@pytest.mark.parametrize("vocab", [1, 2, 100, 50_257])
@pytest.mark.parametrize("tied", [False, True])
def test_values_ranks_and_order(vocab: int, tied: bool) -> None:
    rows = 6
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 4
    logits = logits.round() if tied else logits
    before = logits.clone()
    tokens = np.random.default_rng(0).integers(0, vocab, rows).tolist()
    tops = [0, 1, 2, 5, 20, 20]
    expected = torch.log_softmax(logits.double(), -1)
    for r, got in enumerate(position_logprobs(logits, tokens, tops)):
        best = sorted(range(vocab), key=lambda i: (-float(logits[r, i]), i))[: tops[r]]
        assert got.token_ids == [tokens[r], *best]
        assert got.logprobs == pytest.approx(expected[r, got.token_ids].tolist(), abs=1e-12)
        assert got.ranks == [1 + int((logits[r] > logits[r, i]).sum()) for i in got.token_ids]
        assert all(type(x) is float for x in got.logprobs) and all(type(x) is int for x in got.token_ids + got.ranks)
    assert torch.equal(logits, before)


def test_one_count_for_all_rows() -> None:
    logits = torch.randn(3, 9)
    assert position_logprobs(logits, [1, 2, 3], 4) == position_logprobs(logits, [1, 2, 3], [4, 4, 4])
    with pytest.raises(ValueError, match="3 rows of logits, 2 tokens"):
        position_logprobs(logits, [1, 2], 4)


def test_a_row_is_described_alone() -> None:
    logits = torch.randn(40, 5001, generator=torch.Generator().manual_seed(0)) * 3
    tokens = list(range(40))
    whole = position_logprobs(logits, tokens, 5)
    for r in (0, 7, 39):
        assert position_logprobs(logits[r : r + 1], [tokens[r]], 5) == [whole[r]]
        assert position_logprobs(logits[r : r + 1].clone(), [tokens[r]], 5) == [whole[r]]


def test_infinite_and_missing_logits() -> None:
    inf = math.inf
    assert log_softmax(np.array([0.0, -inf, math.nan], np.float32)).tolist() == [0.0, -inf, -inf]
    assert log_softmax(np.array([-inf, math.nan], np.float32)).tolist() == [-inf, -inf]
    shared = log_softmax(np.array([inf, 5.0, inf], np.float32)).tolist()
    assert shared == pytest.approx([-math.log(2), -inf, -math.log(2)])
