"""The machine's own limits, which operators are held against: read bandwidth and multiply-add rates, measured now with a given number of threads."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
GEMM = 1024


@dataclass(frozen=True, slots=True)
class Floors:
    """10^9 bytes or operations a second; a multiply and an add are two operations. ``int8_gop_s`` None: not measured. ``method``: how."""

    read_gb_s: float
    float_gflop_s: float
    int8_gop_s: float | None
    method: str


def measure_floors(native: Any, threads: int, working_set_mib: int, seconds: float) -> Floors:
    """Reads a buffer of ``working_set_mib`` over and over, and runs multiply-add chains on registers, ``seconds`` a round.

    ``native``: the module ``octavo._native``, whose threads and kernel set count; with None, torch's sum and float32 product stand in.
    """
    if native is None:
        return _torch_floors(threads, working_set_mib)
    read, floats, ints = (1e-9 * rate for rate in native.peaks(working_set_mib << 20, seconds))
    return Floors(read, floats, ints, f"chains of {native.isa()} instructions")


def best_of(a: Floors, b: Floors) -> Floors:
    """The higher of each rate of two measurements."""
    ints = None if a.int8_gop_s is None or b.int8_gop_s is None else max(a.int8_gop_s, b.int8_gop_s)
    return Floors(max(a.read_gb_s, b.read_gb_s), max(a.float_gflop_s, b.float_gflop_s), ints, a.method)


def _torch_floors(threads: int, working_set_mib: int) -> Floors:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    buffer, matrix = torch.ones(working_set_mib << 18), torch.ones(GEMM, GEMM)
    read, product = _best(lambda: buffer.sum()), _best(lambda: matrix @ matrix)
    torch.set_num_threads(before)
    return Floors(4e-9 * buffer.numel() / read, 2e-9 * GEMM**3 / product, None, "torch: sum, float32 product")


def _best(call: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
