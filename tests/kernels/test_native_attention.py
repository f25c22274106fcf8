"""Paged attention of every kernel set: against float64, and bit for bit against itself in other chunks, batches, tables and threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.backend.base import AttentionBatch, AttentionSpec, BackendOptions, KVSpec
from octavo.backend.cpu import CpuBackend
from octavo.errors import ConfigError, OctavoError, UnsupportedModel
from tests.kernels.native_harness import ISAS, bits, native, random_tensor, restored_native

pytestmark = pytest.mark.usefixtures(restored_native.__name__)

SLOPES = tuple(2.0 ** -(h + 1) for h in range(6))
CASES = {
    "gqa3": (AttentionSpec(9, 3, 64, 0.125), 16, 150),
    "mha": (AttentionSpec(2, 2, 32, 0.2), 32, 70),
    "mqa40": (AttentionSpec(40, 1, 16, 0.25), 16, 40),
    "odd-head": (AttentionSpec(4, 2, 20, 0.2), 16, 100),
    "wide-head": (AttentionSpec(2, 1, 512, 0.04), 64, 70),
    "window": (AttentionSpec(6, 2, 40, 0.2, window=37), 16, 200),
    "window1": (AttentionSpec(2, 1, 16, 0.2, window=1), 8, 70),
    "softcap": (AttentionSpec(4, 2, 36, 0.4, softcap=3.0), 4, 90),
    "alibi": (AttentionSpec(6, 3, 24, 0.2, alibi_slopes=SLOPES), 2, 80),
    "block1": (AttentionSpec(3, 1, 16, 0.25), 1, 70),
    "block128": (AttentionSpec(3, 1, 16, 0.25), 128, 300),
    "splits": (AttentionSpec(4, 1, 16, 0.25), 16, 1100),
    "splits-window": (AttentionSpec(4, 2, 16, 0.25, window=600), 16, 1100),
}


class Runs:
    """One sequence and the means to run parts of it."""

    def __init__(self, spec: AttentionSpec, size: int, length: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        self.backend, self.spec, self.size, self.length = CpuBackend(BackendOptions(threads=native.threads())), spec, size, length
        self.q, self.k, self.v = (random_tensor(seed + i, length, h, spec.head_dim) for i, h in enumerate((spec.num_heads, *[spec.num_kv_heads] * 2)))
        self.blocks = -(-length // size)
        self.kv = self.backend.alloc_kv(KVSpec((spec,), size, dtype), 3 * self.blocks + 2)[0]
        for cache in self.kv.tensors():  # whatever earlier requests left behind must not show
            cache.view(torch.uint8).fill_(255)
        self.table = (np.random.default_rng(seed).permutation(self.blocks) + 1).astype(np.int32)

    def call(self, rows: list[tuple[int, int, int]]) -> torch.Tensor:
        """Rows are (start, count, shift): the sequence in blocks that are ``shift`` tables further on."""
        offsets = np.cumsum([0] + [count for _, count, _ in rows]).astype(np.int32)
        tables = np.stack([self.table + shift * self.blocks for _, _, shift in rows])
        batch = AttentionBatch(offsets, np.array([start for start, _, _ in rows], np.int32), tables, self.size)
        q, k, v = (torch.cat([x[start : start + count] for start, count, _ in rows]) for x in (self.q, self.k, self.v))
        return self.backend.attention(q, k, v, self.kv, self.backend.plan_attention(batch), self.spec)

    def expected(self) -> torch.Tensor:
        spec, out = self.spec, torch.empty(self.length, self.spec.num_heads, self.spec.head_dim, dtype=torch.float64)
        group = spec.num_heads // spec.num_kv_heads
        distance = torch.arange(self.length)[None] - torch.arange(self.length)[:, None]
        hidden = distance > 0 if spec.window is None else (distance > 0) | (distance <= -spec.window)
        for h in range(spec.num_heads):
            scores = self.q[:, h].double() @ self.k[:, h // group].double().t() * spec.scale
            if spec.softcap is not None:
                scores = spec.softcap * torch.tanh(scores / spec.softcap)
            if spec.alibi_slopes is not None:
                scores = scores + spec.alibi_slopes[h] * distance
            out[:, h] = torch.softmax(scores.masked_fill(hidden, -torch.inf), 1) @ self.v[:, h // group].double()
        return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES)
def test_attention(isa: str, case: str) -> None:
    native.select_isa(isa)
    native.set_threads(1)
    spec, size, length = CASES[case]
    runs = Runs(spec, size, length)
    whole = runs.call([(0, length, 0)])
    torch.testing.assert_close(whole.double(), runs.expected(), rtol=2e-5, atol=2e-6)
    for threads, chunk in ((2, 23), (3, 64)):  # chunks, then single tokens at the end
        native.set_threads(threads)
        runs = Runs(spec, size, length)
        done = 0
        while done < length:
            count = min(chunk, length - done) if done < length - 20 else 1
            assert bits(runs.call([(done, count, 1)])) == bits(whole[done : done + count]), f"{threads} threads, {count} from {done}"
            done += count
    runs.call([(0, length - 1, 0)])  # decode beside a prefill of the same tokens in other blocks
    both = runs.call([(length - 1, 1, 0), (0, length, 2)])
    assert bits(both[:1]) == bits(whole[-1:]) and bits(both[1:]) == bits(whole)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [4, 16])
def test_sixteen_bit_cache(isa: str, dtype: torch.dtype, size: int) -> None:
    """Rounded to nearest even on the way in, exactly as torch does, and nothing else changes."""
    native.select_isa(isa)
    spec = AttentionSpec(6, 2, 36, 0.2)
    runs = Runs(spec, size, 90, dtype)
    runs.k[3, 0, :6] = torch.tensor([1e-8, -6e-8, 3e-5, 65519.0, 1.0009765625, -1.00048828125]) * (1e-3 if dtype is torch.bfloat16 else 1e-2)
    out = runs.call([(0, 50, 0)]), runs.call([(50, 40, 0)])
    rounded = Runs(spec, size, 90)
    rounded.k, rounded.v = runs.k.to(dtype).float(), runs.v.to(dtype).float()
    assert bits(torch.cat(out)) == bits(rounded.call([(0, 90, 0)]))
    assert bits(runs.kv.v[runs.table[0]].float()[0, 0]) == bits(rounded.v[0, 0])


EIGHT_BITS = [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("size", [4, 16, 64])
def test_eight_bit_cache(isa: str, dtype: torch.dtype, size: int) -> None:
    """Codes and scales are torch's own roundings, what is computed is attention over their values, and chunks change no bit."""
    native.select_isa(isa)
    spec = AttentionSpec(6, 2, 36, 0.2)
    runs = Runs(spec, size, 90, dtype)
    runs.k[3, 0] *= 1e-4
    runs.k[4, 1, 5], runs.v[5, 1] = 3e4, 0.0
    chunks = [runs.call([(0, 50, 0)]), runs.call([(50, 30, 0)]), *(runs.call([(i, 1, 0)]) for i in range(80, 90))]
    valued = Runs(spec, size, 90)
    valued.k, valued.v = (rounded(x, dtype) for x in (runs.k, runs.v))
    assert bits(torch.cat(chunks)) == bits(valued.call([(0, 90, 0)]))
    assert bits(Runs.call(runs, [(0, 90, 1)])) == bits(torch.cat(chunks))


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Every vector [D] by itself: scaled to the largest code, rounded by torch's conversion, and back, in float32."""
    most = torch.tensor(127.0 if dtype is torch.int8 else torch.finfo(dtype).max)
    largest = x.abs().amax(-1, keepdim=True)
    codes = (x * torch.where(largest > 0, most / largest, 0.0)).clamp(-most, most)
    codes = codes.round() if dtype is torch.int8 else codes.to(dtype).float()
    return codes * (largest / most)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_a_copied_block_carries_its_scales(isa: str, dtype: torch.dtype) -> None:
    native.select_isa(isa)
    spec = AttentionSpec(4, 2, 32, 0.2)
    runs = Runs(spec, 16, 16, dtype)
    expected = runs.call([(0, 16, 0)])[15:]
    source = int(runs.table[0])
    runs.backend.copy_blocks([runs.kv], [(source, 3)])
    for cache in runs.kv.tensors():
        cache.view(torch.uint8)[source].fill_(255)
    runs.table[:] = 3
    assert bits(runs.call([(15, 1, 0)])) == bits(expected)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_what_is_not_finite_stays_in_its_own_position_and_head(dtype: torch.dtype) -> None:
    spec = AttentionSpec(4, 2, 32, 0.2)
    runs = Runs(spec, 16, 20, dtype)
    clean = runs.call([(0, 20, 0)])
    runs.v[10, 1, 3] = float("inf")
    spoiled = runs.call([(0, 20, 0)])
    assert bits(spoiled[:10]) == bits(clean[:10]) and bits(spoiled[:, :2]) == bits(clean[:, :2])
    assert spoiled[10:, 2:].isnan().all()


