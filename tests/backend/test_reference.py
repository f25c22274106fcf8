"""What only the reference backend has: its options, its memory, and how it keeps products to one order of summation."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
import torch

from octavo.backend.base import BackendOptions
from octavo.backend.dense import CHUNK_OUTPUTS, DenseWeight, single_thread
from octavo.backend.machine import usable_cores
from octavo.backend.paged import attend_row
from octavo.backend.reference import ReferenceBackend, zeros
from octavo.errors import ConfigError
from tests.conformance.harness import attention_spec, bits, expected_attention, make_sequences, new_cache, random_tensor, step


def test_options() -> None:
    assert ReferenceBackend(BackendOptions()).threads == usable_cores() >= 1
    assert ReferenceBackend(BackendOptions(threads=3)).threads == 3
    assert torch.get_num_threads() == 3
    with pytest.raises(ConfigError, match="-2"):
        ReferenceBackend(BackendOptions(threads=-2))


def test_zeros_are_aligned_and_cost_nothing_until_touched() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    big = zeros((1 << 28,), torch.float32)  # 1 GiB
    assert process.memory_info().rss - before < 1 << 24
    assert big.data_ptr() % 64 == 0 and big[-1] == 0
    half = zeros((3, 5), torch.bfloat16)
    assert half.shape == (3, 5) and half.dtype == torch.bfloat16 and not half.any()


def test_rows_fall_back_to_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a library where a row's place in the tile shows, every row gets a call of its own, and the answer is still right."""
    weight, x = random_tensor(1, CHUNK_OUTPUTS + 5, 40), random_tensor(2, 9, 40)
    monkeypatch.setattr("octavo.backend.dense.tile_rows", lambda n, k: 1)
    alone = DenseWeight(weight, None, 1).matmul(x)
    torch.testing.assert_close(alone, x @ weight.t(), rtol=1e-5, atol=1e-5)
    assert bits(DenseWeight(weight, None, 1).matmul(x[4:5])) == bits(alone[4:5])


def test_single_thread_restores_the_count() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError), single_thread():
            assert torch.get_num_threads() == 1
            _ = 1 / 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_product_does_not_feel_the_callers_thread_count() -> None:
    weight, x = random_tensor(1, 300, 4096), random_tensor(2, 5, 4096)
    packed = DenseWeight(weight, None, 1)
    results = set()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.add(bits(packed.matmul(x)))
    finally:
        torch.set_num_threads(before)
    assert len(results) == 1


@pytest.mark.parametrize("size", [1, 16])
def test_attention_works_with_either_tile(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Rows one at a time, for a library where a row's place in the tile shows."""
    spec = attention_spec(6, 2, 64, window=45)
    (s,) = make_sequences(spec, [150], 16, 20)
    monkeypatch.setattr("octavo.backend.paged.tile_rows", lambda *shape, **options: size)
    backend = ReferenceBackend(BackendOptions(threads=2))
    whole = step(backend, new_cache(backend, spec, 16, 20), spec, 16, [(s, 0, 150)])[0]
    torch.testing.assert_close(whole.double(), expected_attention(s, spec), rtol=2e-5, atol=2e-6)
    kv = new_cache(backend, spec, 16, 20)
    parts = [step(backend, kv, spec, 16, [(s, at, min(37, 150 - at))])[0] for at in range(0, 150, 37)]
    assert bits(torch.cat(parts)) == bits(whole)


@pytest.mark.parametrize("window", [None, 45, 70])
def test_attention_bits_agree_before_rounding(window: int | None) -> None:
    """In float64, where a change in the order of summation cannot hide behind the rounding to float32."""
    spec = attention_spec(6, 2, 64, window=window)
    (s,) = make_sequences(spec, [300], 16, 20)
    backend = ReferenceBackend(BackendOptions(threads=2))
    kv = new_cache(backend, spec, 16, 20)
    step(backend, kv, spec, 16, [(s, 0, 300)])
    table = torch.tensor(s.table)
    whole = attend_row(s.q, kv, table, 0, 16, spec)
    assert whole.dtype == torch.float64
    for size, first in ((1, 285), (7, 200), (64, 0), (130, 0)):
        parts = []
        for at in range(first, 300, size):
            end = min(at + size, 300)
            parts.append(attend_row(s.q[at:end], kv, table[: -(-end // 16)], at, 16, spec))
        assert bits(torch.cat(parts)) == bits(whole[first:]), f"chunks of {size}"


@pytest.mark.parametrize("bound", [1, 1000, 1 << 24])
def test_piece_size_changes_no_bit(monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    backend, x = ReferenceBackend(BackendOptions(threads=2)), random_tensor(1, 60, 600)
    norm, act = backend.norm(x, x[0], 1e-6)[0], backend.act_mul(x, "gelu")
    monkeypatch.setattr("octavo.backend.reference.BLOCK_ELEMENTS", bound)
    assert bits(backend.norm(x, x[0], 1e-6)[0]) == bits(norm)
    assert bits(backend.act_mul(x, "gelu")) == bits(act)


def test_attention_refuses_a_foreign_plan() -> None:
    spec = attention_spec(2, 1, 32)
    backend = ReferenceBackend(BackendOptions(threads=1))
    q = torch.zeros(1, 2, 32)
    with pytest.raises(TypeError, match="plan"):
        backend.attention(q, q[:, :1], q[:, :1], new_cache(backend, spec, 16, 2), object(), spec)


def test_pack_reads_memory_maps(tmp_path) -> None:
    from octavo.backend.base import RawWeight

    weight = np.random.default_rng(0).standard_normal((5000, 8)).astype(np.float32)
    weight.tofile(tmp_path / "w")
    data = np.memmap(tmp_path / "w", np.uint8, "r", shape=(5000, 32))
    packed = ReferenceBackend(BackendOptions(threads=1)).pack([RawWeight("f32", (5000, 8), data)])
    assert torch.equal(packed.rows(torch.tensor([0, 4096, 4999])), torch.from_numpy(weight[[0, 4096, 4999]]))
