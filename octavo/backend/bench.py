"""Each operator of a backend against its floor. Prints one JSON object:

    python -m octavo.backend.bench [--short] [--backend auto] [--threads 0] [--working-set-mib 256] [--scheme auto] [--only matmul ...]

A floor is the larger of bytes (operands read, results written, each once) over measured read bandwidth, and operations over the measured peak of
their kind; both peaks are measured in the same run. Operands are taken in turn from a set as large as the buffer of the bandwidth measurement, so
that caches help neither. Shapes are those of SmolLM2-135M, and one of a larger model.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle, product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from octavo.backend import costs, create_backend
from octavo.backend.base import AttentionBatch, AttentionSpec, BackendOptions, KVSpec, RawWeight, SampleBatch
from octavo.backend.peaks import best_of, measure_floors
from octavo.errors import OctavoError
from octavo.kernels.dequant import BLOCKS, row_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from octavo.backend.base import Backend, LayerKV
    from octavo.backend.costs import Cost
    from octavo.backend.peaks import Floors

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 576, 1536, 9, 3, 64, 49152
MATRICES = ((2 * FFN, HIDDEN), (HIDDEN, FFN), (4096, 4096))
FORMATS = ("f32", "bf16", "q8_0", "q4_1", "q4_k", "q6_k")
TOKENS = (1, 8, 16, 32, 128, 512)
SHORT_FORMATS, SHORT_TOKENS = ("q8_0", "q4_1"), (1, 8, 32, 128)
# Attention: (rows, tokens a row, tokens already in the cache), in every type of cache that the backend has.
BATCHES = ((1, 1, 1024), (8, 1, 1024), (32, 1, 1024), (1, 512, 0), (1, 128, 1024), (16, 128, 0))
SHORT_BATCHES = ((1, 1, 512), (32, 1, 512), (1, 512, 0))
CACHES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ROUNDS = 3
OPERATORS = ("matmul", "attention", "norm", "rope", "act_mul", "embed", "sample", "copy_blocks")


@dataclass(frozen=True, slots=True)
class Settings:
    backend: Backend
    scheme: str
    working_set: int  # bytes
    seconds: float  # of one measurement
    short: bool


@dataclass(frozen=True, slots=True)
class Case:
    """One operator at one shape. ``calls`` are made in turn; each must do at least ``cost``."""

    operator: str
    shape: str
    calls: Sequence[Callable[[], object]]
    cost: Cost


# --- cases ---


def random_weight(form: str, shape: tuple[int, int], rng: np.random.Generator) -> RawWeight:
    """Random values under fixed, ordinary scales (0.01), so that no arithmetic meets NaN or denormal numbers."""
    outputs, inputs = shape
    if form in ("f32", "f16", "bf16"):
        values = rng.standard_normal(shape, dtype=np.float32)
        raw = values if form == "f32" else values.astype(np.float16) if form == "f16" else (values.view(np.uint32) >> 16).astype(np.uint16)
        return RawWeight(form, shape, raw.view(np.uint8))
    _, size = BLOCKS[form]
    data = rng.integers(0, 256, (outputs, row_bytes(form, inputs)), dtype=np.uint8)
    blocks, scale = data.reshape(-1, size), np.array([0.01], np.float16).view(np.uint8)
    places = {"q6_k": [size - 2], "q4_1": [0, 2], "q5_1": [0, 2], "q4_k": [0, 2], "q5_k": [0, 2]}.get(form, [0])
    for place in places:
        blocks[:, place : place + 2] = scale
    return RawWeight(form, shape, data)


def matmul_cases(s: Settings) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    for form in SHORT_FORMATS if s.short else FORMATS:
        for outputs, inputs in MATRICES[:1] if s.short else MATRICES:
            if inputs % BLOCKS[form][0]:
                continue
            raw = random_weight(form, (outputs, inputs), rng)
            first = pack(s, raw)
            weights = [first, *(pack(s, raw) for _ in range(copies(s, first.nbytes) - 1))]
            for tokens in SHORT_TOKENS if s.short else TOKENS:
                x = torch.randn(tokens, inputs)
                calls = [partial(w.matmul, x) for w in weights]
                cost = costs.matmul(first.nbytes, outputs, inputs, tokens)
                yield Case("matmul", f"{form} {outputs}x{inputs}, {tokens} tokens", calls, cost)


def pack(s: Settings, raw: RawWeight) -> Any:
    return s.backend.pack([raw], s.scheme)


def copies(s: Settings, nbytes: float) -> int:
    return max(1, min(512, round(s.working_set / nbytes)))


def caches(s: Settings) -> Iterator[tuple[str, torch.dtype]]:
    """The types in which the backend keeps keys and values."""
    spec = KVSpec((AttentionSpec(HEADS, KV_HEADS, HEAD_DIM, 1.0),), 16, torch.float32)
    for name, dtype in CACHES.items():
        try:
            s.backend.alloc_kv(replace(spec, dtype=dtype), 1)
        except OctavoError:
            continue
        yield name, dtype


def filled_cache(s: Settings, spec: AttentionSpec, dtype: torch.dtype, blocks: int) -> list[LayerKV]:
    """Layers enough to fill the working set, of ordinary random values."""
    layers = copies(s, 2.0 * blocks * 16 * KV_HEADS * HEAD_DIM * dtype.itemsize)
    kv = s.backend.alloc_kv(KVSpec((spec,) * layers, 16, dtype), blocks)
    for layer in kv:
        layer.k.normal_()
        layer.v.normal_()
    return kv


def attention_cases(s: Settings) -> Iterator[Case]:
    spec = AttentionSpec(HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM**-0.5)
    for (rows, count, start), (name, dtype) in product(SHORT_BATCHES if s.short else BATCHES, list(caches(s))):
        table = -(-(start + count) // 16)
        kv = filled_cache(s, spec, dtype, rows * table)
        tables = np.arange(rows * table, dtype=np.int32).reshape(rows, table)
        offsets, starts = np.arange(rows + 1, dtype=np.int32) * count, np.full(rows, start, np.int32)
        plan = s.backend.plan_attention(AttentionBatch(offsets, starts, tables, 16))
        q, k, v = (torch.randn(rows * count, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
        calls = [partial(s.backend.attention, q, k, v, layer, plan, spec) for layer in kv]
        cost = costs.attention([count] * rows, [start] * rows, HEADS, KV_HEADS, HEAD_DIM, dtype.itemsize)
        yield Case("attention", f"{name} cache, {rows} x {count} tokens after {start}", calls, cost)


def copy_cases(s: Settings) -> Iterator[Case]:
    spec, pairs = AttentionSpec(HEADS, KV_HEADS, HEAD_DIM, 1.0), 8
    kv = filled_cache(s, spec, torch.float32, 2 * pairs)
    copied = [(block, pairs + block) for block in range(pairs)]
    moved = 2.0 * len(kv) * pairs * 2 * 16 * KV_HEADS * HEAD_DIM * torch.float32.itemsize
    yield Case("copy_blocks", f"{pairs} blocks of 16 in {len(kv)} layers", [partial(s.backend.copy_blocks, kv, copied)], costs.Cost(moved, 0.0))


def elementwise_cases(s: Settings) -> Iterator[Case]:
    for tokens in (32,) if s.short else (1, 32, 512):
        yield from elementwise(s, tokens)


def elementwise(s: Settings, tokens: int) -> Iterator[Case]:
    b = s.backend
    pairs = [(torch.randn(tokens, HIDDEN), torch.randn(tokens, HIDDEN)) for _ in range(copies(s, 8.0 * tokens * HIDDEN))]
    weight = torch.ones(HIDDEN)
    yield Case(
        "norm", f"{tokens}x{HIDDEN}, residual", [partial(b.norm, x, weight, 1e-6, r) for x, r in pairs], costs.norm(tokens, HIDDEN, residual=True)
    )
    gates = [torch.randn(tokens, 2 * FFN) for _ in range(copies(s, 8.0 * tokens * FFN))]
    for kind in ("silu",) if s.short else ("silu", "gelu", "gelu_tanh"):
        yield Case("act_mul", f"{kind} {tokens}x{2 * FFN}", [partial(b.act_mul, x, kind) for x in gates], costs.act_mul(tokens, FFN))
    table, positions, all_heads = torch.randn(2048, HEAD_DIM), torch.arange(tokens), HEADS + KV_HEADS
    heads = [(torch.randn(tokens, HEADS, HEAD_DIM), torch.randn(tokens, KV_HEADS, HEAD_DIM))
             for _ in range(copies(s, 4.0 * tokens * all_heads * HEAD_DIM))]  # fmt: skip
    ropes = [partial(b.rope, q, k, positions, table) for q, k in heads]
    yield Case("rope", f"{tokens} x {HEADS}+{KV_HEADS} heads", ropes, costs.rope(tokens, all_heads, HEAD_DIM))
    matrix = pack(s, random_weight("q8_0", (VOCAB, HIDDEN), np.random.default_rng(0)))
    drawn = [torch.randint(VOCAB, (tokens,)) for _ in range(64)]
    yield Case("embed", f"q8_0, {tokens} tokens", [partial(b.embed, ids, matrix) for ids in drawn], costs.embed(matrix.nbytes, VOCAB, HIDDEN, tokens))


def sample_cases(s: Settings) -> Iterator[Case]:
    for rows in (32,) if s.short else (1, 32):
        batches = [torch.randn(rows, VOCAB) * 3 for _ in range(copies(s, 4.0 * rows * VOCAB))]
        for name, temperature, top_k, top_p in (
            ("greedy", 0.0, 0, 1.0), ("temperature 1", 1.0, 0, 1.0), ("top-k 40", 1.0, 40, 1.0), ("top-p 0.9", 1.0, 0, 0.9),
        ):  # fmt: skip
            params = SampleBatch(
                np.full(rows, temperature, np.float32), np.full(rows, top_k, np.int32), np.full(rows, top_p, np.float32),
                np.zeros(rows, np.float32), np.arange(rows, dtype=np.uint64), np.zeros(rows, np.uint32), np.arange(rows, dtype=np.uint64),
            )  # fmt: skip
            calls = [partial(s.backend.sample, x, params) for x in batches]
            yield Case("sample", f"{name}, {rows} rows of {VOCAB:,}", calls, costs.sample(rows, VOCAB))


def cases(s: Settings, only: tuple[str, ...]) -> Iterator[Case]:
    for names, make in (
        (("matmul",), matmul_cases), (("attention",), attention_cases), (("norm", "act_mul", "rope", "embed"), elementwise_cases),
        (("sample",), sample_cases), (("copy_blocks",), copy_cases),
    ):  # fmt: skip
        if set(names) & set(only):
            yield from (case for case in make(s) if case.operator in only)


# --- measuring ---


def seconds_of(case: Case, seconds: float) -> float:
    """Seconds of a call, the best of several rounds."""
    turn = cycle(case.calls)
    for _ in range(min(len(case.calls), 3)):
        next(turn)()
    best = float("inf")
    for _ in range(ROUNDS):
        start, count = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - start) < seconds / ROUNDS or count == 0:
            next(turn)()
            count += 1
        best = min(best, elapsed / count)
    return best


def figures_of(case: Case, seconds: float, floors: Floors) -> dict[str, Any]:
    """``of_floor``: which share of the attainable speed was reached; ``bound``: which floor is the higher one."""
    floor, bound = case.cost.seconds(floors)
    return {
        "operator": case.operator,
        "shape": case.shape,
        "us": 1e6 * seconds,
        "gb_s": 1e-9 * case.cost.bytes / seconds,
        "gop_s": 1e-9 * case.cost.ops / seconds,
        "floor_us": 1e6 * floor,
        "bound": bound,
        "of_floor": floor / seconds,
    }


def measure(s: Settings, threads: int, only: tuple[str, ...]) -> dict[str, Any]:
    native = getattr(s.backend, "native", None)
    isa = native.isa() if native is not None else ""
    limits = partial(measure_floors, native, threads, s.working_set >> 20, 0.1 if s.short else 0.2)
    before = limits()
    timed = [(replace(case, calls=()), seconds_of(case, s.seconds)) for case in cases(s, only)]
    floors = best_of(before, limits())  # a busy neighbour at one moment must not lower the bar
    operators = [figures_of(case, seconds, floors) for case, seconds in timed]
    return {
        "backend": s.backend.name, "isa": isa, "threads": threads, "working_set_mib": s.working_set >> 20, "floors": asdict(floors),
        "operators": operators,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m octavo.backend.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--working-set-mib", type=int, default=None)
    parser.add_argument("--scheme", default="auto", help="weight layout: auto is what computes fastest, dense is float32")
    parser.add_argument("--short", action="store_true", help="fewer shapes, less time each")
    parser.add_argument("--only", nargs="+", choices=OPERATORS, default=list(OPERATORS))
    options = parser.parse_args(arguments)
    mib = options.working_set_mib if options.working_set_mib is not None else 64 if options.short else 256
    if mib < 1:
        parser.error(f"--working-set-mib must be at least 1, got {mib}")
    try:
        backend = create_backend(options.backend, BackendOptions(threads=options.threads))
        s = Settings(backend, options.scheme, mib << 20, 0.15 if options.short else 0.5, options.short)
        figures = measure(s, int(getattr(backend, "threads", 1)), tuple(options.only))
    except OctavoError as error:
        parser.error(error.message)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
