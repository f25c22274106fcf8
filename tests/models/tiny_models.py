"""Small random checkpoints of every family, made and answered by transformers: the oracle of the tests beside this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VOCAB = 101
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "rms_norm_eps": 1e-5,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


def _llama(**options: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON | options))


def _mistral(**options: Any) -> Any:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**COMMON | options))


def _qwen2(**options: Any) -> Any:
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**COMMON | options))


def _gemma3(**options: Any) -> Any:
    base = {"head_dim": 24, "num_hidden_layers": 4, "sliding_window": 11, "query_pre_attn_scalar": 20, "rope_parameters": GEMMA_ROPES}
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**COMMON | base | options))


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: _llama(tie_word_embeddings=False),
    "llama-tied-mha": lambda: _llama(num_key_value_heads=4, tie_word_embeddings=True, hidden_act="gelu"),
    "llama-3": lambda: _llama(rope_parameters=LLAMA3, num_key_value_heads=1, head_dim=32),
    "llama-biases": lambda: _llama(attention_bias=True, mlp_bias=True, head_dim=24),
    "llama-linear": lambda: _llama(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    "mistral": lambda: _mistral(sliding_window=9, head_dim=20),
    "mistral-full": lambda: _mistral(sliding_window=None),
    "qwen2": lambda: _qwen2(tie_word_embeddings=True),
    "qwen2-window": lambda: _qwen2(use_sliding_window=True, sliding_window=7, max_window_layers=1),
    "gemma3": lambda: _gemma3(layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]),
    "gemma3-capped": lambda: _gemma3(
        layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
        final_logit_softcapping=3.0,
        attention_bias=True,
        num_key_value_heads=1,
        tie_word_embeddings=False,
    ),
}


@dataclass
class Oracle:
    """A checkpoint folder and what transformers computes from it."""

    name: str
    path: Path
    model: Any

    @torch.no_grad()
    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """float32 [tokens, VOCAB]."""
        return self.model(torch.tensor([token_ids])).logits[0].float()


def make_oracle(name: str, folder: Path, seed: int = 0) -> Oracle:
    """Build the family ``name`` with weights large enough that logits differ, and save it to ``folder`` as safetensors."""
    torch.manual_seed(seed)
    model = FAMILIES[name]().eval()
    model.generation_config.pad_token_id = 0
    randomize(model, embedding=0.15 if name.startswith("gemma") else 1.0)  # Gemma multiplies them by 8
    path = folder / name
    model.save_pretrained(path)
    return Oracle(name, path, model)


@torch.no_grad()
def randomize(model: Any, embedding: float) -> None:
    """Norm weights, biases and matrices all get values of order one, so that leaving one out shows."""
    for name, value in model.named_parameters():
        noise = torch.randn_like(value)
        if value.dim() == 2:
            value.copy_(noise * (embedding if "embed_tokens" in name else 1.5 * value.shape[1] ** -0.5))
        elif name.endswith("bias"):
            value.copy_(noise * 0.5)
        else:
            value.add_(noise * 0.3)
