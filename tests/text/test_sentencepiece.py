"""SentencePiece's BPE from GGUF metadata gives the ids of the sentencepiece library, text for text."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from octavo.errors import FormatError
from octavo.text.spm import Matcher
from tests.text.vocabularies import from_gguf, sentencepiece_metadata, texts, train_sentencepiece, with_unused

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

    from octavo.text.tokenizer import Tokenizer

USER = ["▁▁", "▁▁▁", "▁▁▁▁", "\n", "\n\n", "<b>", "</b>", "<br>", "\t"]


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("whitespace", [True, False], ids=["split at spaces", "pieces across spaces"])
def test_ids_equal_sentencepiece(prefix: bool, whitespace: bool) -> None:
    sp = train_sentencepiece(add_dummy_prefix=prefix, split_by_whitespace=whitespace)
    tok = from_gguf(sentencepiece_metadata(sp, prefix))
    for text in texts(2000, seed=prefix):
        assert tok.encode(text, add_special_tokens=False, parse_special=False) == sp.encode(text), text


def test_user_defined_symbols_as_gemma_has_them() -> None:
    sp = train_sentencepiece(add_dummy_prefix=False, user_defined_symbols=USER)
    tok = from_gguf(sentencepiece_metadata(sp, False))
    extra = ["a    b", "     ", "x<b>y</b>  <br>\n\n\nz", "\t\t\n \n", "<b", "a▁ ▁b", "<b><b", "   <b>   "]
    for text in [*extra, *texts(2000, seed=5)]:
        assert tok.encode(text, add_special_tokens=False, parse_special=False) == sp.encode(text), text


def test_equal_scores_go_to_the_leftmost() -> None:
    """Where every score is the same, only the order from the left decides."""
    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), *"ab", "aa", "ab", "ba", "aab", "aba"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [0.0] * len(pieces),
        "tokenizer.ggml.token_type": [2, *[6] * 256, *[1] * 7],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
    }
    tok = from_gguf(metadata)
    for text in ("aaa", "aabab", "babaab", "abababa", "aaaab"):
        assert [tok.token_text(i) for i in tok.encode(text)] == _merge_by_hand(text, pieces)


def _merge_by_hand(text: str, pieces: list[str]) -> list[str]:
    parts = list(text)
    while (at := next((i for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in pieces), None)) is not None:
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def test_unused_pieces_are_taken_apart() -> None:
    sp = train_sentencepiece(add_dummy_prefix=True)
    sp = with_unused(sp, {i for i in range(sp.get_piece_size()) if i % 3 == 0 and len(sp.id_to_piece(i)) > 1})
    metadata = sentencepiece_metadata(sp, True)
    assert 5 in metadata["tokenizer.ggml.token_type"]
    tok = from_gguf(metadata)
    same = sum(
        tok.encode(text, add_special_tokens=False, parse_special=False) == sp.encode(text) for text in texts(1000, seed=6)
    )
    assert same == 1000


def test_without_byte_fallback_a_run_of_unknowns_is_one_token() -> None:
    sp = train_sentencepiece(add_dummy_prefix=True, byte_fallback=False, vocab_size=400)
    tok = from_gguf(sentencepiece_metadata(sp, True))
    for text in texts(1500, seed=7):
        assert tok.encode(text, add_special_tokens=False, parse_special=False) == sp.encode(text), text


def test_facts_and_frame(llama: Tokenizer, llama_sp: SentencePieceProcessor) -> None:
    assert llama.bos_token_id == 1 and llama.eos_token_id == 2 and llama.eos_token_ids == [2]
    assert llama.special_token_ids == {0, 1, 2} and llama.add_bos and llama.strip_leading_space
    assert llama.encode("Hello there") == [1, *llama_sp.encode("Hello there")]
    assert llama.encode("", add_special_tokens=False) == [] and llama.encode("") == [1]
    assert llama.token_to_id("▁the") == llama_sp.piece_to_id("▁the")
    assert llama.token_to_id("<0x0A>") == llama_sp.piece_to_id("<0x0A>")
    assert llama.token_bytes(llama.token_to_id("<0x0A>") or 0) == b"\n"
    assert llama.token_bytes(llama.token_to_id("▁the") or 0) == b" the"


def test_control_tokens_in_the_text(llama: Tokenizer, llama_sp: SentencePieceProcessor) -> None:
    ids = llama.encode("<s>the day</s>a dog", add_special_tokens=False)
    assert ids == [1, *llama_sp.encode("the day"), 2, *llama_sp.encode("a dog")], "text after a control token gets the space prefix too"
    literal = llama.encode("<s>the", add_special_tokens=False, parse_special=False)
    assert literal == llama_sp.encode("<s>the") and 1 not in literal


def test_round_trip(llama: Tokenizer) -> None:
    for text in texts(1500, seed=8):
        assert llama.decode(llama.encode(text, parse_special=False)) == text.replace("▁", " ")


def test_numpy_arrays_and_missing_types(llama_sp: SentencePieceProcessor, llama: Tokenizer) -> None:
    metadata = sentencepiece_metadata(llama_sp, True)
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        metadata[key] = np.array(metadata[key])
    assert from_gguf(metadata).encode("as numpy arrays 12") == llama.encode("as numpy arrays 12")
    del metadata["tokenizer.ggml.token_type"]
    bare = from_gguf(metadata)
    assert bare.encode("without types: 日 é 12") == llama.encode("without types: 日 é 12")
    assert bare.special_token_ids == {0, 1, 2}


def test_malformed_metadata(llama_sp: SentencePieceProcessor) -> None:
    metadata = sentencepiece_metadata(llama_sp, True)
    with pytest.raises(FormatError, match=r"tokenizer\.ggml\.scores must have one number for each"):
        from_gguf({**metadata, "tokenizer.ggml.scores": [0.0]})
    with pytest.raises(FormatError, match="must hold numbers"):
        from_gguf({**metadata, "tokenizer.ggml.scores": ["x"] * len(metadata["tokenizer.ggml.tokens"])})
    nothing = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a"],
        "tokenizer.ggml.scores": [0.0],
        "tokenizer.ggml.token_type": [3],
    }
    assert from_gguf({**nothing, "tokenizer.ggml.add_bos_token": False}).encode("bb", add_special_tokens=False) == [0], "id 0 is the default"


def test_matcher_takes_the_longest_from_the_left() -> None:
    matcher = Matcher({"<a": 0, "<a>": 1, "b": 2, "<ab>x": 3})
    assert list(matcher.split("<a<a>b<ab>y<ab>x")) == [("<a", 0), ("<a>", 1), ("b", 2), ("<a", 0), ("b", 2), (">y", None), ("<ab>x", 3)]
    assert list(Matcher({}).split("ab")) == [("ab", None)] and list(matcher.split("")) == []


def test_threads_agree(llama: Tokenizer) -> None:
    sample = texts(200, seed=9)
    expected = [llama.encode(text) for text in sample]
    results: list[bool] = []

    def work() -> None:
        results.append([llama.encode(text) for text in sample] == expected)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4
