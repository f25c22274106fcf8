"""GGUF metadata as ``config.json`` and ``generation_config.json`` would say it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.checkpoint.gguf_families import FAMILIES
from octavo.checkpoint.gguf_fields import Fields, shortest, token_id
from octavo.errors import FormatError, TensorMismatch, UnsupportedModel

if TYPE_CHECKING:
    from octavo.checkpoint.gguf import GGUFFile, Metadata
    from octavo.checkpoint.gguf_family import Family

MAX_LAYERS = 4096
EMBEDDING = "token_embd.weight"
ROPE_FACTORS = "rope_freqs.weight"
LONGROPE_FACTORS = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}

# The only "llama3" scaling that Meta published (3.1 to 3.3); ``factor`` is 8 or 32 and is read from the tensor.
LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

# Tokens by which models end a turn or a text. A file names one of them as its eos token; chat models may emit the others as well.
END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|end_of_text|>")
_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type of tokens that are not plain text

# general.sampling.<left> -> generation_config.json
SAMPLING_KEYS = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repetition_penalty"}

# Pre-tokenizers whose models expect a beginning-of-sequence token although the file may not say so.
_BOS_PRETOKENIZERS = frozenset({"llama3", "llama-v3", "llama-bpe", "tekken"})


def find_family(metadata: Metadata) -> tuple[str, Family]:
    """The file's architecture and its entry in the table. Raises UnsupportedModel."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise FormatError("the file's metadata lacks general.architecture")
    if name not in FAMILIES:
        raise UnsupportedModel(f"architecture {name[:60]!r} is not supported in GGUF files; known: {', '.join(FAMILIES)}")
    return name, FAMILIES[name]


