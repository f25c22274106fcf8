"""Text that arrives in pieces, read as if it were whole: a reader that lacks text waits (yields) and goes on where it was.

Readers are generators. What they decide depends on the text alone, never on where it was cut: a choice between markers waits until the
text rules all but one out. Positions move when text is dropped, so readers keep none across a wait but ``at`` and ``mark``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    T = TypeVar("T")
    Reading = Generator[None, None, T]

SPACE = " \t\n\r"
_SPACES = re.compile(f"[{SPACE}]*")


class Malformed(Exception):
    """The text is not what the format says at this place."""


class Ended(Malformed):
    """The text ended here."""


class Markers:
    """A set of texts to look for at once; of those that begin at one place, the longest counts."""

    __slots__ = ("_firsts", "_pattern", "_reach", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted({text for text in texts if text}, key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self.texts))) if self.texts else None
        self._firsts = "".join({text[0] for text in self.texts})
        self._reach = max(map(len, self.texts), default=1) - 1

    def search(self, text: str, start: int, final: bool) -> tuple[int, str] | None:
        """(place, marker) of the first marker at or after ``start``; None while more text (``final``: there is none) could make it longer."""
        match = self._pattern.search(text, start) if self._pattern is not None else None
        if match is None:
            return None
        rest = text[match.start() : match.start() + self._reach + 1]
        if not final and any(len(marker) > len(rest) and marker.startswith(rest) for marker in self.texts):
            return None
        return match.start(), match[0]

    def first_open(self, text: str, start: int) -> int:
        """Where a marker may have begun that more text would complete; ``len(text)`` if nowhere."""
        size = len(text)
        low = max(start, size - self._reach)
        tail = text[low:]
        for first in self._firsts:
            if first in tail:
                break
        else:
            return size
        return next((k for k in range(low, size) if any(marker.startswith(text[k:]) for marker in self.texts)), size)


class Source:
    """The text that has come and is not used up. ``mark``: a place to go back to; text from there on is kept."""

    __slots__ = ("at", "ended", "mark", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.mark: int | None = None
        self.ended = False

    def feed(self, piece: str) -> None:
        cut = self.at if self.mark is None else self.mark
        self.text = self.text[cut:] + piece
        self.at -= cut
        if self.mark is not None:
            self.mark = 0

    def rest(self) -> str:
        """Everything that is left, taken."""
        text, self.at = self.text[self.at :], len(self.text)
        return text

    def char(self) -> Reading[str]:
        """The next character, not taken. Raises Ended."""
        while self.at >= len(self.text):
            if self.ended:
                raise Ended
            yield
        return self.text[self.at]

    def peek(self, count: int) -> Reading[str]:
        """The next ``count`` characters, not taken; fewer if the text ends before."""
        while len(self.text) - self.at < count and not self.ended:
            yield
        return self.text[self.at : self.at + count]

    def take(self, count: int) -> Reading[str]:
        """The next ``count`` characters. Raises Ended, taking nothing, if there are fewer."""
        taken = yield from self.peek(count)
        if len(taken) < count:
            raise Ended
        self.at += count
        return taken

    def space(self) -> Reading[str]:
        """Blank space up to something else or the end, taken."""
        found = ""
        while True:
            match = _SPACES.match(self.text, self.at)
            assert match is not None
            found += match[0]
            self.at = match.end()
            if self.at < len(self.text) or self.ended:
                return found
            yield

    def literal(self, *options: str) -> Reading[str | None]:
        """The longest of ``options`` that comes next, taken; None, taking nothing, if none does."""
        reach = max(map(len, options), default=0)
        while True:
            rest = self.text[self.at : self.at + reach]
            if self.ended or not any(len(option) > len(rest) and option.startswith(rest) for option in options):
                break
            yield
        best = max((option for option in options if option and rest.startswith(option)), key=len, default=None)
        self.at += len(best or "")
        return best

    def expect(self, *options: str) -> Reading[str]:
        """Like :meth:`literal`. Raises Malformed if none comes, Ended if the text ended before it could."""
        found = yield from self.literal(*options)
        if found is None:
            rest = self.text[self.at :]
            raise Ended if self.ended and any(option.startswith(rest) for option in options) else Malformed
        return found

    def until(self, stops: Markers, limit: int) -> Reading[str]:
        """Text before the first of ``stops``, taken without it. Raises Malformed beyond ``limit`` characters, Ended if no stop comes."""
        while True:
            found = stops.search(self.text, self.at, self.ended)
            if found is not None and found[0] - self.at <= limit:
                taken, self.at = self.text[self.at : found[0]], found[0]
                return taken
            if found is not None or stops.first_open(self.text, self.at) - self.at > limit:
                raise Malformed
            if self.ended:
                raise Ended
            yield

    def flow(self, stops: Markers) -> tuple[str, str | None]:
        """(text that no stop can be part of, the stop after it), both taken, without waiting. At the end everything is text."""
        found = stops.search(self.text, self.at, self.ended)
        if found is not None:
            safe, after = found[0], found[0] + len(found[1])
        else:
            safe = after = len(self.text) if self.ended else stops.first_open(self.text, self.at)
        text, self.at = self.text[self.at : safe], after
        return text, None if found is None else found[1]
