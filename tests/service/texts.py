"""A small real tokenizer and template, made on the spot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from octavo.checkpoint.base import TokenizerSource
from octavo.service.model_text import ModelText
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

CORPUS = [
    "the quick brown fox jumps over the lazy dog and the hen",
    "Hello world, héllo wörld, 你好 世界 🎉🎉",
    "stop here and there, END of it",
] * 20
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class TextCheckpoint:
    """The part of a Checkpoint that the text side reads."""

    def __init__(self, path: Path) -> None:
        self.path = str(path.parent)
        self.config: dict[str, Any] = {}
        self.generation_config: dict[str, Any] = {}
        self.tokenizer = TokenizerSource(path=str(path), options={"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"})
        self.chat_template = CHATML


TOOL_CHATML = (
    "{% if tools %}<|im_start|>system\nCall in <tool_call></tool_call>: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if thinking %}<think>\n{% else %}{# <think> and </think> are the model's own #}{% endif %}{% endif %}"
)


def make_text(folder: Path, specials: tuple[str, ...] = (), template: str = CHATML, **defaults: Any) -> ModelText:
    """Byte-level BPE with a few merges: every byte is a token, so random ids give broken and whole characters alike."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(CORPUS, vocab_size=330, show_progress=False)
    trained.add_special_tokens(["<|im_start|>", "<|im_end|>", *specials])
    path = folder / "tokenizer.json"
    path.write_text(trained.to_str())
    assert json.loads(path.read_text())["model"]["type"] == "BPE"
    tokenizer = load_tokenizer(TextCheckpoint(path))  # type: ignore[arg-type]
    return ModelText(tokenizer, ChatTemplate(template, tokenizer), tuple(tokenizer.eos_token_ids), defaults)
