"""Tokenizer files from before tokenizer.json, and GGUF's rarer kinds, against the libraries that define them."""

from __future__ import annotations

import base64
import json
import random
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tiktoken
from safetensors.numpy import save_file
from tokenizers import BertWordPieceTokenizer, pre_tokenizers
from transformers import BertTokenizer, GPT2Tokenizer

from octavo.checkpoint.folder import FolderCheckpoint
from octavo.errors import FormatError, OctavoError, UnsupportedModel
from octavo.text.detokenizer import Detokenizer
from octavo.text.pretokenizers import KNOWN
from octavo.text.tokenizer import load_tokenizer
from tests.text.vocabularies import CORPUS, byte_level_metadata, from_gguf, piece_types, texts, train_byte_level, train_sentencepiece

if TYPE_CHECKING:
    from pathlib import Path

    from octavo.text.tokenizer import Tokenizer


def folder_tokenizer(folder: Path, model_type: str = "llama", options: dict[str, Any] | None = None, **files: Any) -> Tokenizer:
    """The tokenizer of a checkpoint folder with these further files."""
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if options is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(options))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    save_file({"x": np.zeros(1, np.float32)}, folder / "model.safetensors")
    return load_tokenizer(FolderCheckpoint(folder))


def agree(tok: Tokenizer, encode: Any, count: int = 5000, seed: int = 31) -> None:
    for text in texts(count, seed=seed):
        assert tok.encode(text, add_special_tokens=False, parse_special=False) == encode(text), text


# -- SentencePiece


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("prefix", [True, False], ids=["dummy prefix", "no prefix"])
def test_sentencepiece_models(kind: str, prefix: bool, tmp_path: Path) -> None:
    sp = train_sentencepiece(kind, add_dummy_prefix=prefix, vocab_size=700)
    (tmp_path / "tokenizer.model").write_bytes(sp.serialized_model_proto())
    tok = folder_tokenizer(tmp_path, options={"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"})
    agree(tok, sp.encode)
    for text in texts(300, seed=5):
        ids = sp.encode(text)
        assert tok.decode(ids) == sp.decode(ids)
        stream = Detokenizer(tok)
        assert "".join(stream.push([i]) for i in ids) + stream.finish() == sp.decode(ids)
    assert tok.encode("hi") == [sp.bos_id(), *sp.encode("hi")]
    assert (tok.eos_token_ids, tok.is_special(sp.unk_id())) == ([sp.eos_id()], True)


def test_tokens_beside_a_sentencepiece_model(tmp_path: Path) -> None:
    sp = train_sentencepiece("bpe", add_dummy_prefix=True)
    (tmp_path / "tokenizer.model").write_bytes(sp.serialized_model_proto())
    size = sp.get_piece_size()
    tok = folder_tokenizer(
        tmp_path,
        options={"add_bos_token": False, "bos_token": {"content": "<s>"}, "eos_token": "<|end|>"},
        added_tokens={"<|end|>": size, "<tool>": size + 1},
    )
    assert tok.encode("a<|end|>b<tool></s>") == [*sp.encode("a"), size, *sp.encode("b"), size + 1, sp.eos_id()]
    assert tok.encode("a<|end|>", parse_special=False) == sp.encode("a<|end|>")
    assert tok.vocab_size == size + 2 and tok.eos_token_ids == [size]
    assert tok.decode([size + 1]) == "<tool>" and tok.decode([size]) == ""


def test_a_file_that_is_no_sentencepiece_model(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x04nope")
    with pytest.raises(FormatError, match="not a SentencePiece model"):
        folder_tokenizer(tmp_path)


# -- tiktoken


def ranks() -> dict[bytes, int]:
    """Ranks as tiktoken's own trainer would write them: a byte-level BPE's pieces in the order in which they were merged."""
    trained = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tok = from_gguf(byte_level_metadata(trained, "gpt-2"))
    single = [bytes([b]) for b in range(256)]
    merged = [tok.token_bytes(i) for i in range(tok.vocab_size) if not tok.is_special(i)]
    return {token: i for i, token in enumerate(dict.fromkeys([*single, *merged]))}


@pytest.mark.parametrize(
    ("model_type", "pre", "file"),
    [("qwen", "qwen2", "qwen.tiktoken"), ("llama", "llama-bpe", "tokenizer.model"), ("chatglm", "glm4", "tokenizer.model")],
)
def test_tiktoken_ranks(model_type: str, pre: str, file: str, tmp_path: Path) -> None:
    table = ranks()
    (tmp_path / file).write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in table.items()))
    special = {"<|endoftext|>": len(table), "<|im_start|>": len(table) + 1}
    options = {"eos_token": "<|endoftext|>", "added_tokens_decoder": {str(i): {"content": text, "special": True} for text, i in special.items()}}
    tok = folder_tokenizer(tmp_path, model_type, options)
    oracle = tiktoken.Encoding("test", pat_str=KNOWN[pre].patterns[0], mergeable_ranks=table, special_tokens=special)
    composed = KNOWN[pre].nfc
    agree(tok, lambda text: oracle.encode(unicodedata.normalize("NFC", text) if composed else text, disallowed_special=()))
    assert tok.encode("a<|im_start|>b") == oracle.encode("a<|im_start|>b", allowed_special="all")
    assert tok.eos_token_ids == [len(table)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [("IQ== 0\nIg== x\n", "line 2"), ("IQ== 0\nIg== 1\n", "every single byte"), ("IQ== 0\nIg== 5\n", "run from 0")],
)
def test_malformed_ranks(lines: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_text(lines)
    with pytest.raises(FormatError, match=message):
        folder_tokenizer(tmp_path)


def test_ranks_of_a_model_that_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_text("IQ== 0\n")
    with pytest.raises(UnsupportedModel, match=r"how text is cut.*'mystery'.*llama, qwen"):
        folder_tokenizer(tmp_path, "mystery")


# -- vocab.json and merges.txt


def test_vocab_and_merges(tmp_path: Path) -> None:
    trained = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    trained.model.save(str(tmp_path))  # vocab.json, merges.txt
    oracle = GPT2Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    count = len(json.loads((tmp_path / "vocab.json").read_text()))
    tok = folder_tokenizer(tmp_path, "gpt2", {"eos_token": "<|endoftext|>", "added_tokens_decoder": {str(count): {"content": "<new>"}}})
    agree(tok, lambda text: oracle(text, add_special_tokens=False)["input_ids"])
    assert tok.encode("<new>") == [count]


def test_vocab_without_merges(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(FormatError, match="needs merges"):
        folder_tokenizer(tmp_path)


def test_added_tokens_must_follow_the_vocabulary(tmp_path: Path) -> None:
    train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)).model.save(str(tmp_path))
    with pytest.raises(FormatError, match=r"gives '<new>' the id 5,000, vocab.json leaves [0-9]+"):
        folder_tokenizer(tmp_path, "gpt2", {"added_tokens_decoder": {"5000": {"content": "<new>"}}})


