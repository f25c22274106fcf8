"""Finding the rows that make a computation fail, so that they fail alone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

log = logging.getLogger("octavo.worker")

T = TypeVar("T")


def isolate(
    rows: NDArray[np.int64], compute: Callable[[NDArray[np.int64]], T], errors: dict[int, str]
) -> list[tuple[NDArray[np.int64], T]]:
    """Run ``compute`` over all ``rows`` at once; when it raises, over halves of them, down to the single rows that are to blame.

    Returns what was computed, with the rows it was computed for; ``errors`` gains the rows that failed. ``compute`` must give a row the same
    result in any company, and may run again for a row (writing the same keys and values once more is harmless).
    """
    if not len(rows):
        return []
    try:
        return [(rows, compute(rows))]
    except Exception as error:
        if len(rows) == 1:
            log.error("a row failed", exc_info=error)
            errors[int(rows[0])] = describe(error)
            return []
        log.warning("a batch of %d rows failed (%s); trying smaller ones", len(rows), describe(error))
    half = len(rows) // 2
    return isolate(rows[:half], compute, errors) + isolate(rows[half:], compute, errors)


def describe(error: BaseException) -> str:
    """One line: the kind of error and what it says."""
    text = str(error).strip()
    name = "out of memory" if isinstance(error, MemoryError) or "can't allocate memory" in text else type(error).__name__
    return f"{name}: {text.splitlines()[0]}" if text else name
