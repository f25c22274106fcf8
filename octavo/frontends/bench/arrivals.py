"""When requests arrive: all at once, or with gamma-distributed gaps (burstiness 1 is a Poisson process)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from octavo.errors import ConfigError

if TYPE_CHECKING:
    import random


def arrival_times(count: int, rate: float, burstiness: float, rng: random.Random) -> list[float]:
    """Seconds from the start at which each of ``count`` requests is sent; the first at 0.

    Gaps are Gamma(shape=burstiness, scale=1 / (rate * burstiness)): mean 1/rate, coefficient of variation 1/sqrt(burstiness).
    ``rate`` infinite: all at 0. Raises ConfigError.
    """
    if not rate > 0:
        raise ConfigError(f"--request-rate must be positive or inf, got {rate:g}")
    if not 0 < burstiness < math.inf:
        raise ConfigError(f"--burstiness must be positive, got {burstiness:g}")
    if math.isinf(rate):
        return [0.0] * count
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += rng.gammavariate(burstiness, 1 / (rate * burstiness))
    return times
