"""What an operation must do at least: bytes moved (operands read, results written, each once) and arithmetic operations. Floors come of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.backend.peaks import Floors

INT8_BYTES = 1.5  # a packed weight with fewer bytes a value is multiplied in int8
FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class Cost:
    """``int8``: of which kind the operations are; float32 otherwise."""

    bytes: float
    ops: float
    int8: bool = False

    def seconds(self, floors: Floors) -> tuple[float, str]:
        """The least time on a machine of these limits, and which of them sets it: "bandwidth", "int8" or "float32"."""
        peak = floors.int8_gop_s if self.int8 and floors.int8_gop_s is not None else floors.float_gflop_s
        by_bytes, by_ops = self.bytes / (1e9 * floors.read_gb_s), self.ops / (1e9 * peak)
        return max(by_bytes, by_ops), "bandwidth" if by_bytes >= by_ops else "int8" if self.int8 else "float32"


def matmul(weight_bytes: int, outputs: int, inputs: int, tokens: int) -> Cost:
    moved = weight_bytes + FLOAT * tokens * (inputs + outputs)
    return Cost(moved, 2.0 * tokens * outputs * inputs, weight_bytes < INT8_BYTES * outputs * inputs)


def attention(
    counts: Sequence[int], starts: Sequence[int], heads: int, kv_heads: int, head_dim: int, element: int, window: int | None = None
) -> Cost:
    """Rows of ``counts`` new tokens after ``starts`` cached ones. ``element``: bytes of a value in the cache. A window bounds what a query sees."""
    tokens, cached, seen = sum(counts), 0, 0
    for count, start in zip(counts, starts, strict=True):
        end = start + count
        if window is None:
            cached, seen = cached + end, seen + count * start + count * (count + 1) // 2
        else:
            cached, seen = cached + min(end, count + window - 1), seen + sum(min(position + 1, window) for position in range(start, end))
    moved = 2.0 * kv_heads * head_dim * (element * cached + FLOAT * tokens) + 2.0 * FLOAT * tokens * heads * head_dim
    return Cost(moved, 4.0 * seen * heads * head_dim)


def norm(rows: int, width: int, *, residual: bool) -> Cost:
    return Cost(FLOAT * rows * width * (4.0 if residual else 2.0), 4.0 * rows * width)


def rope(tokens: int, heads: int, head_dim: int) -> Cost:
    """``heads``: those of queries and keys together."""
    values = tokens * heads * head_dim
    return Cost(2.0 * FLOAT * values, 3.0 * values)


def act_mul(tokens: int, features: int) -> Cost:
    return Cost(3.0 * FLOAT * tokens * features, 4.0 * tokens * features)


def embed(weight_bytes: int, rows: int, width: int, tokens: int) -> Cost:
    return Cost(tokens * (weight_bytes / rows + FLOAT * width), 0.0)


def sample(rows: int, vocab: int) -> Cost:
    return Cost(FLOAT * rows * vocab, 0.0)
