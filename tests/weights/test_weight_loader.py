"""The loader: what it packs, what it refuses, and that it says everything that is wrong before it reads anything."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from octavo.backend.base import BackendOptions
from octavo.backend.reference import ReferenceBackend
from octavo.checkpoint.base import RawTensor
from octavo.errors import ConfigError, TensorMismatch, UnsupportedModel
from octavo.parallel.local import LocalGroup
from octavo.weights.loader import Part, Rows, WeightLoader
from tests.weights.memory_checkpoint import MemoryCheckpoint


@pytest.fixture(scope="module")
def backend() -> ReferenceBackend:
    return ReferenceBackend(BackendOptions(threads=1))


class Spy:
    """A backend that records what is packed and gives none of its memory away."""

    def __init__(self, backend: ReferenceBackend) -> None:
        self.backend, self.device, self.packed = backend, backend.device, []

    def pack(self, parts: Any, scheme: str = "dense") -> Any:
        self.packed.append([part.shape for part in parts])
        return self.backend.pack(parts, scheme)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def stored(name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType) -> RawTensor:
    """``values`` quantized by the gguf package."""
    return RawTensor(name, kind.name.lower(), values.shape, gguf.quants.quantize(values, kind).view(np.uint8))


def place(target: SimpleNamespace, name: str) -> Any:
    return partial(setattr, target, name)


def test_parts_are_concatenated_and_may_have_different_formats(backend: ReferenceBackend) -> None:
    q, k = random(6, 64), random(4, 64)
    checkpoint = MemoryCheckpoint({"q": stored("q", q, gguf.GGMLQuantizationType.Q8_0), "k": k})
    loader, out = WeightLoader(checkpoint, backend, LocalGroup()), SimpleNamespace()
    loader.matrix([Part("q", 6), Part("k", 4)], 64, place(out, "qk"))
    loader.finish()
    rows = out.qk.rows(torch.arange(10)).numpy()
    q8 = gguf.quants.dequantize(checkpoint.tensor("q").data, gguf.GGMLQuantizationType.Q8_0)
    assert out.qk.shape == (10, 64)
    np.testing.assert_array_equal(rows, np.concatenate([q8, k]))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_vectors_become_float32_from_any_float_format(backend: ReferenceBackend, kind: str) -> None:
    form = gguf.GGMLQuantizationType[kind]
    raw = stored("norm", random(40), form)
    loader, out = WeightLoader(MemoryCheckpoint({"norm": raw, "bias": random(3)}), backend, LocalGroup()), SimpleNamespace()
    loader.vector([Part("norm", 40), Part("bias", 3)], place(out, "both"))
    loader.finish()
    assert out.both.dtype == torch.float32
    np.testing.assert_array_equal(out.both.numpy(), np.concatenate([gguf.quants.dequantize(raw.data, form), random(3)]))


def test_nothing_is_packed_and_everything_is_named_when_a_file_does_not_fit(backend: ReferenceBackend) -> None:
    names = {f"layers.{i}.extra": random(2) for i in range(13)}
    checkpoint = MemoryCheckpoint({"a": random(3, 4), "norm": random(5), "fine": random(4, 4), **names})
    spy = Spy(backend)
    loader, out = WeightLoader(checkpoint, spy, LocalGroup()), SimpleNamespace()  # type: ignore[arg-type]
    loader.matrix([Part("a", 3)], 8, place(out, "a"))
    loader.matrix([Part("fine", 4), Part("absent.weight", 4)], 4, place(out, "b"))
    loader.vector([Part("norm", 6)], place(out, "norm"))
    with pytest.raises(TensorMismatch) as caught:
        loader.finish()
    message = str(caught.value)
    assert "1 tensor is missing: absent.weight;" in message
    assert "13 tensors are unread: layers.0.extra, " in message
    assert message.count("extra") == 10
    assert "and 3 more" in message
    assert "2 tensors are misshaped: a [3, 4] where the configuration says [3, 8], norm [5] where the configuration says [6]" in message
    assert spy.packed == []


def test_a_vector_where_a_matrix_was_expected_is_named(backend: ReferenceBackend) -> None:
    loader = WeightLoader(MemoryCheckpoint({"w": random(32)}), backend, LocalGroup())
    loader.matrix([Part("w", 4)], 8, lambda _: None)
    with pytest.raises(TensorMismatch, match=r"w \[32\] where the configuration says \[4, 8\]"):
        loader.finish()


def test_redundant_tensors_may_be_ignored_by_pattern(backend: ReferenceBackend) -> None:
    checkpoint = MemoryCheckpoint({"w": random(4, 4), "layers.0.rotary_emb.inv_freq": random(2), "layers.1.rotary_emb.inv_freq": random(2)})
    loader = WeightLoader(checkpoint, backend, LocalGroup())
    loader.matrix([Part("w", 4)], 4, lambda _: None)
    loader.ignore("layers.*.rotary_emb.inv_freq")
    loader.finish()


def test_the_same_matrix_is_packed_once(backend: ReferenceBackend) -> None:
    spy, out = Spy(backend), SimpleNamespace()
    loader = WeightLoader(MemoryCheckpoint({"embed": random(8, 4)}), spy, LocalGroup())  # type: ignore[arg-type]
    loader.matrix([Part("embed", 8)], 4, place(out, "first"))
    loader.matrix([Part("embed", 8)], 4, place(out, "second"))
    loader.finish()
    assert out.first is out.second
    assert spy.packed == [[(8, 4)]]


def test_progress_counts_every_byte_once_and_ends_at_the_total(backend: ReferenceBackend) -> None:
    checkpoint = MemoryCheckpoint({"a": random(8, 4), "b": random(2, 4), "n": random(4)})
    seen: list[tuple[int, int]] = []
    loader = WeightLoader(checkpoint, backend, LocalGroup(), lambda done, total: seen.append((done, total)))
    loader.matrix([Part("a", 8)], 4, lambda _: None)
    loader.matrix([Part("b", 2)], 4, lambda _: None)
    loader.matrix([Part("a", 8)], 4, lambda _: None)
    loader.vector([Part("n", 4)], lambda _: None)
    loader.finish()
    assert seen == [(0, 176), (16, 176), (144, 176), (176, 176)]


def shares(checkpoint: MemoryCheckpoint, backend: ReferenceBackend, shard: Any, parts: list[Part], inputs: int) -> list[np.ndarray]:
    """What each of two ranks holds."""
    held = []
    for rank in range(2):
        out = SimpleNamespace()
        loader = WeightLoader(checkpoint, backend, SimpleNamespace(rank=rank, size=2), None)  # type: ignore[arg-type]
        loader.matrix(parts, inputs, place(out, "w"), shard=shard)
        loader.finish()
        held.append(out.w.rows(torch.arange(out.w.shape[0])).numpy())
    return held


def test_outputs_of_each_part_are_divided_among_ranks(backend: ReferenceBackend) -> None:
    q, k = random(8, 4), random(4, 4)
    first, second = shares(MemoryCheckpoint({"q": q, "k": k}), backend, "outputs", [Part("q", 8), Part("k", 4)], 4)
    np.testing.assert_array_equal(first, np.concatenate([q[:4], k[:2]]))
    np.testing.assert_array_equal(second, np.concatenate([q[4:], k[2:]]))


def test_inputs_are_divided_among_ranks_in_whole_blocks(backend: ReferenceBackend) -> None:
    kind = gguf.GGMLQuantizationType.Q4_0
    raw = stored("w", random(3, 128), kind)
    halves = shares(MemoryCheckpoint({"w": raw}), backend, "inputs", [Part("w", 3)], 128)
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), gguf.quants.dequantize(raw.data, kind))
    narrow = MemoryCheckpoint({"w": stored("w", random(3, 96), kind)})
    with pytest.raises(ConfigError, match=r"w has 96 inputs in blocks of 32 \(q4_0\), which 2 ranks cannot divide"):
        shares(narrow, backend, "inputs", [Part("w", 3)], 96)


def test_a_bias_follows_its_weight(backend: ReferenceBackend) -> None:
    bias = random(6)
    out = SimpleNamespace()
    loader = WeightLoader(MemoryCheckpoint({"b": bias}), backend, SimpleNamespace(rank=1, size=2), None)  # type: ignore[arg-type]
    loader.vector([Part("b", 6)], place(out, "divided"), shard="outputs")
    loader.vector([Part("b", 6)], place(out, "whole"), shard="inputs")
    loader.finish()
    np.testing.assert_array_equal(out.divided.numpy(), bias[3:])
    np.testing.assert_array_equal(out.whole.numpy(), bias)


def test_ranks_that_do_not_divide_a_weight_are_refused(backend: ReferenceBackend) -> None:
    loader = WeightLoader(MemoryCheckpoint({}), backend, SimpleNamespace(rank=0, size=4), None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="w has 6 outputs, which 4 ranks cannot divide evenly"):
        loader.matrix([Part("w", 6)], 8, lambda _: None, shard="outputs")


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_fused_tensors_are_taken_apart_whatever_their_format(kind: str, backend: ReferenceBackend) -> None:
    """Two groups, each of three rows of queries, one of keys, one of values."""
    fused = stored("qkv", random(10, 64), gguf.GGMLQuantizationType[kind])
    values = gguf.quants.dequantize(fused.data, gguf.GGMLQuantizationType[kind]).reshape(2, 5, 64)
    bias = random(10)
    loader, out = WeightLoader(MemoryCheckpoint({"qkv": fused, "b": bias}), backend, LocalGroup()), SimpleNamespace()
    spans = ((0, 3), (3, 1), (4, 1))
    loader.matrix([Part("qkv", 2 * n, Rows(10, 5, at, n)) for at, n in spans], 64, place(out, "w"))
    loader.vector([Part("b", 2 * n, Rows(10, 5, at, n)) for at, n in spans], place(out, "b"))
    loader.finish()
    expected = np.concatenate([values[:, at : at + n].reshape(-1, 64) for at, n in spans])
    assert np.array_equal(out.w.rows(torch.arange(10)).numpy(), expected)
    assert np.array_equal(out.b.numpy(), np.concatenate([bias.reshape(2, 5)[:, at : at + n].reshape(-1) for at, n in spans]))


def test_ranks_divide_each_part_of_a_fused_tensor(backend: ReferenceBackend) -> None:
    fused = random(8, 6)
    for rank in range(2):
        loader, out = WeightLoader(MemoryCheckpoint({"w": fused}), backend, SimpleNamespace(rank=rank, size=2)), SimpleNamespace()
        loader.matrix([Part("w", 4, Rows(8, 8, at, 4)) for at in (0, 4)], 6, place(out, "w"), shard="outputs")
        loader.finish()
        expected = np.concatenate([fused[2 * rank : 2 * rank + 2], fused[4 + 2 * rank : 6 + 2 * rank]])
        assert np.array_equal(out.w.rows(torch.arange(4)).numpy(), expected)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_transposed_matrices_are_turned(kind: str, backend: ReferenceBackend) -> None:
    weight = stored("w", random(6, 4), gguf.GGMLQuantizationType[kind])  # 6 inputs, 4 outputs
    values = gguf.quants.dequantize(weight.data, gguf.GGMLQuantizationType[kind])
    for rank in range(2):
        loader, out = WeightLoader(MemoryCheckpoint({"w": weight}), backend, SimpleNamespace(rank=rank, size=2)), SimpleNamespace()
        loader.matrix([Part("w", 4, transposed=True)], 6, place(out, "inputs"), shard="inputs")
        loader.matrix([Part("w", 2, Rows(4, 2, 1, 1), transposed=True)], 6, place(out, "odd"), shard="outputs")
        loader.finish()
        assert np.array_equal(out.inputs.rows(torch.arange(4)).numpy(), values.T[:, 3 * rank : 3 * rank + 3])
        assert np.array_equal(out.odd.rows(torch.arange(1)).numpy(), values.T[1 + 2 * rank][None])


def test_quantized_matrices_cannot_be_turned(backend: ReferenceBackend) -> None:
    weight = stored("w", random(64, 32), gguf.GGMLQuantizationType.Q8_0)
    loader = WeightLoader(MemoryCheckpoint({"w": weight}), backend, LocalGroup())
    loader.matrix([Part("w", 32, transposed=True)], 64, lambda weight: None)
    with pytest.raises(UnsupportedModel, match=r"w is stored transposed and quantized \(q8_0\)"):
        loader.finish()


def test_a_fused_tensor_of_another_size_is_named(backend: ReferenceBackend) -> None:
    loader = WeightLoader(MemoryCheckpoint({"w": random(9, 6), "t": random(4, 6)}), backend, LocalGroup())
    loader.matrix([Part("w", 4, Rows(8, 8, at, 4)) for at in (0, 4)], 6, lambda weight: None)
    loader.matrix([Part("t", 4, transposed=True)], 6, lambda weight: None)
    with pytest.raises(TensorMismatch, match=r"t \[4, 6\] where the configuration says \[6, 4\], w \[9, 6\] where the configuration says \[8, 6\]"):
        loader.finish()
