"""Published quantized layouts against the methods' own formulas. Checkpoints are packed here, a code at a time, and never by the code under test."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from octavo.checkpoint.open import open_checkpoint
from octavo.errors import FormatError, UnsupportedModel
from octavo.kernels.dequant import dequantize
from octavo.models.registry import load_model
from tests.conformance.harness import BACKENDS, make_backend
from tests.models.sequences import logits_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GROUP = 32
HIDDEN, INTERMEDIATE, VOCAB = 64, 96, 101


@dataclass
class Case:
    """Random codes [N, K] with scales and zero points [N, groups]; ``group`` inputs share them, by ``groups[k]`` if they are not in order."""

    bits: int
    signed: bool = False
    symmetric: bool = True
    group: int = GROUP
    shuffled: bool = False
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))

    def matrix(self, outputs: int, inputs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        group = inputs if self.group < 0 else self.group
        count = inputs // group
        low, high = (-(1 << (self.bits - 1)), 1 << (self.bits - 1)) if self.signed else (0, 1 << self.bits)
        codes = self.rng.integers(low, high, (outputs, inputs))
        scales = ((self.rng.random((outputs, count)) + 0.5) * 0.4 / (1 << self.bits)).astype(np.float16)
        zeros = np.full((outputs, count), 0 if self.signed else high // 2)
        if not self.symmetric:
            zeros = self.rng.integers(1, high, (outputs, count))
        groups = np.arange(inputs) // group
        return codes, scales, zeros, self.rng.permutation(groups) if self.shuffled else groups


def values(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """scale * (code - zero), in float64."""
    return scales.astype(np.float64)[:, groups] * (codes - zeros[:, groups])


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes along the last axis as one long number, lowest first, cut into 32-bit words."""
    out = np.zeros((*codes.shape[:-1], codes.shape[-1] * bits // 32), np.int64)
    for index in np.ndindex(*codes.shape[:-1]):
        number = sum(int(code) << (i * bits) for i, code in enumerate(codes[index]))
        for w in range(out.shape[-1]):
            out[(*index, w)] = number >> (32 * w) & 0xFFFFFFFF
    return out.astype(np.uint32).view(np.int32)


Pack = "Callable[[Case, np.ndarray, np.ndarray, np.ndarray, np.ndarray], dict[str, np.ndarray]]"


def gptq(offset: int) -> Callable[..., dict[str, np.ndarray]]:
    def pack(case: Case, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, groups: np.ndarray) -> dict[str, np.ndarray]:
        return {
            "qweight": np.ascontiguousarray(words(codes, case.bits).T), "scales": np.ascontiguousarray(scales.T),
            "qzeros": words((zeros.T - offset) & ((1 << case.bits) - 1), case.bits), "g_idx": groups.astype(np.int32),
        }  # fmt: skip

    return pack


def awq(case: Case, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, groups: np.ndarray) -> dict[str, np.ndarray]:
    def ordered(x: np.ndarray) -> np.ndarray:
        return words(x.reshape(len(x), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(x.shape), 4)

    return {"qweight": ordered(codes.T), "qzeros": ordered(zeros.T), "scales": np.ascontiguousarray(scales.T)}


def packed(case: Case, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, groups: np.ndarray) -> dict[str, np.ndarray]:
    made = {"weight_packed": words(codes, case.bits), "weight_scale": scales, "weight_shape": np.array(codes.shape)}
    if not case.symmetric:
        made["weight_zero_point"] = np.ascontiguousarray(words(np.ascontiguousarray(zeros.T), case.bits).T)
    if case.shuffled:
        made["weight_g_idx"] = groups.astype(np.int32)
    return made


def int8(case: Case, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, groups: np.ndarray) -> dict[str, np.ndarray]:
    return {"weight": codes.astype(np.int8), "weight_scale": scales.astype(np.float32)}


def llm_int8(case: Case, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, groups: np.ndarray) -> dict[str, np.ndarray]:
    return {"weight": codes.astype(np.int8), "SCB": scales[:, 0].astype(np.float32) * 127, "weight_format": np.zeros(1, np.uint8)}


def compressed(form: str, bits: int) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": bits, "type": "int"}}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


# name -> what config.json says, how it is packed, and the codes.
LAYOUTS: dict[str, tuple[dict[str, Any], Callable[..., dict[str, np.ndarray]], Case]] = {
    "gptq-4": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq(1), Case(4)),
    "gptq-4-asymmetric": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq(1), Case(4, symmetric=False)),
    "gptq-4-column": ({"quant_method": "gptq", "bits": 4, "group_size": -1}, gptq(1), Case(4, group=-1)),
    "gptq-4-act-order": ({"quant_method": "gptq", "bits": 4, "desc_act": True}, gptq(1), Case(4, shuffled=True)),
    "gptq-v2": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}, gptq(0), Case(4, symmetric=False)),
    "gptq-2": ({"quant_method": "gptq", "bits": 2}, gptq(1), Case(2)),
    "gptq-3": ({"quant_method": "gptq", "bits": 3}, gptq(1), Case(3)),
    "gptq-8": ({"quant_method": "gptq", "bits": 8}, gptq(1), Case(8)),
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, awq, Case(4, symmetric=False)),
    "w4a16": (compressed("pack-quantized", 4), packed, Case(4)),
    "w4a16-asymmetric": (compressed("pack-quantized", 4), packed, Case(4, symmetric=False)),
    "w4a16-act-order": (compressed("pack-quantized", 4), packed, Case(4, shuffled=True)),
    "w8a16": (compressed("pack-quantized", 8), packed, Case(8)),
    "w8a8": (compressed("int-quantized", 8), int8, Case(8, signed=True, group=-1)),
    "llm-int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, llm_int8, Case(8, signed=True, group=-1)),
}
EXACT = frozenset(name for name in LAYOUTS if "asymmetric" not in name and name not in ("awq", "gptq-v2", "llm-int8"))


