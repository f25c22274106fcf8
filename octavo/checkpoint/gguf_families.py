"""What differs between model families in GGUF files, as one table: tensor names, configuration, and changes that conversion made.

To add a family: write the names that differ from :data:`LAYER_NAMES`, a function that adds its configuration keys, the undo of every change
llama.cpp's conversion makes to its tensors, and an entry of :data:`FAMILIES` under the file's ``general.architecture``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.checkpoint.base import RawTensor
from octavo.errors import FormatError, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from octavo.checkpoint.gguf_fields import Fields

    Config = dict[str, Any]
    Undo = Callable[[RawTensor, Mapping[str, Any]], RawTensor]

# Outside the layers: GGUF name -> Hugging Face name.
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

# Within a layer: blk.N.<left>.weight -> model.layers.N.<right>.weight, and the same for .bias.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

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


@dataclass(frozen=True, slots=True)
class Family:
    """``configure(fields, config, names)`` adds to and corrects ``config``, which holds what all families share; ``names`` are the file's
    tensors. ``undo`` maps the stem of a name ("attn_q", "output_norm") to the function that gives back the tensor as it was before conversion.
    """

    model_type: str
    architecture: str
    configure: Callable[[Fields, Config, frozenset[str]], None]
    layer_names: Mapping[str, str] = field(default_factory=lambda: LAYER_NAMES)
    undo: Mapping[str, Undo] = field(default_factory=dict)


def rope_order(heads_key: str) -> Undo:
    """Undo llama.cpp's reordering of query and key rows.

    Its Llama rotates neighbours (2i, 2i + 1) where Hugging Face's rotates halves (i, i + D/2), so conversion moved row i + D/2 of a head
    next to row i. Blocks of quantized types run along a row, hence whole rows of bytes can be moved.
    """

    def undo(raw: RawTensor, config: Mapping[str, Any]) -> RawTensor:
        heads, rows = config[heads_key], raw.shape[0]
        if rows % (2 * heads):
            raise FormatError(f"tensor {raw.name} has {rows} rows, which {heads} heads of even size do not divide")
        by_row = raw.data.reshape(rows, -1)  # a bias becomes [rows, bytes of one value]
        data = by_row.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(raw.data.shape)
        data.setflags(write=False)
        return RawTensor(raw.name, raw.format, raw.shape, data)

    return undo


def minus_one(raw: RawTensor, config: Mapping[str, Any]) -> RawTensor:
    """Undo the 1 that conversion adds to Gemma's norm weights. Gives f32; 1 + result is the stored value again, to the last bit."""
    if raw.format == "f32":
        values = raw.data.view("<f4")
    elif raw.format == "f16":
        values = raw.data.view("<f2").astype(np.float32)
    elif raw.format == "bf16":
        values = (raw.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        raise UnsupportedModel(f"norm weight {raw.name} is stored as {raw.format}; f32, f16 or bf16 was expected")
    with np.errstate(all="ignore"):  # a damaged file may hold anything
        data = (values - np.float32(1)).view(np.uint8)
    data.setflags(write=False)
    return RawTensor(raw.name, "f32", raw.shape, data)


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


_LLAMA_UNDO = {"attn_q": rope_order("num_attention_heads"), "attn_k": rope_order("num_key_value_heads")}
_GEMMA3_NORMS = ("attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "output_norm")

FAMILIES: dict[str, Family] = {
    "llama": Family("llama", "LlamaForCausalLM", _llama, undo=_LLAMA_UNDO),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", _qwen2),
    "gemma3": Family("gemma3_text", "Gemma3ForCausalLM", _gemma3, GEMMA3_NAMES, dict.fromkeys(_GEMMA3_NORMS, minus_one)),
}
