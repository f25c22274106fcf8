"""What an operation must do at least, against counting it, and floors from it."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backend import costs
from octavo.backend.costs import Cost
from octavo.backend.peaks import Floors, best_of


@pytest.mark.parametrize("window", [None, 1, 5, 100])
def test_attention_counts_what_queries_see(window: int | None) -> None:
    counts, starts, heads, kv_heads, width = [1, 7, 1], [0, 3, 12], 6, 2, 16
    seen, read = 0, 0
    for count, start in zip(counts, starts, strict=True):
        q, k = np.arange(start, start + count)[:, None], np.arange(start + count)[None, :]
        visible = (k <= q) & (k > q - (window or 1000))
        seen, read = seen + visible.sum(), read + visible.any(0).sum()
    cost = costs.attention(counts, starts, heads, kv_heads, width, 2, window)
    assert cost.ops == seen * heads * (2 * width + 2 * width)  # scores, then values
    fresh = sum(counts)
    assert cost.bytes == 2 * read * kv_heads * width * 2 + 2 * 4 * fresh * kv_heads * width + 2 * 4 * fresh * heads * width


def test_a_floor_is_the_larger_of_both() -> None:
    floors = Floors(read_gb_s=10.0, float_gflop_s=100.0, int8_gop_s=400.0, method="")
    assert Cost(1e9, 1e9).seconds(floors) == (0.1, "bandwidth")
    assert Cost(1e9, 20e9).seconds(floors) == (pytest.approx(0.2), "float32")
    assert Cost(1e9, 80e9, int8=True).seconds(floors) == (pytest.approx(0.2), "int8")
    unmeasured = Floors(10.0, 100.0, None, "")
    assert Cost(1e9, 20e9, int8=True).seconds(unmeasured)[0] == pytest.approx(0.2)
    assert best_of(floors, Floors(20.0, 50.0, 300.0, "")) == Floors(20.0, 100.0, 400.0, "")


def test_a_product_of_packed_weights_is_one_of_bytes() -> None:
    assert costs.matmul(10 * 32, 10, 32, 3) == Cost(10 * 32 + 4 * 3 * 42, 2 * 3 * 10 * 32, int8=True)
    assert not costs.matmul(4 * 10 * 32, 10, 32, 3).int8
