"""What a loaded model offers to whoever runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.backend.base import AttentionSpec
    from octavo.layers.step import Step


class Model(Protocol):
    """A decoder with its weights. ``attention_layers[i]`` describes the layer whose keys and values are ``step.kv[i]``.

    ``max_positions`` is the longest sequence it can compute; token ids lie in [0, ``vocab_size``).
    """

    vocab_size: int
    max_positions: int
    attention_layers: tuple[AttentionSpec, ...]

    def __call__(self, step: Step) -> Tensor:
        """Hidden states after the final norm, float32 [T, hidden]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden float32 [R, hidden] (chosen rows of what a call returned) -> float32 [R, vocab_size]."""
        ...
