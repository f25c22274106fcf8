"""The one view of a model on disk that the rest of Octavo has, whatever its file format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as stored. ``format`` is the lower-case type name ("f32", "f16", "bf16", "q4_0", "q6_k", ...).

    ``shape`` is in row-major (PyTorch) order; ``data`` is uint8, memory-mapped and read-only: [rows, bytes per row] for 2-D, [bytes] for 1-D.
    ``columns``: column j of ``data`` belongs to input ``columns[j]`` of the matrix; None where they are in order.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: np.ndarray
    columns: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Where the tokenizer comes from; exactly one of the two is set, or neither if a folder holds weights without a tokenizer.

    ``path``: a ``tokenizer.json``, a SentencePiece model, a file of tiktoken ranks, a ``vocab.json`` (``merges.txt`` beside it) or a ``vocab.txt``.
    ``gguf``: the ``tokenizer.*`` metadata of a GGUF file, keys as in the file, arrays as Python lists
    or numpy arrays.
    ``options`` holds what ``tokenizer_config.json`` would say (add_bos_token, bos_token, eos_token, added_tokens_decoder, ...).
    """

    path: str | None = None
    gguf: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class Checkpoint(Protocol):
    """An open model: Hugging Face names and configuration over any container.

    GGUF names, permutations and baked-in offsets are undone here, so a model file sees one convention (Hugging Face's).
    """

    path: str
    config: Mapping[str, Any]  # as in config.json ("model_type", "architectures", "hidden_size", ...)
    generation_config: Mapping[str, Any]  # as in generation_config.json; empty if there is none
    tokenizer: TokenizerSource
    chat_template: str | None

    def names(self) -> list[str]:
        """Tensor names, Hugging Face style."""
        ...

    def size(self, name: str) -> tuple[tuple[int, ...], int]:
        """Shape of a tensor and the bytes it takes in the file, from headers alone. Raises like :meth:`tensor`."""
        ...

    def tensor(self, name: str) -> RawTensor:
        """Raises :class:`octavo.errors.TensorMismatch` if there is no such tensor."""
        ...

    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        ...


Progress: TypeAlias = "Callable[[int, int], None]"  # (bytes done, bytes in all)
