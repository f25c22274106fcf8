"""Stop strings: found wherever they begin, even across deltas or inside a token, and never shown by halves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopChecker:
    """Watches the text of one sequence, whose pieces may be cut anywhere: the outcome depends on the whole text alone.

    The stop string that is complete first wins, so generation ends as early as it can; of those complete at the same character, the
    longest. ``include`` keeps it in the text. Text that may be the beginning of a stop string is held back. After a match nothing more
    comes out, and ``matched`` names the stop string.
    """

    __slots__ = ("_held", "_include", "_stops", "matched")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._stops = sorted({stop for stop in stops if stop}, key=len, reverse=True)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that is safe to show, the stop string if one has been reached)."""
        if self.matched is not None:
            return "", self.matched
        if not self._stops:
            return text, None
        held = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            end, start, self.matched = min(found)
            self._held = ""
            return held[: end if self._include else start], self.matched
        safe = self._first_open(held)
        self._held = held[safe:]
        return held[:safe], None

    def finish(self) -> str:
        """The text has ended: what was held back and did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_open(self, held: str) -> int:
        """Where the longest end of ``held`` begins that is the beginning of a stop string; ``len(held)`` if there is none."""
        size = len(held)
        longest = min(size, len(self._stops[0]) - 1)
        return next((k for k in range(size - longest, size) if any(stop.startswith(held[k:]) for stop in self._stops)), size)
