"""Constraints say which tokens may come next (grammars, schemas). They run between launch and sample, off the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np


class Constraint(Protocol):
    """State of one sequence's constraint. Four verbs."""

    def fill(self, mask: np.ndarray) -> bool:
        """Clear the bits of forbidden tokens in ``mask`` (uint32 [ceil(V / 32)], all ones on entry). False: nothing is forbidden."""
        ...

    def accept(self, token_id: int) -> None:
        """The sequence took this token."""
        ...

    def rollback(self, count: int) -> None:
        """Undo the last ``count`` accepts."""
        ...

    def done(self) -> bool:
        """Only end-of-sequence may follow."""
        ...


class NullConstraint:
    """Everything is allowed, always."""

    def fill(self, mask: np.ndarray) -> bool:
        return False

    def accept(self, token_id: int) -> None:
        return None

    def rollback(self, count: int) -> None:
        return None

    def done(self) -> bool:
        return False