@pytest.mark.skipif("avx512" not in ISAS, reason="needs a processor with AVX-512")
@pytest.mark.parametrize("case", ["gqa3", "odd-head", "softcap", "alibi", "splits-window"])
def test_avx2_and_avx512_give_equal_bits(case: str) -> None:
    results = []
    for isa in ("avx2", "avx512"):
        native.select_isa(isa)
        results.append(bits(Runs(*CASES[case]).call([(0, CASES[case][2], 0)])))
    assert results[0] == results[1]


def test_a_row_with_nan_spoils_no_other() -> None:
    spec, size, length = CASES["gqa3"]
    runs = Runs(spec, size, length)
    clean = runs.call([(0, length, 0)])
    other = Runs(spec, size, length)
    other.call([(0, length, 0)])
    other.q[length - 1] = float("nan")
    mixed = other.call([(length - 1, 1, 1), (10, 30, 0)])
    assert mixed[:1].isnan().all() and bits(mixed[1:]) == bits(clean[10:40])


@pytest.mark.parametrize("isa", ISAS)
def test_a_later_token_with_nan_spoils_none_before_it(isa: str) -> None:
    native.select_isa(isa)
    spec, size, length = CASES["gqa3"]
    clean = Runs(spec, size, length).call([(0, length, 0)])
    runs = Runs(spec, size, length)
    runs.k[77] = runs.v[77] = float("nan")
    out = runs.call([(0, length, 0)])
    assert bits(out[:77]) == bits(clean[:77]) and out[77:].isnan().all()


