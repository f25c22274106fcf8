"""What differs between model families in GGUF files, as one table: tensor names, configuration, and changes that conversion made.

To add a family: write the names that differ from ``LAYER_NAMES``, a function that adds its configuration keys, the undo of every change
llama.cpp's conversion makes to its tensors, and an entry of :data:`FAMILIES` under the file's ``general.architecture``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.checkpoint.gguf_family import LAYER_NAMES, Family, by_group, minus_one, rope_order
from octavo.errors import FormatError, UnsupportedModel

if TYPE_CHECKING:
    from octavo.checkpoint.gguf_family import Config
    from octavo.checkpoint.gguf_fields import Fields

GEMMA3_NAMES = {
    **LAYER_NAMES,
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GEMMA3_PATTERN = 6  # every sixth layer attends to everything
GEMMA3_LOCAL_THETA = 10000.0
GEMMA3_27B_LAYERS = 62
GEMMA2_27B_LAYERS = 46

QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
UNGATED = {name: place for name, place in LAYER_NAMES.items() if name != "ffn_gate"}
PHI2_NAMES = {**UNGATED, "attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
PHI3_NAMES = {**UNGATED, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
STARCODER2_NAMES = {**UNGATED, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
STABLELM_NAMES = {**LAYER_NAMES, "attn_q_norm": "self_attn.q_layernorm.norms", "attn_k_norm": "self_attn.k_layernorm.norms"}
OLMO2_NAMES = {
    **LAYER_NAMES, **QK_NORMS, "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
SEED_NAMES = {**LAYER_NAMES, "post_attention_norm": "post_attention_layernorm"}
GPT2_NAMES = {
    "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip
GPT2_TOP = {
    "token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f", "output": "lm_head",
}  # fmt: skip
MEGATRON_NAMES = {
    "attn_norm": "input_layernorm", "attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense",
    "ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h",
}  # fmt: skip
NEOX_NAMES = {**MEGATRON_NAMES, "attn_qkv": "attention.query_key_value", "attn_output": "attention.dense"}
NEOX_TOP = {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"}
FALCON_40B_NAMES = {**MEGATRON_NAMES, "attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"}
BLOOM_TOP = {
    "token_embd": "transformer.word_embeddings", "token_embd_norm": "transformer.word_embeddings_layernorm", "output_norm": "transformer.ln_f",
    "output": "lm_head",
}  # fmt: skip


def _llama(fields: Fields, config: Config, names: frozenset[str]) -> None:
    """Llama 2 and 3, SmolLM2, TinyLlama, Yi; with a sliding window it is Mistral's first release."""
    if fields.integer("expert_count", None):
        raise UnsupportedModel("mixtures of experts in the Llama architecture (Mixtral) are not supported")
    rotated = fields.integer("rope.dimension_count", config["head_dim"])
    if rotated != config["head_dim"]:
        raise UnsupportedModel(f"this Llama rotates {rotated} of {config['head_dim']} components of a head; Octavo expects all of them")
    config["attention_bias"] = "blk.0.attn_q.bias" in names
    config["mlp_bias"] = "blk.0.ffn_up.bias" in names
    window = fields.integer("attention.sliding_window", None)
    if window is not None:
        config.update(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=window)


def _qwen2(fields: Fields, config: Config, names: frozenset[str]) -> None:
    config["use_sliding_window"] = False  # llama.cpp runs every layer with full attention


