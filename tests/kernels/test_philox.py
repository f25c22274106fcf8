"""Philox4x32-10 against its published known answers, and the noise against a scalar computation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from octavo.kernels.philox import gumbel, gumbel_of, philox4x32

# Random123 distribution, kat_vectors, "philox4x32 10": counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def scalar_philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        low, high = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (high >> 32) ^ b ^ k, high % 2**32, (low >> 32) ^ d ^ m, low % 2**32
        k, m = (k + 0x9E3779B9) % 2**32, (m + 0xBB67AE85) % 2**32
    return a, b, c, d


def scalar_noise(seed: int, index: int, position: int, token: int) -> float:
    counter = (token // 4, index, position % 2**32, position >> 32)
    x = scalar_philox(counter, (seed % 2**32, seed >> 32))[token % 4]
    return -math.log(-math.log((x + 0.5) / 2**32))


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], result: tuple[int, ...]) -> None:
    words = philox4x32(tuple(np.array([word], np.uint64) for word in counter), key)
    assert tuple(int(word[0]) for word in words) == result
    assert scalar_philox(counter, key) == result


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1, 0x123456789ABCDEF0])
@pytest.mark.parametrize(("index", "position"), [(0, 0), (3, 17), (2**32 - 1, 2**33 + 5)])
def test_noise_is_keyed_and_counted_as_documented(seed: int, index: int, position: int) -> None:
    noise = gumbel(seed, index, position, 103)
    assert noise.shape == (103,) and noise.dtype == np.float64
    np.testing.assert_allclose(noise, [scalar_noise(seed, index, position, t) for t in range(103)], rtol=1e-13)
    some = np.array([0, 102, 7, 50, 7], np.int64)
    np.testing.assert_array_equal(gumbel_of(seed, index, position, some), noise[some])


def test_a_longer_vocabulary_changes_no_noise() -> None:
    np.testing.assert_array_equal(gumbel(7, 0, 9, 1001)[:33], gumbel(7, 0, 9, 33))


def test_extreme_words_stay_finite() -> None:
    from octavo.kernels.philox import _to_gumbel

    ends = _to_gumbel(np.array([0, 2**32 - 1], np.uint64))
    assert np.isfinite(ends).all() and ends[0] < -3 and ends[1] > 22


def test_moments() -> None:
    """Mean and variance of the standard Gumbel distribution: Euler's constant and pi**2 / 6."""
    noise = gumbel(1, 0, 0, 400_000)
    assert abs(noise.mean() - 0.5772156649) < 0.01
    assert abs(noise.var() - math.pi**2 / 6) < 0.02
