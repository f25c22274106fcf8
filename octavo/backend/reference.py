"""Every operation of a backend in torch and numpy on the CPU: complete, accurate, and the measure the other backends are held to.

Activations are float32; norms, activations and attention compute in float64 with the arithmetic of :mod:`octavo.backend.exact` and round once, so
the result for a token depends on that token's own values alone.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from octavo.backend import exact
from octavo.backend.base import LayerKV
from octavo.backend.dense import DenseWeight
from octavo.backend.machine import host_memory, usable_cores
from octavo.backend.paged import attend_row, encode
from octavo.backend.sampling import sample_rows
from octavo.config import WEIGHT_SCHEMES
from octavo.errors import ConfigError, UnsupportedModel
from octavo.kernels.dequant import dequantize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from octavo.backend.base import (
        AttentionBatch,
        AttentionPlan,
        AttentionSpec,
        BackendOptions,
        KVSpec,
        MemoryInfo,
        PackedWeight,
        RawWeight,
        SampleBatch,
    )

BLOCK_ELEMENTS = 1 << 14  # values worked on at once: they stay in a core's cache, and torch uses one thread
ALIGNMENT = 64
DEQUANT_ROWS = 4096  # rows decoded at a time, which bounds the temporary arrays


@dataclass(slots=True)
class ReferencePlan:
    """Where each token of the step is stored: ``blocks`` and ``places`` (within the block), int64 [T]; ``keys[r]``: the row's block table."""

    batch: AttentionBatch
    blocks: Tensor
    places: Tensor
    keys: list[Tensor]


