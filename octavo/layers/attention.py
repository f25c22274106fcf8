"""Self-attention over the paged cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from octavo.errors import ConfigError
from octavo.layers.linear import Linear
from octavo.weights.loader import Part, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from octavo.backend.base import AttentionSpec
    from octavo.layers.norm import RMSNorm
    from octavo.layers.rope import Rope
    from octavo.layers.scope import Scope
    from octavo.layers.step import Step


def separate_qkv(spec: AttentionSpec, names: Sequence[str] = ("q_proj", "k_proj", "v_proj")) -> list[Part]:
    """Queries, keys and values stored in a tensor each."""
    sizes = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    return [Part(name, heads * spec.head_dim) for name, heads in zip(names, sizes, strict=True)]


def fused_qkv(spec: AttentionSpec, name: str, *, groups: int = 1) -> list[Part]:
    """Queries, keys and values in one tensor, which holds ``groups`` times: its share of the queries, of the keys, of the values.

    1 group: all queries, then all keys, then all values. As many as key/value heads: each follows the queries that use it (GPT-NeoX, Falcon 40B).
    """
    queries, keys = spec.num_heads // groups * spec.head_dim, spec.num_kv_heads // groups * spec.head_dim
    period = queries + 2 * keys
    spans = ((0, queries), (queries, keys), (queries + keys, keys))
    return [Part(name, count * groups, Rows(period * groups, period, first, count)) for first, count in spans]


def alibi_slopes(heads: int, bias_max: float = 8.0) -> tuple[float, ...]:
    """One slope a head (Press et al., 2022): powers of 2^(-bias_max / n); if n is no power of two, those of the power below, then every second
    of the power above."""
    below = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-bias_max * (i + 1) / below) for i in range(below)]
    slopes += [2.0 ** (-bias_max * (2 * i + 1) / (2 * below)) for i in range(heads - below)]
    return tuple(slopes)


class Attention:
    """Projections, optional norms of queries and keys, rotation, attention, output projection. Heads are divided among ranks.

    ``spec`` describes the whole layer; without ``rope`` nothing is rotated. ``qkv`` says where the projections of queries, keys and values are
    stored, ``output`` the name of the output projection; ``bias`` and ``output_bias`` whether they have biases; ``transposed`` whether both are
    stored as [inputs, outputs]. A norm of as many values as a head has is of each head, a wider one of all heads together. ``clip`` bounds
    the magnitude of what the first projection gives.
    """

    def __init__(
        self,
        scope: Scope,
        hidden_size: int,
        spec: AttentionSpec,
        rope: Rope | None,
        *,
        qkv: Sequence[Part] = (),
        output: str = "o_proj",
        bias: bool = False,
        output_bias: bool = False,
        transposed: bool = False,
        clip: float | None = None,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
    ) -> None:
        self.backend = scope.backend
        self.rope, self.clip = rope, clip
        self.q_norm, self.k_norm = q_norm, k_norm
        self.spec = _share(spec, scope.group.size, scope.group.rank)
        self.index = scope.add_attention(self.spec)
        for norm in (q_norm, k_norm):
            if norm is not None and norm.size != spec.head_dim and scope.group.size > 1:
                raise ConfigError(f"queries are normed over all heads, which {scope.group.size} ranks cannot divide")
        # Old exporters store what Rope computes, and the causal mask.
        scope.loader.ignore(*(scope.tensor(name) for name in ("rotary_emb.inv_freq", "bias", "masked_bias")))
        stored = qkv or separate_qkv(spec)
        self.qkv_proj = Linear(scope, hidden_size, stored, bias=bias, shard="outputs", transposed=transposed)
        queries = spec.num_heads * spec.head_dim
        self.o_proj = Linear(scope / output, queries, hidden_size, bias=output_bias, shard="inputs", transposed=transposed)
        self.heads = [self.spec.num_heads, self.spec.num_kv_heads, self.spec.num_kv_heads]

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """x float32 [T, hidden] -> [T, hidden]."""
        projected = self.qkv_proj(x)
        if self.clip is not None:
            projected = self.backend.add(projected, limit=self.clip)
        q, k, v = torch.split(projected.view(x.shape[0], -1, self.spec.head_dim), self.heads, dim=1)
        q, k = _normed(self.q_norm, q), _normed(self.k_norm, k)
        if self.rope is not None:
            q, k = self.rope(q, k, step.positions)
        out = self.backend.attention(q, k, v, step.kv[self.index], step.attention, self.spec)
        return self.o_proj(out.flatten(1))


def _normed(norm: RMSNorm | None, x: Tensor) -> Tensor:
    """x [T, H, D], each head normed or all of them as one."""
    if norm is None:
        return x
    out, _ = norm(x if norm.size == x.shape[-1] else x.flatten(1))
    return out.view(x.shape)


def _share(spec: AttentionSpec, size: int, rank: int) -> AttentionSpec:
    """The heads of one rank out of ``size``. Raises ConfigError if they do not divide."""
    if spec.num_heads % size or spec.num_kv_heads % size:
        raise ConfigError(f"{size} ranks cannot divide {spec.num_heads} query and {spec.num_kv_heads} key/value heads evenly")
    heads = spec.num_heads // size
    slopes = spec.alibi_slopes and spec.alibi_slopes[rank * heads : (rank + 1) * heads]
    return replace(spec, num_heads=heads, num_kv_heads=spec.num_kv_heads // size, alibi_slopes=slopes)
