"""Dense float32 weights of the reference backend, with a product whose bits do not depend on the number of rows or threads."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import ThreadPoolExecutor

    from torch import Tensor

TILE_ROWS = 16
CHUNK_OUTPUTS = 256


@contextmanager
def single_thread() -> Iterator[None]:
    """Products inside run on the calling thread: with more threads the library may split the reduction and so change bits."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def tile_rows(outputs: int, inputs: int, dtype: torch.dtype = torch.float32, *, transposed: bool = True) -> int:
    """Rows a product of [rows, inputs] by [inputs, outputs] may share: TILE_ROWS if this machine's library gives equal rows equal bits, else 1.

    ``transposed``: the right side is a view of [outputs, inputs]. A different order of summation shows in random data almost surely, so one
    product of equal rows decides.
    """
    generator = torch.Generator().manual_seed(outputs * 1_000_003 + inputs)
    right = torch.randn((outputs, inputs) if transposed else (inputs, outputs), generator=generator, dtype=dtype)
    x = torch.randn(1, inputs, generator=generator, dtype=dtype).repeat(TILE_ROWS, 1)
    with single_thread():
        y = torch.mm(x, right.t() if transposed else right)
    return TILE_ROWS if bool((y == y[0]).all()) else 1


class DenseWeight:
    """A float32 matrix [N, K].

    ``matmul`` calls the library on blocks of one shape only ([tile, K] by [K, chunk], rows padded with zeros, one thread a call), so the order of
    summation of an output depends on N and K and on nothing else.
    """

    def __init__(self, weight: Tensor, pool: ThreadPoolExecutor | None, threads: int) -> None:
        self.weight = weight
        self.shape = (int(weight.shape[0]), int(weight.shape[1]))
        self.nbytes = weight.numel() * weight.element_size()
        self._pool, self._threads = pool, threads
        n, k = self.shape
        self._chunks = [(at, min(at + CHUNK_OUTPUTS, n)) for at in range(0, n, CHUNK_OUTPUTS)]
        self._tile = min(tile_rows(stop - start, k) for start, stop in {0: self._chunks[0], 1: self._chunks[-1]}.values())

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x float32 [T, K] -> x @ W.T (+ bias float32 [N]) float32 [T, N]."""
        count, tile = x.shape[0], self._tile
        out = torch.empty(count, self.shape[0])
        if count == 0:
            return out
        # Copied even when no padding is needed: a view could be aligned otherwise, and the library may look at that.
        padded = torch.zeros(-(-count // tile) * tile, self.shape[1])
        padded[:count] = x
        blocks = [padded[at : at + tile].clone() for at in range(0, padded.shape[0], tile)]
        with single_thread():
            if self._pool is None or len(self._chunks) == 1:
                self._span(blocks, out, self._chunks)
            else:
                share = -(-len(self._chunks) // self._threads)
                spans = [self._chunks[at : at + share] for at in range(0, len(self._chunks), share)]
                list(self._pool.map(lambda span: self._span(blocks, out, span), spans))
        return out if bias is None else out.add_(bias)

    def _span(self, blocks: list[Tensor], out: Tensor, chunks: list[tuple[int, int]]) -> None:
        with torch.inference_mode():
            for start, stop in chunks:
                weight = self.weight[start:stop].t()
                for i, block in enumerate(blocks):
                    first = i * self._tile
                    last = min(first + self._tile, out.shape[0])
                    out[first:last, start:stop] = torch.mm(block, weight)[: last - first]

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ``ids`` int64 [T] -> float32 [T, K]."""
        return self.weight.index_select(0, ids)