# -- WordPiece


def wordpiece_vocab() -> dict[str, int]:
    trainer = BertWordPieceTokenizer(lowercase=True)
    trainer.train_from_iterator(CORPUS, vocab_size=700, show_progress=False)
    return dict(sorted(trainer.get_vocab().items(), key=lambda item: item[1]))


def test_wordpiece_lists(tmp_path: Path) -> None:
    vocab = wordpiece_vocab()
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocab), encoding="utf-8")
    oracle = BertTokenizer(vocab=vocab)
    tok = folder_tokenizer(tmp_path, "bert", {"cls_token": "[CLS]", "sep_token": "[SEP]", "do_lower_case": True})
    agree(tok, lambda text: oracle(text, add_special_tokens=False)["input_ids"])
    assert tok.encode("The fox") == oracle("The fox")["input_ids"]
    assert tok.decode(tok.encode("the quick brown fox")) == "the quick brown fox"
    oracle.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))  # and the same through the newer file
    assert load_tokenizer(FolderCheckpoint(tmp_path)).encode("The fox's") == oracle("The fox's")["input_ids"]


def test_wordpiece_in_gguf() -> None:
    vocab = wordpiece_vocab()
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    pieces = [p if p in special else p[2:] if p.startswith("##") else f"▁{p}" for p in vocab]
    tok = from_gguf({
        "tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": [3 if p in special else 1 for p in vocab],
        "tokenizer.ggml.bos_token_id": vocab["[CLS]"], "tokenizer.ggml.eos_token_id": vocab["[SEP]"],
    })  # fmt: skip
    oracle = BertTokenizer(vocab=vocab)
    agree(tok, lambda text: oracle(text, add_special_tokens=False)["input_ids"], count=2000)
    assert tok.encode("The fox") == oracle("The fox")["input_ids"]


def test_a_wordpiece_list_without_its_special_pieces(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a\n[UNK]\n")
    with pytest.raises(FormatError, match=r"lacks \[PAD\], \[CLS\], \[SEP\]"):
        folder_tokenizer(tmp_path, "bert")


# -- unigram in GGUF


@pytest.mark.parametrize("rules", ["identity", "nmt_nfkc"])
def test_unigram_in_gguf(rules: str) -> None:
    tidy = rules != "identity"
    sp = train_sentencepiece(
        "unigram", add_dummy_prefix=True, vocab_size=700, byte_fallback=False, normalization_rule_name=rules, remove_extra_whitespaces=tidy
    )
    proto = sp.serialized_model_proto()
    tok = from_gguf({
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [sp.id_to_piece(i) for i in range(sp.get_piece_size())],
        "tokenizer.ggml.scores": [sp.get_score(i) for i in range(sp.get_piece_size())],
        "tokenizer.ggml.token_type": [kind for _, kind in piece_types(proto)],
        "tokenizer.ggml.eos_token_id": sp.eos_id(), "tokenizer.ggml.unknown_token_id": sp.unk_id(),
        "tokenizer.ggml.remove_extra_whitespaces": tidy, "tokenizer.ggml.precompiled_charsmap": charsmap(proto),
    })  # fmt: skip
    wrong = [text for text in texts(2000, seed=8) if tok.encode(text, add_special_tokens=False, parse_special=False) != sp.encode(text)]
    assert not wrong, wrong[:5]
    assert tok.encode("fox")[-1] == sp.eos_id()


def charsmap(proto: bytes) -> list[int]:
    """``precompiled_charsmap`` (field 2) of the normalizer (field 3) of a SentencePiece model."""
    from tests.text.vocabularies import _fields

    rules = next(value for number, value in _fields(proto) if number == 3)
    return list(next((value for number, value in _fields(rules) if number == 2), b""))


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.txt", "vocab.json", "qwen.tiktoken"])
def test_rubbish_is_a_typed_error(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    (tmp_path / "merges.txt").write_text("a b\n")
    for _ in range(60):
        (tmp_path / name).write_bytes(rng.randbytes(rng.randrange(0, 200)))
        with pytest.raises(OctavoError):
            folder_tokenizer(tmp_path, "qwen")
