"""Self-attention over the paged cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from octavo.backend.base import AttentionSpec
from octavo.errors import ConfigError
from octavo.layers.linear import Linear

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.layers.norm import RMSNorm
    from octavo.layers.rope import Rope
    from octavo.layers.scope import Scope
    from octavo.layers.step import Step


class Attention:
    """Projections, optional norms of queries and keys, rotation, attention, output projection. Heads are divided among ranks.

    ``spec`` describes the whole layer; ``bias`` is of the q, k and v projections, ``output_bias`` of the output projection.
    """

    def __init__(
        self,
        scope: Scope,
        hidden_size: int,
        spec: AttentionSpec,
        rope: Rope,
        *,
        bias: bool = False,
        output_bias: bool = False,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
    ) -> None:
        self.backend = scope.backend
        self.rope = rope
        self.q_norm, self.k_norm = q_norm, k_norm
        self.spec = _share(spec, scope.group.size, scope.group.rank)
        self.index = scope.add_attention(self.spec)
        queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        scope.loader.ignore(scope.tensor("rotary_emb.inv_freq"))  # old exporters store what Rope computes
        self.qkv_proj = Linear(scope, hidden_size, {"q_proj": queries, "k_proj": keys, "v_proj": keys}, bias=bias, shard="outputs")
        self.o_proj = Linear(scope / "o_proj", queries, hidden_size, bias=output_bias, shard="inputs")
        self.heads = [self.spec.num_heads, self.spec.num_kv_heads, self.spec.num_kv_heads]

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """x float32 [T, hidden] -> [T, hidden]."""
        q, k, v = torch.split(self.qkv_proj(x).view(x.shape[0], -1, self.spec.head_dim), self.heads, dim=1)
        if self.q_norm is not None:
            q, _ = self.q_norm(q)
        if self.k_norm is not None:
            k, _ = self.k_norm(k)
        q, k = self.rope(q, k, step.positions)
        out = self.backend.attention(q, k, v, step.kv[self.index], step.attention, self.spec)
        return self.o_proj(out.flatten(1))


def _share(spec: AttentionSpec, size: int, rank: int) -> AttentionSpec:
    """The heads of one rank out of ``size``. Raises ConfigError if they do not divide."""
    if spec.num_heads % size or spec.num_kv_heads % size:
        raise ConfigError(f"{size} ranks cannot divide {spec.num_heads} query and {spec.num_kv_heads} key/value heads evenly")
    heads = spec.num_heads // size
    slopes = spec.alibi_slopes and spec.alibi_slopes[rank * heads : (rank + 1) * heads]
    return AttentionSpec(heads, spec.num_kv_heads // size, spec.head_dim, spec.scale, spec.window, spec.softcap, slopes)
