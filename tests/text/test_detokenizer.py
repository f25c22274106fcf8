"""Streaming gives the decode of the whole, whatever the ids and however they are cut."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text.detokenizer import Detokenizer
from tests.text.vocabularies import llama_style_json, texts

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer

KINDS = ["byte_level", "llama", "llama_json"]


def stream(tok: Tokenizer, ids: list[int], rng: random.Random, prompt: list[int] | None = None, skip: bool = True) -> tuple[str, list[str]]:
    detok = Detokenizer(tok, prompt or [], skip)
    pieces, at = [], 0
    while at < len(ids):
        step = rng.choice([0, 1, 1, 1, 2, 3, 7])
        pieces.append(detok.push(ids[at : at + step]))
        at += step
    return "".join(pieces) + detok.finish(), pieces


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_any_split_equals_the_whole(kind: str, skip: bool, request: pytest.FixtureRequest) -> None:
    tok: Tokenizer = request.getfixturevalue(kind)
    rng = random.Random(1)
    for text in texts(700, seed=11):
        ids = tok.encode(text)
        whole = tok.decode(ids, skip_special_tokens=skip)
        streamed, pieces = stream(tok, ids, rng, skip=skip)
        assert streamed == whole
        assert skip is False or "\ufffd" not in "".join(pieces), "a broken character was shown"


@pytest.mark.parametrize("kind", KINDS)
def test_random_ids_with_broken_characters(kind: str, request: pytest.FixtureRequest) -> None:
    """Ids that no text has: halves of characters, control tokens, ids beyond the vocabulary."""
    tok: Tokenizer = request.getfixturevalue(kind)
    rng = random.Random(2)
    broken = 0
    for _ in range(1500):
        ids = [rng.randrange(tok.vocab_size + 3) if rng.random() < 0.4 else rng.randrange(min(300, tok.vocab_size)) for _ in range(rng.randrange(30))]
        whole = tok.decode(ids)
        broken += "\ufffd" in whole
        assert stream(tok, ids, rng)[0] == whole
    assert broken > 300


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_is_what_it_adds_to_its_prompt(kind: str, request: pytest.FixtureRequest) -> None:
    tok: Tokenizer = request.getfixturevalue(kind)
    rng = random.Random(3)
    for text in texts(700, seed=12):
        ids = tok.encode(text)
        cut = rng.randrange(len(ids) + 1)
        prompt, reply = ids[:cut], ids[cut:]
        before = tok.decode(prompt)
        # The prompt's broken end, if any, is completed by the reply.
        stable = before.rstrip("\ufffd") if tok.decode(ids) != before + stream(tok, reply, rng, prompt)[0] else before
        assert stable + stream(tok, reply, rng, prompt)[0] == tok.decode(ids)


def test_the_tokenizers_library_agrees_on_text(llama_json: Tokenizer) -> None:
    oracle = llama_style_json()
    for text in texts(800, seed=13):
        ids = oracle.encode(text, add_special_tokens=False).ids
        assert llama_json.encode(text, add_special_tokens=False) == ids
        decoded = oracle.decode(ids)
        if "\ufffd" not in decoded:  # the library writes one U+FFFD a byte, Python one a broken character
            assert llama_json.decode(ids) == decoded


def test_first_space_of_a_reply(llama: Tokenizer) -> None:
    the = [llama.token_to_id("▁the")]
    assert Detokenizer(llama).push(the) == "the"
    assert Detokenizer(llama, [1]).push(the) == "the", "control tokens are no text"
    assert Detokenizer(llama, llama.encode("Say")).push(the) == " the"
    assert Detokenizer(llama, [1], skip_special_tokens=False).push(the) == " the"
    detok = Detokenizer(llama)
    assert detok.push([1]) == "" and detok.push(the) == "the" and detok.push(the) == " the"


def test_incomplete_characters_wait_and_broken_ones_do_not(llama: Tokenizer) -> None:
    def byte(value: int) -> int:
        found = llama.token_to_id(f"<0x{value:02X}>")
        assert found is not None
        return found

    detok = Detokenizer(llama)
    smile = [byte(b) for b in "😀".encode()]
    assert [detok.push([i]) for i in smile] == ["", "", "", "😀"]
    assert detok.push(smile[:3]) == "" and detok.finish() == "\ufffd"
    assert Detokenizer(llama).push([byte(0xFF)]) == "\ufffd", "no character begins so: said at once"
    detok = Detokenizer(llama, smile[:2])
    assert detok.push(smile[2:]) == "😀", "the reply completes what the prompt began"
    assert Detokenizer(llama).finish() == ""


@settings(max_examples=200, deadline=None)
@given(data=st.lists(st.binary(max_size=6), max_size=12))
def test_bytes_as_python_decodes_them(llama: Tokenizer, data: list[bytes]) -> None:
    first = llama.token_to_id("<0x00>")
    assert first is not None
    detok = Detokenizer(llama, llama.encode("x"))
    shown = "".join(detok.push([first + b for b in chunk]) for chunk in data) + detok.finish()
    assert shown == b"".join(data).decode("utf-8", "replace")
