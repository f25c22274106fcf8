"""Every further family that llama.cpp knows: the logits of a GGUF file are those of the folder it was converted from. Names are the gguf package's
tensor mapping; what conversion does to tensors is written down here anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from octavo.checkpoint.open import open_checkpoint
from octavo.models.registry import load_model
from tests.models.sequences import logits_of
from tests.models.test_gguf_parity import PROMPT, neighbours
from tests.models.tiny_models import make_oracle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from octavo.backend.base import Backend

    Change = Callable[[str, np.ndarray, Any], np.ndarray]


def same(name: str, array: np.ndarray, config: Any) -> np.ndarray:
    return array


def permuted(name: str, array: np.ndarray, config: Any) -> np.ndarray:
    """Queries and keys in the order for a rotation of neighbours."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    return next((neighbours(array, count) for projection, count in heads.items() if projection in name), array)


def plus_one(name: str, array: np.ndarray, config: Any) -> np.ndarray:
    return array + 1 if name.endswith("norm.weight") or "layernorm.weight" in name else array


def turned(name: str, array: np.ndarray, config: Any) -> np.ndarray:
    return array.T if array.ndim == 2 and any(part in name for part in ("c_attn", "c_proj", "c_fc")) else array


def gathered(name: str, array: np.ndarray, config: Any) -> np.ndarray:
    """All queries, then all keys, then all values."""
    if "query_key_value" not in name:
        return array
    heads = config.num_attention_heads
    groups = kv_heads(config)
    by_group = array.reshape(groups, heads // groups + 2, config.hidden_size // heads, *array.shape[1:])
    return np.concatenate([x.reshape(-1, *array.shape[1:]) for x in (by_group[:, :-2], by_group[:, -2], by_group[:, -1])])


def kv_heads(config: Any) -> int:
    if config.model_type == "falcon" and not config.new_decoder_architecture:
        return 1 if config.multi_query else config.num_attention_heads
    return getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None) or config.num_attention_heads


@dataclass(frozen=True)
class Conversion:
    """Of a family of ``tiny_models``: the file's architecture, what happens to tensors, and metadata of its own."""

    arch: gguf.MODEL_ARCH
    change: Change = same
    add: Callable[[gguf.GGUFWriter, Any], object] = lambda writer, config: None
    strip: str = ""


def _window(writer: gguf.GGUFWriter, config: Any) -> None:
    if config.sliding_window:
        writer.add_sliding_window(config.sliding_window)


def _gemma2(writer: gguf.GGUFWriter, config: Any) -> None:
    _window(writer, config)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _granite(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def _longrope(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    for name in ("long", "short"):
        factors = np.array(config.rope_parameters[f"{name}_factor"], np.float32)
        writer.add_tensor(f"rope_factors_{name}.weight", factors)


A = gguf.MODEL_ARCH
CONVERSIONS = {
    "qwen3": Conversion(A.QWEN3),
    "gemma": Conversion(A.GEMMA, plus_one),
    "gemma2": Conversion(A.GEMMA2, plus_one, _gemma2),
    "phi": Conversion(A.PHI2),
    "phi3": Conversion(A.PHI3, add=_window),
    "phi3-longrope": Conversion(A.PHI3, add=_longrope),
    "phi4-partial": Conversion(A.PHI3),
    "starcoder2": Conversion(A.STARCODER2, add=_window),
    "stablelm": Conversion(A.STABLELM),
    "stablelm-parallel": Conversion(A.STABLELM),
    "olmo2": Conversion(A.OLMO2),
    "granite": Conversion(A.GRANITE, permuted, _granite),
    "smollm3": Conversion(A.SMOLLM3, permuted),
    "seed-oss": Conversion(A.SEED_OSS),
    "ernie": Conversion(A.ERNIE4_5),
    "ernie-biases": Conversion(A.ERNIE4_5),
    "nemotron": Conversion(A.NEMOTRON, plus_one),
    "cohere": Conversion(A.COMMAND_R, add=lambda writer, config: writer.add_logit_scale(config.logit_scale)),
    "gpt2-square": Conversion(A.GPT2, turned),
    "gpt-neox": Conversion(A.GPTNEOX, gathered, lambda writer, config: writer.add_parallel_residual(True)),
    "gpt-neox-sequential": Conversion(A.GPTNEOX, gathered, lambda writer, config: writer.add_parallel_residual(False)),
    "bloom": Conversion(A.BLOOM, gathered, strip="transformer."),
    "falcon-7b": Conversion(A.FALCON, gathered),
    "falcon-40b": Conversion(A.FALCON, gathered),
    "falcon-11b": Conversion(A.FALCON, gathered),
}


def write(model: Any, path: Path, it: Conversion) -> None:
    config = model.config
    names = gguf.get_tensor_name_map(it.arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[it.arch])
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(getattr(config, "max_position_embeddings", 160))
    writer.add_embedding_length(config.hidden_size)
    widths = [getattr(config, key, None) for key in ("intermediate_size", "ffn_hidden_size", "n_inner")]
    writer.add_feed_forward_length(next(filter(None, widths), 4 * config.hidden_size))
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads(config))
    rms = getattr(config, "rms_norm_eps", None)
    if rms is not None:
        writer.add_layer_norm_rms_eps(rms)
    else:
        keys = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
        writer.add_layer_norm_eps(next(getattr(config, key) for key in keys if hasattr(config, key)))
    if head_dim * heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rope = getattr(config, "rope_parameters", None)
    if rope:
        writer.add_rope_freq_base(rope["rope_theta"])
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    it.add(writer, config)
    for name, array in tensors(model, it).items():
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(model: Any, it: Conversion) -> dict[str, np.ndarray]:
    """After conversion, by their names before; weights of each head's norm are stacked."""
    config, state = model.config, {}
    for name, value in model.state_dict().items():
        if "layernorm.norms." in name:
            place = name.partition(".norms.")[0] + ".weight"
            state[place] = np.concatenate([state.get(place, np.empty((0, value.shape[0]), np.float32)), value.numpy()[None]])
        elif name not in ("lm_head.weight", "embed_out.weight") or not config.tie_word_embeddings:
            state[name.removeprefix(it.strip)] = it.change(name, value.numpy(), config)
    return state


@pytest.mark.parametrize("family", CONVERSIONS)
def test_gguf_files_give_the_logits_of_the_folder(family: str, tmp_path: Path, reference: Backend) -> None:
    oracle, it = make_oracle(family, tmp_path), CONVERSIONS[family]
    write(oracle.model, tmp_path / "model.gguf", it)
    if family == "gemma2":  # the scalar is not stored: converted models have head_dim there
        for layer in oracle.model.model.layers:
            layer.self_attn.scaling = oracle.model.config.head_dim**-0.5
    model = load_model(open_checkpoint(str(tmp_path / "model.gguf")), reference)
    expected = oracle.logits(PROMPT)
    assert (logits_of(model, reference, PROMPT, [30, 1, 9]) - expected).abs().max() <= 5e-6 * expected.abs().max()
