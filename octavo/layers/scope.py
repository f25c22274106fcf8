"""Where a layer is built: its name in the checkpoint, and every decision that a model file must not know of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.backend.base import AttentionSpec, Backend
    from octavo.parallel import Group
    from octavo.weights.loader import WeightLoader


@dataclass(frozen=True, slots=True)
class Scope:
    """``scope / "self_attn" / "q_proj"`` is the same place one level deeper; all scopes of a model share everything but the name.

    ``scheme`` is how weight matrices are packed, ``group`` the ranks that share them, ``max_positions`` the positions a request may take.
    """

    loader: WeightLoader
    backend: Backend
    group: Group
    max_positions: int
    scheme: str = "dense"
    name: str = ""
    _specs: list[AttentionSpec] = field(default_factory=list)

    def __truediv__(self, part: str | int) -> Scope:
        return replace(self, name=self.tensor(str(part)))

    def optional(self, part: str) -> Scope:
        """``scope / part`` if the checkpoint has tensors there, else ``scope``: a model may be saved without its head, and then without the name
        of its body."""
        inner = self / part
        return inner if any(name.startswith(f"{inner.name}.") for name in self.loader.checkpoint.names()) else self

    def tensor(self, leaf: str) -> str:
        """Checkpoint name of ``leaf`` (such as "weight") in this scope."""
        return f"{self.name}.{leaf}" if self.name else leaf

    def add_attention(self, spec: AttentionSpec) -> int:
        """Register an attention layer; returns its index in the KV cache of the model."""
        self._specs.append(spec)
        return len(self._specs) - 1

    def attention_layers(self) -> tuple[AttentionSpec, ...]:
        """Every attention layer registered so far, in order of index."""
        return tuple(self._specs)