class ReferenceBackend:
    """See :class:`octavo.backend.base.Backend` for shapes and meaning of each operation. Sets torch's number of threads."""

    name = "reference"
    fallbacks: tuple[str, ...] = ()

    def __init__(self, options: BackendOptions) -> None:
        if options.threads < 0:
            raise ConfigError(f"threads must be 0 (every core) or positive, got {options.threads}")
        self.device = torch.device("cpu")
        self.threads = options.threads or usable_cores()
        torch.set_num_threads(self.threads)
        self._pool = ThreadPoolExecutor(self.threads, "octavo-matmul", torch.set_num_threads, (1,)) if self.threads > 1 else None

    def memory(self) -> MemoryInfo:
        """Of the machine or of the control groups this process is in, whichever is smaller."""
        return host_memory()

    def alloc_kv(self, spec: KVSpec, num_blocks: int) -> list[LayerKV]:
        """Keys and values [blocks, G, block size, D] of every layer."""
        made = []
        for layer in spec.layers:
            shape = (num_blocks, layer.num_kv_heads, spec.block_size)
            codes = [zeros((*shape, layer.head_dim), spec.dtype) for _ in range(2)]
            made.append(LayerKV(*codes, *(zeros(shape, torch.float32) for _ in range(2 if spec.scaled else 0))))
        return made

    def copy_blocks(self, kv: Sequence[LayerKV], pairs: Sequence[tuple[int, int]]) -> None:
        if not pairs:
            return
        sources, targets = torch.tensor(list(pairs), dtype=torch.int64).unbind(1)
        for cache in (x for layer in kv for x in layer.tensors()):
            cache[targets] = cache[sources]

    def pack(self, parts: Sequence[RawWeight], scheme: str = "dense") -> PackedWeight:
        """The reference knows one layout, float32: ``scheme`` "auto" is "dense"."""
        if scheme not in WEIGHT_SCHEMES:
            raise UnsupportedModel(f"the {self.name} backend has no weight scheme {scheme!r}; known: {', '.join(WEIGHT_SCHEMES)}")
        return DenseWeight(self.dense(parts), self._pool, self.threads)

    def dense(self, parts: Sequence[RawWeight]) -> Tensor:
        """``parts`` [N, K] dequantized and concatenated along N: float32."""
        if not parts or len({part.shape[1] for part in parts}) != 1:
            raise UnsupportedModel(f"cannot merge weights of shapes {', '.join(str(list(part.shape)) for part in parts) or '(none)'}")
        k = parts[0].shape[1]
        weight = torch.empty(sum(part.shape[0] for part in parts), k)
        target, at = weight.numpy(), 0
        for part in parts:
            for first in range(0, part.shape[0], DEQUANT_ROWS):
                piece = dequantize(part.format, part.data[first : min(first + DEQUANT_ROWS, part.shape[0])], k)
                target[at : at + len(piece), slice(None) if part.columns is None else part.columns] = piece
                at += len(piece)
        return weight

    def embed(self, ids: Tensor, table: PackedWeight, scale: float = 1.0) -> Tensor:
        rows = table.rows(ids)
        return rows if scale == 1.0 else rows * scale

    def norm(
        self, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, *, bias: Tensor | None = None, center: bool = False
    ) -> tuple[Tensor, Tensor]:
        total = x if residual is None else x + residual
        width = x.shape[-1]
        rows, period = total.reshape(-1, width), weight.numel() // width  # the rows of a token take turns with the weights
        out = torch.empty_like(rows)
        for turn in range(period):
            own, result = rows[turn::period], out[turn::period]
            wide_weight = weight.view(period, width)[turn].double()
            wide_bias = 0.0 if bias is None else bias.view(period, width)[turn].double()
            for piece in _pieces(own):
                wide = own[piece].double()
                if center:
                    wide = wide - (exact.fold_sum(wide.clone(), -1) / width).unsqueeze(-1)
                mean = exact.fold_sum(wide * wide, -1) / width
                result[piece] = (wide / (mean + eps).sqrt_().unsqueeze(-1)).mul_(wide_weight).add_(wide_bias)
        return out.view(x.shape), total

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor, *, interleaved: bool = False) -> tuple[Tensor, Tensor]:
        cos, sin = table[positions].unsqueeze(1).chunk(2, dim=-1)
        rotate = _rotate_neighbours if interleaved else _rotate
        return rotate(q, cos, sin), rotate(k, cos, sin)

    def add(self, x: Tensor, other: Tensor | None = None, *, scale: float = 1.0, limit: float = math.inf) -> Tensor:
        out = x * scale
        return (out if other is None else out.add_(other)).clamp_(-limit, limit)

    def act_mul(self, x: Tensor, kind: str) -> Tensor:
        function, out = _activation(kind), torch.empty(x.shape[0], x.shape[1] // 2)
        for piece in _pieces(x):
            gate, up = x[piece].double().chunk(2, dim=-1)
            out[piece] = function(gate) * up
        return out

    def act(self, x: Tensor, kind: str) -> Tensor:
        function, out = _activation(kind), torch.empty(x.shape)
        for piece in _pieces(x):
            out[piece] = function(x[piece].double())
        return out

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor] | None:
        return None  # torch's operations cannot be repeated without Python

    def plan_attention(self, batch: AttentionBatch) -> AttentionPlan:
        counts = np.diff(batch.offsets)
        first = np.repeat(batch.starts - batch.offsets[:-1], counts)
        positions = first + np.arange(int(batch.offsets[-1]))
        blocks = batch.tables[np.repeat(np.arange(len(counts)), counts), positions // batch.block_size]
        ends = batch.starts + counts
        keys = [torch.from_numpy(batch.tables[r, : -(-int(end) // batch.block_size)].astype(np.int64)) for r, end in enumerate(ends)]
        return ReferencePlan(
            batch, torch.from_numpy(blocks.astype(np.int64)), torch.from_numpy((positions % batch.block_size).astype(np.int64)), keys
        )

    def attention(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, plan: AttentionPlan, spec: AttentionSpec) -> Tensor:
        if not isinstance(plan, ReferencePlan):
            raise TypeError("attention needs a plan made by this backend's plan_attention")
        for x, cache, scales in ((k, kv.k, kv.k_scale), (v, kv.v, kv.v_scale)):
            if scales is None:
                cache[plan.blocks, :, plan.places] = x.to(cache.dtype)
                continue
            codes, scale = encode(x, cache.dtype)
            # Indexing knows no 8-bit floats: their bytes move as integers.
            cache.view(torch.int8)[plan.blocks, :, plan.places] = codes.view(torch.int8)
            scales[plan.blocks, :, plan.places] = scale
        out = torch.empty_like(q)
        batch = plan.batch
        for r, table in enumerate(plan.keys):
            first, last = int(batch.offsets[r]), int(batch.offsets[r + 1])
            if first < last:
                out[first:last] = attend_row(q[first:last], kv, table, int(batch.starts[r]), batch.block_size, spec)
        return out

    def sample(self, logits: Tensor, batch: SampleBatch) -> np.ndarray:
        return sample_rows(logits.numpy(), batch)


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A zeroed tensor aligned to 64 bytes whose memory the system provides page by page, as it is first touched."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)  # calloc; torch.zeros would write every page
    start = -memory.ctypes.data % ALIGNMENT
    return torch.from_numpy(memory[start : start + size]).view(dtype).view(shape)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], dim=-1)


def _rotate_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = 2 * cos.shape[-1]
    a, b = x[..., :width:2], x[..., 1:width:2]
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return torch.cat([turned, x[..., width:]], dim=-1)


def _pieces(x: Tensor) -> Iterator[slice]:
    """Cut the rows of a matrix into pieces of about BLOCK_ELEMENTS values."""
    size = max(1, BLOCK_ELEMENTS // max(x.shape[1], 1))
    return (slice(at, at + size) for at in range(0, x.shape[0], size))


def _silu(x: Tensor) -> Tensor:
    return x / (exact.exp(-x) + 1.0)


def _gelu(x: Tensor) -> Tensor:
    """Hendrycks and Gimpel, "Gaussian error linear units", 2016."""
    return 0.5 * x * (1.0 + exact.erf(x * 0.7071067811865476))


def _gelu_tanh(x: Tensor) -> Tensor:
    """The approximation of the same paper, with sqrt(2 / pi)."""
    return 0.5 * x * (1.0 + exact.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def _relu(x: Tensor) -> Tensor:
    return x.clamp(min=0.0)


def _relu2(x: Tensor) -> Tensor:
    """So et al., "Primer", 2021."""
    y = _relu(x)
    return y * y


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "relu": _relu, "relu2": _relu2}


def _activation(kind: str) -> Callable[[Tensor], Tensor]:
    if kind not in _ACTIVATIONS:
        raise UnsupportedModel(f"unknown activation {kind!r}; known: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[kind]