def _gemma3(fields: Fields, config: Config, names: frozenset[str]) -> None:
    layers = config["num_hidden_layers"]
    config["hidden_activation"] = "gelu_pytorch_tanh"
    del config["hidden_act"]
    config["attention_bias"] = "blk.0.attn_q.bias" in names
    config["rope_local_base_freq"] = fields.number("rope.freq_base_swa", GEMMA3_LOCAL_THETA)
    config["sliding_window"] = fields.integer("attention.sliding_window")
    config["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in _sliding_layers(fields, layers)]
    # The file does not say it; the 27B model alone scales by hidden_size / heads, and is known by its number of layers.
    scalar = config["hidden_size"] // config["num_attention_heads"] if layers == GEMMA3_27B_LAYERS else config["head_dim"]
    config["query_pre_attn_scalar"] = scalar
    config["final_logit_softcapping"] = fields.number("final_logit_softcapping", None)
    config["attn_logit_softcapping"] = fields.number("attn_logit_softcapping", None)


def _sliding_layers(fields: Fields, layers: int) -> list[bool]:
    """From ``sliding_window_pattern``: one flag a layer, or the distance between layers of full attention."""
    flags = fields.raw("attention.sliding_window_pattern")
    if isinstance(flags, np.ndarray):
        if len(flags) != layers:
            raise FormatError(f"metadata {fields.full('attention.sliding_window_pattern')} has {len(flags)} entries for {layers} layers")
        return [bool(flag) for flag in flags]
    pattern = fields.integer("attention.sliding_window_pattern", GEMMA3_PATTERN)
    return [(i + 1) % pattern != 0 for i in range(layers)]


def _qwen3(fields: Fields, config: Config, names: frozenset[str]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in names


def _gemma(fields: Fields, config: Config, names: frozenset[str]) -> None:
    config["hidden_act"] = "gelu_pytorch_tanh"


def _gemma2(fields: Fields, config: Config, names: frozenset[str]) -> None:
    layers = config["num_hidden_layers"]
    config["hidden_activation"] = "gelu_pytorch_tanh"
    config["sliding_window"] = fields.integer("attention.sliding_window", 4096)
    config["query_pre_attn_scalar"] = (
        config["hidden_size"] // config["num_attention_heads"] if layers == GEMMA2_27B_LAYERS else config["head_dim"]
    )  # as for Gemma 3
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        config[key] = fields.number(key, None)


def _partial(fields: Fields, config: Config) -> None:
    config["partial_rotary_factor"] = fields.integer("rope.dimension_count", config["head_dim"]) / config["head_dim"]


def _phi2(fields: Fields, config: Config, names: frozenset[str]) -> None:
    _partial(fields, config)
    config["hidden_act"] = "gelu_new"


def _phi3(fields: Fields, config: Config, names: frozenset[str]) -> None:
    _partial(fields, config)
    config["sliding_window"] = fields.integer("attention.sliding_window", None)
    config["original_max_position_embeddings"] = fields.integer("rope.scaling.original_context_length", config["max_position_embeddings"])


def _starcoder2(fields: Fields, config: Config, names: frozenset[str]) -> None:
    config["hidden_act"] = "gelu_pytorch_tanh"
    config["use_bias"] = "blk.0.attn_q.bias" in names
    config["sliding_window"] = fields.integer("attention.sliding_window", None)


def _stablelm(fields: Fields, config: Config, names: frozenset[str]) -> None:
    _partial(fields, config)
    config["use_qkv_bias"] = "blk.0.attn_q.bias" in names
    config["qk_layernorm"] = "blk.0.attn_q_norm.weight" in names
    config["stacked_head_norms"] = True
    config["use_parallel_residual"] = "blk.0.ffn_norm.weight" not in names


def _granite(fields: Fields, config: Config, names: frozenset[str]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in names
    config["mlp_bias"] = "blk.0.ffn_up.bias" in names
    scales = {"embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling"}
    config.update({key: fields.number(name, 1.0) for name, key in scales.items()})
    config["attention_multiplier"] = fields.number("attention.scale", config["head_dim"] ** -0.5)


def _command_r(fields: Fields, config: Config, names: frozenset[str]) -> None:
    config["logit_scale"] = fields.number("logit_scale")
    config["attention_bias"] = "blk.0.attn_q.bias" in names
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in names


def _smollm3(fields: Fields, config: Config, names: frozenset[str]) -> None:
    config["no_rope_layer_interval"] = 4  # fixed in llama.cpp


def _seed_oss(fields: Fields, config: Config, names: frozenset[str]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in names
    config["attention_out_bias"] = "blk.0.attn_output.bias" in names


def _ernie(fields: Fields, config: Config, names: frozenset[str]) -> None:
    config["use_bias"] = "blk.0.attn_q.bias" in names


def _nemotron(fields: Fields, config: Config, names: frozenset[str]) -> None:
    _partial(fields, config)
    config["hidden_act"] = "relu2"
    config["attention_bias"] = "blk.0.attn_q.bias" in names
    config["mlp_bias"] = "blk.0.ffn_up.bias" in names


def _gpt2(fields: Fields, config: Config, names: frozenset[str]) -> None:
    config["hidden_act"] = "gelu_new"
    config["conv1d"] = False  # conversion turned the matrices


def _gpt_neox(fields: Fields, config: Config, names: frozenset[str]) -> None:
    _partial(fields, config)
    config["hidden_act"] = "gelu"
    config["use_parallel_residual"] = bool(fields.raw("use_parallel_residual"))
    config["attention_bias"] = "blk.0.attn_qkv.bias" in names


def _bloom(fields: Fields, config: Config, names: frozenset[str]) -> None:
    config["hidden_act"] = "gelu_tanh"


def _falcon(fields: Fields, config: Config, names: frozenset[str]) -> None:
    groups, two = config["num_key_value_heads"], "blk.0.attn_norm_2.weight" in names
    new = two or 1 < groups < config["num_attention_heads"]
    config.update(hidden_act="gelu", new_decoder_architecture=new, num_kv_heads=groups, multi_query=groups == 1)
    config.update(num_ln_in_parallel_attn=2 if two else 1, bias="blk.0.attn_qkv.bias" in names)


_LLAMA_UNDO = {"attn_q": rope_order("num_attention_heads"), "attn_k": rope_order("num_key_value_heads")}
_GEMMA3_NORMS = ("attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "output_norm")
_ONES = dict.fromkeys(_GEMMA3_NORMS, minus_one)
_FINAL = {"token_embd": "model.embed_tokens", "output_norm": "model.final_layernorm", "output": "lm_head"}
_FUSED = {"attn_qkv": by_group}

FAMILIES: dict[str, Family] = {
    "llama": Family("llama", "LlamaForCausalLM", _llama, undo=_LLAMA_UNDO),
    "internlm2": Family("llama", "LlamaForCausalLM", _llama, undo=_LLAMA_UNDO),  # conversion takes wqkv apart and reorders it like Llama's
    "granite": Family("granite", "GraniteForCausalLM", _granite, undo=_LLAMA_UNDO),
    "smollm3": Family("smollm3", "SmolLM3ForCausalLM", _smollm3, undo=_LLAMA_UNDO),
    "seed_oss": Family("seed_oss", "SeedOssForCausalLM", _seed_oss, SEED_NAMES),
    "ernie4_5": Family("ernie4_5", "Ernie4_5ForCausalLM", _ernie),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", _qwen2),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", _qwen3, {**LAYER_NAMES, **QK_NORMS}),
    "gemma": Family("gemma", "GemmaForCausalLM", _gemma, undo=_ONES),
    "gemma2": Family("gemma2", "Gemma2ForCausalLM", _gemma2, GEMMA3_NAMES, _ONES),
    "gemma3": Family("gemma3_text", "Gemma3ForCausalLM", _gemma3, GEMMA3_NAMES, _ONES),
    "phi2": Family("phi", "PhiForCausalLM", _phi2, PHI2_NAMES, top_names=_FINAL),
    "phi3": Family("phi3", "Phi3ForCausalLM", _phi3, PHI3_NAMES),
    "starcoder2": Family("starcoder2", "Starcoder2ForCausalLM", _starcoder2, STARCODER2_NAMES),
    "stablelm": Family("stablelm", "StableLmForCausalLM", _stablelm, STABLELM_NAMES),
    "olmo2": Family("olmo2", "Olmo2ForCausalLM", _qwen3, OLMO2_NAMES),
    "nemotron": Family("nemotron", "NemotronForCausalLM", _nemotron, UNGATED, _ONES),
    "command-r": Family("cohere", "CohereForCausalLM", _command_r, {**LAYER_NAMES, **QK_NORMS}),
    "gpt2": Family("gpt2", "GPT2LMHeadModel", _gpt2, GPT2_NAMES, top_names=GPT2_TOP, layers="transformer.h"),
    "gptneox": Family("gpt_neox", "GPTNeoXForCausalLM", _gpt_neox, NEOX_NAMES, _FUSED, NEOX_TOP, "gpt_neox.layers"),
    "bloom": Family("bloom", "BloomForCausalLM", _bloom, MEGATRON_NAMES, _FUSED, BLOOM_TOP, "transformer.h"),
    "falcon": Family(
        "falcon", "FalconForCausalLM", _falcon, MEGATRON_NAMES, _FUSED, BLOOM_TOP, "transformer.h", ("blk.0.attn_norm_2.weight", FALCON_40B_NAMES)
    ),
}
