"""The arithmetic under the reference backend: accurate, and the same bits wherever a value lies."""

from __future__ import annotations

import math

import pytest
import torch

from octavo.backend import exact


def test_exp_is_accurate() -> None:
    x = torch.cat([torch.linspace(-708, 709, 200_001, dtype=torch.float64), torch.linspace(-1, 1, 20_001, dtype=torch.float64)])
    assert ((exact.exp(x) - x.exp()) / x.exp()).abs().max() < 4.5e-16
    edges = torch.tensor([0.0, -math.inf, -1e5, 5000.0, math.nan], dtype=torch.float64)
    y = exact.exp(edges).tolist()
    assert y[:3] == [1.0, 0.0, 0.0] and y[3] > 1e307 and math.isnan(y[4])


def test_tanh_and_erf_are_accurate() -> None:
    x = torch.linspace(-30, 30, 100_001, dtype=torch.float64)
    assert (exact.tanh(x) - x.tanh()).abs().max() < 1e-15
    assert torch.equal(exact.erf(x[:5000].view(2, -1)), torch.stack([torch.erf(x[:2500].clone()), torch.erf(x[2500:5000].clone())]))
    assert abs(exact.erf(torch.full((1, 1), 0.5, dtype=torch.float64)).item() - math.erf(0.5)) < 1e-15


@pytest.mark.parametrize("n", [1, 2, 3, 7, 32, 33, 576, 1000])
@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_fold_sum(n: int, dim: int) -> None:
    shape = [3, 4, 5]
    shape[dim] = n
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    total = exact.fold_sum(x.clone(), dim)
    torch.testing.assert_close(total, x.sum(dim), rtol=1e-12, atol=1e-12)
    lines = x.movedim(dim, -1).reshape(-1, n)
    alone = torch.stack([exact.fold_sum(line.clone(), -1) for line in lines])
    assert torch.equal(total.reshape(-1), alone)


def test_fold_sum_of_nothing() -> None:
    assert exact.fold_sum(torch.empty(3, 0, 2, dtype=torch.float64), 1).tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("function", [exact.exp, exact.tanh])
def test_place_and_threads_change_no_bit(function) -> None:
    x = torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        whole = function(x)
        torch.set_num_threads(3)
        assert torch.equal(function(x), whole)
    finally:
        torch.set_num_threads(before)
    for start in (1, 3, 77):
        assert torch.equal(function(x[start : start + 13]), whole[start : start + 13])
