"""Vocabularies shared by the tests of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tokenizers import pre_tokenizers

from tests.text.vocabularies import byte_level_metadata, from_gguf, from_json, llama_style_json, sentencepiece_metadata, train_byte_level
from tests.text.vocabularies import train_sentencepiece as train

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

    from octavo.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """Byte-level BPE through GGUF metadata."""
    tok = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    return from_gguf(byte_level_metadata(tok, "gpt-2"))


@pytest.fixture(scope="session")
def llama_sp() -> SentencePieceProcessor:
    return train(add_dummy_prefix=True)


@pytest.fixture(scope="session")
def llama(llama_sp: SentencePieceProcessor) -> Tokenizer:
    """SentencePiece with byte fallback and a dummy prefix, through GGUF metadata."""
    return from_gguf(sentencepiece_metadata(llama_sp, add_space_prefix=True))


@pytest.fixture(scope="session")
def llama_json(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The same kind through a ``tokenizer.json``."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    llama_style_json().save(str(path))
    return from_json(path, {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True})
