"""The same logits from GGUF files as from the folders they were converted from; files are written by the gguf package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch

from octavo.checkpoint.open import open_checkpoint
from octavo.models.registry import load_model
from tests.models.sequences import logits_of
from tests.models.tiny_models import VOCAB, Oracle, make_oracle

if TYPE_CHECKING:
    from pathlib import Path

    from octavo.backend.base import Backend

ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "gemma3_text": gguf.MODEL_ARCH.GEMMA3}
PROMPT = [(5 * i * i + i) % VOCAB for i in range(40)]


def neighbours(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of query and key rows: the two halves of a head interleaved, for a rotation of neighbours."""
    return np.stack(np.split(weight.reshape(heads, -1, *weight.shape[1:]), 2, axis=1), axis=2).reshape(weight.shape)


def write_gguf(model: Any, path: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Convert as llama.cpp does; matrices are stored as ``kind``."""
    config = model.config
    arch = ARCHITECTURES[config.model_type]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    add_config(writer, config)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, value in model.state_dict().items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        array = value.numpy()
        for projection, count in heads.items():
            if arch is gguf.MODEL_ARCH.LLAMA and projection in name:
                array = neighbours(array, count)
        if arch is gguf.MODEL_ARCH.GEMMA3 and name.endswith("norm.weight"):
            array = array + 1
        stored = kind if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), gguf.quants.quantize(np.ascontiguousarray(array), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_config(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
        if config.final_logit_softcapping:
            writer.add_final_logit_softcapping(config.final_logit_softcapping)


def convert(it: Oracle, folder: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """Round the oracle's matrices to ``kind`` (so that it computes with what the file holds) and write the file."""
    if it.model.config.model_type == "gemma3_text":  # the scalar is not stored: converted models have head_dim there
        it.model.config.query_pre_attn_scalar = it.model.config.head_dim
        for layer in it.model.model.layers:
            layer.self_attn.scaling = it.model.config.head_dim**-0.5
    with torch.no_grad():
        for value in it.model.parameters():
            if value.dim() == 2:
                value.copy_(torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(value.numpy(), kind), kind)))
    path = folder / "model.gguf"
    write_gguf(it.model, path, kind)
    return path


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("family", ["llama", "llama-linear", "llama-biases", "qwen2"])
def test_gguf_files_give_the_logits_of_what_they_hold(family: str, kind: str, tmp_path: Path, backend: Backend) -> None:
    it = make_oracle(family, tmp_path)
    model = load_model(open_checkpoint(str(convert(it, tmp_path, gguf.GGMLQuantizationType[kind]))), backend)
    expected = it.logits(PROMPT)
    assert (logits_of(model, backend, PROMPT, [30, 1, 9]) - expected).abs().max() <= 5e-6 * expected.abs().max()


@pytest.mark.parametrize("family", ["gemma3", "gemma3-capped"])
def test_gemma_files_undo_what_conversion_added(family: str, tmp_path: Path, backend: Backend) -> None:
    it = make_oracle(family, tmp_path)
    model = load_model(open_checkpoint(str(convert(it, tmp_path, gguf.GGMLQuantizationType.F32))), backend)
    expected = it.logits(PROMPT)
    assert (logits_of(model, backend, PROMPT, [30, 1, 9]) - expected).abs().max() <= 5e-6 * expected.abs().max()
