"""How the pieces of a vocabulary stand for bytes: GPT-2's byte alphabet, SentencePiece's ``▁`` and ``<0xNN>``."""

from __future__ import annotations

import re
from functools import cache
from typing import Protocol

SPACE = "\u2581"  # how SentencePiece writes a space
_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


class Codec(Protocol):
    """Text to ids and ids to bytes for one vocabulary; knows nothing of prompts, templates or streams. Safe to call from many threads."""

    size: int  # ids are in [0, size)

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Ids of ``text``. Control tokens written in the text become their id if ``parse_special``, else ordinary text."""
        ...

    def piece(self, token_id: int) -> str | None:
        """The vocabulary entry as stored; None for an id that has none."""
        ...

    def piece_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text, as UTF-8 bytes (possibly a part of a character); empty for an id without entry."""
        ...

    def piece_to_id(self, piece: str) -> int | None:
        """Inverse of :meth:`piece`."""
        ...


@cache
def byte_alphabet() -> dict[str, int]:
    """Character to byte of the byte-level alphabet that GPT-2 introduced: printable Latin-1 stands for itself, the rest lies from U+0100 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shown = set(printable)
    hidden = [b for b in range(256) if b not in shown]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


def byte_level_bytes(piece: str) -> bytes:
    """Bytes of a byte-level piece. A piece outside the alphabet (an added token) stands for its own UTF-8."""
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[c] for c in piece])
    except KeyError:
        return piece.encode("utf-8", "replace")


def byte_value(piece: str) -> int | None:
    """The byte that a ``<0xNN>`` piece stands for, or None for any other piece."""
    match = _BYTE_PIECE.fullmatch(piece)
    return int(match[1], 16) if match else None


def sentencepiece_bytes(piece: str) -> bytes:
    """Bytes of an ordinary SentencePiece piece: UTF-8 with ``▁`` as a space."""
    return piece.replace(SPACE, " ").encode("utf-8", "replace")