def model_config(file: GGUFFile, names: frozenset[str]) -> dict[str, Any]:
    """What ``config.json`` would hold. ``names`` are the tensors of the model, over all its files."""
    architecture, family = find_family(file.metadata)
    fields = Fields(file.metadata, architecture)
    embedding = file.tensors.get(EMBEDDING)
    if embedding is None or len(embedding.shape) != 2:
        raise TensorMismatch(f"the file has no matrix {EMBEDDING}")
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    kv_heads = fields.integer("attention.head_count_kv", heads)
    head_dim = fields.integer("attention.key_length", None)
    if head_dim is None:
        if hidden % heads:
            raise FormatError(f"embedding_length {hidden} is not a multiple of head_count {heads}, and there is no key_length")
        head_dim = hidden // heads
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(f"keys of {head_dim} components with values of {fields.raw('attention.value_length')} are not supported")
    epsilons = [key for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon") if fields.has(key)]
    config: dict[str, Any] = {
        "model_type": family.model_type,
        "architectures": [family.architecture],
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": fields.integer("feed_forward_length"),
        "num_hidden_layers": fields.integer("block_count", most=MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": fields.integer("context_length"),
        "rms_norm_eps": fields.number(epsilons[0] if epsilons else "attention.layer_norm_rms_epsilon"),
        "rope_theta": fields.number("rope.freq_base", 10000.0),
        "rope_scaling": rope_scaling(file, fields, head_dim),
        "tie_word_embeddings": "output.weight" not in names,
        **special_tokens(file.metadata, embedding.shape[0]),
    }
    family.configure(fields, config, names)
    return config


def special_tokens(metadata: Metadata, vocab_size: int) -> dict[str, int | None]:
    keys = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {f"{name}_token_id": token_id(metadata, f"{key}_token_id", vocab_size) for name, key in keys.items()}


def rope_scaling(file: GGUFFile, fields: Fields, head_dim: int) -> dict[str, Any] | None:
    """``rope_scaling`` of config.json, or None. A tensor of frequency factors says more than the metadata, so it goes first."""
    if all(name in file.tensors for name in LONGROPE_FACTORS.values()):
        return _longrope_scaling(file, fields)
    factors = file.tensors.get(ROPE_FACTORS)
    if factors is not None:
        if factors.format != "f32" or factors.shape != (head_dim // 2,):
            raise FormatError(f"{ROPE_FACTORS} is {factors.format} {list(factors.shape)}, expected f32 [{head_dim // 2}]")
        scaling = llama3_scaling(file.raw(ROPE_FACTORS).data.view("<f4"), fields.number("rope.freq_base", 10000.0))
        if scaling is not None:
            return scaling
    factor = fields.number("rope.scaling.factor", None) or fields.number("rope.scale_linear", None)
    kind = fields.text("rope.scaling.type", "linear" if factor else "none")
    if kind == "none" or factor is None or (kind == "linear" and factor == 1):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise UnsupportedModel(f"metadata {fields.full('rope.scaling.type')} is {kind[:40]!r}, which Octavo does not know")
    return _yarn_scaling(fields, factor)


def _longrope_scaling(file: GGUFFile, fields: Fields) -> dict[str, Any]:
    """LongRoPE (Ding et al., 2024): both lists of factors are tensors."""
    scaling: dict[str, Any] = {"rope_type": "longrope", "attention_factor": fields.number("rope.scaling.attn_factor", None)}
    for key, name in LONGROPE_FACTORS.items():
        stored = file.tensors[name]
        if stored.format != "f32" or len(stored.shape) != 1:
            raise FormatError(f"{name} is {stored.format} {list(stored.shape)}, expected a vector of f32")
        scaling[key] = [shortest(float(value)) for value in file.raw(name).data.view("<f4")]
    return scaling


def _yarn_scaling(fields: Fields, factor: float) -> dict[str, Any]:
    """YaRN (Peng et al., 2023). llama.cpp's attn_factor multiplies the usual 0.1 ln(factor) + 1; attention_factor replaces it."""
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
    scaling["original_max_position_embeddings"] = fields.integer("rope.scaling.original_context_length")
    extra = fields.number("rope.scaling.attn_factor", 1.0)
    if extra != 1:
        scaling["attention_factor"] = extra * (0.1 * math.log(factor) + 1)
    for key in ("beta_fast", "beta_slow"):
        value = fields.number(f"rope.scaling.yarn_{key}", None)
        if value is not None:
            scaling[key] = value
    return scaling


def llama3_scaling(factors: np.ndarray, theta: float) -> dict[str, Any] | None:
    """The ``llama3`` scaling that ``factors`` (float32 [head_dim / 2], divisors of the rotary frequencies) were computed from; None if all are 1.

    Conversion turns Llama 3.1's four numbers into this tensor. They are recovered, and checked by computing the tensor again, so that the
    model code needs no second way to scale. Raises UnsupportedModel if other numbers made the tensor.
    """
    largest = float(factors.max())
    if not (np.isfinite(factors).all() and factors.min() > 0):
        raise FormatError(f"{ROPE_FACTORS} holds values that are not finite and positive")
    if (factors == 1).all():
        return None
    scaling = {"rope_type": "llama3", "factor": shortest(largest), **LLAMA3_SCALING}
    frequencies = theta ** (-np.arange(len(factors)) / len(factors))
    turns = LLAMA3_SCALING["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = LLAMA3_SCALING["low_freq_factor"], LLAMA3_SCALING["high_freq_factor"]
    keep = np.clip((turns - low) / (high - low), 0, 1)
    if not np.allclose(1 / (keep + (1 - keep) / largest), factors, rtol=1e-4, atol=0):
        raise UnsupportedModel(f"{ROPE_FACTORS} (largest value {largest:g}) was not made by the scaling of Llama 3.1 to 3.3, the only one known")
    return scaling


def generation_config(metadata: Metadata, vocab_size: int) -> dict[str, Any]:
    """What ``generation_config.json`` would hold: special tokens, every token that ends a text, recommended sampling."""
    config: dict[str, Any] = {key: value for key, value in special_tokens(metadata, vocab_size).items() if value is not None}
    config.pop("eos_token_id", None)
    ends = [token_id(metadata, f"{name}_token_id", vocab_size) for name in ("eos", "eot", "eom")]
    ends += _end_tokens(metadata, vocab_size)
    found = list(dict.fromkeys(end for end in ends if end is not None))
    if found:
        config["eos_token_id"] = found
    for key, name in SAMPLING_KEYS.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            config[name] = shortest(value) if isinstance(value, float) else value
    return config


def _end_tokens(metadata: Metadata, vocab_size: int) -> list[int]:
    tokens = metadata.strings("tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type")
    ends = []
    for text in END_TOKENS if tokens is not None else ():
        index = tokens.find(text) if tokens is not None else None
        if index is None or index >= vocab_size:
            continue
        if not isinstance(kinds, np.ndarray) or (index < len(kinds) and kinds[index] in (_CONTROL, _USER_DEFINED)):
            ends.append(index)
    return ends


def tokenizer_options(metadata: Metadata, vocab_size: int) -> dict[str, Any]:
    """What ``tokenizer_config.json`` would hold: special tokens as text, and which of them encoding adds."""
    tokens = metadata.strings("tokenizer.ggml.tokens")
    options: dict[str, Any] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = token_id(metadata, f"{key}_token_id", vocab_size)
        if tokens is not None and index is not None and index < len(tokens):
            options[f"{name}_token"] = tokens.item(index)
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    expects_bos = model == "llama" or (isinstance(pre, str) and pre in _BOS_PRETOKENIZERS)
    for key, source, default in (
        ("add_bos_token", "add_bos_token", expects_bos),
        ("add_eos_token", "add_eos_token", False),
        ("add_prefix_space", "add_space_prefix", model == "llama"),
    ):
        value = metadata.get(f"tokenizer.ggml.{source}", default)
        if not isinstance(value, bool):
            raise FormatError(f"metadata tokenizer.ggml.{source} is {value!r:.60}, expected true or false")
        options[key] = value
    return options
