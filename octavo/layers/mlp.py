"""Feed-forward blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.errors import UnsupportedModel
from octavo.layers.linear import Linear

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.layers.scope import Scope

# Names in configurations -> kinds of Backend.act_mul.
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_tanh": "gelu_tanh"}


class GatedMLP:
    """down(act(gate(x)) * up(x)) (Shazeer, 2020). The intermediate dimension is divided among ranks."""

    def __init__(self, scope: Scope, hidden_size: int, intermediate_size: int, activation: str, *, bias: bool = False) -> None:
        if activation not in ACTIVATIONS:
            raise UnsupportedModel(f"activation {activation!r} is not supported; known: {', '.join(ACTIVATIONS)}")
        self.backend = scope.backend
        self.kind = ACTIVATIONS[activation]
        both = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self.gate_up_proj = Linear(scope, hidden_size, both, bias=bias, shard="outputs")
        self.down_proj = Linear(scope / "down_proj", intermediate_size, hidden_size, bias=bias, shard="inputs")

    def __call__(self, x: Tensor) -> Tensor:
        """x float32 [T, hidden] -> [T, hidden]."""
        return self.down_proj(self.backend.act_mul(self.gate_up_proj(x), self.kind))
