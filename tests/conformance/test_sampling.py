"""Every backend decides as the rules say: a scalar computation in plain Python, transformers' warpers, and the distribution itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from octavo.backend.base import Backend, SampleBatch
from tests.conformance.harness import BACKENDS, make_backend
from tests.kernels.test_philox import scalar_noise

INF, NAN = math.inf, math.nan


@pytest.fixture(params=BACKENDS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def backend(name: str) -> Backend:
    return make_backend(name)


def batch_of(rows: int, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, index=0, position=0) -> SampleBatch:
    def column(value, dtype):
        return np.broadcast_to(np.asarray(value, dtype), (rows,)).copy()

    return SampleBatch(
        column(temperature, np.float32), column(top_k, np.int32), column(top_p, np.float32), column(min_p, np.float32),
        column(seed, np.uint64), column(index, np.uint32), column(position, np.uint64),
    )


def scalar_sample(row: list[float], b: SampleBatch, r: int) -> int:
    """The rules, one token at a time."""
    row = [-INF if math.isnan(v) else v for v in row]
    if max(row) == -INF:
        return -1
    if b.temperature[r] < 1e-5:
        return row.index(max(row))
    x = [float(np.float32(v) / b.temperature[r]) for v in row]
    kept = list(range(len(x)))
    if 0 < b.top_k[r] < len(x):
        least = sorted(x, reverse=True)[b.top_k[r] - 1]
        kept = [i for i in kept if x[i] >= least]
    kept.sort(key=lambda i: (-x[i], i))
    largest = x[kept[0]]
    if b.top_p[r] < 1:
        total = 0.0
        for i in kept:
            total += math.exp(x[i] - largest)
        running, prefix = 0.0, []
        for i in kept:
            prefix.append(i)
            running += math.exp(x[i] - largest)
            if running >= float(b.top_p[r]) * total:
                break
        kept = prefix
    kept = [i for i in kept if math.exp(x[i] - largest) >= float(b.min_p[r])]
    key = int(b.seed[r]), int(b.index[r]), int(b.position[r])
    return max(kept, key=lambda i: (x[i] + scalar_noise(*key, i), -i))


def random_batch(rng: np.random.Generator, rows: int) -> SampleBatch:
    def choice(*values):
        return rng.choice(np.array(values), rows)

    return batch_of(
        rows, temperature=choice(0.0, 0.3, 0.7, 1.0, 2.0), top_k=choice(0, 0, 1, 2, 5, 40, 10**6), top_p=choice(1.0, 1.0, 0.95, 0.5, 1e-6),
        min_p=choice(0.0, 0.0, 0.05, 0.5, 1.0), seed=rng.integers(0, 2**64, rows, dtype=np.uint64), index=rng.integers(0, 9, rows),
        position=rng.integers(0, 2**34, rows),
    )


@pytest.mark.parametrize("vocab", [1, 2, 5, 33, 256, 1003])
@pytest.mark.parametrize("kind", ["smooth", "tied", "holes"])
def test_decisions_equal_the_scalar_rules(backend: Backend, vocab: int, kind: str) -> None:
    rng = np.random.default_rng(vocab)
    rows = 60 if vocab < 1000 else 25
    logits = (rng.standard_normal((rows, vocab)) * 4).astype(np.float32)
    if kind == "tied":
        logits = np.round(logits)
    if kind == "holes":
        logits[rng.random(logits.shape) < 0.4] = -INF
        logits[rng.random(logits.shape) < 0.1] = NAN
    batch = random_batch(rng, rows)
    chosen = backend.sample(torch.from_numpy(logits.copy()), batch)
    assert chosen.dtype == np.int64 and chosen.shape == (rows,)
    assert chosen.tolist() == [scalar_sample(row.tolist(), batch, r) for r, row in enumerate(logits)]


@pytest.mark.parametrize("vocab", [64, 50_257])
def test_a_row_decides_alone(name: str, vocab: int) -> None:
    rng = np.random.default_rng(5)
    rows = 17
    logits = torch.from_numpy((rng.standard_normal((rows, vocab)) * 3).astype(np.float32))
    batch = random_batch(rng, rows)
    whole = make_backend(name, 2).sample(logits.clone(), batch)
    for threads in (1, 3):
        other = make_backend(name, threads)
        for order in (range(rows), [3], [16, 0, 7]):
            picked = list(order)
            part = SampleBatch(*(getattr(batch, field)[picked] for field in SampleBatch.__dataclass_fields__))
            assert other.sample(logits[picked].clone(), part).tolist() == whole[picked].tolist()
    assert whole.tolist() == make_backend("reference").sample(logits.clone(), batch).tolist()


@pytest.mark.parametrize(
    ("row", "options", "expected"),
    [
        ([1.0, 3.0, 3.0, 2.0], {"temperature": 0.0}, 1),
        ([1.0, 3.0, 3.0, 2.0], {"temperature": 9e-6}, 1),
        ([NAN, 3.0, NAN, 5.0], {"temperature": 0.0}, 3),
        ([NAN, -INF, NAN], {"temperature": 0.0}, -1),
        ([-INF, -INF], {}, -1),
        ([NAN, NAN], {"top_k": 1, "top_p": 0.5, "min_p": 0.5}, -1),
        ([-INF, 2.0, -INF], {"top_k": 2, "top_p": 0.9, "min_p": 0.1}, 1),
        ([0.0, INF, 5.0, INF], {}, 1),
        ([0.0, INF, 5.0, INF], {"temperature": 0.0}, 1),
        ([0.0, 9.0, 1.0], {"top_k": 1}, 1),
        ([0.0, 9.0, 1.0], {"top_p": 1e-6}, 1),
        ([0.0, 9.0, 1.0], {"min_p": 1.0}, 1),
        ([-3e38, 3e38, 0.0], {"temperature": 0.1}, 1),
    ],
)
def test_edges(backend: Backend, row: list[float], options: dict[str, float], expected: int) -> None:
    assert backend.sample(torch.tensor([row]), batch_of(1, **options)).tolist() == [expected]


def test_top_k_keeps_ties_and_top_p_cuts_them_by_id(backend: Backend) -> None:
    row = torch.tensor([[2.0, 1.0, 2.0, 2.0, 0.0]]).repeat(400, 1)
    seeds = np.arange(400)
    assert set(backend.sample(row.clone(), batch_of(400, top_k=2, seed=seeds)).tolist()) == {0, 2, 3}
    # Three equal tokens share most of the mass: two of them reach half of it.
    assert set(backend.sample(row.clone(), batch_of(400, top_k=3, top_p=0.5, seed=seeds)).tolist()) == {0, 2}
    assert set(backend.sample(row.clone(), batch_of(400, min_p=0.99, seed=seeds)).tolist()) == {0, 2, 3}


@pytest.mark.parametrize("options", [{}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 50, "top_p": 0.9, "min_p": 0.02}])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_winners_are_those_of_transformers_warpers(backend: Backend, options: dict[str, float], temperature: float) -> None:
    rows, vocab = 40, 500
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * 3
    batch = batch_of(rows, temperature=temperature, seed=11, position=np.arange(rows), **options)
    warped = TemperatureLogitsWarper(temperature)(None, logits.clone())
    for warper, key in ((TopKLogitsWarper, "top_k"), (TopPLogitsWarper, "top_p"), (MinPLogitsWarper, "min_p")):
        if key in options:
            warped = warper(options[key])(None, warped)
    noise = torch.tensor([[scalar_noise(11, 0, r, t) for t in range(vocab)] for r in range(rows)], dtype=torch.float64)
    assert backend.sample(logits, batch).tolist() == (warped.double() + noise).argmax(-1).tolist()


@pytest.mark.parametrize("varied", ["seed", "index", "position"])
def test_frequencies_follow_the_softmax(backend: Backend, varied: str) -> None:
    """Pearson's chi-square over 11 tokens, 10 degrees of freedom: beyond 29.6 once in a thousand, and the seeds are fixed."""
    draws, logits = 12_000, torch.linspace(-1.5, 1.5, 11)
    batch = batch_of(draws, temperature=0.8, **({"seed": 5, "position": 3} | {varied: np.arange(draws)}))
    counts = np.bincount(backend.sample(logits.repeat(draws, 1), batch), minlength=11)
    expected = torch.softmax(logits.double() / 0.8, 0).numpy() * draws
    assert ((counts - expected) ** 2 / expected).sum() < 29.6
