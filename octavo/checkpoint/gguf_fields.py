"""Values of a GGUF file's metadata with their types and ranges checked; a wrong or missing one is a FormatError that names its key."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from octavo.errors import FormatError, UnsupportedModel

if TYPE_CHECKING:
    from octavo.checkpoint.gguf import Metadata

_REQUIRED: Any = object()  # a default that means there is none
LARGEST = (1 << 31) - 1  # no size in a model's description exceeds it


class Fields:
    """The keys of one architecture: ``integer("block_count")`` reads ``llama.block_count`` of a Llama file."""

    def __init__(self, metadata: Metadata, architecture: str) -> None:
        self.metadata = metadata
        self.architecture = architecture

    @overload
    def integer(self, key: str, default: None, most: int = ...) -> int | None: ...
    @overload
    def integer(self, key: str, default: int = ..., most: int = ...) -> int: ...
    def integer(self, key: str, default: int | None = _REQUIRED, most: int = LARGEST) -> int | None:
        """A whole number from 1 to ``most``; 0 counts as absent, as llama.cpp writes it for "does not apply"."""
        value = self._get(key)
        if value is None or (value == 0 and default is not _REQUIRED):
            return self._absent(key, default)  # type: ignore[no-any-return]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise FormatError(f"metadata {self.full(key)} is {value!r:.60}, expected a whole number from 1 to {most}")
        return value

    @overload
    def number(self, key: str, default: None) -> float | None: ...
    @overload
    def number(self, key: str, default: float = ...) -> float: ...
    def number(self, key: str, default: float | None = _REQUIRED) -> float | None:
        """A finite positive number; 0 counts as absent. float32 values come back as their shortest decimal (1e-05, not 9.99999975e-06)."""
        value = self._get(key)
        if value is None or (value == 0 and default is not _REQUIRED):
            return self._absent(key, default)  # type: ignore[no-any-return]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise FormatError(f"metadata {self.full(key)} is {value!r:.60}, expected a positive number")
        return shortest(float(value))

    def text(self, key: str, default: str = "") -> str:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise FormatError(f"metadata {self.full(key)} is {value!r:.60}, expected text")
        return value

    def has(self, key: str) -> bool:
        return self.full(key) in self.metadata

    def full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def raw(self, key: str) -> Any:
        """The value as stored, or None."""
        return self.metadata.get(self.full(key))

    def _absent(self, key: str, default: Any) -> Any:
        if default is _REQUIRED:
            raise FormatError(f"the file's metadata lacks {self.full(key)}")
        return default

    def _get(self, key: str) -> Any:
        """A scalar; an array of one value a layer is accepted if all its values are equal."""
        value = self.raw(key)
        if not isinstance(value, np.ndarray):
            return value
        if value.size == 0 or not (value == value[0]).all():
            raise UnsupportedModel(f"metadata {self.full(key)} differs from layer to layer, which Octavo does not support for {self.architecture!r}")
        return value[0].item()


def token_id(metadata: Metadata, key: str, vocab_size: int) -> int | None:
    """``tokenizer.ggml.<key>`` as an id below ``vocab_size``; None if absent or -1."""
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None or value in (-1, 0xFFFFFFFF):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
        raise FormatError(f"metadata tokenizer.ggml.{key} is {value!r:.60}, expected an id below the vocabulary's {vocab_size}")
    return value


def shortest(value: float) -> float:
    """The shortest decimal that is the same float32, so that values equal those of the config.json that they came from."""
    if abs(value) > float(np.finfo(np.float32).max):
        return value
    narrow = np.float32(value)
    return float(str(narrow)) if float(narrow) == value else value
