"""Products, packing and row operations of every kernel set: against float64, against the gguf package, and bit for bit against themselves."""

from __future__ import annotations

import itertools

import gguf
import numpy as np
import pytest
import torch

from octavo.backend.base import BackendOptions, RawWeight
from octavo.backend.cpu import CpuBackend, DensePanels
from octavo.errors import FormatError, OctavoError, UnsupportedModel
from tests.kernels.native_harness import ISAS, THREADS, bits, native, pack_f32, random_tensor, restored_native

pytestmark = pytest.mark.usefixtures(restored_native.__name__)

SHAPES = [(1, 1), (7, 33), (16, 384), (17, 385), (300, 257), (513, 769), (100, 1600)]
ROWS = (1, 2, 3, 5, 6, 7, 13, 14, 15, 29, 64, 70)
TYPES = {
    "f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16,
    "q4_0": gguf.GGMLQuantizationType.Q4_0, "q4_1": gguf.GGMLQuantizationType.Q4_1, "q5_0": gguf.GGMLQuantizationType.Q5_0,
    "q5_1": gguf.GGMLQuantizationType.Q5_1, "q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_k": gguf.GGMLQuantizationType.Q4_K,
    "q5_k": gguf.GGMLQuantizationType.Q5_K, "q6_k": gguf.GGMLQuantizationType.Q6_K,
}  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_matmul(isa: str, n: int, k: int) -> None:
    native.select_isa(isa)
    weight, x = random_tensor(1, n, k), random_tensor(2, max(ROWS), k)
    exact, scale = x.double() @ weight.double().t(), x.double().abs() @ weight.double().abs().t()
    packed = pack_f32(weight)
    native.set_threads(1)
    whole = packed.matmul(x)
    assert ((whole - exact).abs() <= 1e-6 * scale).all()
    for threads in THREADS:
        native.set_threads(threads)
        for rows in ROWS:
            assert bits(packed.matmul(x[:rows])) == bits(whole[:rows])
            at = max(ROWS) - rows
            assert bits(packed.matmul(x[at:])) == bits(whole[at:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_16_bit_panels_compute_as_their_values_in_float32_do(isa: str, n: int, k: int, dtype: torch.dtype) -> None:
    native.select_isa(isa)
    weight, x = random_tensor(1, n, k).to(dtype), random_tensor(2, max(ROWS), k)
    weight[0, 0], weight[-1, -1] = 6e-8, -3e4  # a subnormal of float16, and nearly its largest
    half, wide = DensePanels(native, [raw_16(weight)]), pack_f32(weight.float())
    assert half.nbytes == wide.nbytes // 2
    for threads, rows in itertools.product((1, 2), (1, 2, 7, 14, 15, 70)):
        native.set_threads(threads)
        assert bits(half.matmul(x[:rows])) == bits(wide.matmul(x[:rows]))
    ids = torch.tensor([n - 1, 0, n // 2])
    assert bits(half.scaled_rows(ids, 3.0)) == bits(wide.scaled_rows(ids, 3.0))


def raw_16(weight: torch.Tensor) -> RawWeight:
    data = weight.contiguous().view(torch.int16).numpy().view(np.uint8).reshape(weight.shape[0], -1)
    return RawWeight("f16" if weight.dtype is torch.float16 else "bf16", (weight.shape[0], weight.shape[1]), data)


def test_parts_of_one_16_bit_type_stay_so_and_mixed_ones_are_widened() -> None:
    a, b = random_tensor(1, 20, 40).half(), random_tensor(2, 12, 40).bfloat16()
    alike, mixed = DensePanels(native, [raw_16(a), raw_16(a.flip(0))]), DensePanels(native, [raw_16(a), raw_16(b)])
    x = random_tensor(3, 5, 40)
    assert alike.nbytes * 2 == pack_f32(torch.zeros(40, 40)).nbytes and mixed.nbytes == pack_f32(torch.zeros(32, 40)).nbytes
    assert bits(alike.matmul(x)) == bits(pack_f32(torch.cat([a, a.flip(0)]).float()).matmul(x))
    assert bits(mixed.matmul(x)) == bits(pack_f32(torch.cat([a.float(), b.float()])).matmul(x))


def test_sum_order_is_fixed_by_inputs_alone() -> None:
    """The documented order, replayed in numpy: blocks of k_block(K), each a chain from zero. Exact integers would hide a change of order."""
    native.select_isa("generic")
    k = 900  # three blocks of 304, 304 and 292
    weight, x = random_tensor(1, 3, k).numpy(), random_tensor(2, 2, k).numpy()
    expected = np.zeros((2, 3), np.float32)
    for first in range(0, k, 304):
        chain = np.zeros((2, 3), np.float32)
        for i in range(first, min(first + 304, k)):
            chain = (x[:, None, i] * weight[None, :, i]) + chain
        expected = chain if first == 0 else expected + chain
    result = pack_f32(torch.from_numpy(weight)).matmul(torch.from_numpy(x)).numpy()
    assert np.array_equal(result, expected) or _fused_multiply_add()


def _fused_multiply_add() -> bool:
    """Whether the portable kernels fuse (aarch64): then only the fused order exists and numpy cannot replay it."""
    one = np.float32(1 + 2**-12)
    y = pack_f32(torch.tensor([[1.0, float(one)]])).matmul(torch.tensor([[-1.0, float(one)]]))
    return float(y) != float(np.float32(one * one) - np.float32(1))


def test_wide_batches_are_cut_into_row_blocks() -> None:
    weight, x = random_tensor(1, 48, 40), random_tensor(2, 700, 40)
    packed = pack_f32(weight)
    native.set_threads(2)
    whole = packed.matmul(x)
    torch.testing.assert_close(whole.double(), x.double() @ weight.double().t(), rtol=1e-5, atol=1e-5)
    assert bits(packed.matmul(x[311:320])) == bits(whole[311:320])


def test_strided_input_and_empty_batch() -> None:
    weight, x = random_tensor(1, 40, 96), random_tensor(2, 5, 300)
    packed = pack_f32(weight)
    expected = packed.matmul(x[:, 100:196].contiguous())
    assert bits(packed.matmul(x[:, 100:196])) == bits(expected)
    assert bits(packed.matmul(x[:, 100:196].contiguous().t().contiguous().t())) == bits(expected)
    assert packed.matmul(x[:0, :96]).shape == (0, 40)
    for wrong in (x, x[:, :96].double(), x[0, :96]):
        with pytest.raises(OctavoError, match="float32"):
            packed.matmul(wrong)


@pytest.mark.skipif("avx512" not in ISAS, reason="needs a processor with AVX-512")
def test_avx2_and_avx512_give_equal_bits() -> None:
    weight, x = random_tensor(1, 200, 700), random_tensor(2, 33, 700)
    gate, table = random_tensor(3, 9, 2 * 411) * 6, random_tensor(4, 40, 64)
    results = []
    for isa in ("avx2", "avx512"):
        native.select_isa(isa)
        backend = CpuBackend(BackendOptions(threads=2))
        out = [pack_f32(weight).matmul(x), *backend.norm(x, weight[0], 1e-6, x.flip(0))]
        out += [backend.act_mul(gate, kind) for kind in ("silu", "gelu", "gelu_tanh")]
        q, k = backend.rope(x[:, :640].reshape(33, 10, 64).clone(), x[:, :128].reshape(33, 2, 64).clone(), torch.arange(33), table)
        results.append([bits(y) for y in (*out, q, k)])
    assert results[0] == results[1]


def stored(name: str, n: int, k: int, seed: int) -> RawWeight:
    """A weight of random bytes, with every float16 scale drawn from the finite ones (subnormals and negatives included)."""
    rng = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[TYPES[name]]
    data = rng.integers(0, 256, (n * (k // block), size), dtype=np.uint8)
    fields = {"q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208]}.get(name, [])
    for at in fields:
        scales = rng.integers(0, 0x7C00, len(data), dtype=np.uint16) | (rng.integers(0, 2, len(data), dtype=np.uint16) << 15)
        data[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if name == "f16":  # every half there is, NaN excepted, in turn
        halves = np.resize(np.delete(np.arange(65536, dtype=np.uint16), np.r_[0x7C01:0x8000, 0xFC01:0x10000]), n * k)
        data = halves.view(np.uint8)
    if name in ("f32", "bf16"):
        bits32 = rng.standard_normal(n * k).astype(np.float32).view(np.uint32)
        data = (bits32 if name == "f32" else (bits32 >> 16).astype(np.uint16)).view(np.uint8)
    return RawWeight(name, (n, k), data.reshape(n, -1))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TYPES)
def test_pack_equals_the_gguf_package_exactly(isa: str, name: str) -> None:
    native.select_isa(isa)
    native.set_threads(2)
    n, k = (300, 512) if name == "f16" else (37, 768)
    part = stored(name, n, k, 1)
    expected = gguf.dequantize(part.data, TYPES[name]).astype(np.float32)
    packed = DensePanels(native, [part])
    assert packed.shape == (n, k) and packed.nbytes == -(-n // 16) * 16 * k * (2 if name in ("f16", "bf16") else 4)
    rows = packed.rows(torch.arange(n)).numpy()
    assert np.array_equal(rows.view(np.uint32), expected.reshape(n, k).view(np.uint32))
    assert np.array_equal(packed.scaled_rows(torch.tensor([n - 1, 0]), 0.1).numpy(), expected.reshape(n, k)[[n - 1, 0]] * np.float32(0.1))


@pytest.mark.parametrize("isa", ISAS)
def test_pack_merges_parts_and_pads_with_zeros(isa: str) -> None:
    """Parts of three types and of sizes that cut through panels; what lies beyond N must not leak into results."""
    native.select_isa(isa)
    parts = [stored("q4_k", 5, 256, 1), stored("q6_k", 20, 256, 2), stored("f32", 1, 256, 3), stored("q8_0", 8, 256, 4)]
    expected = np.concatenate([gguf.dequantize(p.data, TYPES[p.format]) for p in parts]).astype(np.float32)
    for threads in THREADS:
        native.set_threads(threads)
        packed = DensePanels(native, parts)
        assert np.array_equal(packed.rows(torch.arange(34)).numpy(), expected)
    finite = np.clip(np.nan_to_num(expected), -9, 9)
    y = pack_f32(torch.from_numpy(finite)).matmul(torch.ones(1, 256))
    torch.testing.assert_close(y[0].double(), torch.from_numpy(finite).double().sum(1), rtol=1e-5, atol=1e-3)


def test_pack_reads_strided_rows_and_refuses_wrong_sizes() -> None:
    part = stored("q5_1", 9, 64, 1)
    wide = np.zeros((18, part.data.shape[1]), np.uint8)
    wide[::2] = part.data
    every_other = RawWeight("q5_1", (9, 64), wide[::2])
    assert bits(DensePanels(native, [every_other]).rows(torch.arange(9))) == bits(DensePanels(native, [part]).rows(torch.arange(9)))
    backend = CpuBackend(BackendOptions(threads=1))
    with pytest.raises(FormatError, match="needs uint8"):
        backend.pack([RawWeight("q5_1", (9, 64), part.data[:, :-1])])
    with pytest.raises(FormatError, match="blocks hold 32"):
        backend.pack([RawWeight("q5_1", (9, 65), part.data)])
    with pytest.raises(UnsupportedModel, match="q3_k"):
        backend.pack([RawWeight("q3_k", (9, 64), part.data)])
    with pytest.raises(UnsupportedModel, match="merge"):
        backend.pack([])
    with pytest.raises(IndexError, match="row 34 is outside 0"):
        pack_f32(random_tensor(1, 34, 8)).rows(torch.tensor([0, 34]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [1, 4, 15, 16, 33, 64, 80, 576, 1000])
def test_norm_and_activations_at_every_width(isa: str, width: int) -> None:
    """A component has the same bits wherever its row lies, and tails follow the arithmetic of full vectors."""
    native.select_isa(isa)
    backend = CpuBackend(BackendOptions(threads=2))
    x, weight, residual = random_tensor(1, 7, width) * 3, random_tensor(2, width), random_tensor(3, 7, width)
    out, total = backend.norm(x, weight, 1e-5, residual)
    wide = (x + residual).double()
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(out.double(), wide / (wide.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * weight.double(), rtol=2e-6, atol=1e-7)
    for row in range(7):
        assert bits(backend.norm(x[row : row + 1], weight, 1e-5, residual[row : row + 1])[0]) == bits(out[row : row + 1])
    function = torch.nn.functional
    acts = {"silu": function.silu, "gelu": function.gelu, "gelu_tanh": lambda g: function.gelu(g, approximate="tanh")}
    gate = torch.cat([x * 4, residual], dim=1)
    for kind, act in acts.items():
        y = backend.act_mul(gate, kind)
        torch.testing.assert_close(y.double(), act(x.double() * 4) * residual.double(), rtol=2e-6, atol=2e-7)
        moved = torch.cat([(x * 4).flip(1), residual.flip(1)], dim=1)  # other lanes, full vector or tail
        assert bits(backend.act_mul(moved, kind).flip(1)) == bits(y)


@pytest.mark.parametrize("isa", ISAS)
def test_activations_over_the_whole_range(isa: str) -> None:
    native.select_isa(isa)
    backend = CpuBackend(BackendOptions(threads=1))
    x = torch.cat([torch.linspace(-12, 12, 40001), torch.tensor([-1e30, -700.0, -89.0, -0.0, 0.0, 1e-20, 89.0, 700.0, 1e30])])
    gate = torch.cat([x, torch.ones_like(x)])[None]
    function = torch.nn.functional
    exact = {"silu": function.silu(x.double()), "gelu": function.gelu(x.double()), "gelu_tanh": function.gelu(x.double(), approximate="tanh")}
    for kind, values in exact.items():
        error = (backend.act_mul(gate, kind)[0].double() - values).abs()
        assert (error <= 4e-7 * values.abs() + 6e-8).all(), f"{kind}: {error.max()} at {x[error.argmax()]}"
    special = torch.tensor([[float("nan"), float("inf"), 1.0, 1.0]])
    for kind in exact:
        y = backend.act_mul(special, kind)[0]
        assert y[0].isnan() and y[1] == float("inf")


def test_rope_in_place_on_views_of_one_projection() -> None:
    backend = CpuBackend(BackendOptions(threads=2))
    qkv, table = random_tensor(1, 50, 6, 64), random_tensor(2, 90, 64)
    positions = torch.arange(40, 90)
    q, k, v = torch.split(qkv, [3, 2, 1], dim=1)
    expected = [x.clone() for x in (q, k, v)]
    cos, sin = table[positions][:, None].chunk(2, dim=-1)
    for i in range(2):
        a, b = expected[i].chunk(2, dim=-1)
        expected[i] = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    q2, k2 = backend.rope(q, k, positions, table)
    assert q2.data_ptr() == q.data_ptr() and k2.data_ptr() == k.data_ptr()
    assert [bits(x) for x in (q2, k2, v)] == [bits(x) for x in expected]
    with pytest.raises(IndexError, match="position 90 is outside"):
        backend.rope(q, k, positions + 1, table)


def test_memory_is_aligned_and_returned() -> None:
    pieces = [native.Memory(size) for size in (0, 1, 100, 1 << 20, 40 << 20)]
    assert all(piece.ptr % 64 == 0 for piece in pieces)
    spans = sorted((piece.ptr, piece.ptr + piece.nbytes) for piece in pieces)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    big = native.Memory(64 << 20)
    address = big.ptr
    assert _mapped(address)
    del big
    assert not _mapped(address)
    with pytest.raises(MemoryError):
        native.Memory(1 << 60)


def _mapped(address: int) -> bool:
    with open("/proc/self/maps") as f:
        spans = [line.split()[0].split("-") for line in f]
    return any(int(first, 16) <= address < int(end, 16) for first, end in spans)
