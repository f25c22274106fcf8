"""Log-probabilities as OpenAI gives them: of the model's own distribution, before temperature, penalties, biases and masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.core.plan import PositionLogprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor


def position_logprobs(logits: Tensor, token_ids: Sequence[int], top: int | Sequence[int]) -> list[PositionLogprobs]:
    """Row i of ``logits`` (float32 [R, V], raw) describes ``token_ids[i]`` and its ``top`` (or ``top[i]``) best alternatives.

    Each result lists the token itself, then the best by value, the lower id first among equals; the token may appear again among them.
    A rank is one more than the number of strictly greater logits. Sums are float64; NaN counts as -inf.
    """
    counts = [top] * len(token_ids) if isinstance(top, int) else top
    rows = logits.numpy()
    if not len(rows) == len(token_ids) == len(counts):
        raise ValueError(f"{len(rows)} rows of logits, {len(token_ids)} tokens and {len(counts)} counts do not match")
    return [_one(row, int(token), int(count)) for row, token, count in zip(rows, token_ids, counts, strict=True)]


def log_softmax(row: NDArray[np.float32]) -> NDArray[np.float64]:
    """float32 [V] -> float64 [V]. The order of summation depends on V alone. Logits of +inf share all the probability."""
    x = row.astype(np.float64)
    x[np.isnan(x)] = -np.inf
    largest = x.max()
    if largest == -np.inf:
        return x
    if largest == np.inf:
        x = np.where(x == np.inf, 0.0, -np.inf)
        largest = 0.0
    x -= largest
    x -= np.log(np.exp(x).sum())
    return x


def _one(row: NDArray[np.float32], token: int, count: int) -> PositionLogprobs:
    values = log_softmax(row)
    ids = [token, *_best(values, count)]
    # Ranks of the best follow from their order; only the token itself needs a pass over the vocabulary.
    ranks = [1 + int(np.count_nonzero(values > values[token]))]
    for place, i in enumerate(ids[1:]):
        tied = place > 0 and values[i] == values[ids[place]]
        ranks.append(ranks[place] if tied else place + 1)
    return PositionLogprobs(token_ids=ids, logprobs=[float(values[i]) for i in ids], ranks=ranks)


def _best(values: NDArray[np.float64], count: int) -> list[int]:
    """Ids of the ``count`` largest values, descending, lower id first among equals."""
    count = min(count, len(values))
    if count == 0:
        return []
    least = np.partition(values, len(values) - count)[len(values) - count]
    ids = np.flatnonzero(values >= least)
    order = np.argsort(-values[ids], kind="stable")[:count]
    return [int(i) for i in ids[order]]
