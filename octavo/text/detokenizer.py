"""Token ids to text as they arrive: characters come out whole, none is lost, and the pieces add up to the decode of the whole."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.text.tokenizer import Tokenizer

_Decoder = codecs.getincrementaldecoder("utf-8")
_LONGEST = 4  # bytes of a UTF-8 character


class Detokenizer:
    """State of one reply. Whatever the calls, ``push(...) + ... + finish()`` is what the reply adds to the decode of prompt plus reply.

    Bytes of an unfinished character are held back; bytes that no character can begin with become U+FFFD at once. ``prompt_ids`` decides
    the first space (a SentencePiece reply keeps it unless nothing precedes it) and completes a character that the prompt broke off in.
    ``keep``: special tokens that are not skipped, because a reader of the text looks for them.
    """

    __slots__ = ("_decode", "_skip", "_strip", "_table")

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True, keep: frozenset[int] = frozenset()
    ) -> None:
        self._table = tokenizer.bytes_table
        self._skip: frozenset[int] = tokenizer.special_token_ids - keep if skip_special_tokens else frozenset()
        self._decode = _Decoder("replace").decode
        tail = self._tail(prompt_ids)
        self._decode(tail)
        self._strip = tokenizer.strip_leading_space and not tail

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        """The prompt's last bytes, enough to hold any unfinished character; empty if the prompt has no text."""
        tail = b""
        for token_id in reversed(prompt_ids):
            if token_id not in self._skip:
                tail = self._table[token_id] + tail
                if len(tail) >= _LONGEST:
                    break
        return tail

    def push(self, ids: Sequence[int]) -> str:
        """Text that is certain after these ids; may be empty."""
        table, skip = self._table, self._skip
        data = b"".join([table[i] for i in ids if i not in skip])
        if self._strip and data:
            self._strip = False
            if data.startswith(b" "):
                data = data[1:]
        return self._decode(data)

    def finish(self) -> str:
        """What is still held back: U+FFFD if the reply ends inside a character, else nothing."""
        return self._decode(b"", True)
