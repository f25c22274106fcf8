"""Rotary position embeddings (Su et al., 2021) and the ways models stretch them to longer contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from octavo.errors import UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from octavo.layers.scope import Scope


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """``rope_parameters`` of a configuration. ``kind`` is one of :data:`KINDS`; "default" reads ``theta`` alone, "linear" also ``factor``."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


def _default(frequencies: NDArray[np.float64], parameters: RopeParameters) -> NDArray[np.float64]:
    return frequencies


def _linear(frequencies: NDArray[np.float64], parameters: RopeParameters) -> NDArray[np.float64]:
    """Position interpolation (Chen et al., 2023): every frequency divided by ``factor``."""
    return frequencies / parameters.factor


def _llama3(frequencies: NDArray[np.float64], parameters: RopeParameters) -> NDArray[np.float64]:
    """Llama 3.1: long wavelengths are divided by ``factor``, short ones kept, those between blended by how often they turn in the old context."""
    turns = parameters.original_max_positions * frequencies / (2 * math.pi)
    keep = np.clip((turns - parameters.low_freq_factor) / (parameters.high_freq_factor - parameters.low_freq_factor), 0.0, 1.0)
    return keep * frequencies + (1 - keep) * frequencies / parameters.factor


KINDS: dict[str, Callable[[NDArray[np.float64], RopeParameters], NDArray[np.float64]]] = {"default": _default, "linear": _linear, "llama3": _llama3}


def rope_table(parameters: RopeParameters, head_dim: int, max_positions: int) -> Tensor:
    """float32 [max_positions, head_dim]: cosines then sines of position * frequency, computed in float64. Raises UnsupportedModel."""
    if parameters.kind not in KINDS:
        raise UnsupportedModel(f"rope type {parameters.kind!r} is not supported; known: {', '.join(KINDS)}")
    frequencies = parameters.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    angles = np.outer(np.arange(max_positions, dtype=np.float64), KINDS[parameters.kind](frequencies, parameters))
    table = np.empty((max_positions, head_dim), dtype=np.float32)
    table[:, : head_dim // 2] = np.cos(angles)
    table[:, head_dim // 2 :] = np.sin(angles)
    return torch.from_numpy(table)


class Rope:
    """Rotates queries and keys by their positions. One table serves every layer with the same parameters."""

    def __init__(self, scope: Scope, head_dim: int, parameters: RopeParameters) -> None:
        self.backend = scope.backend
        self.table = rope_table(parameters, head_dim, scope.max_positions).to(scope.backend.device)

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """q [T, H, D], k [T, G, D], positions int64 [T]; both rotated, perhaps in place."""
        return self.backend.rope(q, k, positions, self.table)
