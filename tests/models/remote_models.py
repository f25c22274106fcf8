"""Families whose code transformers does not hold: what their authors published, written down anew in plain torch, one float32 sequence at a time."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HIDDEN, INNER, LAYERS, HEADS, VOCAB, POSITIONS = 64, 96, 3, 4, 101, 160
EPS = 1e-5


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def angles(count: int, dim: int, theta: float) -> torch.Tensor:
    """float64 [count, dim / 2]."""
    return torch.outer(torch.arange(count).double(), theta ** (-torch.arange(0, dim, 2).double() / dim))


def turn(x: torch.Tensor, angle: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x [count, heads, dim], the first 2 * angle.shape[1] components rotated as complex numbers."""
    rot = 2 * angle.shape[1]
    part = x[..., :rot].double()
    a, b = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, dim=-1)
    z = torch.complex(a.contiguous(), b.contiguous()) * torch.polar(torch.ones_like(angle), angle)[:, None]
    both = torch.stack([z.real, z.imag], dim=-1).flatten(-2) if interleaved else torch.cat([z.real, z.imag], dim=-1)
    return torch.cat([both.float(), x[..., rot:]], dim=-1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: list[float] | None = None) -> torch.Tensor:
    """Causal attention of [count, heads, dim] over [count, kv heads, dim], with ALiBi if there are slopes."""
    count, heads, dim = q.shape
    out = torch.empty_like(q)
    distance = torch.arange(count)[None, :] - torch.arange(count)[:, None]
    for h in range(heads):
        own = h // (heads // k.shape[1])
        scores = q[:, h] @ k[:, own].T / math.sqrt(dim)
        if slopes is not None:
            scores = scores + slopes[h] * distance
        out[:, h] = scores.masked_fill(distance > 0, -math.inf).softmax(-1) @ v[:, own]
    return out


