"""Paged attention of the reference backend, in float64.

Keys are taken in tiles that begin at multiples of KEY_TILE positions, queries in tiles of rows. Every product is one library call of one shape on
contiguous operands, partial results are added tile by tile in the order of positions, and a key that a query may not see has weight zero, which
changes no sum. So the bits of a query's result depend on its own keys and values alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from octavo.backend import exact
from octavo.backend.dense import single_thread, tile_rows

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.backend.base import AttentionSpec, LayerKV

KEY_TILE = 64


def attend_row(q: Tensor, kv: LayerKV, table: Tensor, start: int, block_size: int, spec: AttentionSpec) -> Tensor:
    """q float32 [count, H, D] at positions ``start`` ... over the row's cached keys -> float64 [count, H, D]."""
    count, heads, dim = q.shape
    group = heads // spec.num_kv_heads
    oldest = 0 if spec.window is None else max(0, start - spec.window + 1)
    first_tile = oldest // KEY_TILE
    caches = ((kv.k, kv.k_scale), (kv.v, kv.v_scale))
    keys, values = (_gather(cache, scales, table, oldest, start + count, block_size) for cache, scales in caches)
    keys = keys.transpose(2, 3).contiguous()  # [G, tiles, D, KEY_TILE]
    size = min(tile_rows(KEY_TILE, dim, torch.float64, transposed=False), tile_rows(dim, KEY_TILE, torch.float64, transposed=False))
    # Rows of one key head: query by query, the group's heads beside each other; padded to whole tiles.
    rows = torch.zeros(spec.num_kv_heads, -(-count * group // size) * size, dim, dtype=torch.float64)
    rows[:, : count * group] = q.view(count, spec.num_kv_heads, group, dim).transpose(0, 1).reshape(spec.num_kv_heads, -1, dim)
    out = torch.empty_like(rows)
    slopes = None if spec.alibi_slopes is None else torch.tensor(spec.alibi_slopes, dtype=torch.float64).view(spec.num_kv_heads, group)
    with single_thread():
        for at in range(0, rows.shape[1], size):
            own = torch.arange(at, at + size)
            positions = (own // group).clamp_(max=count - 1).add_(start)
            low = 0 if spec.window is None else max(0, int(positions[0]) - spec.window + 1) // KEY_TILE
            tiles = range(low - first_tile, int(positions[-1]) // KEY_TILE + 1 - first_tile)
            distance = torch.arange(low * KEY_TILE, low * KEY_TILE + len(tiles) * KEY_TILE).view(len(tiles), 1, KEY_TILE) - positions.view(1, size, 1)
            for g in range(spec.num_kv_heads):
                bias = None if slopes is None else slopes[g, own % group].view(1, size, 1) * distance
                piece = rows[g, at : at + size].clone()
                out[g, at : at + size] = _attend_tile(piece, [keys[g, t] for t in tiles], [values[g, t] for t in tiles], distance, bias, spec)
    return out[:, : count * group].view(spec.num_kv_heads, count, group, dim).transpose(0, 1).reshape(q.shape)


def encode(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x float32 [T, G, D] as 8-bit codes of ``dtype`` (int8, or FP8) and their scales float32 [T, G]: largest magnitude / largest code.

    An infinity or NaN makes the scale NaN; magnitudes below 1e-30 count as zero.
    """
    most = 127.0 if dtype is torch.int8 else float(torch.finfo(dtype).max)
    largest = x.abs().amax(-1)
    finite = x.isfinite().all(-1)
    zero = ~finite | ~(largest >= 1e-30)
    # A number divided by a tensor would be its reciprocal times the number, rounded twice.
    inverse = torch.where(zero, torch.zeros_like(largest), torch.full_like(largest, most) / largest).unsqueeze(-1)
    scaled = torch.where(zero.unsqueeze(-1), torch.zeros_like(x), x * inverse).clamp_(-most, most)
    codes = scaled.round_().to(dtype) if dtype is torch.int8 else scaled.to(dtype)
    scale = torch.where(zero, torch.zeros_like(largest), largest / most)
    return codes, torch.where(finite, scale, torch.full_like(scale, torch.nan))


def _gather(cache: Tensor, scales: Tensor | None, table: Tensor, oldest: int, end: int, block_size: int) -> Tensor:
    """Entries [oldest, end) of a row as float64 [G, tiles, KEY_TILE, D], from the tile that holds ``oldest``; everything else is zero."""
    first = oldest // block_size
    span = slice(oldest - first * block_size, end - first * block_size)
    blocks = cache.view(torch.int8)[table[first:]].view(cache.dtype) if scales is not None else cache[table[first:]]
    stored = blocks.transpose(0, 1).flatten(1, 2)[:, span]
    if scales is not None:  # rounded to float32, as what other backends compute with
        stored = stored.float() * scales[table[first:]].transpose(0, 1).flatten(1, 2)[:, span].unsqueeze(-1)
    origin = oldest // KEY_TILE * KEY_TILE
    tiles = -(-(end - origin) // KEY_TILE)
    out = torch.zeros(stored.shape[0], tiles * KEY_TILE, stored.shape[2], dtype=torch.float64)
    out[:, oldest - origin : end - origin] = stored
    return out.view(stored.shape[0], tiles, KEY_TILE, stored.shape[2])


def _attend_tile(
    q: Tensor, keys: list[Tensor], values: list[Tensor], distance: Tensor, bias: Tensor | None, spec: AttentionSpec
) -> Tensor:
    """q float64 [B, D] over tiles of keys [D, KEY_TILE] and values [KEY_TILE, D] -> [B, D].

    ``distance`` [tiles, B, KEY_TILE]: key position minus query position, zero or below where visible.
    """
    scores = torch.stack([torch.mm(q, tile) for tile in keys]).mul_(spec.scale)  # [tiles, B, KEY_TILE]
    if spec.softcap is not None:
        scores = exact.tanh(scores / spec.softcap).mul_(spec.softcap)
    if bias is not None:
        scores += bias
    hidden = distance > 0 if spec.window is None else (distance > 0) | (distance <= -spec.window)
    scores.masked_fill_(hidden, -torch.inf)
    weights = exact.exp(scores - scores.amax((0, 2), keepdim=True))
    total, norm = torch.zeros_like(q), torch.zeros(q.shape[0], 1, dtype=torch.float64)
    for tile_weights, tile in zip(weights, values, strict=True):  # in the order of positions
        total += torch.mm(tile_weights, tile)
        norm += exact.fold_sum(tile_weights.clone(), -1).unsqueeze(-1)
    return total / norm
