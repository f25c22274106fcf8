"""Feed-forward blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.errors import UnsupportedModel
from octavo.layers.linear import Linear
from octavo.weights.loader import Part, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from octavo.layers.scope import Scope

# Names in configurations -> kinds of Backend.act_mul and Backend.act.
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_tanh": "gelu_tanh", "relu": "relu", "relu2": "relu2",
}  # fmt: skip


def activation_kind(activation: str) -> str:
    """The backend's name of an activation. Raises UnsupportedModel."""
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"activation {activation!r} is not supported; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[activation]


def fused_gate_up(name: str, size: int) -> list[Part]:
    """Gate and up projection of ``size`` outputs each, stored as one tensor, gate first."""
    return [Part(name, size, Rows(2 * size, 2 * size, at, size)) for at in (0, size)]


class GatedMLP:
    """down(act(gate(x)) * up(x)) (Shazeer, 2020). The intermediate dimension is divided among ranks.

    ``gate_up`` says where gate and up projection are stored, ``down`` the name of the other.
    """

    def __init__(
        self,
        scope: Scope,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        *,
        bias: bool = False,
        gate_up: Sequence[Part] = (),
        down: str = "down_proj",
    ) -> None:
        self.kind = activation_kind(activation)
        self.backend = scope.backend
        both = gate_up or [Part("gate_proj", intermediate_size), Part("up_proj", intermediate_size)]
        self.gate_up_proj = Linear(scope, hidden_size, both, bias=bias, shard="outputs")
        self.down_proj = Linear(scope / down, intermediate_size, hidden_size, bias=bias, shard="inputs")

    def __call__(self, x: Tensor) -> Tensor:
        """x float32 [T, hidden] -> [T, hidden]."""
        return self.down_proj(self.backend.act_mul(self.gate_up_proj(x), self.kind))


class MLP:
    """down(act(up(x))), as in the first Transformer. ``names`` are those of the two projections."""

    def __init__(
        self,
        scope: Scope,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        *,
        names: tuple[str, str] = ("up_proj", "down_proj"),
        bias: bool = False,
        transposed: bool = False,
    ) -> None:
        self.kind = activation_kind(activation)
        self.backend = scope.backend
        up, down = (scope / name for name in names)
        self.up_proj = Linear(up, hidden_size, intermediate_size, bias=bias, shard="outputs", transposed=transposed)
        self.down_proj = Linear(down, intermediate_size, hidden_size, bias=bias, shard="inputs", transposed=transposed)

    def __call__(self, x: Tensor) -> Tensor:
        """x float32 [T, hidden] -> [T, hidden]."""
        return self.down_proj(self.backend.act(self.up_proj(x), self.kind))