class Remote(nn.Module):
    """Parameters by their names in the checkpoint, and ``forward`` of one sequence. ``config`` is what config.json says."""

    def __init__(self, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.config_values = config
        self.names = list(shapes)
        for name, shape in shapes.items():
            start = torch.ones(shape) if name.endswith("norm.weight") or "layernorm.weight" in name else torch.zeros(shape)
            self.register_parameter(name.replace(".", "__"), nn.Parameter(start))

    def named_parameters(self, *args: Any, **options: Any) -> Any:
        return ((name.replace("__", "."), value) for name, value in super().named_parameters(*args, **options))

    def at(self, name: str) -> torch.Tensor:
        return getattr(self, name.replace(".", "__"))

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        bias = f"{name}.bias"
        return F.linear(x, self.at(f"{name}.weight"), self.at(bias) if bias in self.names else None)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms(x, self.at(f"{name}.weight"))

    def save_pretrained(self, path: Path) -> None:
        path.mkdir(parents=True)
        save_file({name: self.at(name).detach().clone() for name in self.names}, path / "model.safetensors", {"format": "pt"})
        (path / "config.json").write_text(json.dumps(self.config_values))

    def forward(self, token_ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.compute(token_ids[0])[None])

    def compute(self, ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def _config(architecture: str, **more: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture], "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "max_position_embeddings": POSITIONS, "rms_norm_eps": EPS, "intermediate_size": INNER, "hidden_act": "silu", **more,
    }  # fmt: skip


class InternLM2(Remote):
    """InternLM2 technical report (Cai et al., 2024): wqkv holds for each key/value head its queries, its key and its value."""

    KV, DIM = 2, HIDDEN // HEADS

    def __init__(self, bias: bool) -> None:
        config = _config("InternLM2ForCausalLM", num_key_value_heads=self.KV, bias=bias, rope_theta=1e6, tie_word_embeddings=False)
        shapes: dict[str, tuple[int, ...]] = {"model.norm.weight": (HIDDEN,)}
        shapes |= dict.fromkeys(("model.tok_embeddings.weight", "output.weight"), (VOCAB, HIDDEN))
        for i in range(LAYERS):
            p = f"model.layers.{i}."
            shapes |= {p + "attention.wqkv.weight": ((HEADS + 2 * self.KV) * self.DIM, HIDDEN), p + "attention.wo.weight": (HIDDEN, HIDDEN)}
            if bias:
                shapes |= {p + "attention.wqkv.bias": ((HEADS + 2 * self.KV) * self.DIM,), p + "attention.wo.bias": (HIDDEN,)}
            shapes |= {p + "feed_forward.w1.weight": (INNER, HIDDEN), p + "feed_forward.w3.weight": (INNER, HIDDEN)}
            shapes |= {p + "feed_forward.w2.weight": (HIDDEN, INNER), p + "attention_norm.weight": (HIDDEN,), p + "ffn_norm.weight": (HIDDEN,)}
        super().__init__(config, shapes)

    def compute(self, ids: torch.Tensor) -> torch.Tensor:
        x, angle = self.at("model.tok_embeddings.weight")[ids], angles(len(ids), self.DIM, 1e6)
        for i in range(LAYERS):
            p = f"model.layers.{i}."
            qkv = self.linear(self.norm(x, p + "attention_norm"), p + "attention.wqkv").view(len(ids), self.KV, HEADS // self.KV + 2, self.DIM)
            q, k, v = qkv[:, :, :-2].flatten(1, 2), qkv[:, :, -2], qkv[:, :, -1]
            x = x + self.linear(attend(turn(q, angle, False), turn(k, angle, False), v).flatten(1), p + "attention.wo")
            h = self.norm(x, p + "ffn_norm")
            x = x + self.linear(F.silu(self.linear(h, p + "feed_forward.w1")) * self.linear(h, p + "feed_forward.w3"), p + "feed_forward.w2")
        return self.linear(self.norm(x, "model.norm"), "output")


class LlamaLike(Remote):
    """What Baichuan and MiniCPM share with Llama: layout of the body and of the feed-forward network."""

    embed_scale = residual_scale = logit_scale = 1.0

    def __init__(self, config: dict[str, Any], attention: dict[str, tuple[int, ...]]) -> None:
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
        if not config.get("tie_word_embeddings"):
            shapes["lm_head.weight"] = (VOCAB, HIDDEN)
        for i in range(LAYERS):
            p = f"model.layers.{i}."
            shapes |= {f"{p}self_attn.{name}.weight": shape for name, shape in attention.items()}
            shapes |= {f"{p}mlp.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")} | {p + "mlp.down_proj.weight": (HIDDEN, INNER)}
            shapes |= {f"{p}{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
        super().__init__(config, shapes)

    def attention(self, x: torch.Tensor, place: str) -> torch.Tensor:
        raise NotImplementedError

    def head(self) -> torch.Tensor:
        return self.at("lm_head.weight" if "lm_head.weight" in self.names else "model.embed_tokens.weight")

    def compute(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.at("model.embed_tokens.weight")[ids] * self.embed_scale
        for i in range(LAYERS):
            p = f"model.layers.{i}."
            attended = self.attention(self.norm(x, p + "input_layernorm"), p + "self_attn.")
            x = x + self.linear(attended.flatten(1), p + "self_attn.o_proj") * self.residual_scale
            h = self.norm(x, p + "post_attention_layernorm")
            inner = F.silu(self.linear(h, p + "mlp.gate_proj")) * self.linear(h, p + "mlp.up_proj")
            x = x + self.linear(inner, p + "mlp.down_proj") * self.residual_scale
        return self.norm(x, "model.norm") @ self.head().T * self.logit_scale


class Baichuan(LlamaLike):
    """Baichuan 2 (Yang et al., 2023): W_pack holds queries, keys, values; 7B rotates, 13B has ALiBi."""

    def __init__(self, architecture: str, rotary: bool, unit_rows: bool = False) -> None:
        self.rotary, self.unit_rows = rotary, unit_rows
        config = _config(architecture, tie_word_embeddings=False)
        if not rotary:  # 13B calls it so
            config["model_max_length"] = config.pop("max_position_embeddings")
        super().__init__(config, {"W_pack": (3 * HIDDEN, HIDDEN), "o_proj": (HIDDEN, HIDDEN)})

    def attention(self, x: torch.Tensor, place: str) -> torch.Tensor:
        q, k, v = (part.view(len(x), HEADS, -1) for part in self.linear(x, place + "W_pack").chunk(3, dim=-1))
        if not self.rotary:
            return attend(q, k, v, [2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)])
        angle = angles(len(x), HIDDEN // HEADS, 1e4)
        return attend(turn(q, angle, False), turn(k, angle, False), v)

    def head(self) -> torch.Tensor:
        return F.normalize(super().head()) if self.unit_rows else super().head()


class MiniCPM(LlamaLike):
    """MiniCPM (Hu et al., 2024), table of "tensor program" scalings: embeddings by scale_emb, each half of a layer by scale_depth / sqrt(layers),
    hidden states by dim_model_base / hidden before the head."""

    KV = 2

    def __init__(self) -> None:
        config = _config("MiniCPMForCausalLM", num_key_value_heads=self.KV, scale_emb=3, scale_depth=1.4, dim_model_base=16, tie_word_embeddings=True)
        self.embed_scale, self.residual_scale, self.logit_scale = 3.0, 1.4 / math.sqrt(LAYERS), 16 / HIDDEN
        keys = (HIDDEN // HEADS * self.KV, HIDDEN)
        super().__init__(config, {"q_proj": (HIDDEN, HIDDEN), "k_proj": keys, "v_proj": keys, "o_proj": (HIDDEN, HIDDEN)})

    def attention(self, x: torch.Tensor, place: str) -> torch.Tensor:
        q, k, v = (self.linear(x, place + name).view(len(x), -1, HIDDEN // HEADS) for name in ("q_proj", "k_proj", "v_proj"))
        angle = angles(len(x), HIDDEN // HEADS, 1e4)
        return attend(turn(q, angle, False), turn(k, angle, False), v)


class ChatGLM(Remote):
    """GLM-4 report (Zeng et al., 2024) and ChatGLM2's release: fused projections, neighbours rotated in the first half of each head."""

    KV, DIM = 2, 24

    def __init__(self) -> None:
        config = {
            "architectures": ["ChatGLMModel"], "padded_vocab_size": VOCAB, "hidden_size": HIDDEN, "num_layers": LAYERS, "ffn_hidden_size": INNER,
            "num_attention_heads": HEADS, "kv_channels": self.DIM, "seq_length": POSITIONS, "layernorm_epsilon": EPS, "rmsnorm": True,
            "multi_query_attention": True, "multi_query_group_num": self.KV, "add_qkv_bias": True, "add_bias_linear": False, "rope_ratio": 5,
            "post_layer_norm": True, "apply_residual_connection_post_layernorm": False,
        }  # fmt: skip
        rows = (HEADS + 2 * self.KV) * self.DIM
        shapes: dict[str, tuple[int, ...]] = {
            "transformer.embedding.word_embeddings.weight": (VOCAB, HIDDEN), "transformer.encoder.final_layernorm.weight": (HIDDEN,),
            "transformer.output_layer.weight": (VOCAB, HIDDEN), "transformer.rotary_pos_emb.inv_freq": (self.DIM // 4,),
        }  # fmt: skip
        for i in range(LAYERS):
            p = f"transformer.encoder.layers.{i}."
            shapes |= {p + "self_attention.query_key_value.weight": (rows, HIDDEN), p + "self_attention.query_key_value.bias": (rows,)}
            shapes |= {p + "self_attention.dense.weight": (HIDDEN, HEADS * self.DIM), p + "mlp.dense_4h_to_h.weight": (HIDDEN, INNER)}
            shapes |= {p + "mlp.dense_h_to_4h.weight": (2 * INNER, HIDDEN)}
            shapes |= {p + "input_layernorm.weight": (HIDDEN,), p + "post_attention_layernorm.weight": (HIDDEN,)}
        super().__init__(config, shapes)

    def compute(self, ids: torch.Tensor) -> torch.Tensor:
        x, angle = self.at("transformer.embedding.word_embeddings.weight")[ids], angles(len(ids), self.DIM // 2, 5e4)
        for i in range(LAYERS):
            p = f"transformer.encoder.layers.{i}."
            qkv = self.linear(self.norm(x, p + "input_layernorm"), p + "self_attention.query_key_value").view(len(ids), -1, self.DIM)
            q, k, v = qkv.split([HEADS, self.KV, self.KV], dim=1)
            x = x + self.linear(attend(turn(q, angle, True), turn(k, angle, True), v).flatten(1), p + "self_attention.dense")
            gate, up = self.linear(self.norm(x, p + "post_attention_layernorm"), p + "mlp.dense_h_to_4h").chunk(2, dim=-1)
            x = x + self.linear(F.silu(gate) * up, p + "mlp.dense_4h_to_h")
        return self.linear(self.norm(x, "transformer.encoder.final_layernorm"), "transformer.output_layer")


REMOTE: dict[str, Callable[[], Any]] = {
    "internlm2": lambda: InternLM2(bias=False),
    "internlm2-biases": lambda: InternLM2(bias=True),
    "baichuan-7b": lambda: Baichuan("BaiChuanForCausalLM", rotary=True),
    "baichuan-13b": lambda: Baichuan("BaichuanForCausalLM", rotary=False),
    "minicpm": MiniCPM,
    "chatglm": ChatGLM,
}
