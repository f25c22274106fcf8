"""What a device must offer. ``reference`` implements all of it in torch; ``cpu`` and ``cuda`` override operation by operation.

Letters in shape comments: T tokens of the step, R rows (requests) of the step, H query heads, G key/value heads, D head size, N outputs,
K inputs of a product, V vocabulary. All activations are float32 on the CPU. Promise 1 binds every operation: the result for a token or a
row depends on that row alone, never on how many rows share the call nor on the number of threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RawWeight:
    """A matrix [N, K] as stored in a file. ``data``: uint8 [N, bytes per row], possibly memory-mapped and read-only.

    ``format``: "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k".
    ``columns`` int32 [K]: column j of ``data`` belongs to input ``columns[j]``; None where they are in order.
    """

    format: str
    shape: tuple[int, int]
    data: np.ndarray
    columns: np.ndarray | None = None


class PackedWeight(Protocol):
    """A weight matrix [N, K] in the layout its backend likes; it brings its own product."""

    shape: tuple[int, int]
    nbytes: int

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [T, K] -> x @ W.T [T, N], plus ``bias`` [N] last. The order of summation of an output depends on K alone."""
        ...

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ``ids`` (int64 [T]) dequantized: [T, K] (an embedding look-up on the same storage)."""
        ...


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One attention layer. ``window`` w: a query at p sees keys in (p - w, p]. ``softcap`` c: scores become c * tanh(s / c)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    alibi_slopes: tuple[float, ...] | None = None  # one a query head; adds slope * (key position - query position)


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The cache of a whole model: one entry a layer. 8-bit types keep a float32 scale for each position and head beside the codes."""

    layers: tuple[AttentionSpec, ...]
    block_size: int
    dtype: torch.dtype

    @property
    def scaled(self) -> bool:
        return self.dtype.itemsize == 1

    def block_bytes(self) -> int:
        """Bytes of one block over all layers (keys and values, and their scales)."""
        return sum(2 * s.num_kv_heads * (s.head_dim * self.dtype.itemsize + (4 if self.scaled else 0)) for s in self.layers) * self.block_size


@dataclass(slots=True)
class LayerKV:
    """Keys and values of one layer, in whatever layout the backend chose. ``alloc_kv`` makes them, ``attention`` writes and reads them.

    Scales float32 [blocks, G, block size], with 8-bit types alone.
    """

    k: Tensor
    v: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Everything that belongs to a block; blocks are the first dimension."""
        return [x for x in (self.k, self.v, self.k_scale, self.v_scale) if x is not None]


@dataclass(slots=True)
class AttentionBatch:
    """The rows of a step: row r computes tokens ``offsets[r]:offsets[r+1]`` of the step at positions ``starts[r] ...``.

    ``tables[r]`` are the row's block ids, at least ceil((starts[r] + count) / block_size) of them valid.
    """

    offsets: np.ndarray  # int32 [R + 1]
    starts: np.ndarray  # int32 [R]
    tables: np.ndarray  # int32 [R, max blocks], C-contiguous
    block_size: int


class AttentionPlan(Protocol):
    """Opaque: what ``plan_attention`` derived once a step and every layer reuses."""

    batch: AttentionBatch


@dataclass(slots=True)
class SampleBatch:
    """Per-row choices, numpy arrays of length R. Penalties, biases and masks have been applied to the logits before.

    Noise is Philox4x32-10 keyed by ``seed``, counter (token id // 4, index, position low, position high): see :mod:`octavo.decode.sampler`.
    """

    temperature: np.ndarray  # float32; below 1e-5 is greedy
    top_k: np.ndarray  # int32; 0 is off
    top_p: np.ndarray  # float32; 1 is off
    min_p: np.ndarray  # float32; 0 is off
    seed: np.ndarray  # uint64
    index: np.ndarray  # uint32, sequence index within its request
    position: np.ndarray  # uint64, position the sampled token will take


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes. ``available`` is what this process may still take."""

    total: int
    available: int


class Backend(Protocol):
    """Operations of a device. Implementations also list, in ``fallbacks``, the operations they inherit from ``reference``."""

    name: str
    device: torch.device
    fallbacks: tuple[str, ...]

    def memory(self) -> MemoryInfo: ...

    def alloc_kv(self, spec: KVSpec, num_blocks: int) -> list[LayerKV]:
        """Zeroed cache of every layer. Untouched pages cost nothing on a CPU."""
        ...

    def copy_blocks(self, kv: Sequence[LayerKV], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer; no destination is a source of the same call."""
        ...

    def pack(self, parts: Sequence[RawWeight], scheme: str = "dense") -> PackedWeight:
        """Concatenate ``parts`` along N (merged projections) and bring them into the layout of ``scheme``.

        "dense" is exact float32; "auto" is what computes fastest, which may quantize activations."""
        ...

    def embed(self, ids: Tensor, table: PackedWeight, scale: float = 1.0) -> Tensor:
        """ids int64 [T] -> [T, K] * scale."""
        ...

    def norm(
        self, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, *, bias: Tensor | None = None, center: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Norm over the last dimension: s = x + residual (or x), c = s - mean(s) if ``center`` (layer norm) else s (RMS norm);
        returns (c / rms(c) * weight (+ bias), s). x [T, K] with weight [K], or [T, H, D] with weight [D] or one a head, [H, D]; bias as weight."""
        ...

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor, *, interleaved: bool = False) -> tuple[Tensor, Tensor]:
        """Rotate pairs within the first ``rot`` components: halves (i, i + rot/2) in NeoX's style, neighbours (2i, 2i + 1) if ``interleaved``
        (GPT-J's). q [T, H, D], k [T, G, D], positions int64 [T], table float32 [max positions, rot]: cosines then sines, rot/2 each.
        May work in place and returns what to use."""
        ...

    def add(self, x: Tensor, other: Tensor | None = None, *, scale: float = 1.0, limit: float = math.inf) -> Tensor:
        """x [T, K] * scale (+ other [T, K]), bounded to -limit .. limit; each step rounds. A new tensor."""
        ...

    def act_mul(self, x: Tensor, kind: str) -> Tensor:
        """x [T, 2F] -> act(x[:, :F]) * x[:, F:]; kind "silu", "gelu" (erf), "gelu_tanh", "relu" or "relu2" (its square)."""
        ...

    def act(self, x: Tensor, kind: str) -> Tensor:
        """x [T, F] -> act(x); kinds as of ``act_mul``."""
        ...

    def plan_attention(self, batch: AttentionBatch) -> AttentionPlan: ...

    def attention(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, plan: AttentionPlan, spec: AttentionSpec) -> Tensor:
        """Write k, v [T, G, D] into the cache, then causal attention of q [T, H, D] over it: [T, H, D]."""
        ...

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor] | None:
        """Run ``function`` once and return what repeats its work over the same memory: same inputs, cache and result tensor, with whatever numbers
        they hold by then. No two results of this backend may run at once. None if the function cannot be repeated so (or this backend never does)."""
        ...

    def sample(self, logits: Tensor, batch: SampleBatch) -> np.ndarray:
        """logits float32 [R, V] -> token ids int64 [R]. Top-k, then top-p, then min-p on the tempered distribution; then Gumbel-max."""
        ...


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """``threads`` 0 means every core this process may use."""

    threads: int = 0
    extra: dict[str, str] = field(default_factory=dict)
