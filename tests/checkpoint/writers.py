"""Small model files for tests: GGUF through the ``gguf`` package or byte by byte, so that malformed ones can be made too."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, LAYERS, VOCAB = 64, 4, 2, 16, 96, 2, 40

TOKENS = ["<unk>", "<s>", "</s>", "<|im_end|>", "<|im_start|>", *[f"w{i}" for i in range(VOCAB - 5)]]
TOKEN_TYPES = [2, 3, 3, 3, 3] + [1] * (VOCAB - 5)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return u64(len(data)) + data


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + u32(kind) + value


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


@dataclass
class Bytes:
    """A GGUF file from its pieces; counts can be made to lie."""

    pairs: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""
    version: int = 3
    pair_count: int | None = None
    tensor_count: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        pair_count = len(self.pairs) if self.pair_count is None else self.pair_count
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        head = b"GGUF" + u32(self.version) + u64(tensor_count) + u64(pair_count) + b"".join(self.pairs) + b"".join(self.tensors)
        return head + b"\0" * (-len(head) % self.alignment) + self.data


def layer_shapes(family: str) -> dict[str, tuple[int, ...]]:
    """GGUF names and PyTorch-order shapes of one layer."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (HIDDEN,),
        "attn_q.weight": (q, HIDDEN),
        "attn_k.weight": (kv, HIDDEN),
        "attn_v.weight": (kv, HIDDEN),
        "attn_output.weight": (HIDDEN, q),
        "ffn_norm.weight": (HIDDEN,),
        "ffn_gate.weight": (INTERMEDIATE, HIDDEN),
        "ffn_up.weight": (INTERMEDIATE, HIDDEN),
        "ffn_down.weight": (HIDDEN, INTERMEDIATE),
    }
    if family == "qwen2":
        shapes |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if family == "gemma3":
        shapes |= {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
        shapes |= {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
    return shapes


def model_tensors(family: str, *, tied: bool = True, layers: int = LAYERS, seed: int = 0) -> dict[str, np.ndarray]:
    """float32 tensors of a whole tiny model under GGUF names."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        shapes["output.weight"] = (VOCAB, HIDDEN)
    for i in range(layers):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer_shapes(family).items()}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def add_metadata(writer: gguf.GGUFWriter, family: str, *, layers: int = LAYERS, context: int = 512, theta: float = 500000.0) -> None:
    """What llama.cpp's conversion writes for every decoder."""
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(theta)
    if family == "gemma3":
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
        writer.add_sliding_window(128)


def add_tokenizer(writer: gguf.GGUFWriter, tokens: list[str] | None = None) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS if tokens is None else tokens)
    writer.add_token_types(TOKEN_TYPES)
    writer.add_token_merges(["w 1", "w 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")


def write_model(path: Path, family: str, *, tied: bool = True, extra: dict[str, Any] | None = None, **options: Any) -> dict[str, np.ndarray]:
    """A tiny float32 model with a tokenizer; ``extra`` holds more metadata (int, float, str, list) and replaces nothing. Returns its tensors."""
    writer = gguf.GGUFWriter(path, family)
    add_metadata(writer, family, **options)
    add_tokenizer(writer)
    for key, value in (extra or {}).items():
        add_value(writer, key, value)
    tensors = model_tensors(family, tied=tied, layers=options.get("layers", LAYERS))
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    finish(writer)
    return tensors


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
