"""A :class:`octavo.text.pieces.Codec` over the ``tokenizers`` library: byte-level BPE, and whatever a ``tokenizer.json`` describes."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from octavo.errors import FormatError, UnsupportedModel
from octavo.text.pieces import SPACE, byte_level_bytes, byte_value, sentencepiece_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenizers import Tokenizer as RustTokenizer


class RustCodec:
    """Wraps a ``tokenizers.Tokenizer``, which is safe to share between threads and encodes without the interpreter lock.

    ``model_bytes`` gives the bytes of an ordinary piece; ``added_bytes`` those of an added token (control or user-defined).
    """

    def __init__(self, rust: RustTokenizer, model_bytes: Callable[[str], bytes], added_bytes: Callable[[str], bytes]) -> None:
        rust.no_truncation()
        rust.no_padding()
        self._rust = rust
        self._literal: RustTokenizer | None = None
        self._lock = threading.Lock()
        self._model_bytes, self._added_bytes = model_bytes, added_bytes
        self.added = {token_id: (token.content, bool(token.special)) for token_id, token in rust.get_added_tokens_decoder().items()}
        self._control = [content for content, special in self.added.values() if special]
        self.size = max(rust.get_vocab_size(with_added_tokens=True), max(self.added, default=-1) + 1)

    def encode(self, text: str, parse_special: bool) -> list[int]:
        rust = self._rust
        if not parse_special and any(content in text for content in self._control):
            rust = self._without_special()
        # The batch call releases the interpreter lock; the single one does not.
        return list(rust.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def _without_special(self) -> RustTokenizer:
        """A twin that reads control tokens as text, built when first needed: the switch on the tokenizer itself would reach other threads."""
        with self._lock:
            if self._literal is None:
                twin = type(self._rust).from_str(self._rust.to_str())
                twin.encode_special_tokens = True
                self._literal = twin
            return self._literal

    def piece(self, token_id: int) -> str | None:
        return self._rust.id_to_token(token_id) if 0 <= token_id < self.size else None

    def piece_bytes(self, token_id: int) -> bytes:
        if token_id in self.added:
            return self._added_bytes(self.added[token_id][0])
        piece = self.piece(token_id)
        return b"" if piece is None else self._model_bytes(piece)

    def piece_to_id(self, piece: str) -> int | None:
        return self._rust.token_to_id(piece)

    def template_ids(self) -> tuple[list[int], list[int]]:
        """Ids that the file's own post-processor puts before and after a text."""
        inner = self._rust.encode("a", add_special_tokens=False).ids
        outer = self._rust.encode("a", add_special_tokens=True).ids
        for at in range(len(outer) - len(inner) + 1):
            if outer[at : at + len(inner)] == inner:
                return outer[:at], outer[at + len(inner) :]
        return [], []


def _stages(decoder: Any) -> list[dict[str, Any]]:
    """The decoder's stages as the JSON of ``tokenizer.json`` has them."""
    if decoder is None:
        return []
    stage: dict[str, Any] = json.loads(decoder.__getstate__())
    return list(stage["decoders"]) if stage["type"] == "Sequence" else [stage]


def _byte_fallback(piece: str) -> bytes:
    """Bytes of a SentencePiece piece where ``<0xNN>`` stands for a byte."""
    byte = byte_value(piece)
    return sentencepiece_bytes(piece) if byte is None else bytes([byte])


def wordpiece_bytes(piece: str) -> bytes:
    """Bytes of a WordPiece: ``##`` goes on with a word, everything else begins one."""
    return (piece[2:] if piece.startswith("##") else f" {piece}").encode("utf-8", "replace")


def load_json(path: str) -> tuple[RustCodec, bool]:
    """Read a ``tokenizer.json``: the codec, and whether a decoded text loses its first space.

    Raises FormatError if the file is not one, UnsupportedModel if its decoder is neither byte-level, WordPiece nor SentencePiece's.
    """
    from tokenizers import Tokenizer as RustTokenizer

    try:
        rust = RustTokenizer.from_file(path)
    except Exception as e:  # the library raises plain Exception
        raise FormatError(f"{path} is not a tokenizer.json: {e}") from None
    stages = _stages(rust.decoder)
    kinds = {stage["type"] for stage in stages}
    if "ByteLevel" in kinds:
        return RustCodec(rust, byte_level_bytes, lambda piece: piece.encode("utf-8", "replace")), False
    if kinds == {"WordPiece"}:
        return RustCodec(rust, wordpiece_bytes, wordpiece_bytes), True
    spaced = any(stage["type"] == "Replace" and stage["pattern"] == {"String": SPACE} and stage["content"] == " " for stage in stages)
    if not kinds or not kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"} or not (spaced or "Metaspace" in kinds):
        named = ", ".join(sorted(kinds)) or "none"
        raise UnsupportedModel(f"{path}: decoder {named} is not supported; known are ByteLevel, WordPiece and SentencePiece's (Metaspace, Replace)")
    strips = any(
        (stage["type"] == "Strip" and stage["content"] == " " and stage["start"] == 1)
        or (stage["type"] == "Metaspace" and stage.get("prepend_scheme", "always") != "never")
        for stage in stages
    )
    return RustCodec(rust, _byte_fallback if "ByteFallback" in kinds else sentencepiece_bytes, sentencepiece_bytes), strips
