"""What the description of a model family in GGUF files consists of, and the undo of what conversion did to its tensors."""

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

# Outside the layers: <left>.weight -> <right>.weight, and the same for .bias.
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

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

@dataclass(frozen=True, slots=True)
class Family:
    """``configure(fields, config, names)`` adds to and corrects ``config``, which holds what all families share; ``names`` are the file's
    tensors. ``undo`` maps the stem of a name ("attn_q", "output_norm") to the function that gives back the tensor as it was before conversion.
    ``top_names`` translates names outside the layers, without ".weight". ``otherwise``: the names of layers in files that hold a certain tensor.
    """

    model_type: str
    architecture: str
    configure: Callable[[Fields, Config, frozenset[str]], None]
    layer_names: Mapping[str, str] = field(default_factory=lambda: LAYER_NAMES)
    undo: Mapping[str, Undo] = field(default_factory=dict)
    top_names: Mapping[str, str] = field(default_factory=lambda: TOP_NAMES)
    layers: str = "model.layers"
    otherwise: tuple[str, Mapping[str, str]] | None = None


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
    """Undo the 1 that conversion adds to norm weights of Gemma and Nemotron. Gives f32; 1 + result is the stored value again, to the last bit."""
    if raw.name.endswith(".bias"):
        return raw
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


def by_group(raw: RawTensor, config: Mapping[str, Any]) -> RawTensor:
    """Undo the gathering of all queries, then keys, then values of a fused projection: give each key/value head its own, one after another."""
    heads, groups, rows = config["num_attention_heads"], config["num_key_value_heads"], raw.shape[0]
    if heads % groups or rows % (heads + 2 * groups):
        raise FormatError(f"tensor {raw.name} has {rows} rows, which {heads} query and 2 x {groups} key/value heads do not divide")
    by_head = raw.data.reshape(heads + 2 * groups, -1)
    parts = (by_head[:heads], by_head[heads : heads + groups], by_head[heads + groups :])
    data = np.concatenate([part.reshape(groups, -1, by_head.shape[1]) for part in parts], axis=1).reshape(raw.data.shape)
    data.setflags(write=False)
    return RawTensor(raw.name, raw.format, raw.shape, data)
