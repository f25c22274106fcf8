"""Small vocabularies trained on the spot, as files of every kind that Octavo reads, and texts to try them on."""

from __future__ import annotations

import io
import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from octavo.checkpoint.base import TokenizerSource
from octavo.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from octavo.text.tokenizer import Tokenizer as OctavoTokenizer

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then it sleeps until the morning comes again.",
    "def encode(self, text: str) -> list[int]:\n    return [ord(c) for c in text if c not in '\\n\\t']\n",
    "for (int i = 0; i < 1024; ++i) {\n\t\tsum += values[i] * 3.14159;\n\t}\n",
    "Das Mädchen läuft über die Straße; où est la bibliothèque? El niño comió piñas en mañana.",
    "今日は良い天気ですね。 我们明天去北京吃烤鸭。 안녕하세요 반갑습니다.",
    "Съешь ещё этих мягких французских булок, да выпей чаю. Γειά σου Κόσμε!",
    "مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก",
    "I'm sure we'll say they've gone; it's what you'd do. DON'T SHOUT, IT'S 12:45 on 2024-01-31.",
    "😀 😃 👍🏽 👩‍👩‍👧 🇩🇪 emoji ✨ and symbols ± × ÷ € £ ¥ © ® ™ … — “quotes”",
    "<html><body><b>bold</b> &amp; <i>italic</i></body></html>   spaces     and\ttabs\r\n\r\nlines",
] * 4
_PARTS = [
    "abcdefghijklmnopqrstuvwxyz", "ABC XYZ ", "0123456789", "      ", " \t\n\r", "éüñçÅßœ", "e\u0301a\u0308", "日本語中文国天気", "한국어안녕",
    "😀👍🏽👩\u200d👧🇩🇪✨", "مرحبا नमस्ते ไทย", "'s't're've'm'll'd", "'S'LL", "-_=+[]{}<>/\\|!?.,;:",
    "\u00a0\u2003\u3000\u200b\ufeff", "①½²Ⅷ٣", "Ġ▁Ċ", "\x00\x7f\U0010ffff",
]  # fmt: skip
_WORDS = [w + " " for line in CORPUS[:10] for w in line.split()]


def texts(count: int, seed: int = 0) -> list[str]:
    """``count`` varied texts: words, code, scripts, emoji, blanks, digits, in random order and length; the empty one first."""
    rng = random.Random(seed)
    made = [""]
    while len(made) < count:
        parts = []
        for _ in range(rng.randrange(1, 12)):
            if rng.random() < 0.4:
                parts.append(rng.choice(_WORDS))
            else:
                source = rng.choice(_PARTS)
                parts.append("".join(rng.choice(source) for _ in range(rng.randrange(1, 9))))
        made.append("".join(parts))
    return made


@dataclass
class FakeCheckpoint:
    """The part of a checkpoint that a tokenizer is made from."""

    tokenizer: TokenizerSource
    config: dict[str, Any] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)
    path: str = "model"
    chat_template: str | None = None


def from_gguf(metadata: Mapping[str, Any], **fields: Any) -> OctavoTokenizer:
    return load_tokenizer(FakeCheckpoint(TokenizerSource(gguf=metadata), **fields))


def from_json(path: Any, options: Mapping[str, Any] | None = None, **fields: Any) -> OctavoTokenizer:
    return load_tokenizer(FakeCheckpoint(TokenizerSource(path=str(path), options=options or {}), **fields))


def train_byte_level(pre: Any, normalizer: Any = None) -> Tokenizer:
    """A byte-level BPE of about 900 pieces with three control tokens and one user-defined token."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre
    if normalizer is not None:
        tok.normalizer = normalizer
    tok.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tok.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=900, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False)
    )
    tok.add_tokens([AddedToken("<tool>", normalized=False)])
    return tok


def byte_level_metadata(tok: Tokenizer, pre: str) -> dict[str, Any]:
    """What a GGUF converter would write for ``tok``."""
    model = json.loads(tok.to_str())["model"]
    vocab = dict(sorted(tok.get_vocab().items(), key=lambda item: item[1]))
    added = tok.get_added_tokens_decoder()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(vocab),
        "tokenizer.ggml.token_type": [(3 if added[i].special else 4) if i in added else 1 for i in vocab.values()],
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]],
        "tokenizer.ggml.bos_token_id": vocab["<|im_start|>"],
        "tokenizer.ggml.eos_token_id": vocab["<|im_end|>"],
        "tokenizer.ggml.add_bos_token": False,
    }


def train_sentencepiece(kind: str = "bpe", **options: Any) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model that normalises nothing, as Llama's and Gemma's are."""
    out = io.BytesIO()
    settings: dict[str, Any] = {
        "vocab_size": 1100, "byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
        "character_coverage": 0.98, "minloglevel": 2, "bos_id": 1, "eos_id": 2, "unk_id": 0, "hard_vocab_limit": False, "num_threads": 1,
        **options,
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=out, model_type=kind, **settings)
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def sentencepiece_metadata(sp: sentencepiece.SentencePieceProcessor, add_space_prefix: bool) -> dict[str, Any]:
    """What a GGUF converter would write for ``sp``."""
    ids = range(sp.get_piece_size())
    types = [kind for _, kind in piece_types(sp.serialized_model_proto())]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [sp.id_to_piece(i).replace("▁", " ") if types[i] == 4 else sp.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [sp.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": sp.bos_id(),
        "tokenizer.ggml.eos_token_id": sp.eos_id(),
        "tokenizer.ggml.unknown_token_id": sp.unk_id(),
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }


def piece_types(proto: bytes) -> list[tuple[bytes, int]]:
    """(serialized piece, its type) of each entry of a SentencePiece model, read from the protocol-buffer wire format."""
    pieces = [value for number, value in _fields(proto) if number == 1]
    return [(piece, next((value for number, value in _fields(piece) if number == 3), 1)) for piece in pieces]


def with_unused(sp: sentencepiece.SentencePieceProcessor, unused: set[int]) -> sentencepiece.SentencePieceProcessor:
    """The same model with some ordinary pieces marked as unused (type 5, field 3)."""
    proto = sp.serialized_model_proto()
    out = b""
    for i, (piece, kind) in enumerate(piece_types(proto)):
        body = piece + b"\x18\x05" if i in unused and kind == 1 else piece  # the last value of a field counts
        out += b"\x0a" + _varint(len(body)) + body
    start = proto.index(b"\x12", sum(len(piece) + 1 + len(_varint(len(piece))) for piece, _ in piece_types(proto)))
    return sentencepiece.SentencePieceProcessor(model_proto=out + proto[start:])


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        if key & 7 == 2:
            size, at = _read_varint(data, at)
            yield key >> 3, data[at : at + size]
            at += size
        elif key & 7 == 5:
            yield key >> 3, data[at : at + 4]
            at += 4
        else:
            value, at = _read_varint(data, at)
            yield key >> 3, value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def llama_style_json() -> Tokenizer:
    """BPE with byte fallback and the leading-space rules of Llama's ``tokenizer.json``."""
    tok = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    tok.train_from_iterator([line[:60] for line in CORPUS[:4]], trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False))
    state = json.loads(tok.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    tok = Tokenizer.from_str(json.dumps(state))
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tok
