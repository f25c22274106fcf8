"""The sampling rules, in numpy: what every backend must decide.

For one row of logits and its parameters:

1. NaN counts as -inf. If nothing is above -inf the answer is -1. Greedy (temperature < 1e-5): the largest logit, lowest id on ties.
2. x = logit / temperature, divided in float32, used as float64 from here on. If some x is +inf, the lowest id of those wins.
3. top-k keeps every x that is at least the k-th largest. 4. top-p: sort what is left by x descending, ties by id; e = exp(x - max); with sums taken
   in that order one after another, keep the shortest prefix whose sum reaches top_p times the whole sum, and at least one token.
5. min-p keeps those with e >= min_p (the largest e is 1, so this compares probabilities). 6. The largest x + Gumbel noise wins, lowest id on ties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.kernels.philox import gumbel, gumbel_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.backend.base import SampleBatch

GREEDY_EPS = 1e-5


def sample_rows(logits: NDArray[np.float32], batch: SampleBatch) -> NDArray[np.int64]:
    """logits float32 [R, V] -> token ids int64 [R]; -1 where no token can be chosen."""
    out = np.empty(logits.shape[0], np.int64)
    for r, row in enumerate(logits):
        if batch.temperature[r] < GREEDY_EPS:
            out[r] = greedy(row)
        else:
            out[r] = _sampled(row, batch, r)
    return out


def greedy(row: NDArray[np.float32]) -> int:
    """The id of the largest logit, the lowest on ties; -1 if there is none above -inf."""
    best = int(np.argmax(row))
    if np.isnan(row[best]):  # argmax stops at the first NaN
        row = np.where(np.isnan(row), np.float32(-np.inf), row)
        best = int(np.argmax(row))
    return -1 if row[best] == -np.inf else best


def _sampled(row: NDArray[np.float32], batch: SampleBatch, r: int) -> int:
    with np.errstate(over="ignore", invalid="ignore"):
        x = (row / batch.temperature[r]).astype(np.float64)
    if not np.isfinite(x).all():
        x[np.isnan(x)] = -np.inf
        best = int(np.argmax(x))
        if not np.isfinite(x[best]):
            return best if x[best] > 0 else -1
    noise_key = int(batch.seed[r]), int(batch.index[r]), int(batch.position[r])
    kept = _kept(x, int(batch.top_k[r]), float(batch.top_p[r]), float(batch.min_p[r]))
    if kept is None:
        return int(np.argmax(x + gumbel(*noise_key, len(x))))
    return int(kept[np.argmax(x[kept] + gumbel_of(*noise_key, kept))])


def _kept(x: NDArray[np.float64], top_k: int, top_p: float, min_p: float) -> NDArray[np.int64] | None:
    """Ids that survive top-k, top-p and min-p, ascending; None if all do."""
    kept: NDArray[np.int64] | None = None
    if 0 < top_k < len(x):
        kept = np.flatnonzero(x >= np.partition(x, len(x) - top_k)[len(x) - top_k])
    if top_p < 1.0:
        kept = np.arange(len(x)) if kept is None else kept
        kept = kept[_nucleus(x[kept], top_p)]
    if min_p > 0.0:
        kept = np.arange(len(x)) if kept is None else kept
        kept = kept[np.exp(x[kept] - x[kept].max()) >= min_p]
    return kept


def _nucleus(x: NDArray[np.float64], top_p: float) -> NDArray[np.bool_]:
    """Which entries top-p keeps. Equal values give equal terms, so the sums need the sorted values only, and ids matter for the last one alone."""
    values = np.sort(x)[::-1]
    sums = np.cumsum(np.exp(values - values[0]))
    count = int(np.searchsorted(sums, top_p * sums[-1], side="left")) + 1
    least = values[count - 1]
    kept: NDArray[np.bool_] = x > least
    ties = np.flatnonzero(x == least)
    kept[ties[: count - int(np.count_nonzero(kept))]] = True
    return kept
