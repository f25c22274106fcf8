"""Backends under test and independent float64 computations to compare them with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from octavo.backend.base import AttentionBatch, AttentionSpec, Backend, BackendOptions, KVSpec, LayerKV, RawWeight

BACKENDS = ("reference", "cpu")


def make_backend(name: str, threads: int = 2) -> Backend:
    """A backend by name; skips the test if its native module was not built here."""
    if name == "reference":
        from octavo.backend.reference import ReferenceBackend

        return ReferenceBackend(BackendOptions(threads=threads))
    from octavo.kernels import native

    if native.load() is None:
        pytest.skip(f"no native module: {native.missing_reason()}")
    from octavo.backend.cpu import CpuBackend

    return CpuBackend(BackendOptions(threads=threads))


def random_tensor(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def raw_f32(weight: torch.Tensor) -> RawWeight:
    data = weight.contiguous().numpy()
    return RawWeight("f32", (int(weight.shape[0]), int(weight.shape[1])), data.view(np.uint8).reshape(weight.shape[0], -1))


def bits(x: torch.Tensor) -> bytes:
    return x.contiguous().numpy().tobytes()


@dataclass
class Sequence:
    """One request's whole queries, keys and values: q [S, H, D], k and v [S, G, D]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: list[int]

    def __len__(self) -> int:
        return int(self.q.shape[0])


def make_sequences(spec: AttentionSpec, lengths: list[int], block_size: int, num_blocks: int, seed: int = 0) -> list[Sequence]:
    """Sequences over disjoint blocks in random order. Block 0 stays free, so that a wrong default shows."""
    order = (np.random.default_rng(seed).permutation(num_blocks - 1) + 1).tolist()
    sequences = []
    for i, length in enumerate(lengths):
        need = -(-length // block_size)
        table, order = order[:need], order[need:]
        shapes = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        q, k, v = (random_tensor(seed + 10 * i + j, length, heads, spec.head_dim) for j, heads in enumerate(shapes))
        sequences.append(Sequence(q * 1.5, k, v, table))
    return sequences


def new_cache(backend: Backend, spec: AttentionSpec, block_size: int, num_blocks: int, dtype: torch.dtype = torch.float32) -> LayerKV:
    return backend.alloc_kv(KVSpec((spec,), block_size, dtype), num_blocks)[0]


def step(
    backend: Backend, kv: LayerKV, spec: AttentionSpec, block_size: int, rows: list[tuple[Sequence, int, int]]
) -> list[torch.Tensor]:
    """One call of attention: rows are (sequence, start, count). Returns each row's output."""
    width = max(len(s.table) for s, _, _ in rows)
    tables = np.zeros((len(rows), width), np.int32)
    for r, (s, start, count) in enumerate(rows):
        valid = -(-(start + count) // block_size)
        tables[r, :valid] = s.table[:valid]
    offsets = np.cumsum([0] + [count for _, _, count in rows]).astype(np.int32)
    batch = AttentionBatch(offsets, np.array([start for _, start, _ in rows], np.int32), tables, block_size)
    q, k, v = (torch.cat([getattr(s, name)[start : start + count] for s, start, count in rows]) for name in "qkv")
    out = backend.attention(q, k, v, kv, backend.plan_attention(batch), spec)
    return [out[offsets[r] : offsets[r + 1]].clone() for r in range(len(rows))]


def expected_attention(s: Sequence, spec: AttentionSpec) -> torch.Tensor:
    """Causal attention of a whole sequence, one head at a time, over the full matrix of scores in float64."""
    q, k, v = s.q.double(), s.k.double(), s.v.double()
    out = torch.empty_like(q)
    distance = torch.arange(len(s))[None, :] - torch.arange(len(s))[:, None]  # key position minus query position
    visible = distance <= 0
    if spec.window is not None:
        visible &= distance > -spec.window
    for h in range(spec.num_heads):
        own = h // (spec.num_heads // spec.num_kv_heads)
        scores = q[:, h] @ k[:, own].t() * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        if spec.alibi_slopes is not None:
            scores = scores + spec.alibi_slopes[h] * distance
        out[:, h] = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1) @ v[:, own]
    return out


def alibi_slopes(heads: int) -> tuple[float, ...]:
    return tuple(2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads))


def attention_spec(heads: int, kv_heads: int, head_dim: int, *, window: int | None = None, softcap: float | None = None, alibi: bool = False):
    slopes = alibi_slopes(heads) if alibi else None
    return AttentionSpec(heads, kv_heads, head_dim, 1 / math.sqrt(head_dim), window, softcap, slopes)
