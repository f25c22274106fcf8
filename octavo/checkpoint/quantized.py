"""Quantized Hugging Face checkpoints as published, seen as ordinary ones: each group of packed tensors appears as one ``weight`` in GGUF's blocks.

Known: GPTQ (2, 3, 4 and 8 bits, act-order, ``checkpoint_format`` gptq and gptq_v2), AWQ (GEMM layout), compressed-tensors with integer weights
(pack-quantized W4A16 and W8A16, int-quantized W8A8) and bitsandbytes LLM.int8. Activations are quantized by the kernels, finer than any of these
schemes asks for, so their activation scales are not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from octavo.checkpoint.base import RawTensor
from octavo.checkpoint.blocks import quantized_rows
from octavo.errors import FormatError, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from octavo.checkpoint.folder import FolderCheckpoint

    Read = Callable[[str], NDArray[Any]]

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where code i of eight lies in its word: AutoAWQ packs them as 0 2 4 6 1 3 5 7


@dataclass(frozen=True, slots=True)
class Matrix:
    """scale * (code - zero). codes int16 [N, K]; scales float32 [N, groups]; zeros int16 like scales, or None. ``columns``: see RawTensor."""

    codes: NDArray[np.int16]
    scales: NDArray[np.float32]
    zeros: NDArray[np.int16] | None = None
    columns: NDArray[np.int32] | None = None


class Layout(Protocol):
    """How a method stores a matrix: tensors of the names ``parts`` beside each other, of which ``key`` tells that there is one."""

    @property
    def key(self) -> str: ...

    @property
    def parts(self) -> frozenset[str]: ...

    def shape(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
        """(N, K) from the shapes of the parts."""
        ...

    def read(self, read: Read, has: frozenset[str]) -> Matrix: ...


def unpack(words: NDArray[Any], bits: int, axis: int) -> NDArray[np.int16]:
    """Unsigned codes from 32-bit words along ``axis``, lowest bits first; codes of 3 bits run across words, 32 codes in 3 of them."""
    bytes_ = np.ascontiguousarray(np.moveaxis(words, axis, -1)).view(np.uint8)  # little endian
    spread = np.unpackbits(bytes_, axis=-1, bitorder="little")
    count = spread.shape[-1] // bits
    codes = spread[..., : count * bits].reshape(*spread.shape[:-1], count, bits)
    values: NDArray[np.int16] = (codes << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.int16)
    return np.moveaxis(values, -1, axis)


@dataclass(frozen=True, slots=True)
class GPTQ:
    """Frantar et al., 2022, as AutoGPTQ and GPTQModel write it: qweight [K * bits / 32, N], qzeros [groups, N * bits / 32], scales [groups, N],
    g_idx [K]. ``offset``: what files of the first version subtracted from their zero points."""

    bits: int
    offset: int
    key: str = "qweight"
    parts: frozenset[str] = frozenset({"qweight", "qzeros", "scales", "g_idx"})

    def shape(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
        words, outputs = shapes["qweight"]
        return outputs, words * 32 // self.bits

    def read(self, read: Read, has: frozenset[str]) -> Matrix:
        codes = unpack(read("qweight"), self.bits, 0)  # [K, N]
        scales = read("scales").astype(np.float32)  # [groups, N]
        zeros = (unpack(read("qzeros"), self.bits, 1)[:, : scales.shape[1]] + self.offset) & ((1 << self.bits) - 1 if self.offset else 0x7FFF)
        columns = None
        if "g_idx" in has:
            groups = read("g_idx").astype(np.int64)
            if len(groups) != len(codes) or groups.min(initial=0) < 0 or groups.max(initial=0) >= len(scales):
                raise FormatError(f"g_idx must name one of {len(scales)} groups for each of {len(codes)} inputs; it has {len(groups)} entries")
            order = np.argsort(groups, kind="stable")
            if (np.diff(groups) < 0).any():
                codes, columns = codes[order], order.astype(np.int32)
            size = len(codes) // len(scales)
            if not np.array_equal(groups[order], np.arange(len(codes)) // max(size, 1)):
                raise UnsupportedModel(f"the {len(scales)} groups of g_idx differ in size")
        return Matrix(codes.T, scales.T, zeros.T.astype(np.int16), columns)


@dataclass(frozen=True, slots=True)
class AWQ:
    """Lin et al., 2023, as AutoAWQ's GEMM version writes it: qweight [K, N / 8], qzeros [groups, N / 8], scales [groups, N]; 4 bits."""

    key: str = "qweight"
    parts: frozenset[str] = frozenset({"qweight", "qzeros", "scales"})

    def shape(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
        inputs, words = shapes["qweight"]
        return words * 8, inputs

    def read(self, read: Read, has: frozenset[str]) -> Matrix:
        codes, zeros = (self._codes(read(name)) for name in ("qweight", "qzeros"))
        return Matrix(codes.T, read("scales").astype(np.float32).T, zeros.T)

    @staticmethod
    def _codes(words: NDArray[Any]) -> NDArray[np.int16]:
        stored = unpack(words, 4, 1).reshape(len(words), -1, 8)
        return stored[:, :, _AWQ_ORDER].reshape(len(words), -1)


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """compressed-tensors "pack-quantized": weight_packed [N, K * bits / 32] with codes raised by half their range, weight_scale [N, groups],
    perhaps weight_zero_point [N * bits / 32, groups] and weight_g_idx [K]; weight_shape [2] repeats N and K."""

    bits: int
    key: str = "weight_packed"
    parts: frozenset[str] = frozenset({"weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "input_scale"})

    def shape(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
        outputs, words = shapes["weight_packed"]
        return outputs, words * 32 // self.bits

    def read(self, read: Read, has: frozenset[str]) -> Matrix:
        half = 1 << (self.bits - 1)
        codes = unpack(read("weight_packed"), self.bits, 1)
        scales = read("weight_scale").astype(np.float32)
        zeros = np.full(scales.shape, half, np.int16)
        if "weight_zero_point" in has:
            zeros = unpack(read("weight_zero_point"), self.bits, 0)[: len(scales)]
        if "weight_g_idx" in has and (np.diff(read("weight_g_idx")) < 0).any():
            order = np.argsort(read("weight_g_idx"), kind="stable")
            return Matrix(codes[:, order], scales, zeros, order.astype(np.int32))
        return Matrix(codes, scales, zeros)


@dataclass(frozen=True, slots=True)
class Integers:
    """int8 weights [N, K] and their scales: compressed-tensors "int-quantized" (weight_scale [N, groups]), LLM.int8 (SCB [N], in 127ths)."""

    scale: str
    unit: float
    key: str
    parts: frozenset[str]

    def shape(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
        outputs, inputs = shapes["weight"]
        return outputs, inputs

    def read(self, read: Read, has: frozenset[str]) -> Matrix:
        codes = read("weight").astype(np.int16)
        scales = (read(self.scale).astype(np.float32) * np.float32(self.unit)).reshape(-1, 1 if self.scale == "SCB" else read(self.scale).shape[-1])
        if scales.shape[0] == 1:
            scales = np.repeat(scales, len(codes), axis=0)
        return Matrix(codes, scales)


_INT8_PARTS = frozenset({"weight", "weight_scale", "input_scale", "input_zero_point", "weight_zero_point"})


def layout_of(config: Mapping[str, Any]) -> Layout | None:
    """From ``quantization_config`` of config.json; None if there is none. Raises UnsupportedModel for methods and variants that are not read."""
    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings:
        return None
    if not isinstance(settings, dict):
        raise FormatError("quantization_config is not an object")
    method = str(settings.get("quant_method", "gptq" if "bits" in settings else ""))
    if method not in _METHODS:
        raise UnsupportedModel(f"weights quantized by {method!r} are not supported; known: {', '.join(sorted(_METHODS))}")
    return _METHODS[method](settings)


def _bits(settings: Mapping[str, Any], name: str, allowed: tuple[int, ...]) -> int:
    bits = settings.get(name)
    if bits not in allowed or isinstance(bits, bool):
        raise UnsupportedModel(f"{name} of quantization_config is {bits!r:.40}; supported are {', '.join(map(str, allowed))}")
    return int(bits)


def _gptq(settings: Mapping[str, Any]) -> Layout:
    return GPTQ(_bits(settings, "bits", (2, 3, 4, 8)), 0 if settings.get("checkpoint_format") == "gptq_v2" else 1)


def _awq(settings: Mapping[str, Any]) -> Layout:
    _bits(settings, "bits" if "bits" in settings else "w_bit", (4,))
    version = str(settings.get("version", "gemm")).lower()
    if version != "gemm":
        raise UnsupportedModel(f"AWQ in version {version!r} is not supported; only gemm is")
    return AWQ()


def _compressed(settings: Mapping[str, Any]) -> Layout:
    form = settings.get("format")
    groups = [group for group in (settings.get("config_groups") or {}).values() if isinstance(group, dict)]
    weights = groups[0].get("weights") if groups else None
    if len(groups) != 1 or not isinstance(weights, dict) or weights.get("type", "int") != "int":
        raise UnsupportedModel("compressed-tensors checkpoints need one config group, with integer weights")
    if form == "pack-quantized":
        return PackedIntegers(_bits(weights, "num_bits", (4, 8)))
    if form in ("int-quantized", "naive-quantized"):
        _bits(weights, "num_bits", (8,))
        return Integers("weight_scale", 1.0, "weight_scale", _INT8_PARTS)
    raise UnsupportedModel(f"compressed-tensors in format {form!r:.40} is not supported; known: int-quantized, naive-quantized, pack-quantized")


def _bitsandbytes(settings: Mapping[str, Any]) -> Layout:
    if not settings.get("load_in_8bit"):
        raise UnsupportedModel("of bitsandbytes, LLM.int8 (load_in_8bit) is supported, 4-bit types are not")
    return Integers("SCB", 1 / 127, "SCB", frozenset({"weight", "SCB", "weight_format"}))


_METHODS: dict[str, Callable[[Mapping[str, Any]], Layout]] = {
    "gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed, "bitsandbytes": _bitsandbytes,
}  # fmt: skip


class QuantizedCheckpoint:
    """A :class:`octavo.checkpoint.base.Checkpoint` over a folder whose linear layers are stored in ``layout``."""

    def __init__(self, folder: FolderCheckpoint, layout: Layout) -> None:
        self._folder, self._layout = folder, layout
        self.path, self.config, self.generation_config = folder.path, folder.config, folder.generation_config
        self.tokenizer, self.chat_template = folder.tokenizer, folder.chat_template
        stored = dict.fromkeys(folder.names())
        prefixes = {name.removesuffix(f".{layout.key}") for name in stored if name.endswith(f".{layout.key}")}
        self._parts: dict[str, frozenset[str]] = {}
        self._names: list[str] = []
        for name in stored:
            prefix, _, leaf = name.rpartition(".")
            if prefix not in prefixes or leaf not in layout.parts:
                self._names.append(name)
            elif leaf == layout.key:
                self._names.append(f"{prefix}.weight")
                self._parts[f"{prefix}.weight"] = frozenset(part for part in layout.parts if f"{prefix}.{part}" in stored)

    def names(self) -> list[str]:
        return list(self._names)

    def size(self, name: str) -> tuple[tuple[int, ...], int]:
        parts = self._parts.get(name)
        if parts is None:
            return self._folder.size(name)
        prefix = name.removesuffix("weight")
        sizes = {part: self._folder.size(prefix + part) for part in parts}
        return self._layout.shape({part: shape for part, (shape, _) in sizes.items()}), sum(nbytes for _, nbytes in sizes.values())

    def tensor(self, name: str) -> RawTensor:
        parts = self._parts.get(name)
        if parts is None:
            return self._folder.tensor(name)
        prefix = name.removesuffix("weight")
        try:
            matrix = self._layout.read(lambda part: self._folder.array(prefix + part), parts)
            form, data = quantized_rows(matrix.codes, matrix.scales, matrix.zeros, name)
        except (KeyError, ValueError, IndexError) as e:
            raise FormatError(f"the tensors that make up {name} do not fit each other: {e}") from None
        return RawTensor(name, form, matrix.codes.shape, data, matrix.columns)

    def nbytes(self) -> int:
        return self._folder.nbytes()
