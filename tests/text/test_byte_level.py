"""Byte-level BPE from GGUF metadata and from tokenizer.json gives the ids of the tokenizers library, text for text."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import regex
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from transformers.models.qwen2 import tokenization_qwen2

from octavo.errors import FormatError, InvalidParameter, UnsupportedModel
from octavo.text.pieces import byte_alphabet
from octavo.text.pretokenizers import KNOWN
from tests.text.vocabularies import byte_level_metadata, from_gguf, from_json, texts, train_byte_level

if TYPE_CHECKING:
    from pathlib import Path

# Llama 3's published pattern.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> Any:
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip


def _digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])


ORACLES: dict[str, tuple[Any, Any]] = {
    "gpt-2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None),
    "smollm": (_digits(), None),
    "starcoder": (_digits(), None),
    "qwen2": (_split(tokenization_qwen2.PRETOKENIZE_REGEX), normalizers.NFC()),
    "llama-bpe": (_split(LLAMA3), None),
}


@pytest.mark.parametrize("pre", ORACLES)
def test_gguf_ids_equal_the_tokenizers_library(pre: str) -> None:
    oracle = train_byte_level(*ORACLES[pre])
    tok = from_gguf(byte_level_metadata(oracle, pre))
    for text in texts(2000):
        ids = oracle.encode(text, add_special_tokens=False).ids
        assert tok.encode(text, add_special_tokens=False) == ids, text
        assert tok.decode(ids) == oracle.decode(ids)


def test_json_ids_equal_the_tokenizers_library(tmp_path: Path) -> None:
    oracle = train_byte_level(*ORACLES["qwen2"])
    oracle.enable_truncation(8)  # a setting for training, which must not cut prompts
    oracle.enable_padding(length=16)
    oracle.save(str(tmp_path / "tokenizer.json"))
    oracle.no_truncation()
    oracle.no_padding()
    tok = from_json(tmp_path / "tokenizer.json")
    assert tok.vocab_size == oracle.get_vocab_size()
    for text in texts(2000, seed=1):
        assert tok.encode(text) == oracle.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("pre", sorted(KNOWN))
def test_every_known_pre_tokenizer_compiles_and_loses_nothing(pre: str) -> None:
    tok = from_gguf(byte_level_metadata(train_byte_level(*ORACLES["gpt-2"]), pre))
    for text in texts(60, seed=2):
        expected = normalizers.NFC().normalize_str(text) if KNOWN[pre].nfc else text
        assert tok.decode(tok.encode(text, add_special_tokens=False)) == expected


@pytest.mark.parametrize("pre", ["default", "gpt-4o", "tekken", "deepseek-v3", "qwen35"])
def test_patterns_cut_as_an_independent_regex_engine_does(pre: str) -> None:
    """Another engine of regular expressions, cutting in turn, must agree with what the library makes of the same patterns."""
    stages = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in KNOWN[pre].patterns]
    splitter = pre_tokenizers.Sequence(stages)
    for text in texts(400, seed=3):
        parts = [text] if text else []
        for pattern in KNOWN[pre].patterns:
            parts = [piece for part in parts for piece in _isolate(regex.compile(pattern), part)]
        assert [piece for piece, _ in splitter.pre_tokenize_str(text)] == parts, text


def _isolate(pattern: Any, part: str) -> list[str]:
    """``part`` cut before and after each match."""
    cuts = sorted({0, len(part), *(edge for m in pattern.finditer(part) for edge in m.span())})
    return [part[a:b] for a, b in itertools.pairwise(cuts)]


def test_an_unknown_pre_tokenizer_lists_the_known_ones() -> None:
    metadata = byte_level_metadata(train_byte_level(*ORACLES["gpt-2"]), "nonsense")
    with pytest.raises(UnsupportedModel, match=r"unknown pre-tokenizer 'nonsense'.*qwen2.*smollm"):
        from_gguf(metadata)


def test_control_tokens_in_the_text(byte_level: Any) -> None:
    text = "<|im_start|>user\nhi<|im_end|><tool>"
    parsed = byte_level.encode(text)
    start, end, tool = (byte_level.token_to_id(t) for t in ("<|im_start|>", "<|im_end|>", "<tool>"))
    assert [parsed[0], parsed[-2], parsed[-1]] == [start, end, tool]
    literal = byte_level.encode(text, parse_special=False)
    assert start not in literal and end not in literal
    assert literal[-1] == tool, "user-defined tokens are ordinary vocabulary"
    assert byte_level.decode(literal) == text
    assert byte_level.decode(parsed) == "user\nhi<tool>"
    assert byte_level.decode(parsed, skip_special_tokens=False) == text
    assert byte_level.encode(text) == parsed, "the literal reading must not stick"


def test_facts(byte_level: Any) -> None:
    assert byte_level.bos_token_id == 1 and byte_level.eos_token_id == 2
    assert byte_level.eos_token_ids == [2, 0], "<|endoftext|> ends a text too"
    assert byte_level.special_token_ids == {0, 1, 2} and byte_level.is_special(1) and not byte_level.is_special(50)
    assert not byte_level.add_bos and byte_level.prefix_ids == ()
    assert byte_level.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert byte_level.token_to_id("no such piece") is None


def test_bytes_of_single_tokens(byte_level: Any) -> None:
    spare = byte_level.token_to_id("Ġ")
    assert byte_level.token_bytes(spare) == b" "
    assert byte_level.token_bytes(byte_level.token_to_id("<|im_end|>")) == b"<|im_end|>"
    lead = byte_level.token_to_id("ð")
    assert byte_level.token_bytes(lead) == b"\xf0" and byte_level.token_text(lead) == "\ufffd"
    for beyond in (-1, byte_level.vocab_size, 10**9):
        assert byte_level.token_bytes(beyond) == b"" and byte_level.token_text(beyond) == ""
    assert sorted(byte_alphabet().values()) == list(range(256))


def test_added_tokens_outside_the_alphabet_keep_their_characters(tmp_path: Path) -> None:
    oracle = train_byte_level(*ORACLES["gpt-2"])
    oracle.add_tokens(["<é ü>", "naïve"])
    oracle.save(str(tmp_path / "tokenizer.json"))
    tok = from_json(tmp_path / "tokenizer.json")
    assert tok.decode(tok.encode("a<é ü>b naïve")) == "a<é ü>b naïve"


def test_half_of_a_surrogate_pair_is_refused(byte_level: Any) -> None:
    with pytest.raises(InvalidParameter, match=r"U\+D83D at character 2"):
        byte_level.encode("ab\ud83d")
    with pytest.raises(InvalidParameter, match="must be a string"):
        byte_level.encode(None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens must be an array of strings"),
        ({"tokenizer.ggml.tokens": ["a", 3]}, "tokenizer.ggml.tokens must be an array of strings"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges must be an array of strings"),
        ({"tokenizer.ggml.merges": ["x y"]}, "does not fit"),
        ({"tokenizer.ggml.merges": ["nospace"]}, "does not fit"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "one number for each"),
    ],
)
def test_malformed_metadata(change: dict[str, Any], message: str) -> None:
    metadata = byte_level_metadata(train_byte_level(*ORACLES["gpt-2"]), "gpt-2") | change
    if change.get("tokenizer.ggml.merges") == ["x y"]:
        metadata["tokenizer.ggml.tokens"] = [f"p{i}" for i in range(len(metadata["tokenizer.ggml.tokens"]))]
    with pytest.raises(FormatError, match=message):
        from_gguf(metadata)


def test_unknown_model_and_broken_json(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="tokenizer model 'rwkv'"):
        from_gguf({"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": ["a"]})
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FormatError, match=r"is not a tokenizer\.json"):
        from_json(tmp_path / "tokenizer.json")
    bare = train_byte_level(*ORACLES["gpt-2"])
    bare.decoder = None
    bare.save(str(tmp_path / "bare.json"))
    with pytest.raises(UnsupportedModel, match="decoder none is not supported"):
        from_json(tmp_path / "bare.json")


def test_end_tokens_and_frame_from_configuration(tmp_path: Path) -> None:
    oracle: Tokenizer = train_byte_level(*ORACLES["gpt-2"])
    oracle.save(str(tmp_path / "tokenizer.json"))
    path, names = tmp_path / "tokenizer.json", {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
    tok = from_json(path, names, generation_config={"eos_token_id": [2, 0, 10**7, -1]})
    assert tok.eos_token_ids == [2, 0]
    assert from_json(path, {}, config={"eos_token_id": 0, "bos_token_id": 1}).eos_token_ids == [0]
    framed = from_json(path, {**names, "add_bos_token": True, "add_eos_token": True})
    assert framed.encode("a") == [1, *oracle.encode("a").ids, 2] and framed.add_bos
    assert framed.encode("a", add_special_tokens=False) == oracle.encode("a").ids
    with pytest.raises(UnsupportedModel, match="add_bos_token but names no bos_token"):
        from_json(path, {"add_bos_token": True})


def test_a_post_processor_frames_the_text(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    oracle = train_byte_level(*ORACLES["gpt-2"])
    oracle.post_processor = TemplateProcessing(single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)])
    oracle.save(str(tmp_path / "tokenizer.json"))
    tok = from_json(tmp_path / "tokenizer.json", {"bos_token": "<|im_start|>"})
    assert tok.add_bos
    for text in texts(50):
        assert tok.encode(text) == oracle.encode(text).ids
    plain = from_json(tmp_path / "tokenizer.json", {"bos_token": "<|im_start|>", "add_bos_token": False, "add_eos_token": False})
    assert plain.encode("hi") == oracle.encode("hi", add_special_tokens=False).ids
