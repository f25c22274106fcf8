"""GGUF names, permutations, offsets and configuration against transformers' own GGUF loading and against the conversion's formulas."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import gguf
import gguf.quants
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.checkpoint.gguf_checkpoint import GGUFCheckpoint
from octavo.checkpoint.gguf_config import llama3_scaling
from octavo.checkpoint.gguf_fields import shortest
from octavo.checkpoint.open import open_checkpoint
from octavo.errors import FormatError, TensorMismatch, UnsupportedModel
from tests.checkpoint.writers import HEAD_DIM, HEADS, KV_HEADS, LAYERS, TOKENS, VOCAB, add_metadata, add_tokenizer, finish, model_tensors, write_model

if TYPE_CHECKING:
    from pathlib import Path

FAMILIES = ["llama", "qwen2", "gemma3"]


def values(checkpoint: GGUFCheckpoint, name: str) -> np.ndarray:
    """A tensor dequantized by the ``gguf`` package, in its own shape."""
    raw = checkpoint.tensor(name)
    kind = getattr(gguf.GGMLQuantizationType, raw.format.upper())
    return gguf.quants.dequantize(np.array(raw.data), kind).reshape(raw.shape)


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_equal_transformers_loading(tmp_path: Path, family: str) -> None:
    """transformers builds the model from the same file; its parameters are ours, by name and to the last bit."""
    write_model(tmp_path / "m.gguf", family, tied=family != "qwen2")
    checkpoint = GGUFCheckpoint(tmp_path / "m.gguf")
    config = AutoConfig.for_model(**checkpoint.config)
    model = AutoModelForCausalLM.from_config(config)
    loaded = load_gguf_checkpoint(tmp_path / "m.gguf", return_tensors=True, model_to_load=model)["tensors"]
    assert sorted(checkpoint.names()) == sorted(loaded)
    for name, expected in loaded.items():
        assert np.array_equal(values(checkpoint, name), expected.numpy()), name
        assert checkpoint.tensor(name).shape == tuple(model.get_parameter(name).shape)
    wanted = {name for name, _ in model.named_parameters()}
    assert set(checkpoint.names()) == wanted


def interleaved(w: np.ndarray, heads: int) -> np.ndarray:
    """The conversion's order, row by row: of each head, row i of the first half, then row i of the second."""
    size = len(w) // heads
    rows = [h * size + i + half * (size // 2) for h in range(heads) for i in range(size // 2) for half in (0, 1)]
    return w[rows]


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
def test_query_and_key_rows_return_to_their_order(tmp_path: Path, kind: str) -> None:
    """A checkpoint converted as llama.cpp does and quantized comes back as the quantized original, biases too."""
    quant = getattr(gguf.GGMLQuantizationType, kind)
    original = model_tensors("llama")
    original |= {f"blk.{i}.{n}.bias": np.random.default_rng(i).standard_normal(HEAD_DIM * h, dtype=np.float32)
                 for i in range(LAYERS) for n, h in (("attn_q", HEADS), ("attn_k", KV_HEADS))}  # fmt: skip
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    add_metadata(writer, "llama")
    for name, value in original.items():
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
        stored = value if heads is None else interleaved(value, heads)
        if value.ndim == 1:
            writer.add_tensor(name, stored)
        else:
            writer.add_tensor(name, gguf.quants.quantize(stored, quant), raw_dtype=quant)
    finish(writer)
    checkpoint = GGUFCheckpoint(tmp_path / "m.gguf")
    for i in range(LAYERS):
        for part in ("q", "k", "v"):
            expected = original[f"blk.{i}.attn_{part}.weight"]
            raw = checkpoint.tensor(f"model.layers.{i}.self_attn.{part}_proj.weight")
            assert raw.data.tobytes() == gguf.quants.quantize(expected, quant).tobytes()
            assert raw.shape == expected.shape and raw.data.shape[0] == expected.shape[0] and not raw.data.flags.writeable
        for part in ("q", "k"):
            bias = checkpoint.tensor(f"model.layers.{i}.self_attn.{part}_proj.bias")
            assert bias.data.tobytes() == original[f"blk.{i}.attn_{part}.bias"].tobytes() and bias.data.ndim == 1
    assert checkpoint.config["attention_bias"] is True


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_gemma_norms_lose_the_one(tmp_path: Path, kind: str) -> None:
    quant = getattr(gguf.GGMLQuantizationType, kind)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma3")
    add_metadata(writer, "gemma3")
    for name, value in model_tensors("gemma3").items():
        is_norm = "norm" in name
        writer.add_tensor(name, gguf.quants.quantize(value + 1, quant) if is_norm else value, raw_dtype=quant if is_norm else None)
    finish(writer)
    checkpoint = GGUFCheckpoint(tmp_path / "m.gguf")
    norms = [name for name in checkpoint.names() if "norm" in name]
    assert len(norms) == 6 * LAYERS + 1
    inverse = {"model.norm.weight": "output_norm.weight"}
    for layer in range(LAYERS):
        pairs = {"input_layernorm": "attn_norm", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
        pairs |= {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm"}
        pairs |= {"post_feedforward_layernorm": "post_ffw_norm"}
        inverse |= {f"model.layers.{layer}.{a}.weight": f"blk.{layer}.{b}.weight" for a, b in pairs.items()}
    source = model_tensors("gemma3")
    for name in norms:
        stored = gguf.quants.dequantize(gguf.quants.quantize(source[inverse[name]] + 1, quant), quant)
        raw = checkpoint.tensor(name)
        assert raw.format == "f32"
        assert np.array_equal(values(checkpoint, name), stored - np.float32(1)), name


SAME_KEYS = [
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
    "max_position_embeddings", "bos_token_id", "eos_token_id", "model_type", "architectures", "tie_word_embeddings",
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_configuration_equals_what_transformers_reads(tmp_path: Path, family: str) -> None:
    write_model(tmp_path / "m.gguf", family, tied=family == "gemma3")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    theirs = load_gguf_checkpoint(tmp_path / "m.gguf")["config"]
    for key in SAME_KEYS:
        if key in theirs and key != "architectures":
            expected = theirs[key]
            assert checkpoint.config[key] == (pytest.approx(expected, rel=1e-6) if isinstance(expected, float) else expected), key
    config = AutoConfig.for_model(**checkpoint.config)
    for key in SAME_KEYS:
        assert getattr(config, key) == checkpoint.config[key], key
    assert config.head_dim == HEAD_DIM if family != "qwen2" else checkpoint.config["head_dim"] == HEAD_DIM
    rope = config.rope_parameters
    assert (rope["full_attention"] if family == "gemma3" else rope)["rope_theta"] == 500000.0
    assert checkpoint.config["rms_norm_eps"] == 1e-5  # not float32's neighbour


def test_gemma3_configuration(tmp_path: Path) -> None:
    extra = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0, "gemma3.final_logit_softcapping": 30.0}
    write_model(tmp_path / "m.gguf", "gemma3", layers=14, extra=extra)
    ours = open_checkpoint(tmp_path / "m.gguf").config
    config = AutoConfig.for_model(**ours)
    assert [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"] == [5, 11]
    assert config.layer_types == AutoConfig.for_model("gemma3_text", num_hidden_layers=14).layer_types
    assert config.rope_parameters["full_attention"] == {"rope_type": "linear", "factor": 8.0, "rope_theta": 500000.0}
    assert config.rope_parameters["sliding_attention"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert (config.sliding_window, config.query_pre_attn_scalar, config.final_logit_softcapping) == (128, HEAD_DIM, 30.0)
    assert config.hidden_activation == "gelu_pytorch_tanh" and config.attn_logit_softcapping is None


def test_gemma3_27b_is_known_by_its_layers(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", "gemma3", layers=62)
    assert open_checkpoint(tmp_path / "m.gguf").config["query_pre_attn_scalar"] == 64 // HEADS


@pytest.mark.parametrize(("pattern", "full"), [(2, [1, 3]), ([True, False, False, True], [1, 2])])
def test_sliding_window_pattern_of_the_file(tmp_path: Path, pattern: Any, full: list[int]) -> None:
    write_model(tmp_path / "m.gguf", "gemma3", layers=4, extra={"gemma3.attention.sliding_window_pattern": pattern})
    types = open_checkpoint(tmp_path / "m.gguf").config["layer_types"]
    assert [i for i, kind in enumerate(types) if kind == "full_attention"] == full


def test_llama_with_a_window_is_mistral(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", "llama", extra={"llama.attention.sliding_window": 256})
    config = AutoConfig.for_model(**open_checkpoint(tmp_path / "m.gguf").config)
    assert (config.model_type, config.sliding_window, config.architectures) == ("mistral", 256, ["MistralForCausalLM"])


def test_yarn_scaling(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 128, "yarn_beta_fast": 16.0}
    write_model(tmp_path / "m.gguf", "qwen2", extra={f"qwen2.rope.scaling.{key}": value for key, value in scaling.items()})
    config = AutoConfig.for_model(**open_checkpoint(tmp_path / "m.gguf").config)
    expected = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16.0, "rope_theta": 500000.0}
    assert config.rope_parameters == expected


def llama3_factors(factor: float, theta: float, dim: int, **other: float) -> tuple[np.ndarray, np.ndarray]:
    """transformers' frequencies with and without llama3 scaling -> (divisors as conversion writes them, scaled frequencies)."""
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(head_dim=dim, rope_parameters={**scaling, **other, "rope_theta": theta}, max_position_embeddings=131072)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    return (frequencies / scaled).numpy(), scaled.numpy()


@pytest.mark.parametrize(("factor", "dim"), [(8.0, 128), (32.0, 64), (32.0, 128)])
def test_llama3_scaling_is_recovered_from_the_factors(factor: float, dim: int) -> None:
    factors, scaled = llama3_factors(factor, 500000.0, dim)
    scaling = llama3_scaling(factors.astype(np.float32), 500000.0)
    assert scaling is not None and scaling["factor"] == factor
    config = LlamaConfig(head_dim=dim, rope_theta=500000.0, rope_scaling=scaling, max_position_embeddings=131072)
    again, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    assert np.array_equal(again.numpy(), scaled)


def test_rope_factors_in_a_file(tmp_path: Path) -> None:
    for name, factors in (("ones", np.ones(8)), ("llama3", llama3_factors(8.0, 500000.0, HEAD_DIM)[0]), ("odd", np.linspace(1, 3, 8))):
        writer = gguf.GGUFWriter(tmp_path / f"{name}.gguf", "llama")
        add_metadata(writer, "llama")
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
        for key, value in model_tensors("llama").items():
            writer.add_tensor(key, value)
        finish(writer)
    assert open_checkpoint(tmp_path / "ones.gguf").config["rope_scaling"] is None
    scaled = open_checkpoint(tmp_path / "llama3.gguf")
    assert scaled.config["rope_scaling"]["rope_type"] == "llama3" and scaled.config["rope_scaling"]["factor"] == 8.0
    assert not any("rope" in name for name in scaled.names())
    with pytest.raises(UnsupportedModel, match=r"rope_freqs.weight \(largest value 3\)"):
        open_checkpoint(tmp_path / "odd.gguf")


def test_other_llama3_numbers_are_refused() -> None:
    factors, _ = llama3_factors(8.0, 500000.0, 128, high_freq_factor=8.0)
    with pytest.raises(UnsupportedModel, match="not made by the scaling"):
        llama3_scaling(factors.astype(np.float32), 500000.0)


def test_generation_config_and_tokenizer(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.padding_token_id": 0, "general.sampling.temp": 0.7, "general.sampling.top_k": 20}
    write_model(tmp_path / "m.gguf", "llama", extra={**extra, "tokenizer.ggml.add_bos_token": True})
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    expected = {"bos_token_id": 1, "pad_token_id": 0, "eos_token_id": [2, 7, 3], "temperature": 0.7, "top_k": 20}
    assert checkpoint.generation_config == expected  # 3 is <|im_end|>
    options = checkpoint.tokenizer.options
    assert (options["bos_token"], options["eos_token"], options["pad_token"], options["add_bos_token"]) == ("<s>", "</s>", "<unk>", True)
    assert (options["add_eos_token"], options["add_prefix_space"], "unk_token" in options) == (False, False, False)
    source = checkpoint.tokenizer.gguf
    assert source is not None and checkpoint.tokenizer.path is None
    assert source["tokenizer.ggml.tokens"] == TOKENS and source["tokenizer.ggml.merges"] == ["w 1", "w 2"]
    assert all(key.startswith("tokenizer.") for key in source)
    assert checkpoint.chat_template == "{{ messages[0]['content'] }}"


def test_a_plain_word_is_no_end_token(tmp_path: Path) -> None:
    """<|im_end|> of type "normal" does not end a text."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    add_metadata(writer, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * VOCAB)
    writer.add_eos_token_id(2)
    for key, value in model_tensors("llama").items():
        writer.add_tensor(key, value)
    finish(writer)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.generation_config == {"eos_token_id": [2]}
    assert checkpoint.tokenizer.options["add_bos_token"] is True  # what SentencePiece models expect when the file is silent
    assert checkpoint.chat_template is None


def test_unknown_tensors_keep_their_names_and_missing_ones_are_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    add_metadata(writer, "llama")
    for key, value in model_tensors("llama").items():
        writer.add_tensor(key, value)
    writer.add_tensor("blk.0.attn_sinks.weight", np.ones(4, dtype=np.float32))
    finish(writer)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert "blk.0.attn_sinks.weight" in checkpoint.names()
    assert checkpoint.nbytes() == sum(v.nbytes for v in model_tensors("llama").values()) + 16
    with pytest.raises(TensorMismatch, match=r"no tensor 'model.layers.0.self_attn.q_norm.weight'; it has model.layers"):
        checkpoint.tensor("model.layers.0.self_attn.q_norm.weight")


def test_a_split_set_is_one_model(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=7)
    add_metadata(writer, "llama")
    add_tokenizer(writer)
    tensors = model_tensors("llama")
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    finish(writer)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) == 3
    write_model(tmp_path / "whole.gguf", "llama")
    whole, split = open_checkpoint(tmp_path / "whole.gguf"), open_checkpoint(parts[0])
    assert sorted(split.names()) == sorted(whole.names()) and split.nbytes() == whole.nbytes() and split.config == whole.config
    assert all(split.tensor(n).data.tobytes() == whole.tensor(n).data.tobytes() for n in whole.names())
    with pytest.raises(FormatError, match=r"not the first of 3 parts; open m-00001-of-00003.gguf"):
        open_checkpoint(parts[1])
    parts[2].unlink()
    with pytest.raises(Exception, match=r"cannot read .*m-00003-of-00003.gguf"):
        open_checkpoint(parts[0])


BAD_METADATA = {
    "architecture": ("general.architecture", "mamba", UnsupportedModel, "architecture 'mamba' is not supported in GGUF files; known: llama"),
    "experts": ("llama.expert_count", 8, UnsupportedModel, "mixtures of experts"),
    "heads zero": ("llama.attention.head_count", 0, FormatError, r"llama.attention.head_count is 0, expected a whole number"),
    "layers huge": ("llama.block_count", 1 << 20, FormatError, "llama.block_count is 1048576, expected a whole number from 1 to 4096"),
    "eps nan": ("llama.attention.layer_norm_rms_epsilon", float("nan"), FormatError, "is nan, expected a positive number"),
    "hidden text": ("llama.embedding_length", "64", FormatError, "llama.embedding_length is '64'"),
    "no head size": ("llama.attention.head_count", 5, FormatError, "embedding_length 64 is not a multiple of head_count 5"),
    "eos beyond": ("tokenizer.ggml.eos_token_id", 40, FormatError, "eos_token_id is 40, expected an id below the vocabulary's 40"),
    "layer heads": ("llama.attention.head_count_kv", [1, 2], UnsupportedModel, "head_count_kv differs from layer to layer"),
    "partial rope": ("llama.rope.dimension_count", 8, UnsupportedModel, "rotates 8 of 16 components"),
    "value size": ("llama.attention.value_length", 32, UnsupportedModel, "keys of 16 components with values of 32"),
    "rope type": ("llama.rope.scaling.type", "spiral", UnsupportedModel, "rope.scaling.type is 'spiral'"),
    "add_bos": ("tokenizer.ggml.add_bos_token", 1, FormatError, "add_bos_token is 1, expected true or false"),
    "split": ("split.count", 3, FormatError, "m.gguf is one of 3 parts; its name should be like NAME-00001-of-00003.gguf"),
}  # fmt: skip


class _Replacing(gguf.GGUFWriter):  # type: ignore[misc]
    """A writer whose later values replace earlier ones."""

    def add_key_value(self, key: str, val: Any, vtype: Any, sub_type: Any = None) -> None:
        self.kv_data[0].pop(key, None)
        super().add_key_value(key, val, vtype, sub_type)


@pytest.mark.parametrize("case", BAD_METADATA)
def test_senseless_metadata_is_refused_by_name(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key, value, error, message = BAD_METADATA[case]
    monkeypatch.setattr(gguf, "GGUFWriter", _Replacing)
    extra = {key: value} if not key.endswith("scaling.type") else {key: value, "llama.rope.scaling.factor": 2.0}
    write_model(tmp_path / "m.gguf", "llama", extra=extra)
    with pytest.raises(error, match=message):
        open_checkpoint(tmp_path / "m.gguf")


@pytest.mark.parametrize("absent", ["llama.block_count", "llama.context_length", "llama.attention.layer_norm_rms_epsilon", "general.architecture"])
def test_missing_metadata_is_named(tmp_path: Path, absent: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    add_metadata(writer, "llama")
    del writer.kv_data[0][absent]
    for key, value in model_tensors("llama").items():
        writer.add_tensor(key, value)
    finish(writer)
    with pytest.raises(FormatError, match=f"lacks {re.escape(absent)}"):
        open_checkpoint(tmp_path / "m.gguf")


def test_more_tokens_than_embedding_rows(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    add_metadata(writer, "llama")
    add_tokenizer(writer, [*TOKENS, "extra"])
    for key, value in model_tensors("llama").items():
        writer.add_tensor(key, value)
    finish(writer)
    with pytest.raises(FormatError, match="the tokenizer has 41 tokens, the embedding 40 rows"):
        open_checkpoint(tmp_path / "m.gguf")


def test_no_embedding(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    add_metadata(writer, "llama")
    finish(writer)
    with pytest.raises(TensorMismatch, match=r"no matrix token_embd.weight"):
        open_checkpoint(tmp_path / "m.gguf")


def test_shortest_decimal() -> None:
    assert [shortest(float(np.float32(x))) for x in (1e-5, 1e-6, 0.1, 500000.0)] == [1e-5, 1e-6, 0.1, 500000.0]
    assert shortest(1 / 3) == 1 / 3 and shortest(1e300) == 1e300  # float64 values stay


@pytest.mark.model
def test_real_llama(smollm2: Path) -> None:
    checkpoint = open_checkpoint(smollm2)
    config = AutoConfig.for_model(**checkpoint.config)
    got = (config.hidden_size, config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, config.head_dim)
    assert got == (576, 30, 9, 3, 64)
    assert (config.vocab_size, config.max_position_embeddings, config.tie_word_embeddings, config.rms_norm_eps) == (49152, 8192, True, 1e-5)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 100000.0}
    assert len(checkpoint.names()) == 272 and checkpoint.generation_config["eos_token_id"][0] == 2
    assert checkpoint.chat_template is not None and "<|im_start|>" in checkpoint.chat_template
    source = checkpoint.tokenizer.gguf
    assert source is not None and len(source["tokenizer.ggml.tokens"]) == 49152 and len(source["tokenizer.ggml.merges"]) == 48900
    assert {checkpoint.tensor(name).format for name in checkpoint.names()} == {"f32", "q4_1", "q8_0"}


@pytest.mark.model
def test_real_gemma3(gemma3: Path) -> None:
    checkpoint = open_checkpoint(gemma3)
    config = AutoConfig.for_model(**checkpoint.config)
    assert (config.hidden_size, config.num_hidden_layers, config.head_dim, config.sliding_window, config.vocab_size) == (640, 18, 256, 512, 262144)
    assert [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"] == [5, 11, 17]
    assert checkpoint.generation_config["eos_token_id"] == [1, 106]
    assert len(checkpoint.names()) == 236 and checkpoint.tensor("model.norm.weight").format == "f32"


@pytest.mark.model
def test_real_qwen2(qwen2_coder: Path) -> None:
    checkpoint = open_checkpoint(qwen2_coder)
    config = AutoConfig.for_model(**checkpoint.config)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads) == (896, 24, 14, 2)
    assert config.tie_word_embeddings is False and "lm_head.weight" in checkpoint.names()
    assert checkpoint.generation_config["eos_token_id"] == [151645, 151643]
    assert checkpoint.tensor("model.layers.0.self_attn.q_proj.bias").shape == (896,)
