"""Sampling of every kernel set: the same decision as the numpy rules, token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.backend.base import BackendOptions, SampleBatch
from octavo.backend.cpu import CpuBackend
from octavo.backend.sampling import sample_rows
from octavo.errors import OctavoError
from tests.kernels.native_harness import ISAS, native, restored_native

pytestmark = pytest.mark.usefixtures(restored_native.__name__)


def batch(rows: int, rng: np.random.Generator, **fixed: float) -> SampleBatch:
    columns = {
        "temperature": rng.choice([0.0, 0.3, 0.7, 1.0, 1.3, 40.0], rows), "top_k": rng.choice([0, 1, 2, 5, 40, 333, 10**9], rows),
        "top_p": rng.choice([0.0, 1e-4, 0.1, 0.5, 0.9, 0.99, 1.0, 1.0], rows), "min_p": rng.choice([0.0, 0.0, 0.01, 0.1, 0.7, 1.0], rows),
        "seed": rng.integers(0, 2**64, rows, dtype=np.uint64), "index": rng.integers(0, 2**32, rows, dtype=np.uint32),
        "position": rng.integers(0, 2**40, rows, dtype=np.uint64),
    }  # fmt: skip
    columns.update({name: np.full(rows, value) for name, value in fixed.items()})
    types = {"temperature": "f4", "top_k": "i4", "top_p": "f4", "min_p": "f4", "seed": "u8", "index": "u4", "position": "u8"}
    return SampleBatch(**{name: np.asarray(column).astype(types[name]) for name, column in columns.items()})


def same(logits: np.ndarray, choices: SampleBatch) -> np.ndarray:
    ids = CpuBackend(BackendOptions(threads=2)).sample(torch.from_numpy(logits), choices)
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(ids, sample_rows(logits, choices))
    return ids


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [1, 3, 16, 100, 1001, 20000])
def test_same_decisions_as_the_rules(isa: str, vocab: int) -> None:
    native.select_isa(isa)
    rng = np.random.default_rng(vocab)
    rows = 60
    logits = (rng.standard_normal((rows, vocab)) * rng.choice([0.1, 2.0, 9.0], (rows, 1))).astype(np.float32)
    same(logits, batch(rows, rng))
    same(np.round(logits), batch(rows, rng))  # many ties
    logits[rng.random((rows, vocab)) < 0.5] = -np.inf  # as masks leave it
    same(logits, batch(rows, rng))


@pytest.mark.parametrize("isa", ISAS)
def test_what_cannot_be_chosen(isa: str) -> None:
    native.select_isa(isa)
    nan, inf = float("nan"), float("inf")
    cases = [[nan] * 17, [-inf] * 17, [nan, -inf] + [nan] * 15, [nan] * 16 + [3.0], [1.0, nan, inf] + [0.0] * 13 + [inf]]
    cases += [[900.0] + [0.0] * 15 + [nan], [-3e38] * 17, [3e38] * 17]  # the first: NaN below the maximum in the same lane
    logits = np.array(cases, np.float32)
    for temperature in (0.0, 1e-3, 1.0):
        ids = same(logits, batch(len(cases), np.random.default_rng(0), temperature=temperature))
        assert ids[:6].tolist() == [-1, -1, -1, 16, 2, 0]


@pytest.mark.parametrize("isa", ISAS)
def test_frequencies(isa: str) -> None:
    """Gumbel-max draws from the softmax: chi-squared over 20,000 positions, seven degrees of freedom."""
    native.select_isa(isa)
    rows = 20000
    logits = np.tile(np.array([2.0, 1.0, 0.5, 0.0, -1.0, 1.5, -0.5, 0.2], np.float32), (rows, 1))
    choices = batch(rows, np.random.default_rng(0), temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7, index=1)
    choices.position = np.arange(rows, dtype=np.uint64)
    ids = CpuBackend(BackendOptions(threads=2)).sample(torch.from_numpy(logits), choices)
    expected = np.exp(logits[0]) / np.exp(logits[0]).sum() * rows
    assert ((np.bincount(ids, minlength=8) - expected) ** 2 / expected).sum() < 24.3  # p = 0.001


def test_rows_are_independent() -> None:
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal((33, 5000)) * 3).astype(np.float32)
    choices = batch(33, rng)
    backend = CpuBackend(BackendOptions(threads=3))
    together = backend.sample(torch.from_numpy(logits), choices)
    for r in range(33):
        alone = SampleBatch(**{name: getattr(choices, name)[r : r + 1] for name in SampleBatch.__slots__})
        assert backend.sample(torch.from_numpy(logits[r : r + 1]), alone)[0] == together[r]
    wide = torch.zeros(33, 7000)
    wide[:, 1000:6000] = torch.from_numpy(logits)
    assert np.array_equal(backend.sample(wide[:, 1000:6000], choices), together)
    with pytest.raises(OctavoError, match="32 rows"):
        backend.sample(torch.from_numpy(logits[:32]), choices)
