"""Constraints say which tokens may come next (grammars, schemas). They run between launch and sample, off the scheduler.

A sequence without a constraint is not known here at all, so it costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    # Asked until it gives the constraint; raises RequestError when there will be none.
    Pending = Callable[[], "Constraint | None"]


class Constraint(Protocol):
    """State of one sequence's constraint. Four verbs; each raises GrammarError when the constraint cannot go on, which ends the sequence."""

    def fill(self, mask: NDArray[np.uint32]) -> bool:
        """Clear the bits of forbidden tokens in ``mask`` (uint32 [ceil(V / 32)], all ones on entry). False: nothing is forbidden."""
        ...

    def accept(self, token_id: int) -> None:
        """The sequence took this token."""
        ...

    def rollback(self, count: int) -> None:
        """Undo the last ``count`` accepts."""
        ...

    def forced(self) -> list[int]:
        """Tokens of the only text that can follow, as far as it goes; may be empty. A proposal: the mask may allow other tokens of that text."""
        ...
