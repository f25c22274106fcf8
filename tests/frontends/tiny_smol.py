"""A tiny random Llama with SmolLM2's own vocabulary: the tokens of a real model at a small part of its time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from octavo.checkpoint.open import open_checkpoint
from tests.service.texts import CHATML

if TYPE_CHECKING:
    from pathlib import Path


def make_tiny_smol(folder: Path, smollm2: Path) -> Path:
    """Write the checkpoint into ``folder``; ``smollm2`` is the GGUF file whose tokens and merges it takes."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    metadata = open_checkpoint(smollm2).tokenizer.gguf
    assert metadata is not None
    tokens = list(metadata["tokenizer.ggml.tokens"])
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens[:17]])
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokens), hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=1024, initializer_range=0.3, eos_token_id=2, bos_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "chat_template": CHATML}))
    return folder
