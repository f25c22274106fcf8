"""Arithmetic of a load test: what a client saw, summarized under the names of vLLM's ``bench serve``.

For a request of n output tokens: TTFT is first token minus sending, E2EL last token minus sending, TPOT (E2EL - TTFT) / (n - 1), defined
for n > 1. ITL are the times between arriving chunks, over all requests. Goodput counts requests that meet every objective.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OBJECTIVES = ("ttft", "tpot", "e2el")
METRICS = ("ttft", "tpot", "itl", "e2el")
NAMES = {"ttft": "time to first token", "tpot": "time per output token", "itl": "inter-token latency", "e2el": "end-to-end latency"}
PERCENTILES = (90.0, 95.0, 99.0)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One request as its client saw it. Seconds; ``sent`` counts from the start of the run. ``error`` set: it failed, and the times mean nothing.

    ``counted`` says whether the server reported token counts; otherwise chunks were counted.
    """

    prompt_tokens: int
    output_tokens: int = 0
    sent: float = 0.0
    ttft: float = 0.0
    latency: float = 0.0
    itls: list[float] = field(default_factory=list)
    counted: bool = True
    error: str | None = None

    @property
    def tpot(self) -> float | None:
        """Seconds; None for fewer than two tokens."""
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


def percentile(values: Sequence[float], q: float) -> float:
    """The ``q``-th percentile (0 to 100) with linear interpolation between closest ranks; NaN if there is no value."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def parse_percentiles(text: str) -> tuple[float, ...]:
    """"50,90,99.9" as numbers. Raises ConfigError."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--metric-percentiles must look like 50,90,99, got {text!r}") from None
    if not all(0 <= value <= 100 for value in values):
        raise ConfigError(f"--metric-percentiles must lie between 0 and 100, got {text!r}")
    return values


def parse_goodput(texts: Sequence[str]) -> dict[str, float]:
    """["ttft:200", "tpot:50 e2el:1000"] as milliseconds by objective. Raises ConfigError."""
    goals: dict[str, float] = {}
    for part in " ".join(texts).replace(",", " ").split():
        name, _, value = part.partition(":")
        try:
            goals[name] = float(value)
        except ValueError:
            goals[name] = -1.0
        if name not in OBJECTIVES or not goals[name] > 0:
            raise ConfigError(f"--goodput must look like ttft:MS, tpot:MS or e2el:MS, got {part!r}")
    return goals


def is_good(outcome: Outcome, goals: Mapping[str, float]) -> bool:
    """Whether a finished request meets every objective (milliseconds). A TPOT that is not defined is met."""
    measured = {"ttft": outcome.ttft, "tpot": outcome.tpot or 0.0, "e2el": outcome.latency}
    return all(1e3 * measured[name] <= limit for name, limit in goals.items())


def label(q: float) -> str:
    """99.0 -> "p99", 99.9 -> "p99.9"."""
    return f"p{q:g}"


def spread(name: str, seconds: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """``mean_NAME_ms``, ``median_NAME_ms``, ``std_NAME_ms`` and ``pXX_NAME_ms``; NaN if nothing was measured."""
    values = [1e3 * s for s in seconds]
    figures = {
        f"mean_{name}_ms": statistics.fmean(values) if values else math.nan,
        f"median_{name}_ms": percentile(values, 50),
        f"std_{name}_ms": statistics.pstdev(values) if values else math.nan,
    }
    return figures | {f"{label(q)}_{name}_ms": percentile(values, q) for q in percentiles}


def samples_of(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Seconds by metric, over the requests that finished."""
    done = [o for o in outcomes if o.error is None]
    return {
        "ttft": [o.ttft for o in done],
        "tpot": [o.tpot for o in done if o.tpot is not None],
        "itl": [itl for o in done for itl in o.itls],
        "e2el": [o.latency for o in done],
    }


def most_at_once(outcomes: Sequence[Outcome]) -> int:
    """The largest number of requests in flight at any time."""
    ends = [(o.sent, 1) for o in outcomes] + [(o.sent + o.latency, -1) for o in outcomes]
    now = most = 0
    for _, step in sorted(ends, key=lambda e: (e[0], e[1])):
        now += step
        most = max(most, now)
    return most


def summarize(outcomes: Sequence[Outcome], duration: float, percentiles: Sequence[float], goals: Mapping[str, float]) -> dict[str, Any]:
    """Figures of a run of ``duration`` seconds. Failed requests are counted and enter nothing else."""
    done = [o for o in outcomes if o.error is None]
    inputs, outputs = sum(o.prompt_tokens for o in done), sum(o.output_tokens for o in done)
    figures: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(outcomes) - len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(done) / duration,
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
        "max_concurrent_requests": most_at_once(outcomes),
    }
    if goals:
        figures["request_goodput"] = sum(is_good(o, goals) for o in done) / duration
    for name, seconds in samples_of(outcomes).items():
        figures |= spread(name, seconds, percentiles)
    return figures
