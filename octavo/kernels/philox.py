"""Counter-based noise for sampling: Philox4x32-10, vectorised in numpy.

Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

The noise of token t for sequence ``index`` at ``position`` under ``seed`` is lane t % 4 of the block with counter
(t // 4, index, position low, position high) and key (seed low, seed high), all 32-bit words. A lane x becomes u = (x + 0.5) * 2**-32, which lies
inside (0, 1), and then the standard Gumbel variate -log(-log(u)).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]

_MULTIPLIER = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF_WORD = np.uint64(32)


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Ten rounds. Counter words are uint64 arrays of one shape holding 32-bit values, and so are the four results."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIER[0] * c0, _MULTIPLIER[1] * c2
        c0, c1, c2, c3 = (p1 >> _HALF_WORD) ^ c1 ^ np.uint64(k0), p1 & _LOW, (p0 >> _HALF_WORD) ^ c3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _to_gumbel(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    u = (words.astype(np.float64) + 0.5) * 2.0**-32
    noise: NDArray[np.float64] = -np.log(-np.log(u))
    return noise


def _blocks(first: Words, seed: int, index: int, position: int) -> tuple[Words, Words, Words, Words]:
    fixed = [np.full(first.shape, word & 0xFFFFFFFF, np.uint64) for word in (index, position, position >> 32)]
    return philox4x32((first, fixed[0], fixed[1], fixed[2]), (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))


def gumbel(seed: int, index: int, position: int, vocab_size: int) -> NDArray[np.float64]:
    """Noise of tokens 0 .. vocab_size - 1: float64 [vocab_size]."""
    lanes = _blocks(np.arange((vocab_size + 3) // 4, dtype=np.uint64), seed, index, position)
    return _to_gumbel(np.stack(lanes, axis=1).reshape(-1)[:vocab_size])


def gumbel_of(seed: int, index: int, position: int, token_ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Noise of some tokens only: int64 [n] -> float64 [n], equal to the entries of :func:`gumbel`."""
    tokens = token_ids.astype(np.uint64)
    lanes = np.stack(_blocks(tokens >> np.uint64(2), seed, index, position), axis=1)
    return _to_gumbel(lanes[np.arange(len(tokens)), token_ids & 3])
