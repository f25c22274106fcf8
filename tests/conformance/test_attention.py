"""Paged attention of every backend: right to float32 accuracy, and the same bits however the work is cut up."""

from __future__ import annotations

import pytest
import torch

from octavo.backend.base import AttentionSpec, KVSpec
from tests.conformance.harness import BACKENDS, Sequence, attention_spec, bits, expected_attention, make_backend, make_sequences, new_cache, step

SPECS = {
    "mha-32": attention_spec(2, 2, 32),
    "gqa3-64": attention_spec(9, 3, 64),
    "gqa2-80": attention_spec(4, 2, 80),
    "mqa-96": attention_spec(3, 1, 96),
    "gqa7-128": attention_spec(14, 2, 128),
    "mqa-256-window": attention_spec(4, 1, 256, window=40),
    "window-1": attention_spec(2, 1, 64, window=1),
    "window-17": attention_spec(4, 2, 64, window=17),
    "softcap": attention_spec(4, 2, 64, softcap=5.0),
    "alibi": attention_spec(6, 2, 64, alibi=True),
    "everything": attention_spec(6, 3, 80, window=21, softcap=20.0, alibi=True),
}
BLOCK_SIZE, NUM_BLOCKS = 16, 40
LENGTHS = [70, 1, 33, 129]


