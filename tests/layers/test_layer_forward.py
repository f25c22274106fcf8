"""Layers one by one against their formulas in torch (float64)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from octavo.backend.base import AttentionSpec
from octavo.errors import ConfigError, UnsupportedModel
from octavo.layers.attention import Attention
from octavo.layers.linear import Embedding, Linear, LMHead
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rope import Rope, RopeParameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.layers.scope import Scope

    MakeScope = Callable[..., Scope]


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([*shape, seed]).standard_normal(shape).astype(np.float32)


def wide(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).double()


X = torch.from_numpy(array(5, 16))


def test_a_scope_names_tensors_and_counts_attention_layers(scope_of: MakeScope) -> None:
    root = scope_of({})
    layer = root / "model" / "layers" / 3
    spec = AttentionSpec(2, 1, 8, scale=0.5)
    assert (root.tensor("lm_head"), layer.tensor("weight")) == ("lm_head", "model.layers.3.weight")
    assert (layer.add_attention(spec), (root / "other").add_attention(spec)) == (0, 1)
    assert root.attention_layers() == (spec, spec)


def test_merged_projections_follow_one_another(scope_of: MakeScope) -> None:
    arrays = {"a.q.weight": array(6, 16), "a.k.weight": array(3, 16), "a.q.bias": array(6), "a.k.bias": array(3)}
    scope = scope_of(arrays)
    merged = Linear(scope / "a", 16, {"q": 6, "k": 3}, bias=True)
    scope.loader.finish()
    parts = [F.linear(X.double(), wide(arrays[f"a.{n}.weight"]), wide(arrays[f"a.{n}.bias"])) for n in ("q", "k")]
    torch.testing.assert_close(merged(X).double(), torch.cat(parts, dim=1), atol=1e-5, rtol=0)


def test_the_bias_is_added_once_after_the_sum_over_ranks(scope_of: MakeScope) -> None:
    class First:
        """The first of two ranks; the other one would bring the same part of the sum."""

        rank, size = 0, 2

        def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    arrays = {"o.weight": array(4, 16), "o.bias": array(4)}
    scope = scope_of(arrays, First())
    divided_inputs, divided_outputs = (Linear(scope / "o", 16, 4, bias=True, shard=shard) for shard in ("inputs", "outputs"))
    scope.loader.finish()
    x, weight, bias = X.double(), wide(arrays["o.weight"]), wide(arrays["o.bias"])
    torch.testing.assert_close(divided_inputs(X[:, :8]).double(), 2 * (x[:, :8] @ weight[:, :8].T) + bias, atol=1e-5, rtol=0)
    torch.testing.assert_close(divided_outputs(X).double(), x @ weight[:2].T + bias[:2], atol=1e-5, rtol=0)


def test_embeddings_are_scaled_and_heads_are_capped(scope_of: MakeScope) -> None:
    table = array(11, 16)
    scope = scope_of({"embed.weight": table})
    embedding = Embedding(scope / "embed", 11, 16, scale=4.0)
    head = LMHead(scope / "lm_head", 11, 16, tied=embedding, softcap=2.5)
    scope.loader.finish()
    ids = torch.tensor([3, 0, 10, 3])
    assert torch.equal(embedding(ids), torch.from_numpy(table)[ids] * 4.0)
    expected = torch.tanh(X.double() @ wide(table).T / 2.5) * 2.5
    torch.testing.assert_close(head(X).double(), expected, atol=1e-5, rtol=0)
    rows = torch.cat([head(row.unsqueeze(0)) for row in X])
    assert torch.equal(head(X), rows), "a row's logits depend on the rows beside it"


def test_a_tied_head_ignores_its_second_copy(scope_of: MakeScope) -> None:
    scope = scope_of({"embed.weight": array(11, 16), "lm_head.weight": array(11, 16, seed=1)})
    embedding = Embedding(scope / "embed", 11, 16)
    head = LMHead(scope / "lm_head", 11, 16, tied=embedding)
    scope.loader.finish()
    assert head.weight is embedding.weight


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norms_add_the_residual_first(scope_of: MakeScope, offset: float) -> None:
    weight, residual = array(16), torch.from_numpy(array(5, 16, seed=1))
    scope = scope_of({"n.weight": weight})
    norm = RMSNorm(scope / "n", 16, 1e-6, offset=offset)
    scope.loader.finish()
    for given, total in ((None, X), (residual, X + residual)):
        y, kept = norm(X, given)
        s = total.double()
        expected = s / (s.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * (offset + wide(weight))
        assert torch.equal(kept, total)
        torch.testing.assert_close(y.double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("activation", "function"),
    [("silu", F.silu), ("gelu", F.gelu), ("gelu_pytorch_tanh", lambda x: F.gelu(x, approximate="tanh"))],
)
def test_gated_mlp(scope_of: MakeScope, activation: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    arrays = {"m.gate_proj.weight": array(12, 16), "m.up_proj.weight": array(12, 16, seed=1), "m.down_proj.weight": array(16, 12)}
    scope = scope_of(arrays)
    mlp = GatedMLP(scope / "m", 16, 12, activation)
    scope.loader.finish()
    gate, up, down = (wide(a) for a in arrays.values())
    expected = (function(X.double() @ gate.T) * (X.double() @ up.T)) @ down.T
    torch.testing.assert_close(mlp(X).double(), expected, atol=1e-4, rtol=1e-5)


def test_unknown_activations_are_refused(scope_of: MakeScope) -> None:
    with pytest.raises(UnsupportedModel, match="'relu2' is not supported; known: silu"):
        GatedMLP(scope_of({}) / "m", 16, 12, "relu2")


def test_heads_that_ranks_cannot_divide_are_refused(scope_of: MakeScope) -> None:
    class Pair:
        rank, size = 0, 2

        def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
            return x

    scope = scope_of({}, Pair())
    rope = Rope(scope, 8, RopeParameters())
    with pytest.raises(ConfigError, match="2 ranks cannot divide 4 query and 1 key/value heads"):
        Attention(scope / "a", 16, AttentionSpec(4, 1, 8, scale=1.0), rope)
