"""SentencePiece's BPE over pieces with scores, with byte fallback: the encoder behind GGUF files whose tokenizer model is "llama".

Algorithm: Kudo and Richardson, SentencePiece (2018), its BPE model: start from characters, always join the neighbours whose union is the
piece of highest score (the leftmost of equals), until no union is a piece. Building a table of merges instead costs seconds for a
vocabulary of 262,144 pieces and settles ties differently; here start-up is one dictionary.
"""

from __future__ import annotations

import heapq
import re
from typing import TYPE_CHECKING

from octavo.errors import UnsupportedModel
from octavo.text.pieces import SPACE, byte_value, sentencepiece_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # SentencePiece's piece types, as GGUF stores them
MAX_CACHED_WORDS = 1 << 16
MAX_CACHED_CHARS = 48


class Matcher:
    """Finds whole tokens in a text: at each position the longest, from left to right."""

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = ids
        lengths: dict[str, set[int]] = {}
        for token in ids:
            lengths.setdefault(token[:2], set()).add(len(token))
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        heads = sorted(lengths, key=lambda head: (-len(head), head))
        self._start = re.compile("|".join(map(re.escape, heads))) if heads else None

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Parts of ``text`` in order: (text, None) between tokens, (token, id) for a token."""
        done = at = 0
        while self._start is not None and (found := self._start.search(text, at)) is not None:
            begin = found.start()
            token = self._longest(text, begin)
            if token is None:
                at = begin + 1
                continue
            if begin > done:
                yield text[done:begin], None
            yield token, self._ids[token]
            done = at = begin + len(token)
        if done < len(text):
            yield text[done:], None

    def _longest(self, text: str, begin: int) -> str | None:
        for head in (text[begin : begin + 2], text[begin]):
            for length in self._lengths.get(head, ()):
                token = text[begin : begin + length]
                if token in self._ids:
                    return token
        return None


class SentencePieceBPE:
    """A :class:`octavo.text.pieces.Codec`. ``pieces``, ``scores`` and ``types`` have one entry an id; spaces are written ``▁``.

    ``add_space_prefix`` puts a space before the text and before text that follows a control or user-defined token, as Llama's tokenizer
    does. Text is not normalised, as in every such model that names no rules of its own. Characters without a piece become byte pieces,
    or one unknown token a run if the vocabulary has none. Raises UnsupportedModel if it has neither.
    """

    def __init__(
        self,
        pieces: Sequence[str],
        scores: Sequence[float],
        types: Sequence[int],
        *,
        add_space_prefix: bool = False,
        unk_token_id: int | None = None,
    ) -> None:
        self.size = len(pieces)
        self._pieces = pieces
        self._rank = [-score for score in scores]
        self._add_space_prefix, self._unk = add_space_prefix, unk_token_id
        self._ids, self._unused, special, user, self._byte_ids = _by_type(pieces, types)
        self._bytes = {i: bytes([b]) for b, i in self._byte_ids.items()}
        self._special = {token.replace(" ", SPACE): i for token, i in (special | user).items()}
        if len(self._byte_ids) < 256:
            self._byte_ids = {}
            if unk_token_id is None:
                raise UnsupportedModel("the SentencePiece vocabulary has neither 256 byte pieces nor an unknown token")
        self._match_all, self._match_user = Matcher(self._special), Matcher(user)
        self._words = _word_pattern(self._ids)
        self._cache: dict[str, tuple[int, ...]] = {}

    def piece(self, token_id: int) -> str | None:
        return self._pieces[token_id] if 0 <= token_id < self.size else None

    def piece_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.size:
            return b""
        return self._bytes.get(token_id) or sentencepiece_bytes(self._pieces[token_id])

    def piece_to_id(self, piece: str) -> int | None:
        found = self._special.get(piece.replace(" ", SPACE), self._ids.get(piece))
        if found is None and (byte := byte_value(piece)) is not None:
            return self._byte_ids.get(byte)
        return found

    def encode(self, text: str, parse_special: bool) -> list[int]:
        matcher = self._match_all if parse_special else self._match_user
        prefix = SPACE if self._add_space_prefix else ""
        out: list[int] = []
        for part, token_id in matcher.split(text.replace(" ", SPACE)):
            if token_id is not None:
                out.append(token_id)
            else:  # a text part is the first or follows a token
                self._encode_text(prefix + part, out)
        return out

    def _encode_text(self, text: str, out: list[int]) -> None:
        cache = self._cache
        first = len(out)
        for word in self._words.split(text):
            ids = cache.get(word)
            if ids is None:
                ids = tuple(self._encode_word(word))
                if len(word) <= MAX_CACHED_CHARS:
                    if len(cache) >= MAX_CACHED_WORDS:
                        cache.clear()
                    cache[word] = ids
            out += ids
        if not self._byte_ids:
            out[first:] = _fold(out[first:], self._unk)

    def _encode_word(self, word: str) -> Iterator[int]:
        symbols, parts = self._merge(word)
        for symbol in symbols:
            yield from self._symbol_ids(symbol, parts)

    def _symbol_ids(self, symbol: str, parts: dict[str, tuple[str, str]]) -> Iterator[int]:
        """Ids of one merged symbol; unused pieces are taken apart again, characters without a piece become bytes."""
        token_id = self._ids.get(symbol)
        if token_id is not None and (token_id not in self._unused or symbol not in parts):
            yield token_id
        elif token_id is not None:
            for part in parts[symbol]:
                yield from self._symbol_ids(part, parts)
        elif self._byte_ids:
            for byte in symbol.encode():
                yield self._byte_ids[byte]
        elif self._unk is not None:
            yield self._unk

    def _merge(self, word: str) -> tuple[list[str], dict[str, tuple[str, str]]]:
        """Symbols left after all merges, and what each merged symbol was made of (kept only if there are unused pieces)."""
        symbols = list(word)
        count = len(symbols)
        before, after = list(range(-1, count - 1)), [*range(1, count), -1]
        ids, rank, parts = self._ids, self._rank, {}
        agenda: list[tuple[float, int, int, int]] = []  # (-score, left, right, characters of both)
        for left in range(count - 1):
            token_id = ids.get(word[left : left + 2])
            if token_id is not None:
                agenda.append((rank[token_id], left, left + 1, 2))
        heapq.heapify(agenda)
        while agenda:
            _, left, right, size = heapq.heappop(agenda)
            a, b = symbols[left], symbols[right]
            if not a or not b or len(a) + len(b) != size:
                continue  # one of the two has been merged since
            if self._unused:
                parts[a + b] = (a, b)
            merged = symbols[left] = a + b
            symbols[right] = ""
            behind = after[left] = after[right]
            if behind >= 0:
                before[behind] = left
                token_id = ids.get(merged + symbols[behind])
                if token_id is not None:
                    heapq.heappush(agenda, (rank[token_id], left, behind, size + len(symbols[behind])))
            ahead = before[left]
            if ahead >= 0:
                token_id = ids.get(symbols[ahead] + merged)
                if token_id is not None:
                    heapq.heappush(agenda, (rank[token_id], ahead, left, size + len(symbols[ahead])))
        return [s for s in symbols if s], parts


def _by_type(
    pieces: Sequence[str], types: Sequence[int]
) -> tuple[dict[str, int], frozenset[int], dict[str, int], dict[str, int], dict[int, int]]:
    """(mergeable pieces, unused ids, control and unknown tokens, user-defined tokens, byte to id), all by id order, the first of equals."""
    ids = dict(zip(reversed(pieces), range(len(pieces) - 1, -1, -1), strict=True))
    special: dict[str, int] = {}
    user: dict[str, int] = {}
    byte_ids: dict[int, int] = {}
    unused: set[int] = set()
    for i, kind in enumerate(types):
        if kind == NORMAL:
            continue
        piece = pieces[i]
        if kind == UNUSED:
            unused.add(i)
            continue
        if ids.get(piece) == i:
            del ids[piece]
        if kind in (CONTROL, UNKNOWN) and piece:
            special.setdefault(piece, i)
        elif kind == USER_DEFINED and piece:
            user.setdefault(piece.replace(" ", SPACE), i)
        elif kind == BYTE and (byte := byte_value(piece)) is not None:
            byte_ids.setdefault(byte, i)
    ids.pop("", None)
    return ids, frozenset(unused), special, user, byte_ids


def _word_pattern(pieces: Iterable[str]) -> re.Pattern[str]:
    """Where a text may be cut without changing its ids: before a ``▁`` whose left neighbour never stands before one inside a piece."""
    inside = {*re.findall(f"([^\n]){SPACE}", "\n".join(pieces)), SPACE, "\n"}
    return re.compile(f"(?<=[^{re.escape(''.join(sorted(inside)))}])(?={SPACE})")


def _fold(ids: list[int], unk: int | None) -> list[int]:
    """Runs of the unknown token as one."""
    return [token_id for k, token_id in enumerate(ids) if token_id != unk or k == 0 or ids[k - 1] != unk]
