"""Rotary position embeddings (Su et al., 2021) and the ways models stretch them to longer contexts.

Two kinds choose by length: "dynamic" and "longrope". They go by the longest sequence that the model is loaded for, not by that of each request:
otherwise keys in the cache would have been rotated otherwise than the queries that meet them, and a request's result would depend on how it was cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from octavo.errors import FormatError, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from octavo.layers.scope import Scope

    Frequencies = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """``rope_parameters`` of a configuration. ``kind`` is one of :data:`KINDS`; each names in its docstring the other fields that it reads.

    ``attention_factor`` multiplies queries and keys (None: what the kind says itself).
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


def _frequencies(theta: float, rot: int) -> Frequencies:
    return np.power(theta, -np.arange(0, rot, 2, dtype=np.float64) / rot)


def _default(p: RopeParameters, rot: int, positions: int) -> Frequencies:
    return _frequencies(p.theta, rot)


def _linear(p: RopeParameters, rot: int, positions: int) -> Frequencies:
    """Position interpolation (Chen et al., 2023): every frequency divided by ``factor``."""
    return _frequencies(p.theta, rot) / p.factor


def _dynamic(p: RopeParameters, rot: int, positions: int) -> Frequencies:
    """NTK-aware scaling (bloc97 and emozilla, 2023): a larger base once ``positions`` exceed ``original_max_positions``; reads ``factor``."""
    longer = max(positions, p.original_max_positions) / p.original_max_positions
    return _frequencies(p.theta * (p.factor * longer - (p.factor - 1)) ** (rot / (rot - 2)), rot)


def _yarn(p: RopeParameters, rot: int, positions: int) -> Frequencies:
    """YaRN (Peng et al., 2023): components that turn more than ``beta_fast`` times in the old context are kept, those that turn less than
    ``beta_slow`` times divided by ``factor``, with a ramp between; ``truncate`` rounds its ends outwards to whole components."""

    def component(turns: float) -> float:
        return rot * math.log(p.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(p.theta))

    low, high = component(p.beta_fast), component(p.beta_slow)
    if p.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rot - 1)
    ramp = np.clip((np.arange(rot // 2) - low) / ((high - low) or 0.001), 0.0, 1.0)
    frequencies = _frequencies(p.theta, rot)
    kept: Frequencies = frequencies / p.factor * ramp + frequencies * (1 - ramp)
    return kept


def _llama3(p: RopeParameters, rot: int, positions: int) -> Frequencies:
    """Llama 3.1: long wavelengths are divided by ``factor``, short ones kept, those between blended by how often they turn in the old context."""
    frequencies = _frequencies(p.theta, rot)
    turns = p.original_max_positions * frequencies / (2 * math.pi)
    keep = np.clip((turns - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor), 0.0, 1.0)
    blended: Frequencies = keep * frequencies + (1 - keep) * frequencies / p.factor
    return blended


def _longrope(p: RopeParameters, rot: int, positions: int) -> Frequencies:
    """LongRoPE (Ding et al., 2024): a divisor for each frequency, ``long_factor`` if ``positions`` exceed ``original_max_positions``, else
    ``short_factor``; ``factor`` is how much longer the context became."""
    divisors = p.long_factor if positions > p.original_max_positions else p.short_factor
    if len(divisors) != rot // 2:
        raise FormatError(f"longrope has {len(divisors)} factors for {rot // 2} frequencies")
    divided: Frequencies = _frequencies(p.theta, rot) / np.asarray(divisors)
    return divided


KINDS: dict[str, Callable[[RopeParameters, int, int], Frequencies]] = {
    "default": _default, "linear": _linear, "dynamic": _dynamic, "yarn": _yarn, "llama3": _llama3, "longrope": _longrope,
}  # fmt: skip


def _attention_factor(p: RopeParameters) -> float:
    """What the authors of YaRN and LongRoPE recommend."""
    if p.attention_factor is not None:
        return p.attention_factor
    if p.factor <= 1.0 or p.kind not in ("yarn", "longrope"):
        return 1.0
    return 0.1 * math.log(p.factor) + 1.0 if p.kind == "yarn" else math.sqrt(1 + math.log(p.factor) / math.log(p.original_max_positions))


def rope_table(parameters: RopeParameters, rot: int, max_positions: int) -> Tensor:
    """float32 [max_positions, rot]: cosines then sines of position * frequency, computed in float64.

    Raises UnsupportedModel for an unknown kind, FormatError for numbers that make no sense.
    """
    if parameters.kind not in KINDS:
        raise UnsupportedModel(f"rope type {parameters.kind!r} is not supported; known: {', '.join(KINDS)}")
    try:
        frequencies, factor = KINDS[parameters.kind](parameters, rot, max_positions), _attention_factor(parameters)
    except ArithmeticError as error:  # such as the logarithm of theta 1 as a divisor
        raise FormatError(f"rope type {parameters.kind!r} cannot be computed from {parameters}: {error}") from None
    angles = np.outer(np.arange(max_positions, dtype=np.float64), frequencies)
    table = np.empty((max_positions, rot), dtype=np.float32)
    table[:, : rot // 2] = np.cos(angles) * factor
    table[:, rot // 2 :] = np.sin(angles) * factor
    return torch.from_numpy(table)


class Rope:
    """Rotates the first ``rot`` components of queries and keys by their positions. One table serves every layer with the same parameters.

    Pairs are halves of what is rotated, or neighbours if ``interleaved``.
    """

    def __init__(self, scope: Scope, rot: int, parameters: RopeParameters, *, interleaved: bool = False) -> None:
        self.backend = scope.backend
        self.interleaved = interleaved
        self.table = rope_table(parameters, rot, scope.max_positions).to(scope.backend.device)

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """q [T, H, D], k [T, G, D], positions int64 [T]; both rotated, perhaps in place."""
        return self.backend.rope(q, k, positions, self.table, interleaved=self.interleaved)