@pytest.fixture(params=BACKENDS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def whole_runs(name: str, spec: AttentionSpec, sequences: list[Sequence], threads: int = 2, block_size: int = BLOCK_SIZE) -> list[torch.Tensor]:
    """Each sequence alone, in one chunk."""
    backend = make_backend(name, threads)
    kv = new_cache(backend, spec, block_size, NUM_BLOCKS * BLOCK_SIZE // block_size)
    return [step(backend, kv, spec, block_size, [(s, 0, len(s))])[0] for s in sequences]


@pytest.mark.parametrize("spec_name", SPECS)
def test_agrees_with_float64(name: str, spec_name: str) -> None:
    spec = SPECS[spec_name]
    sequences = make_sequences(spec, LENGTHS, BLOCK_SIZE, NUM_BLOCKS)
    for s, out in zip(sequences, whole_runs(name, spec, sequences), strict=True):
        torch.testing.assert_close(out.double(), expected_attention(s, spec), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("spec_name", SPECS)
def test_chunks_and_company_change_no_bit(name: str, spec_name: str) -> None:
    """Whole and alone; together; in ragged chunks beside each other; one token at a time."""
    spec = SPECS[spec_name]
    sequences = make_sequences(spec, LENGTHS, BLOCK_SIZE, NUM_BLOCKS)
    whole = whole_runs(name, spec, sequences)
    backend = make_backend(name, 1)
    kv = new_cache(backend, spec, BLOCK_SIZE, NUM_BLOCKS)
    together = step(backend, kv, spec, BLOCK_SIZE, [(s, 0, len(s)) for s in sequences])
    assert [bits(x) for x in together] == [bits(x) for x in whole]
    for sizes in ((5, 64, 1, 23), (33, 16, 2)):
        assert [bits(x) for x in chunked(name, spec, sequences, sizes, 3)] == [bits(x) for x in whole], f"chunks of {sizes}"
    short = make_sequences(spec, [40], BLOCK_SIZE, NUM_BLOCKS)
    assert [bits(x) for x in chunked(name, spec, short, (1,), 2)] == [bits(x) for x in whole_runs(name, spec, short)]


def chunked(name: str, spec: AttentionSpec, sequences: list[Sequence], sizes: tuple[int, ...], threads: int) -> list[torch.Tensor]:
    """Every step gives each unfinished sequence the next size of the cycle, each beginning elsewhere in it."""
    backend = make_backend(name, threads)
    kv = new_cache(backend, spec, BLOCK_SIZE, NUM_BLOCKS)
    done, parts = [0] * len(sequences), [[] for _ in sequences]
    turn = 0
    while any(d < len(s) for d, s in zip(done, sequences, strict=True)):
        live = [i for i, s in enumerate(sequences) if done[i] < len(s)]
        rows = [(sequences[i], done[i], min(sizes[(turn + i) % len(sizes)], len(sequences[i]) - done[i])) for i in live]
        for i, (_, _, count), out in zip(live, rows, step(backend, kv, spec, BLOCK_SIZE, rows), strict=True):
            parts[i].append(out)
            done[i] += count
        turn += 1
    return [torch.cat(p) for p in parts]


@pytest.mark.parametrize("block_size", [1, 8, 32, 128])
def test_block_size_and_placement_change_no_bit(name: str, block_size: int) -> None:
    spec = SPECS["everything"]
    base = whole_runs(name, spec, make_sequences(spec, LENGTHS, BLOCK_SIZE, NUM_BLOCKS))
    moved = make_sequences(spec, LENGTHS, BLOCK_SIZE, NUM_BLOCKS)
    order = iter(range(NUM_BLOCKS * BLOCK_SIZE // block_size - 1, -1, -1))
    for s in moved:
        s.table = [next(order) for _ in range(-(-len(s) // block_size))]
    assert [bits(x) for x in whole_runs(name, spec, moved, block_size=block_size)] == [bits(x) for x in base]


def test_stale_cache_contents_do_not_matter(name: str) -> None:
    """A block that held another request's infinities and NaN is as good as a new one."""
    spec = SPECS["window-17"]
    sequences = make_sequences(spec, [70, 50], BLOCK_SIZE, NUM_BLOCKS)
    base = whole_runs(name, spec, sequences)
    backend = make_backend(name)
    kv = new_cache(backend, spec, BLOCK_SIZE, NUM_BLOCKS)
    kv.k.fill_(float("nan"))
    kv.v.fill_(float("inf"))
    assert [bits(step(backend, kv, spec, BLOCK_SIZE, [(s, 0, len(s))])[0]) for s in sequences] == [bits(x) for x in base]


def test_blocks_that_left_the_window_do_not_matter(name: str) -> None:
    """A sliding window may free what it no longer needs, and another request may write there."""
    spec = SPECS["window-17"]
    (s,) = make_sequences(spec, [80], BLOCK_SIZE, NUM_BLOCKS)
    (base,) = whole_runs(name, spec, [s])
    backend = make_backend(name)
    kv = new_cache(backend, spec, BLOCK_SIZE, NUM_BLOCKS)
    kv.k.fill_(float("nan"))
    kv.v.fill_(float("nan"))
    step(backend, kv, spec, BLOCK_SIZE, [(s, 0, 70)])
    unused = next(block for block in range(NUM_BLOCKS) if block not in s.table)
    for block in s.table[:3]:  # positions below 48; a query at 70 sees 54 and later
        backend.copy_blocks([kv], [(unused, block)])
    late = Sequence(s.q, s.k, s.v, [unused] * 3 + s.table[3:])
    for row in (s, late):
        assert bits(step(backend, kv, spec, BLOCK_SIZE, [(row, 70, 10)])[0]) == bits(base[70:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_cache(name: str, dtype: torch.dtype) -> None:
    """Keys and values are rounded to the cache's type on the way in, and nothing else is."""
    spec = SPECS["gqa3-64"]
    (s,) = make_sequences(spec, [50], BLOCK_SIZE, NUM_BLOCKS)
    backend = make_backend(name)
    kv = new_cache(backend, spec, BLOCK_SIZE, NUM_BLOCKS, dtype)
    assert kv.k.dtype == dtype
    out = step(backend, kv, spec, BLOCK_SIZE, [(s, 0, 50)])[0]
    rounded = Sequence(s.q, s.k.to(dtype).float(), s.v.to(dtype).float(), s.table)
    torch.testing.assert_close(out.double(), expected_attention(rounded, spec), rtol=2e-5, atol=2e-6)
    assert bits(out) == bits(whole_runs(name, spec, [rounded])[0])


def test_copied_blocks_serve_a_fork(name: str) -> None:
    """A fork that continues in copies of its parent's blocks sees what the parent saw, in every layer."""
    spec = SPECS["gqa3-64"]
    (s,) = make_sequences(spec, [60], BLOCK_SIZE, NUM_BLOCKS)
    backend = make_backend(name)
    layers = backend.alloc_kv(KVSpec((spec, spec), BLOCK_SIZE, torch.float32), NUM_BLOCKS)
    assert len(layers) == 2 and not any(bool(x.any()) for kv in layers for x in (kv.k, kv.v))
    for kv in layers:
        step(backend, kv, spec, BLOCK_SIZE, [(s, 0, 50)])
    fresh = [block for block in range(NUM_BLOCKS) if block not in s.table][:4]
    backend.copy_blocks(layers, [])
    backend.copy_blocks(layers, list(zip(s.table, fresh, strict=True)))
    fork = Sequence(s.q, s.k, s.v, fresh)
    for kv in layers:
        parent, child = step(backend, kv, spec, BLOCK_SIZE, [(s, 50, 10), (fork, 50, 10)])
        assert bits(parent) == bits(child)
        torch.testing.assert_close(parent.double(), expected_attention(s, spec)[50:], rtol=2e-5, atol=2e-6)


def test_cache_size_is_what_the_spec_says(name: str) -> None:
    kv_spec = KVSpec((SPECS["gqa3-64"], SPECS["gqa2-80"]), BLOCK_SIZE, torch.float32)
    layers = make_backend(name).alloc_kv(kv_spec, 7)
    used = sum(x.numel() * x.element_size() for kv in layers for x in (kv.k, kv.v))
    assert used == 7 * kv_spec.block_bytes()


DTYPES = {
    "float16": 2e-3, "bfloat16": 2e-2, "int8": 2e-2, "float8_e4m3fn": 0.1, "float8_e5m2": 0.2,
}  # what storing keys and values so may cost, of the largest output  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec_name", ["gqa3-64", "gqa2-80", "everything"])
def test_every_cache_type(name: str, spec_name: str, dtype: str) -> None:
    """Near float64, the same bits in chunks, and what the reference computes from the same codes."""
    spec, stored = SPECS[spec_name], getattr(torch, dtype)
    sequences = make_sequences(spec, [70, 33], BLOCK_SIZE, NUM_BLOCKS)
    results = {}
    for backend in {name, "reference"}:
        it = make_backend(backend)
        kv = new_cache(it, spec, BLOCK_SIZE, NUM_BLOCKS, stored)
        results[backend] = step(it, kv, spec, BLOCK_SIZE, [(s, 0, len(s)) for s in sequences])
        kv = new_cache(it, spec, BLOCK_SIZE, NUM_BLOCKS, stored)
        pieces = [step(it, kv, spec, BLOCK_SIZE, [(sequences[0], start, count)])[0] for start, count in ((0, 40), (40, 29), (69, 1))]
        assert bits(torch.cat(pieces)) == bits(results[backend][0])
    for s, out, reference in zip(sequences, results[name], results["reference"], strict=True):
        expected = expected_attention(s, spec)
        assert (out.double() - expected).abs().max() <= DTYPES[dtype] * expected.abs().max()
        torch.testing.assert_close(out, reference, rtol=1e-4, atol=1e-5)
