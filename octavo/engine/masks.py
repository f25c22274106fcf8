"""Token masks of constrained sequences, built while the device computes the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.decode.constraint import NullConstraint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from octavo.core.plan import StepPlan, StepResult, TokenDelta
    from octavo.decode.constraint import Constraint

Key = tuple[str, int]  # (request id, index of the sequence)


class Masks:
    """Holds the constraint of every live sequence that has one; unconstrained sequences cost nothing here.

    A constraint follows the sequence, not its slot: preemption leaves it as it is.
    """

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._constraints: dict[Key, Constraint] = {}
        self._drafts: dict[Key, list[int]] = {}

    def begin(self, key: Key, constraint: Constraint, emitted: Iterable[int] = ()) -> None:
        """A sequence that has already ``emitted`` these tokens is now live."""
        if isinstance(constraint, NullConstraint):
            return
        for token in emitted:
            constraint.accept(token)
        self._constraints[key] = constraint

    def end(self, key: Key) -> None:
        self._constraints.pop(key, None)
        self._drafts.pop(key, None)

    def fill(self, plan: StepPlan, slots: dict[int, Key]) -> dict[int, np.ndarray] | None:
        """Row number -> uint32 [1 + num_draft, ceil(V / 32)], one mask a position that samples; bit t of word t // 32 set: token t may come.

        None when no row of the step is constrained.
        """
        if not self._constraints:
            return None
        masks: dict[int, np.ndarray] = {}
        for number, row in enumerate(plan.rows):
            key = slots.get(row.slot)
            if row.sample and key in self._constraints:
                mask = self._fill_row(self._constraints[key], self._drafts.get(key, [])[: row.num_draft])
                if mask is not None:
                    masks[number] = mask
        return masks or None

    def _fill_row(self, constraint: Constraint, draft: list[int]) -> np.ndarray | None:
        """Walk down the draft as far as it is allowed; positions behind a forbidden token are never reached, so theirs stays open."""
        mask = np.full((len(draft) + 1, self._words), 0xFFFFFFFF, dtype=np.uint32)
        narrowed, accepted = False, 0
        try:
            for position in range(len(draft) + 1):
                narrowed |= constraint.fill(mask[position])
                if position == len(draft) or not mask[position, draft[position] // 32] >> np.uint32(draft[position] % 32) & np.uint32(1):
                    break
                constraint.accept(draft[position])
                accepted += 1
        finally:
            constraint.rollback(accepted)
        return mask if narrowed else None

    def commit(self, plan: StepPlan, result: StepResult, deltas: list[TokenDelta], slots: dict[int, Key]) -> None:
        """Take over what the step emitted, and the proposals that the next step will verify."""
        if not self._constraints:
            return
        for number, row in enumerate(plan.rows):
            key = slots.get(row.slot)
            if key in self._constraints:
                self._drafts[key] = result.draft.get(number, [])
        for delta in deltas:
            constraint = self._constraints.get((delta.request_id, delta.index))
            for token in delta.token_ids if constraint is not None else ():
                constraint.accept(token)  # type: ignore[union-attr]