def test_scores_of_extreme_size() -> None:
    """Differences beyond the range of exp give weight zero, and no overflow."""
    runs = Runs(AttentionSpec(2, 1, 16, 1.0), 16, 80)
    runs.q *= 100
    out = runs.call([(0, 80, 0)])
    torch.testing.assert_close(out.double(), runs.expected(), rtol=1e-4, atol=1e-4)


def test_copy_blocks() -> None:
    backend = CpuBackend(BackendOptions(threads=2))
    spec = AttentionSpec(2, 1, 8, 1.0)
    layers = backend.alloc_kv(KVSpec((spec, spec, spec), 16, torch.float16), 6)
    for i, layer in enumerate(layers):
        layer.k.copy_(random_tensor(i, *layer.k.shape))
        layer.v.copy_(random_tensor(i + 9, *layer.v.shape))
    before = [(layer.k.clone(), layer.v.clone()) for layer in layers]
    backend.copy_blocks(layers, [(5, 0), (2, 3)])
    for layer, old in zip(layers, before, strict=True):
        for new, was in zip((layer.k, layer.v), old, strict=True):
            assert torch.equal(new, was[[5, 1, 2, 2, 4, 5]])
    with pytest.raises(OctavoError, match="6 blocks"):
        backend.copy_blocks(layers, [(0, 6)])


def test_wrong_batches_are_refused() -> None:
    runs = Runs(AttentionSpec(4, 2, 16, 0.25), 16, 40)
    plan = runs.backend.plan_attention

    def batch(offsets: list[int], starts: list[int], tables: list[list[int]]) -> AttentionBatch:
        return AttentionBatch(np.array(offsets, np.int32), np.array(starts, np.int32), np.array(tables, np.int32), 16)

    with pytest.raises(OctavoError, match="needs 3 blocks"):
        plan(batch([0, 3], [30], [[1, 2]]))
    with pytest.raises(OctavoError, match="block id -1"):
        plan(batch([0, 3], [30], [[1, 2, -1]]))
    with pytest.raises(OctavoError, match="ascend"):
        plan(batch([0, -1], [30], [[1, 2, 3]]))
    q, kv = runs.q[:3], runs.kv
    k = v = runs.k[:3]
    far = plan(batch([0, 3], [0], [[1000]]))
    with pytest.raises(OctavoError, match="block 1000"):
        runs.backend.attention(q, k, v, kv, far, runs.spec)
    good = plan(batch([0, 3], [0], [[1]]))
    for wrong in ((q[:2], k, v), (q.double(), k, v), (q[:, :2], k, v), (q, k[:, :1], v)):
        with pytest.raises(OctavoError):
            runs.backend.attention(*wrong, kv, good, runs.spec)
    with pytest.raises(UnsupportedModel, match="513"):
        runs.backend.alloc_kv(KVSpec((AttentionSpec(1, 1, 513, 1.0),), 16, torch.float32), 1)
    with pytest.raises(ConfigError, match="float64"):
        runs.backend.alloc_kv(KVSpec((runs.spec,), 16, torch.float64), 1)
    with pytest.raises(ConfigError, match="power of two"):
        runs.backend.alloc_kv(KVSpec((runs.spec,), 24, torch.float32), 1)
