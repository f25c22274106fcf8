"""Products with quantized weights as they are stored: against an emulation of the documented arithmetic, and bit for bit against themselves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from octavo.backend.base import BackendOptions, RawWeight
from octavo.backend.cpu import CpuBackend
from octavo.backend.panels import DensePanels, QuantizedPanels
from octavo.backend.reference import ReferenceBackend
from octavo.errors import FormatError, OctavoError, UnsupportedModel
from octavo.kernels.dequant import BLOCKS, dequantize
from tests.kernels.native_harness import ISAS, THREADS, bits, native, random_tensor, raw_f32, restored_native

pytestmark = pytest.mark.usefixtures(restored_native.__name__)

# Where the binary16 numbers of a block are; the second of two is a minimum.
HALVES = {"q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208]}
AFFINE = {"q4_1", "q5_1", "q4_k", "q5_k"}
EXACT = {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0"}  # their scales are binary16 already
BITS_A_WEIGHT = {"q4_0": 4.5, "q4_1": 5, "q5_0": 5.5, "q5_1": 6, "q8_0": 8.5, "q4_k": 5, "q5_k": 6, "q6_k": 7}
ROWS = (1, 2, 3, 4, 5, 6, 7, 12, 13, 16, 17, 18, 19, 25, 37, 64, 70)  # around tiles, and around as many as unpack their strips
FUSED = [isa for isa in ISAS if isa != "generic"]


def stored(name: str, n: int, k: int, seed: int = 1, spread: float = 0.01) -> RawWeight:
    """A weight of random codes, with scales of both signs around ``spread``."""
    rng = np.random.default_rng(seed)
    block, size = BLOCKS[name]
    data = rng.integers(0, 256, (n * (k // block), size), dtype=np.uint8)
    for at in HALVES[name]:
        scales = rng.standard_normal(len(data)) * spread
        data[:, at : at + 2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return RawWeight(name, (n, k), data.reshape(n, -1))


def quantized(*parts: RawWeight) -> QuantizedPanels:
    packed = QuantizedPanels(native, parts)
    assert packed.ok
    return packed


def widths(name: str) -> tuple[int, ...]:
    return (256, 768, 1536) if BLOCKS[name][0] == 256 else (32, 96, 576, 1536)


def codes_of(part: RawWeight) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centered or plain codes int64 [N, K], scales and minimums float64 [N, K / 16], from the file's bytes with scales replaced by 1 or 0."""
    n, k = part.shape
    block, size = BLOCKS[part.format]
    blocks = part.data.reshape(-1, size)
    half = part.data.reshape(-1, size)[:, HALVES[part.format][0] :][:, :2].copy().view(np.float16)

    def decoded(d: float, m: float) -> np.ndarray:
        copy = blocks.copy()
        for at, value in zip(HALVES[part.format], (d, m), strict=False):
            copy[:, at : at + 2] = np.full(len(copy), value, np.float16).view(np.uint8).reshape(-1, 2)
        return dequantize(part.format, copy.reshape(n, -1), k).astype(np.float64)

    whole = decoded(1, 0)  # [6-bit scale *] code
    minimum = decoded(0, 1) if part.format in AFFINE else np.zeros((n, k))
    groups = np.ones((n, k // 16))
    if part.format.endswith("_k"):  # divide the small integer scales out
        groups = small_scales(part)
        safe = np.repeat(np.where(groups == 0, 1, groups), 16, axis=1)
        whole = np.where(np.repeat(groups == 0, 16, axis=1), 0, whole / safe)
    d = np.repeat(half.astype(np.float32).reshape(n, -1), block // 16, axis=1)
    m = np.zeros_like(d)
    if part.format in AFFINE:
        m = np.repeat(blocks[:, 2:4].copy().view(np.float16).astype(np.float32).reshape(n, -1), block // 16, axis=1)
    scale = (d * groups.astype(np.float32)).astype(np.float16).astype(np.float64)
    return whole.astype(np.int64), scale, (m * minimum[:, ::16].astype(np.float32)).astype(np.float16).astype(np.float64)


def small_scales(part: RawWeight) -> np.ndarray:
    """The integer scales of K-quants, [N, K / 16], read from weights whose other factors are one."""
    n, k = part.shape
    size = BLOCKS[part.format][1]
    copy = part.data.reshape(-1, size).copy()
    copy[:, HALVES[part.format][0] :][:, :2] = np.full(len(copy), 1, np.float16).view(np.uint8).reshape(-1, 2)
    if part.format == "q6_k":
        return copy[:, 192:208].view(np.int8).reshape(n, -1).astype(np.float64)
    copy[:, 2:4] = 0
    copy[:, 16:] = 255  # every code is the largest there is
    return dequantize(part.format, copy.reshape(n, -1), k)[:, ::16].astype(np.float64) / (15 if part.format == "q4_k" else 31)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float32 a * b + c, rounded once: the product is exact in float64 and longdouble holds nearly every sum."""
    return (a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)).astype(np.float32)


def emulated(part: RawWeight, x: np.ndarray) -> np.ndarray:
    """The arithmetic of kernels.h, group by group."""
    codes, scale, minimum = codes_of(part)
    n, t = codes.shape[0], x.shape[0]
    y = np.zeros((t, n), np.float32)
    for g in range(x.shape[1] // 32):
        group = x[:, 32 * g : 32 * g + 32]
        largest = np.abs(group).max(1)
        factor = (np.float32(127) / largest).astype(np.float32)
        q = np.rint(group * factor[:, None]).astype(np.int64)
        s = (largest / np.float32(127)).astype(np.float32)
        halves = ((0, 16), (16, 32)) if part.format == "q6_k" else ((0, 32),)
        for first, end in halves:
            i = (q[:, first:end] @ codes[:, 32 * g + first : 32 * g + end].T).astype(np.float32)
            both = (scale[:, 2 * g + first // 16].astype(np.float32)[None] * s[:, None]).astype(np.float32)
            y = fused(i, both, y)
        if part.format in AFFINE:
            total = (s * q.sum(1).astype(np.float32)).astype(np.float32)
            y = fused(minimum[:, 2 * g].astype(np.float32)[None], total[:, None], y)
    return y


@pytest.mark.parametrize("name", HALVES)
def test_product_follows_the_documented_arithmetic(name: str) -> None:
    k = widths(name)[1]
    part, x = stored(name, 33, k), random_tensor(2, 9, k)
    expected = emulated(part, x.numpy())
    for isa in ISAS:
        native.select_isa(isa)
        y = quantized(part).matmul(x).numpy()
        if isa == "generic":  # may round products on their own
            np.testing.assert_allclose(y, expected, rtol=0, atol=3e-6 * np.abs(expected).max())
        else:
            assert np.array_equal(y.view(np.uint32), expected.view(np.uint32)), isa


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", HALVES)
def test_product_is_near_that_of_dequantized_weights(isa: str, name: str) -> None:
    """Rounding x to int8 changes each of its 32-groups by at most half a step of m / 127."""
    native.select_isa(isa)
    for n, k in zip((1, 15, 17, 100), itertools.cycle(widths(name)), strict=False):
        part, x = stored(name, n, k), random_tensor(2, max(ROWS), k)
        weight = torch.from_numpy(dequantize(name, part.data, k)).double()
        steps = x.reshape(len(x), -1, 32).abs().amax(2).repeat_interleave(32, 1).double() / 127
        size = weight.abs()
        bound = (0.5001 * steps) @ size.t() + 1e-5 * size.max() * k
        if name not in EXACT:
            bound += 2**-10 * (x.double().abs() @ size.t())
        assert ((quantized(part).matmul(x).double() - x.double() @ weight.t()).abs() <= bound).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", HALVES)
def test_a_row_has_the_same_bits_in_every_batch(isa: str, name: str) -> None:
    native.select_isa(isa)
    n, k = 157, widths(name)[-1]
    x, packed = random_tensor(2, max(ROWS), k), quantized(stored(name, n, k))
    native.set_threads(1)
    whole = packed.matmul(x)
    for threads in THREADS:
        native.set_threads(threads)
        for rows in ROWS:
            assert bits(packed.matmul(x[:rows])) == bits(whole[:rows])
            assert bits(packed.matmul(x[max(ROWS) - rows :])) == bits(whole[max(ROWS) - rows :])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ("q4_1", "q6_k", "q8_0"))
def test_blocks_of_rows_keep_the_bits(isa: str, name: str) -> None:
    """So many inputs that quantized rows are worked on in several blocks, the last one short; single rows as the measure."""
    native.select_isa(isa)
    native.set_threads(2)
    rows, k = 150, 4864
    x, packed = random_tensor(2, rows, k), quantized(stored(name, 40, k))
    whole = packed.matmul(x)
    for row in (0, 1, 24, 25, 26, 27, 51, 52, 53, 54, 77, 78, 79, 104, 105, 148, 149):
        assert bits(packed.matmul(x[row : row + 1])) == bits(whole[row : row + 1])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", HALVES)
def test_large_batches_follow_the_documented_arithmetic(isa: str, name: str) -> None:
    """Every count of rows up to 70, and outputs that fill no tile."""
    native.select_isa(isa)
    k = widths(name)[1]
    part, x = stored(name, 23, k), random_tensor(3, 70, k)
    expected, packed = emulated(part, x.numpy()), quantized(part)
    for rows in range(1, 71):
        y = packed.matmul(x[70 - rows :]).numpy()
        if isa == "generic":
            np.testing.assert_allclose(y, expected[70 - rows :], rtol=0, atol=3e-6 * np.abs(expected).max())
        else:
            assert np.array_equal(y.view(np.uint32), expected[70 - rows :].view(np.uint32)), rows


@pytest.mark.skipif(len(FUSED) < 2, reason="needs a processor with more than one vector kernel set")
@pytest.mark.parametrize("name", HALVES)
def test_vector_sets_give_equal_bits(name: str) -> None:
    part, x = stored(name, 100, widths(name)[-1]), random_tensor(2, 70, widths(name)[-1])
    results = set()
    for isa in FUSED:
        native.select_isa(isa)
        results.add(bits(quantized(part).matmul(x)))
    assert len(results) == 1


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_codes_do_not_saturate(isa: str) -> None:
    """Largest codes against the largest activations, both signs: sums in 16 bits must hold them."""
    native.select_isa(isa)
    for name in HALVES:
        k = widths(name)[1]
        part = stored(name, 16, k)
        block, size = BLOCKS[name]
        for byte, sign in itertools.product((0, 127, 128, 255), (1, -1)):
            data = np.full((16 * k // block, size), byte, np.uint8)
            for at in HALVES[name]:
                data[:, at : at + 2] = np.full(len(data), 0.5, np.float16).view(np.uint8).reshape(-1, 2)
            part = RawWeight(name, (16, k), data.reshape(16, -1))
            x = torch.full((6, k), float(sign))
            expected = x.double() @ torch.from_numpy(dequantize(name, part.data, k)).double().t()
            torch.testing.assert_close(quantized(part).matmul(x).double(), expected, rtol=2e-6 if name in EXACT else 1e-3, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_parts_of_mixed_formats_are_one_weight(isa: str) -> None:
    native.select_isa(isa)
    native.set_threads(2)
    parts = [stored("q5_0", 37, 256, 1), stored("q8_0", 3, 256, 2), stored("q6_k", 16, 256, 3), stored("q4_1", 50, 256, 4)]
    x, merged = random_tensor(5, 19, 256), quantized(*parts)
    assert merged.shape == (106, 256)
    assert bits(merged.matmul(x)) == bits(torch.cat([quantized(part).matmul(x) for part in parts], dim=1))
    ids = torch.tensor([0, 36, 37, 39, 40, 55, 56, 105])
    assert bits(merged.rows(ids)) == bits(torch.cat([quantized(part).rows(torch.arange(part.shape[0])) for part in parts])[ids])
    with pytest.raises(IndexError, match="row 106 is outside 0"):
        merged.rows(torch.tensor([106]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", HALVES)
def test_rows_are_the_dequantized_ones(isa: str, name: str) -> None:
    native.select_isa(isa)
    native.set_threads(2)
    n, k = 37, widths(name)[1]
    part = stored(name, n, k)
    weight, packed = dequantize(name, part.data, k), quantized(part)
    rows = packed.rows(torch.arange(n)).numpy()
    if name in EXACT:
        assert np.array_equal(rows.view(np.uint32) & 0x7FFFFFFF, weight.view(np.uint32) & 0x7FFFFFFF)
        assert np.array_equal(rows, weight)  # zeros may differ in sign alone
        assert np.array_equal(packed.scaled_rows(torch.tensor([n - 1, 0]), 0.1).numpy(), weight[[n - 1, 0]] * np.float32(0.1))
    else:
        assert np.abs(rows - weight).max() <= 2**-10 * np.abs(weight).max()
    full = -(-n // 16) * 16 * k
    assert 0 <= packed.nbytes - full * BITS_A_WEIGHT[name] / 8 < 64 * (-(-n // 16))


def test_huge_tiny_and_broken_rows_stay_alone() -> None:
    part = stored("q4_1", 40, 96)
    x = random_tensor(2, 8, 96)
    x[1] *= 1e30
    x[2] *= 1e-25
    x[3], x[4, 40], x[5, 0], x[6] = 0.0, float("nan"), float("inf"), x[6] * 1e-42
    weight = torch.from_numpy(dequantize("q4_1", part.data, 96)).double()
    for isa in ISAS:
        native.select_isa(isa)
        packed = quantized(part)
        y = packed.matmul(x)
        assert y[4].isnan().all() and y[5].isnan().all()
        assert (y[3] == 0).all() and (y[6] == 0).all()
        for row in (0, 1, 2, 7):
            assert bits(packed.matmul(x[row : row + 1])) == bits(y[row : row + 1])
            exact = x[row].double() @ weight.t()
            assert ((y[row].double() - exact).abs() <= 0.05 * exact.abs().max()).all()


def test_scales_that_sixteen_bits_cannot_hold_make_the_weight_dense() -> None:
    backend = CpuBackend(BackendOptions(threads=2))

    def kind(part: RawWeight) -> type:
        return type(backend.pack([part], "auto"))

    assert kind(stored("q4_k", 20, 256)) is QuantizedPanels
    huge, infinite, no_number = stored("q4_k", 20, 256, spread=3e4), stored("q8_0", 20, 32), stored("q6_k", 20, 256)
    infinite.data[7, :2] = np.float16(np.inf).reshape(1).view(np.uint8)
    no_number.data[19, 208:210] = np.float16(np.nan).reshape(1).view(np.uint8)
    for part in (huge, infinite, no_number):
        packed = backend.pack([part], "auto")
        assert type(packed) is DensePanels
        expected = dequantize(part.format, part.data, part.shape[1])
        assert np.array_equal(packed.rows(torch.arange(20)).numpy(), expected, equal_nan=True)


def test_tiny_scales_are_exact() -> None:
    """An integer times a subnormal binary16 is a binary16 again."""
    part = stored("q6_k", 20, 256, spread=2e-7)
    assert np.array_equal(quantized(part).rows(torch.arange(20)).numpy(), dequantize("q6_k", part.data, 256))


def test_schemes() -> None:
    backend = CpuBackend(BackendOptions(threads=2))
    part, floats = stored("q8_0", 20, 64), raw_f32(random_tensor(1, 20, 64))
    assert type(backend.pack([part])) is DensePanels
    assert type(backend.pack([part], "dense")) is DensePanels
    assert type(backend.pack([part], "auto")) is QuantizedPanels
    assert type(backend.pack([floats], "auto")) is DensePanels
    assert type(backend.pack([part, floats], "auto")) is DensePanels
    ids = torch.tensor([3, 19])
    assert bits(backend.embed(ids, backend.pack([part], "auto"), 0.3)) == bits(backend.embed(ids, backend.pack([part]), 0.3))
    with pytest.raises(UnsupportedModel, match="known: auto, dense"):
        backend.pack([part], "int3")
    reference = ReferenceBackend(BackendOptions(threads=1))
    x = random_tensor(2, 3, 64)
    assert bits(reference.pack([part], "auto").matmul(x)) == bits(reference.pack([part], "dense").matmul(x))


def test_strided_input_rows_and_wrong_input() -> None:
    part = stored("q5_1", 40, 96)
    packed, x = quantized(part), random_tensor(2, 5, 300)
    expected = packed.matmul(x[:, 100:196].contiguous())
    assert bits(packed.matmul(x[:, 100:196])) == bits(expected)
    assert packed.matmul(x[:0, :96]).shape == (0, 40)
    wide = np.zeros((80, part.data.shape[1]), np.uint8)
    wide[::2] = part.data
    assert bits(quantized(RawWeight("q5_1", (40, 96), wide[::2])).matmul(x[:, 100:196])) == bits(expected)
    for wrong in (x, x[:, :96].double(), x[0, :96]):
        with pytest.raises(OctavoError, match="float32"):
            packed.matmul(wrong)
    with pytest.raises(FormatError, match="needs uint8"):
        quantized(RawWeight("q5_1", (40, 96), part.data[:, :-1]))
    with pytest.raises(ValueError, match="groups of 32"):
        native.QuantPanels([], 48)
