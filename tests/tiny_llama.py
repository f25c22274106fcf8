"""A tiny random Llama as a checkpoint folder, made by transformers; the same weights every time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

VOCAB = 199
CONTEXT = 128


def make_tiny_llama(folder: Path, context: int = CONTEXT) -> Any:
    """Save it to ``folder`` and return transformers' model."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=context, tie_word_embeddings=False, attn_implementation="eager",
    )  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            value.copy_(noise * (1.0 if "embed" in name else 1.5 * value.shape[1] ** -0.5) if value.dim() == 2 else 1 + 0.2 * noise)
    model.save_pretrained(folder)
    return model
