"""A GGUF file as a transformers model, independent of Octavo: names and dequantization from the ``gguf`` package, architecture from transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch
import transformers

from octavo.checkpoint.open import open_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, gguf.MODEL_ARCH.LLAMA),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, gguf.MODEL_ARCH.QWEN2),
    "gemma3_text": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM, gguf.MODEL_ARCH.GEMMA3),
}


@torch.inference_mode()
def transformers_model(path: Path) -> Any:
    """float32, weights dequantized by the ``gguf`` package. Every tensor of the file must be used."""
    values = {k: v for k, v in open_checkpoint(path).config.items() if k != "architectures"}
    kind = values.pop("model_type")
    make_config, make_model, arch = FAMILIES[kind]
    config = make_config(**values)
    model = make_model(config)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = tensors.pop(names.get_name(name, (".weight", ".bias")))
        values_ = gguf.quants.dequantize(stored.data, stored.tensor_type).reshape(parameter.shape)
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):  # llama.cpp interleaves the two halves of each head
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values_ = values_.reshape(heads, -1, 2, values_.shape[1]).swapaxes(1, 2).reshape(values_.shape)
        if kind == "gemma3_text" and name.endswith("norm.weight"):  # llama.cpp stores 1 + weight
            values_ = values_ - 1
        parameter.copy_(torch.from_numpy(np.array(values_)))
    assert not tensors, f"unused tensors: {sorted(tensors)}"
    return model.eval()