def make(name: str, folder: Path) -> Any:
    """A random Llama whose linear layers are quantized: the checkpoint in ``folder``, and transformers' model with the values of its formula."""
    config, pack, case = LAYOUTS[name]
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCAB,
        max_position_embeddings=128, tie_word_embeddings=False,
    )).eval()  # fmt: skip
    tensors: dict[str, np.ndarray] = {}
    for key, tensor in model.state_dict().items():
        if "proj" not in key:
            tensors[key] = tensor.numpy()
            continue
        found = case.matrix(*tensor.shape)
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values(*found)))
        tensors |= {f"{key.removesuffix('weight')}{part}": array for part, array in pack(case, *found).items()}
    folder.mkdir(exist_ok=True)
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "model.safetensors")
    settings = model.config.to_dict() | {"quantization_config": config, "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(settings))
    return model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    root, cache = tmp_path_factory.mktemp("quantized"), {}

    def get(name: str) -> tuple[Path, Any]:
        if name not in cache:
            cache[name] = root / name, make(name, root / name)
        return cache[name]

    return get


@pytest.mark.parametrize("name", LAYOUTS)
def test_weights_are_those_of_the_formula(name: str, made: Callable[[str], tuple[Path, Any]]) -> None:
    folder, model = made(name)
    checkpoint = open_checkpoint(folder)
    assert sorted(checkpoint.names()) == sorted(model.state_dict())
    for key, expected in model.state_dict().items():
        raw = checkpoint.tensor(key)
        assert raw.shape == tuple(expected.shape) == checkpoint.size(key)[0]
        if "proj" not in key:
            continue
        assert raw.format in ("q4_0", "q4_1", "q8_0"), "it was meant to stay packed"
        found = np.empty(raw.shape, np.float32)
        found[:, slice(None) if raw.columns is None else raw.columns] = dequantize(raw.format, raw.data, raw.shape[1])
        worst = np.abs(found - expected.numpy()).max() / np.abs(expected.numpy()).max()
        assert worst <= (1e-7 if name in EXACT else 1.0 / 2048), (key, worst)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square, in proportion."""
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_logits_agree_with_transformers(name: str, backend: str, made: Callable[[str], tuple[Path, Any]]) -> None:
    folder, model = made(name)
    ids = np.random.default_rng(0).integers(0, VOCAB, 40).tolist()
    expected = model(torch.tensor([ids])).logits[0].detach().float()
    it = make_backend(backend)
    dense = logits_of(load_model(open_checkpoint(folder), it, weights="dense"), it, ids, [20, 1, 19])
    assert error(dense, expected) <= (1e-5 if name in EXACT else 2e-3)
    auto = logits_of(load_model(open_checkpoint(folder), it, weights="auto"), it, ids, [20, 1, 19])
    assert error(auto, expected) <= 0.03  # activations are int8 here
    assert torch.equal(auto, logits_of(load_model(open_checkpoint(folder), it, weights="auto"), it, ids, [40]))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "squeezellm"}, "quantized by 'squeezellm' are not supported; known: awq, bitsandbytes, compressed-tensors, gptq"),
        ({"quant_method": "gptq", "bits": 5}, "bits of quantization_config is 5; supported are 2, 3, 4, 8"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version 'gemv'"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "4-bit types are not"),
        (compressed("float-quantized", 8), "format 'float-quantized'"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "one config group"),
    ],
)
def test_what_is_not_read_is_named(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": config}))
    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(tmp_path)


def test_damaged_parts_are_typed_errors(made: Callable[[str], tuple[Path, Any]], tmp_path: Path) -> None:
    """Every part in turn with a wrong size, or with numbers that cannot be."""
    from safetensors.numpy import load_file

    rng = np.random.default_rng(0)
    for name in ("gptq-4-act-order", "awq", "w4a16-asymmetric", "w8a8"):
        folder, _ = made(name)
        whole = load_file(folder / "model.safetensors")
        (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
        victim = "model.layers.0.mlp.up_proj"
        for key in [k for k in whole if k.startswith(victim) and "shape" not in k]:
            for damage in range(3):
                x = whole[key]
                wild = np.full_like(x, np.nan if x.dtype.kind == "f" else np.iinfo(x.dtype).max)
                broken = whole | {key: (x[:-1], wild, rng.permutation(x.reshape(-1))[: x.size // 2])[damage]}
                save_file({k: np.ascontiguousarray(v) for k, v in broken.items()}, tmp_path / "model.safetensors")
                checkpoint = open_checkpoint(tmp_path)
                with suppress(FormatError, UnsupportedModel):  # or numbers that are merely others
                    assert checkpoint.tensor(f"{victim}.weight").data.dtype == np.uint8
