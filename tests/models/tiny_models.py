"""Small random checkpoints of every family, made and answered by transformers: the oracle of the tests beside this file.

What transformers has no class for is computed by :mod:`tests.models.remote_models`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import transformers

from tests.models.remote_models import REMOTE

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
    "attn_implementation": "eager",
}
GPT = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_inner": 96, "n_positions": 160, "vocab_size": VOCAB, "attn_implementation": "eager"}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}  # within the small vocabulary
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 40, "beta_fast": 4.0}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
FULL, SLIDING = "full_attention", "sliding_attention"


def longrope(dim: int, most: int = 160) -> dict[str, Any]:
    """Options of a model that was stretched from 32 positions."""
    short, long = ([1 + step * i for i in range(dim // 2)] for step in (0.05, 0.7))
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short, "long_factor": long}
    return {"rope_parameters": rope, "original_max_position_embeddings": 32, "max_position_embeddings": most}


def _make(name: str, common: dict[str, Any] = COMMON, config: str = "", head: str = "ForCausalLM", **options: Any) -> Callable[[], Any]:
    """A builder of a transformers model from ``NAMEConfig`` with ``options`` over ``common``."""

    def build() -> Any:
        values = getattr(transformers, config or f"{name}Config")(**common | SPECIAL | options)
        return getattr(transformers, f"{name}{head}")(values)

    return build


_rms = {**COMMON, "rms_norm_eps": 1e-5}
_llama, _mistral, _qwen2, _qwen3 = (partial(_make, name, _rms) for name in ("Llama", "Mistral", "Qwen2", "Qwen3"))
_gemma1 = partial(_make, "Gemma", _rms, head_dim=24, hidden_act="gelu_pytorch_tanh")
_gemma2 = partial(_make, "Gemma2", _rms, head_dim=24, num_hidden_layers=4, sliding_window=11, query_pre_attn_scalar=20)
_gemma3 = partial(
    _make,
    "Gemma3",
    _rms,
    config="Gemma3TextConfig",
    head_dim=24,
    num_hidden_layers=4,
    sliding_window=11,
    query_pre_attn_scalar=20,
    rope_parameters=GEMMA_ROPES,
)
_bloom = {"hidden_size": 64, "n_layer": 3, "vocab_size": VOCAB, "attn_implementation": "eager"}
_mpt = {"d_model": 64, "n_layers": 3, "n_heads": 4, "max_seq_len": 160, "vocab_size": VOCAB, "attn_implementation": "eager"}
_mha = {key: value for key, value in COMMON.items() if key != "num_key_value_heads"}
_bare = {key: value for key, value in _mha.items() if key != "intermediate_size"}
_opt = {**_bare, "ffn_dim": 96}
_falcon = partial(_make, "Falcon", _bare)
_glm = {**_rms, "head_dim": 24}

FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _llama(tie_word_embeddings=False),
    "llama-tied-mha": _llama(num_key_value_heads=4, tie_word_embeddings=True, hidden_act="gelu"),
    "llama-3": _llama(rope_parameters=LLAMA3, num_key_value_heads=1, head_dim=32),
    "llama-biases": _llama(attention_bias=True, mlp_bias=True, head_dim=24),
    "llama-linear": _llama(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    "llama-yarn": _llama(rope_parameters=YARN),
    "llama-longrope": _llama(**longrope(16), head_dim=16),
    "mistral": _mistral(sliding_window=9, head_dim=20),
    "mistral-full": _mistral(sliding_window=None),
    "qwen2": _qwen2(tie_word_embeddings=True),
    "qwen2-window": _qwen2(use_sliding_window=True, sliding_window=7, max_window_layers=1),
    "qwen3": _qwen3(head_dim=24, tie_word_embeddings=True),
    "qwen3-window": _qwen3(head_dim=20, attention_bias=True, use_sliding_window=True, sliding_window=7, max_window_layers=1),
    "seed-oss": _make("SeedOss", _rms, head_dim=24, attention_bias=True, attention_out_bias=False),
    "seed-oss-biases": _make("SeedOss", _rms, head_dim=24, attention_out_bias=True, mlp_bias=True),
    "ernie": _make("Ernie4_5", _rms, head_dim=24, use_bias=False),
    "ernie-biases": _make("Ernie4_5", _rms, head_dim=24, use_bias=True, tie_word_embeddings=False),
    "gemma": _gemma1(),
    "gemma2": _gemma2(layer_types=[SLIDING, FULL, SLIDING, FULL]),
    "gemma2-uncapped": _gemma2(attn_logit_softcapping=None, final_logit_softcapping=5.0, layer_types=[FULL, SLIDING, SLIDING, FULL]),
    "gemma3": _gemma3(layer_types=[SLIDING, SLIDING, FULL, SLIDING]),
    "gemma3-capped": _gemma3(
        layer_types=[FULL, SLIDING, FULL, SLIDING], final_logit_softcapping=3.0, attention_bias=True, num_key_value_heads=1, tie_word_embeddings=False
    ),
    "phi": _make("Phi", num_key_value_heads=4, layer_norm_eps=1e-4),
    "phi-qk-norm": _make("Phi", qk_layernorm=True, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}),
    "phi3": _make("Phi3", _rms, sliding_window=9),
    "phi3-longrope": _make("Phi3", _rms, **longrope(16)),
    "phi4-partial": _make(
        "Phi3", _rms, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}, tie_word_embeddings=True
    ),
    "smollm3": _make("SmolLM3", _rms, num_hidden_layers=5),
    "smollm3-window": _make(
        "SmolLM3", _rms, no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=7, layer_types=[SLIDING, FULL, SLIDING],
        attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
    ),
    "olmo": _make("Olmo", clip_qkv=1.5),
    "olmo2": _make("Olmo2", _rms, attention_bias=True),
    "granite": _make(
        "Granite", _rms, embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.1, logits_scaling=2.5, attention_bias=True
    ),
    "stablelm": _make("StableLm", use_qkv_bias=True),
    "stablelm-parallel": _make("StableLm", qk_layernorm=True, use_parallel_residual=True, layer_norm_eps=1e-4, tie_word_embeddings=True),
    "starcoder2": _make("Starcoder2", sliding_window=9, norm_epsilon=1e-4),
    "gpt2": _make("GPT2", GPT, head="LMHeadModel", scale_attn_by_inverse_layer_idx=True),
    "gpt2-square": _make("GPT2", GPT | {"n_inner": 64}, head="LMHeadModel", tie_word_embeddings=False),
    "gpt-neox": _make("GPTNeoX", _mha, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    "gpt-neox-sequential": _make("GPTNeoX", _mha, use_parallel_residual=False, attention_bias=False),
    "gptj": _make("GPTJ", GPT, rotary_dim=8),
    "gpt-bigcode": _make("GPTBigCode", GPT, multi_query=True),
    "gpt-bigcode-mha": _make("GPTBigCode", GPT, n_head=16, multi_query=False, scale_attn_weights=False),
    "opt": _make("OPT", _opt),
    "opt-350m": _make("OPT", _opt, do_layer_norm_before=False, word_embed_proj_dim=48),
    "opt-bare": _make("OPT", _opt, enable_bias=False, layer_norm_elementwise_affine=False),
    "falcon-7b": _falcon(multi_query=True, new_decoder_architecture=False),
    "falcon-40b": _falcon(new_decoder_architecture=True, num_kv_heads=2, bias=True, ffn_hidden_size=80),
    "falcon-11b": _falcon(new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1),
    # transformers' eager code adds the biases twice, once in the mask.
    "falcon-1b": _falcon(multi_query=False, parallel_attn=False, alibi=True, bias=True, attn_implementation="sdpa"),
    "bloom": _make("Bloom", _bloom, n_head=4),
    "bloom-12-heads": _make("Bloom", _bloom | {"hidden_size": 96}, n_head=12),
    "mpt": _make("Mpt", _mpt, attn_config={"clip_qkv": 1.5, "softmax_scale": 0.2}),
    "mpt-6-heads": _make("Mpt", _mpt | {"d_model": 96, "n_heads": 6}, expansion_ratio=4),
    "cohere": _make("Cohere", use_qk_norm=True, attention_bias=True),
    "cohere-plain": _make("Cohere", logit_scale=0.5),
    "cohere2": _make("Cohere2", num_hidden_layers=4, head_dim=24, sliding_window=9, layer_types=[SLIDING, FULL, SLIDING, SLIDING]),
    "glm": _make("Glm", _glm),
    "glm4": _make("Glm4", _glm, attention_bias=False),
    "nemotron": _make("Nemotron", head_dim=24, mlp_bias=True, attention_bias=True),
    "nemotron-partial": _make("Nemotron", head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}),
    **REMOTE,
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
    randomize(model, embedding=0.15 if name.startswith("gemma") else 1.0)  # Gemma multiplies them by 8
    path = folder / name
    if hasattr(model, "generation_config"):
        model.generation_config.pad_token_id = 0
    model.save_pretrained(path)
    return Oracle(name, path, model)


@torch.no_grad()
def randomize(model: Any, embedding: float) -> None:
    """Norm weights, biases and matrices all get values of order one, so that leaving one out shows."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    for name, value in model.named_parameters():
        noise = torch.randn_like(value)
        if id(value) in tables:
            value.copy_(noise * embedding)
        elif value.dim() == 2 and "norm" not in name:
            value.copy_(noise * 1.5 * value.shape[1] ** -0.5)
        elif name.endswith("bias"):
            value.copy_(noise * 0.5)
        else:
            value.add_(noise * 0.3)
