"""Every operation of every backend against float64 and against the reference, and bit for bit against itself in other company."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.backend.base import Backend, RawWeight
from octavo.errors import UnsupportedModel
from octavo.kernels.dequant import dequantize, row_bytes
from tests.conformance.harness import BACKENDS, bits, make_backend, random_tensor, raw_f32

ROWS = (1, 2, 7, 15, 16, 17, 33, 64, 70)
THREADS = (1, 2, 3)


@pytest.fixture(params=BACKENDS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def backend(name: str) -> Backend:
    return make_backend(name)


def random_blocks(format: str, n: int, k: int, seed: int = 0) -> RawWeight:
    """A weight with sensible scales: every float16 field is replaced by a small number."""
    data = np.random.default_rng(seed).integers(0, 256, (n, row_bytes(format, k)), dtype=np.uint8)
    fields = {"q4_0": (18, [0]), "q4_1": (20, [0, 2]), "q5_0": (22, [0]), "q5_1": (24, [0, 2]), "q8_0": (34, [0]),
              "q4_k": (144, [0, 2]), "q5_k": (176, [0, 2]), "q6_k": (210, [208])}
    if format in fields:
        size, places = fields[format]
        blocks = data.reshape(-1, size)
        for i, at in enumerate(places):
            blocks[:, at : at + 2] = np.frombuffer(np.float16(0.003 * (i + 1)).tobytes(), np.uint8)
    else:
        weight = np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)
        data = weight.astype(np.float16).view(np.uint8) if format == "f16" else (weight.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return RawWeight(format, (n, k), data.reshape(n, -1))


@pytest.mark.parametrize(("n", "k"), [(1, 64), (7, 33), (300, 257), (513, 576), (96, 1536), (1030, 100)])
def test_matmul(name: str, n: int, k: int) -> None:
    weight, x = random_tensor(1, n, k), random_tensor(2, max(ROWS), k)
    packed = make_backend(name, 2).pack([raw_f32(weight)])
    whole = packed.matmul(x)
    assert packed.shape == (n, k) and packed.nbytes >= n * k * 4
    exact = x.double() @ weight.double().t()
    scale = x.double().abs() @ weight.double().abs().t()
    assert whole.dtype == torch.float32 and whole.shape == (max(ROWS), n)
    assert ((whole - exact).abs() <= 2e-6 * scale).all()
    for threads in THREADS:
        other = make_backend(name, threads).pack([raw_f32(weight)])
        for rows in ROWS:
            assert bits(other.matmul(x[:rows])) == bits(whole[:rows]), f"{rows} rows, {threads} threads"
        for at in (1, 5, 40):
            assert bits(other.matmul(x[at : at + 9])) == bits(whole[at : at + 9]), f"rows from {at}, {threads} threads"


def test_matmul_rows_do_not_touch_each_other(backend: Backend) -> None:
    weight, x = random_tensor(1, 40, 96), random_tensor(2, 20, 96)
    packed = backend.pack([raw_f32(weight)])
    clean = packed.matmul(x)
    x[3] = float("nan")
    x[11] = float("inf")
    spoiled = packed.matmul(x)
    keep = [i for i in range(20) if i not in (3, 11)]
    assert bits(spoiled[keep]) == bits(clean[keep])
    assert packed.matmul(x[:0]).shape == (0, 40)


@pytest.mark.parametrize("format", ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"])
def test_pack_of_stored_formats(backend: Backend, format: str) -> None:
    parts = [random_blocks(format, 70, 512, 1), random_blocks(format, 35, 512, 2)]
    packed = backend.pack(parts)
    weight = torch.from_numpy(np.concatenate([dequantize(format, part.data, 512) for part in parts]))
    ids = torch.tensor([0, 104, 69, 70, 3, 3])
    assert packed.shape == (105, 512)
    assert torch.equal(packed.rows(ids), weight[ids])
    assert torch.equal(backend.embed(ids, packed), weight[ids])
    assert torch.equal(backend.embed(ids, packed, 24.0), weight[ids] * 24.0)
    x = random_tensor(3, 19, 512)
    exact, scale = x.double() @ weight.double().t(), x.double().abs() @ weight.double().abs().t()
    assert ((packed.matmul(x) - exact).abs() <= 2e-6 * scale).all()


def test_pack_of_mixed_formats_and_errors(backend: Backend) -> None:
    parts = [random_blocks("q4_k", 8, 256), random_blocks("q6_k", 4, 256), random_blocks("f16", 3, 256)]
    weight = torch.from_numpy(np.concatenate([dequantize(part.format, part.data, 256) for part in parts]))
    assert torch.equal(backend.pack(parts).rows(torch.arange(15)), weight)
    with pytest.raises(UnsupportedModel, match="iq2_xxs"):
        backend.pack([RawWeight("iq2_xxs", (1, 256), np.zeros((1, 66), np.uint8))])
    with pytest.raises(UnsupportedModel, match="no-such-scheme"):
        backend.pack(parts, "no-such-scheme")
    with pytest.raises(UnsupportedModel, match="merge"):
        backend.pack([random_blocks("f16", 3, 256), random_blocks("f16", 3, 128)])


@pytest.mark.parametrize("shape", [(70, 576), (33, 33), (70, 1), (20, 3, 80), (9, 14, 256), (5, 5000)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_norm(name: str, shape: tuple[int, ...], with_residual: bool) -> None:
    x, residual, weight = random_tensor(1, *shape) * 3, random_tensor(2, *shape), random_tensor(3, shape[-1])
    given = residual if with_residual else None
    whole, total = make_backend(name).norm(x.clone(), weight, 1e-5, None if given is None else given.clone())
    expected_total = x + residual if with_residual else x
    assert torch.equal(total, expected_total)
    wide = expected_total.double()
    exact = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(whole.double(), exact, rtol=2e-6, atol=1e-7)
    for threads in THREADS:
        other = make_backend(name, threads)
        for at, rows in ((0, 1), (0, 3), (2, 3), (1, shape[0] - 1)):
            piece = slice(at, at + rows)
            y, _ = other.norm(x[piece].clone(), weight, 1e-5, None if given is None else given[piece].clone())
            assert bits(y) == bits(whole[piece])


@pytest.mark.parametrize("shape", [(70, 576), (33, 33), (20, 3, 80), (9, 14, 20), (5, 5000), (6, 1)])
@pytest.mark.parametrize("of_heads", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_layer_norm(name: str, shape: tuple[int, ...], of_heads: bool, biased: bool) -> None:
    """Centered; values far from zero, so that summing their squares without the mean would cancel."""
    each = shape[1:] if of_heads else shape[-1:]
    x, residual, weight = random_tensor(1, *shape) + 30, random_tensor(2, *shape), random_tensor(3, *each)
    bias = random_tensor(4, *each) if biased else None
    whole, total = make_backend(name).norm(x.clone(), weight, 1e-5, residual.clone(), bias=bias, center=True)
    assert torch.equal(total, x + residual)
    wide = total.double()
    exact = torch.nn.functional.layer_norm(wide, wide.shape[-1:], eps=1e-5) * weight.double() + (0.0 if bias is None else bias.double())
    torch.testing.assert_close(whole.double(), exact, rtol=3e-5, atol=3e-5)
    for threads in THREADS:
        other = make_backend(name, threads)
        for at, rows in ((0, 1), (0, 3), (2, 3), (1, shape[0] - 1)):
            piece = slice(at, at + rows)
            y, _ = other.norm(x[piece].clone(), weight, 1e-5, residual[piece].clone(), bias=bias, center=True)
            assert bits(y) == bits(whole[piece])


def test_norm_of_each_head_with_its_own_weight_and_bias(backend: Backend) -> None:
    x, weight, bias = random_tensor(1, 9, 6, 20), random_tensor(2, 6, 20), random_tensor(3, 6, 20)
    out, _ = backend.norm(x[:, ::2].clone(), weight[:3], 1e-5, bias=bias[:3])
    wide = x[:, ::2].double()
    exact = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight[:3].double() + bias[:3].double()
    torch.testing.assert_close(out.double(), exact, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(("head_dim", "rot"), [(64, 64), (80, 32), (96, 96), (128, 64), (6, 2), (70, 34)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(backend: Backend, head_dim: int, rot: int, interleaved: bool) -> None:
    q, k = random_tensor(1, 37, 6, head_dim), random_tensor(2, 37, 2, head_dim)
    positions = torch.randint(0, 500, (37,), generator=torch.Generator().manual_seed(0))
    angles = torch.arange(500).double()[:, None] * 10000.0 ** (-torch.arange(0, rot, 2).double() / rot)
    table = torch.cat([angles.cos(), angles.sin()], dim=1).float()
    rotated = backend.rope(q.clone(), k.clone(), positions, table, interleaved=interleaved)
    turn = torch.polar(torch.ones_like(angles), angles)[positions][:, None]
    for x, y in zip((q, k), rotated, strict=True):
        halves = x[..., :rot].double().unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x[..., :rot].double().chunk(2, dim=-1)
        pairs = torch.complex(*(half.contiguous() for half in halves)) * turn
        turned = torch.stack([pairs.real, pairs.imag], dim=-1).flatten(-2) if interleaved else torch.cat([pairs.real, pairs.imag], dim=-1)
        exact = torch.cat([turned, x[..., rot:].double()], dim=-1)
        torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-6)
        assert torch.equal(y[..., rot:], x[..., rot:])
    for at, rows in ((0, 1), (5, 7), (36, 1)):
        piece = slice(at, at + rows)
        part = backend.rope(q[piece].clone(), k[piece].clone(), positions[piece], table, interleaved=interleaved)
        assert [bits(y) for y in part] == [bits(y[piece]) for y in rotated]


FUNCTIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.nn.functional.relu,
    "relu2": lambda x: torch.nn.functional.relu(x) ** 2,
}


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("width", [1, 37, 1536, 5000])
def test_act(name: str, kind: str, width: int) -> None:
    x = random_tensor(1, 40, width) * 4
    x[0, 0], x[1, 0], x[2, 0], x[3, 0] = 90.0, -90.0, -700.0, float("nan")
    whole = make_backend(name).act(x.clone(), kind)
    exact = FUNCTIONS[kind](x.double())
    assert whole[3, 0].isnan()
    kept = ~exact.isnan()
    assert ((whole - exact).abs() <= 3e-6 * exact.abs() + 1.5e-7 * x.double().abs())[kept].all()
    for threads in THREADS:
        other = make_backend(name, threads)
        for at, rows in ((0, 1), (0, 7), (3, 5), (39, 1)):
            assert bits(other.act(x[at : at + rows].clone(), kind)) == bits(whole[at : at + rows])


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("width", [1, 37, 1536, 5000])
def test_act_mul(name: str, kind: str, width: int) -> None:
    x = random_tensor(1, 40, 2 * width) * 4
    x[0, 0], x[1, 0], x[2, 0] = 90.0, -90.0, -700.0
    gate, up = x.double().chunk(2, dim=-1)
    whole = make_backend(name).act_mul(x.clone(), kind)
    exact = FUNCTIONS[kind](gate) * up
    # Where the gate is far below zero a float32 computation cancels: its error is relative to the factors, not to the product.
    assert ((whole - exact).abs() <= 3e-6 * exact.abs() + 1.5e-7 * (gate * up).abs()).all()
    for threads in THREADS:
        other = make_backend(name, threads)
        for at, rows in ((0, 1), (0, 7), (3, 5), (39, 1)):
            assert bits(other.act_mul(x[at : at + rows].clone(), kind)) == bits(whole[at : at + rows])


def test_act_mul_unknown_kind(backend: Backend) -> None:
    with pytest.raises(UnsupportedModel, match="relu7"):
        backend.act_mul(torch.zeros(1, 2), "relu7")
    with pytest.raises(UnsupportedModel, match="relu7"):
        backend.act(torch.zeros(1, 2), "relu7")


def test_memory_and_description(backend: Backend) -> None:
    info = backend.memory()
    assert 0 < info.available <= info.total
    assert backend.name in BACKENDS and backend.device.type == "cpu"
    assert all(hasattr(backend, operation) for operation in backend.fallbacks)


@pytest.mark.parametrize("width", [1, 15, 16, 600])
@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"limit": 0.7}, {"scale": -2.0, "limit": 1.1}])
@pytest.mark.parametrize("two", [True, False])
def test_add(name: str, width: int, options: dict[str, float], two: bool) -> None:
    """Each step rounded to float32, as numpy does it; strided rows; any number of them."""
    backend = make_backend(name)
    x, other = random_tensor(1, 40, width + 5)[:, 3 : width + 3], random_tensor(2, 40, width)
    x[3, 0] = float("nan")
    expected = x.numpy() * np.float32(options.get("scale", 1.0)) + (other.numpy() if two else 0)
    expected = np.clip(expected, *(np.float32(sign * options.get("limit", np.inf)) for sign in (-1, 1)))
    found = backend.add(x, other if two else None, **options)
    assert np.array_equal(found.numpy(), expected, equal_nan=True) and found.is_contiguous()
    assert bits(backend.add(x[7:9], other[7:9] if two else None, **options)) == bits(found[7:9])
