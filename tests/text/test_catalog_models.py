"""The tokenizers of the catalog's models, against independent tokenizers built from the same metadata."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers.models.qwen2 import tokenization_qwen2

from octavo.checkpoint.open import open_checkpoint
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import load_tokenizer
from tests.text.test_chat import CHATS, WEATHER, oracle
from tests.text.vocabularies import texts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.model

EXTRA = ["I'LL we're 1,234.56  x=  3", "def f(x):\n    return x**2  # ok\n", "<b>x</b><strong>", " lead", "trail  ", "a\n\n\nb", "\t\tx", "\n" * 31]


def _metadata(path: Path) -> Mapping[str, Any]:
    found = open_checkpoint(str(path)).tokenizer.gguf
    assert found is not None
    return found


def _byte_level_oracle(metadata: Mapping[str, Any], pre: Any, normalizer: Any = None) -> Tokenizer:
    pieces = metadata["tokenizer.ggml.tokens"]
    merges: Any = [tuple(m.split(" ")) for m in metadata["tokenizer.ggml.merges"]]
    tok = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    tok.pre_tokenizer, tok.decoder = pre, decoders.ByteLevel()
    if normalizer is not None:
        tok.normalizer = normalizer
    types = metadata["tokenizer.ggml.token_type"]
    tok.add_special_tokens([AddedToken(piece, normalized=False) for piece, kind in zip(pieces, types, strict=True) if kind == 3])
    return tok


def _sentencepiece_oracle(metadata: Mapping[str, Any]) -> sentencepiece.SentencePieceProcessor:
    """The vocabulary in SentencePiece's own format: field numbers of sentencepiece_model.proto."""

    def varint(value: int) -> bytes:
        return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])

    def part(number: int, body: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(body)) + body

    out = []
    rows = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"], metadata["tokenizer.ggml.token_type"], strict=True)
    for piece, score, kind in rows:
        text = piece.replace(" ", "▁") if kind == 4 else piece
        out.append(part(1, part(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(int(kind))))
    ids = [metadata[f"tokenizer.ggml.{name}_token_id"] for name in ("unknown", "bos", "eos", "padding")]
    trainer = b"\x18\x02" + b"\x98\x02\x01" + b"".join(varint((40 + i) << 3) + varint(int(v)) for i, v in enumerate(ids))  # BPE, byte fallback
    rules = part(1, b"identity") + b"\x18\x00\x20\x00\x28\x01"  # no dummy prefix, blanks kept, spaces as ▁
    return sentencepiece.SentencePieceProcessor(model_proto=b"".join(out) + part(2, trainer) + part(3, rules))


def test_smollm2(smollm2: Path) -> None:
    tok = load_tokenizer(open_checkpoint(str(smollm2)))
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    expected = _byte_level_oracle(_metadata(smollm2), digits)
    for text in [*EXTRA, *texts(5000, seed=21)]:
        ids = expected.encode(text, add_special_tokens=False).ids
        assert tok.encode(text) == ids, text
        assert tok.decode(ids) == text
    assert (tok.vocab_size, tok.bos_token_id, tok.eos_token_ids, tok.add_bos) == (49152, 1, [2, 0], False)


def test_qwen2_coder(qwen2_coder: Path) -> None:
    tok = load_tokenizer(open_checkpoint(str(qwen2_coder)))
    pre = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(tokenization_qwen2.PRETOKENIZE_REGEX), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    expected = _byte_level_oracle(_metadata(qwen2_coder), pre, normalizers.NFC())
    for text in [*EXTRA, *texts(5000, seed=22)]:
        assert tok.encode(text) == expected.encode(text, add_special_tokens=False).ids, text
    assert tok.eos_token_ids == [151645, 151643] and not tok.add_bos


def test_gemma3(gemma3: Path) -> None:
    tok = load_tokenizer(open_checkpoint(str(gemma3)))
    expected = _sentencepiece_oracle(_metadata(gemma3))
    for text in [*EXTRA, " " * 100, "x" + " " * 33 + "y", *texts(5000, seed=23)]:
        ids = expected.encode(text)
        assert tok.encode(text, add_special_tokens=False, parse_special=False) == ids, text
        assert tok.decode(ids) == text.replace("▁", " ")
    assert tok.encode("hi") == [2, *expected.encode("hi")] and tok.eos_token_ids == [1, 106]
    turn = tok.encode("<start_of_turn>user\nhi<end_of_turn>\n", add_special_tokens=False)
    assert turn == [105, *expected.encode("user\nhi"), 106, *expected.encode("\n")]


def test_templates_of_the_files(smollm2: Path, qwen2_coder: Path) -> None:
    rendered = 0
    for path in (smollm2, qwen2_coder):
        checkpoint = open_checkpoint(str(path))
        assert checkpoint.chat_template is not None
        template = ChatTemplate(checkpoint.chat_template, load_tokenizer(checkpoint))
        for chat in CHATS.values():
            for tools in (None, [WEATHER]):
                expected = oracle(checkpoint.chat_template, chat, tools=tools, add_generation_prompt=True)
                rendered += template.render(chat, tools=tools) == expected
    assert rendered == 2 * 2 * len(CHATS)

