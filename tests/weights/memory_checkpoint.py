"""A checkpoint made of arrays, which counts what is read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.checkpoint.base import RawTensor, TokenizerSource
from octavo.errors import TensorMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping


class MemoryCheckpoint:
    """``tensors``: float32 arrays, or RawTensors for other formats."""

    path = "model"
    chat_template = None
    tokenizer = TokenizerSource()

    def __init__(self, tensors: Mapping[str, np.ndarray | RawTensor], config: Mapping[str, Any] | None = None) -> None:
        self.config: Mapping[str, Any] = config or {}
        self.generation_config: Mapping[str, Any] = {}
        self.tensors = {name: value if isinstance(value, RawTensor) else as_raw(name, value) for name, value in tensors.items()}
        self.reads: Counter[str] = Counter()

    def names(self) -> list[str]:
        return list(self.tensors)

    def size(self, name: str) -> tuple[tuple[int, ...], int]:
        return self.tensors[name].shape, self.tensors[name].data.nbytes

    def tensor(self, name: str) -> RawTensor:
        if name not in self.tensors:
            raise TensorMismatch(f"no tensor {name}")
        self.reads[name] += 1
        return self.tensors[name]

    def nbytes(self) -> int:
        return sum(raw.data.nbytes for raw in self.tensors.values())


def as_raw(name: str, values: np.ndarray) -> RawTensor:
    array = np.ascontiguousarray(values, dtype=np.float32)
    data = array.view(np.uint8)
    return RawTensor(name, "f32", array.shape, data)
