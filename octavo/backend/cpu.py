"""The cpu backend: every operation in ``octavo._native``, float32 throughout.

A call checks what it is given, allocates its result and passes addresses; the arithmetic and its order are documented in
``octavo/kernels/csrc/kernels.h``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from octavo.backend.base import BackendOptions, LayerKV
from octavo.backend.capture import Arena, capture, empty
from octavo.backend.panels import LANES, DensePanels, QuantizedPanels, indices, matrix, panels_of
from octavo.backend.reference import ReferenceBackend, zeros
from octavo.config import AUTO, WEIGHT_SCHEMES
from octavo.errors import ConfigError, OctavoError, UnsupportedModel
from octavo.kernels import native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from octavo.backend.base import AttentionBatch, AttentionPlan, AttentionSpec, KVSpec, PackedWeight, RawWeight, SampleBatch

MAX_HEAD_DIM = 512
# Numbered as in csrc/kernels.h.
CACHE_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
_FLOAT = torch.float32


def _heads(x: Tensor, tokens: int, head_dim: int, what: str) -> Tensor:
    """``x`` float32 [tokens, heads, head_dim], heads and components contiguous (copied if they are not)."""
    if x.dtype is not _FLOAT or x.dim() != 3 or x.shape[0] != tokens or x.shape[2] != head_dim:
        raise OctavoError(f"{what} must be float32 [{tokens}, heads, {head_dim}], got {x.dtype} {list(x.shape)}")
    _, by_head, by_component = x.stride()
    return x if by_component == 1 and (by_head == head_dim or x.shape[1] == 1) else x.contiguous()


@dataclass(slots=True)
class CpuAttentionPlan:
    """The batch as C-contiguous int32 arrays, checked once a step. ``blocks`` is one more than the largest block id in use."""

    batch: AttentionBatch
    tokens: int
    rows: int
    blocks: int
    table_stride: int
    addresses: tuple[int, int, int]  # offsets, starts, tables


@lru_cache(maxsize=256)
def _slopes(values: tuple[float, ...]) -> np.ndarray:
    return np.asarray(values, np.float32)


class CpuBackend(ReferenceBackend):
    """See :class:`octavo.backend.base.Backend`. Sets the native pool's number of threads, and torch's to one: its own workers would spin on the
    cores the pool needs, and no operation here is left to them."""

    name = "cpu"

    def __init__(self, options: BackendOptions) -> None:
        module = native.load()
        if module is None:
            raise ConfigError(f"the cpu backend needs the native module, but {native.missing_reason()}")
        super().__init__(replace(options, threads=options.threads or module.cores()))
        self.native: Any = module
        self._arena = Arena()
        module.set_threads(self.threads)
        torch.set_num_threads(1)

    def alloc_kv(self, spec: KVSpec, num_blocks: int) -> list[LayerKV]:
        """Keys [blocks, G, block size / L, D, L] with L = min(block size, 16), values [blocks, G, block size, D]."""
        size = spec.block_size
        if spec.dtype not in CACHE_TYPES:
            raise ConfigError(f"the cpu backend keeps keys and values in {', '.join(map(str, CACHE_TYPES))}, not {spec.dtype}")
        if size & (size - 1) or not 1 <= size <= 128:
            raise ConfigError(f"block_size must be a power of two up to 128, got {size}")
        lanes = min(size, LANES)
        layers = []
        for layer in spec.layers:
            groups, width = layer.num_kv_heads, layer.head_dim
            if not 1 <= width <= MAX_HEAD_DIM:
                raise UnsupportedModel(f"the cpu backend supports heads of up to {MAX_HEAD_DIM} components, got {width}")
            keys = zeros((num_blocks, groups, size // lanes, width, lanes), spec.dtype)
            scales = [zeros((num_blocks, groups, size), _FLOAT) for _ in range(2)] if spec.scaled else []
            layers.append(LayerKV(keys, zeros((num_blocks, groups, size, width), spec.dtype), *scales))
        return layers

    def copy_blocks(self, kv: Sequence[LayerKV], pairs: Sequence[tuple[int, int]]) -> None:
        if not pairs or not kv:
            return
        array = np.asarray(pairs, np.int64)
        blocks = min(layer.k.shape[0] for layer in kv)
        if array.min() < 0 or array.max() >= blocks:
            raise OctavoError(f"block copies {list(pairs)} leave the cache of {blocks:,} blocks")
        caches = [(x.data_ptr(), x.stride(0) * x.element_size()) for layer in kv for x in layer.tensors()]
        self.native.copy_blocks(caches, array.ctypes.data, len(pairs))

    def pack(self, parts: Sequence[RawWeight], scheme: str = "dense") -> PackedWeight:
        """``scheme`` "dense" is float32 in panels; "auto" keeps quantized formats as they are, the rest is dense."""
        if scheme not in WEIGHT_SCHEMES:
            raise UnsupportedModel(f"the {self.name} backend has no weight scheme {scheme!r}; known: {', '.join(WEIGHT_SCHEMES)}")
        if not parts or len({part.shape[1] for part in parts}) != 1 or not all(min(part.shape) > 0 for part in parts):
            raise UnsupportedModel(f"cannot merge weights of shapes {', '.join(str(list(part.shape)) for part in parts) or '(none)'}")
        return panels_of(self.native, parts, quantized=scheme == AUTO)

    def embed(self, ids: Tensor, table: PackedWeight, scale: float = 1.0) -> Tensor:
        return table.scaled_rows(ids, scale) if isinstance(table, DensePanels | QuantizedPanels) else super().embed(ids, table, scale)

    def norm(
        self, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, *, bias: Tensor | None = None, center: bool = False
    ) -> tuple[Tensor, Tensor]:
        width = weight.shape[-1]
        rows = matrix(x, width, "the input of a norm") if x.dim() == 2 else _heads(x, x.shape[0], width, "the input of a norm")
        inner = 1 if x.dim() == 2 else x.shape[1]
        for values in (weight, weight if bias is None else bias):
            fits = values.shape == weight.shape and values.numel() in (width, inner * width)
            if values.dtype is not _FLOAT or not values.is_contiguous() or not fits:
                found = f"{values.dtype} {list(values.shape)}"
                raise OctavoError(f"weight and bias of a norm over {inner} x {width} must be contiguous float32, got {found}")
        out = empty(*x.shape)
        total = x
        if residual is not None:
            if residual.shape != x.shape or residual.dtype is not _FLOAT:
                raise OctavoError(f"the residual of a norm must be float32 {list(x.shape)}, got {residual.dtype} {list(residual.shape)}")
            residual, total = residual.contiguous(), empty(*x.shape)
        self.native.norm(
            rows.data_ptr(), 0 if residual is None else residual.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(),
            out.data_ptr(), 0 if residual is None else total.data_ptr(), eps, x.shape[0], inner, width, rows.stride(0),
            width if weight.numel() > width else 0, center,
        )  # fmt: skip
        return out, total

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, table: Tensor, *, interleaved: bool = False) -> tuple[Tensor, Tensor]:
        """In place where heads are contiguous. Raises IndexError for a position beyond the table."""
        tokens, heads, width = q.shape
        q, k, positions = _heads(q, tokens, width, "queries"), _heads(k, tokens, width, "keys"), indices(positions, "positions")
        if table.dtype is not _FLOAT or not table.is_contiguous() or positions.shape[0] != tokens:
            raise OctavoError(f"rope needs a contiguous float32 table and {tokens} positions, got {table.dtype} and {positions.shape[0]}")
        self.native.rope(
            q.data_ptr(), k.data_ptr(), positions.data_ptr(), table.data_ptr(), table.shape[0], q.stride(0), k.stride(0),
            tokens, heads, k.shape[1], width, table.shape[1], interleaved,
        )  # fmt: skip
        return q, k

    def add(self, x: Tensor, other: Tensor | None = None, *, scale: float = 1.0, limit: float = math.inf) -> Tensor:
        tokens, width = x.shape
        x = matrix(x, width, "a term of a sum")
        if other is not None and other.shape != x.shape:
            raise OctavoError(f"a sum of {list(x.shape)} and {list(other.shape)}")
        other = None if other is None else matrix(other, width, "a term of a sum")
        y = empty(tokens, width)
        self.native.add(
            x.data_ptr(), 0 if other is None else other.data_ptr(), y.data_ptr(), scale, limit, x.stride(0),
            0 if other is None else other.stride(0), tokens, width,
        )  # fmt: skip
        return y

    def act_mul(self, x: Tensor, kind: str) -> Tensor:
        if x.shape[1] % 2:
            raise OctavoError(f"a gated activation needs an even width, got {x.shape[1]}")
        return self._act(x, kind, x.shape[1] // 2, gated=True)

    def act(self, x: Tensor, kind: str) -> Tensor:
        return self._act(x, kind, x.shape[1], gated=False)

    def _act(self, x: Tensor, kind: str, features: int, *, gated: bool) -> Tensor:
        if kind not in native.ACTIVATIONS:
            raise UnsupportedModel(f"unknown activation {kind!r}; known: {', '.join(native.ACTIVATIONS)}")
        x = matrix(x, x.shape[1], "the input of an activation")
        y = empty(x.shape[0], features)
        self.native.act(x.data_ptr(), y.data_ptr(), x.stride(0), x.shape[0], features, native.ACTIVATIONS.index(kind), gated)
        return y

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor] | None:
        return capture(self.native, self._arena, function)

    def plan_attention(self, batch: AttentionBatch) -> AttentionPlan:
        offsets, starts, tables = (np.ascontiguousarray(a, np.int32) for a in (batch.offsets, batch.starts, batch.tables))
        rows = len(starts)
        if len(offsets) != rows + 1 or tables.ndim != 2 or len(tables) != rows:
            raise OctavoError(f"an attention batch of {rows} rows has {len(offsets)} offsets and tables {list(tables.shape)}")
        counts = np.diff(offsets)
        if rows and (offsets[0] != 0 or counts.min() < 0 or starts.min() < 0):
            raise OctavoError("offsets of an attention batch must ascend from 0 and starts must not be negative")
        needed = -(-(starts + counts) // batch.block_size)
        if rows and needed.max() > tables.shape[1]:
            raise OctavoError(f"a row needs {needed.max():,} blocks, its table holds {tables.shape[1]:,}")
        used = tables[np.arange(tables.shape[1]) < needed[:, None]]
        if used.size and used.min() < 0:
            raise OctavoError(f"block id {used.min()} in an attention batch")
        batch = replace(batch, offsets=offsets, starts=starts, tables=tables)
        addresses = (offsets.ctypes.data, starts.ctypes.data, tables.ctypes.data)
        return CpuAttentionPlan(batch, int(offsets[-1]), rows, int(used.max()) + 1 if used.size else 0, tables.shape[1], addresses)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, plan: AttentionPlan, spec: AttentionSpec) -> Tensor:
        if not isinstance(plan, CpuAttentionPlan):
            raise TypeError("attention needs a plan made by this backend's plan_attention")
        tokens, width, size = plan.tokens, spec.head_dim, plan.batch.block_size
        q, k, v = _heads(q, tokens, width, "queries"), _heads(k, tokens, width, "keys"), _heads(v, tokens, width, "values")
        if kv.v.shape[1:] != (spec.num_kv_heads, size, width) or plan.blocks > kv.v.shape[0]:
            raise OctavoError(f"block {plan.blocks - 1} of [{spec.num_kv_heads}, {size}, {width}] is not in a cache of {list(kv.v.shape)}")
        if q.shape[1] != spec.num_heads or k.shape[1] != spec.num_kv_heads or v.shape[1] != spec.num_kv_heads:
            raise OctavoError(f"{q.shape[1]}, {k.shape[1]} and {v.shape[1]} heads do not fit {spec.num_heads} over {spec.num_kv_heads}")
        out = empty(tokens, spec.num_heads, width)
        slopes = None if spec.alibi_slopes is None else _slopes(spec.alibi_slopes)
        self.native.attention(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), kv.k.data_ptr(), kv.v.data_ptr(),
            0 if kv.k_scale is None else kv.k_scale.data_ptr(), 0 if kv.v_scale is None else kv.v_scale.data_ptr(), *plan.addresses,
            0 if slopes is None else slopes.ctypes.data,
            q.stride(0), k.stride(0), v.stride(0), tokens, plan.rows, spec.num_heads, spec.num_kv_heads, width, size, plan.table_stride,
            spec.window or 0, spec.scale, spec.softcap or 0.0, CACHE_TYPES.index(kv.k.dtype),
        )  # fmt: skip
        return out

    def sample(self, logits: Tensor, batch: SampleBatch) -> np.ndarray:
        rows, vocab = logits.shape
        logits = matrix(logits, vocab, "logits")
        columns = [
            np.ascontiguousarray(getattr(batch, name), dtype)
            for name, dtype in (
                ("temperature", np.float32), ("top_k", np.int32), ("top_p", np.float32), ("min_p", np.float32),
                ("seed", np.uint64), ("index", np.uint32), ("position", np.uint64),
            )
        ]  # fmt: skip
        if any(len(column) != rows for column in columns):
            raise OctavoError(f"{rows} rows of logits but {[len(column) for column in columns]} sampling parameters")
        out = np.empty(rows, np.int64)
        self.native.sample(logits.data_ptr(), logits.stride(0), rows, vocab, *(column.ctypes.data for column in columns), out.ctypes.data)
        return out
