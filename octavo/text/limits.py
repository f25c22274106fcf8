"""What one template render may use: steps, processor time, characters, items. The sandbox asks before and after every operation."""

from __future__ import annotations

import time
from typing import Any

MAX_CHARS = 4 << 20  # of the rendered text and of any text on the way to it
MAX_PRODUCED = 256 << 20  # characters of all long texts of a render together
LONG_TEXT = 1 << 16
MAX_ITEMS = 200_000  # values within one list, tuple or map, nested ones counted wherever they appear
MAX_DEPTH = 100
MAX_RANGE = 100_000
MAX_STEPS = 1_000_000  # loop turns, calls and filters
MAX_SECONDS = 1.0  # of processor time, so that a busy machine fails no honest template
MAX_INT_BITS = 4_096
MAX_INDENT = 8


class LimitExceeded(Exception):
    """A template asked for more than it may have; the text says what and how much is allowed."""


class Budget:
    """Counts down one render. Not shared between threads."""

    __slots__ = ("_deadline", "_produced", "_steps", "max_seconds")

    def __init__(self, max_seconds: float = MAX_SECONDS) -> None:
        self.max_seconds = max_seconds
        self._deadline = time.thread_time() + max_seconds
        self._steps = self._produced = 0

    def step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise LimitExceeded(f"more than {MAX_STEPS:,} loop turns and calls")
        if time.thread_time() > self._deadline:
            raise LimitExceeded(f"more than {self.max_seconds:g} s of computing")

    def accept(self, value: Any, least: int = LONG_TEXT) -> Any:
        """``value``, checked by :func:`check_value`; a text of at least ``least`` characters counts towards MAX_PRODUCED."""
        check_value(value)
        if isinstance(value, str) and len(value) >= least:
            self._produced += len(value)
            if self._produced > MAX_PRODUCED:
                raise LimitExceeded(f"more than {MAX_PRODUCED:,} characters on the way")
        return value


def check_chars(count: int) -> None:
    if count > MAX_CHARS:
        raise LimitExceeded(f"a text of {count:,} characters, the limit is {MAX_CHARS:,}")


def check_value(value: Any) -> Any:
    """``value`` if it is small enough, written out with everything it refers to; else LimitExceeded. Cost: at most MAX_ITEMS visits.

    Nested lists that share their parts are small in memory and endless when printed or compared, hence the count by appearance.
    """
    if isinstance(value, str):
        check_chars(len(value))
    elif isinstance(value, int):
        if value.bit_length() > MAX_INT_BITS:
            raise LimitExceeded(f"an integer of {value.bit_length():,} bits, the limit is {MAX_INT_BITS:,}")
    elif isinstance(value, (list, tuple, dict)):
        _check_container(value)
    return value


def _check_container(value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> None:
    items = chars = 0
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                chars += len(item)
                continue
            if isinstance(item, dict):
                below += item.keys()
                below += item.values()
            elif isinstance(item, (list, tuple)):
                below += item
            if len(below) > MAX_ITEMS:
                break
        items += len(below)
        if items > MAX_ITEMS:
            raise LimitExceeded(f"a list or map of more than {MAX_ITEMS:,} values")
        check_chars(chars)
        if not below:
            return
        level = below
    raise LimitExceeded(f"a list or map nested deeper than {MAX_DEPTH} levels")
