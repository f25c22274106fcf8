"""SentencePiece model files (``tokenizer.model``, ``spiece.model``), BPE and unigram, through the ``sentencepiece`` library."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from octavo.errors import FormatError
from octavo.text.pieces import sentencepiece_bytes
from octavo.text.spm import BYTE, UNKNOWN, Matcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class SentencePieceFile:
    """A :class:`octavo.text.pieces.Codec`. The library is safe to share between threads.

    ``added``: id -> (text, control token?) of tokens that live beside the model, as ``tokenizer_config.json`` lists them. Text between such
    tokens is encoded piece by piece, each with the leading space that the model may ask for, as Hugging Face's tokenizers do.
    ``proto`` is the content of the file, ``name`` what to call it in the FormatError that something else raises.
    """

    def __init__(self, proto: bytes, added: Mapping[int, tuple[str, bool]], name: str) -> None:
        from sentencepiece import SentencePieceProcessor

        try:
            self._model = model = SentencePieceProcessor(model_proto=proto)
        except (OSError, RuntimeError, ValueError) as e:
            raise FormatError(f"{name} is not a SentencePiece model: {e}") from None
        count = model.get_piece_size()
        own = {i: (model.id_to_piece(i), True) for i in range(count) if model.is_control(i) or model.is_unknown(i)}
        self.added = {**own, **added}
        self.size = max(count, max(self.added, default=-1) + 1)
        self.strips_space = model.encode("a", out_type=str)[:1] in (["▁a"], ["▁"])
        self._count = count
        self._bytes = {i: bytes([int(model.id_to_piece(i)[1:-1], 16)]) for i in range(count) if model.is_byte(i)}
        texts = {i: text for i, (text, _) in self.added.items() if text}
        self._ids = {text: i for i, text in reversed(texts.items())}
        self._all = Matcher(self._ids)
        self._ordinary = Matcher({text: i for text, i in self._ids.items() if not self.added[i][1]})

    def encode(self, text: str, parse_special: bool) -> list[int]:
        out: list[int] = []
        for part, token_id in (self._all if parse_special else self._ordinary).split(text):
            if token_id is not None:
                out.append(token_id)
            else:
                out += self._model.encode(part)
        return out

    def piece(self, token_id: int) -> str | None:
        if token_id in self.added:
            return self.added[token_id][0]
        return str(self._model.id_to_piece(token_id)) if 0 <= token_id < self._count else None

    def piece_bytes(self, token_id: int) -> bytes:
        piece = self.piece(token_id)
        return b"" if piece is None else self._bytes.get(token_id) or sentencepiece_bytes(piece)

    def piece_to_id(self, piece: str) -> int | None:
        if piece in self._ids:
            return self._ids[piece]
        token_id = int(self._model.piece_to_id(piece))
        return token_id if self._model.id_to_piece(token_id) == piece else None

    def template_ids(self) -> tuple[list[int], list[int]]:
        """Llama's convention, which files of this kind leave to the code that reads them: a bos token before, nothing behind."""
        bos = self._model.bos_id()
        return ([bos] if bos >= 0 else []), []


def unigram_proto(
    pieces: Sequence[str], scores: Sequence[float], types: Sequence[int], *, charsmap: bytes, dummy_prefix: bool, tidy: bool
) -> bytes:
    """A unigram model in the library's own format: field numbers of ``sentencepiece_model.proto``.

    ``charsmap``: the compiled rules of normalization, empty for none. ``tidy``: surplus blanks are removed.
    """
    vocabulary = [
        _field(1, _field(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + _varint(kind))
        for piece, score, kind in zip(pieces, scores, types, strict=True)
    ]
    names = {kind: i for i, kind in reversed(list(enumerate(types))) if kind == UNKNOWN}
    trainer = b"\x18\x01" + (b"\x98\x02\x01" if BYTE in types else b"") + _varint(40 << 3) + _varint(names.get(UNKNOWN, 0))
    rules = (_field(2, charsmap) if charsmap else b"") + bytes([0x18, dummy_prefix, 0x20, tidy, 0x28, 1])
    return b"".join([*vocabulary, _field(2, trainer), _field(3, rules)])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body
