"""Token masks of constrained sequences, built while the device computes the step, and the tokens that a constraint forces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import OctavoError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from octavo.core.plan import StepPlan, StepResult
    from octavo.decode.constraint import Constraint, Pending

Key = tuple[str, int]  # (request id, index of the sequence)

MAX_FORCED = 32  # forced tokens that one step verifies


class Masks:
    """Holds the constraint of every live sequence that has one; unconstrained sequences cost nothing here.

    A constraint follows the sequence, not its slot: preemption leaves it as it is. One that fails ends its own sequence: its row gets an error.
    """

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._constraints: dict[Key, Constraint] = {}
        self._drafts: dict[Key, list[int]] = {}
        self._forced: set[Key] = set()  # whose draft came from here and not from the worker
        self._failed: dict[int, str] = {}  # rows of the step under way

    def gate(self, key: Key, pending: Pending, emitted: Sequence[int] = ()) -> Callable[[], bool]:
        """For a sequence that has ``emitted`` these tokens and waits for its constraint: whether it may start now."""

        def ready() -> bool:
            constraint = pending()
            if constraint is None:
                return False
            for token in emitted:
                constraint.accept(token)
            self._constraints[key] = constraint
            return True

        return ready

    def end(self, key: Key) -> None:
        self._constraints.pop(key, None)
        self._drafts.pop(key, None)
        self._forced.discard(key)

    def propose(self, plan: StepPlan, slots: dict[int, Key]) -> None:
        """Tell the worker, by the plan, the forced tokens that its rows verify."""
        if not self._forced:
            return
        for row in plan.rows:
            if row.num_draft and (key := slots.get(row.slot)) in self._forced:
                plan.drafts[row.slot] = self._drafts[key][: row.num_draft]

    def fill(self, plan: StepPlan, slots: dict[int, Key]) -> dict[int, NDArray[np.uint32]] | None:
        """Row number -> uint32 [1 + num_draft, ceil(V / 32)], one mask a position that samples; bit t of word t // 32 set: token t may come.

        None when no row of the step is constrained.
        """
        self._failed = {}
        if not self._constraints:
            return None
        masks: dict[int, NDArray[np.uint32]] = {}
        for number, row in enumerate(plan.rows):
            key = slots.get(row.slot)
            if row.sample and key in self._constraints:
                try:
                    mask = self._fill_row(self._constraints[key], self._drafts.get(key, [])[: row.num_draft])
                except OctavoError as error:
                    self._failed[number] = error.message
                    continue
                if mask is not None:
                    masks[number] = mask
        return masks or None

    def _fill_row(self, constraint: Constraint, draft: list[int]) -> NDArray[np.uint32] | None:
        """Walk down the draft as far as it is allowed; positions behind a forbidden token are never reached, so theirs stays open."""
        mask = np.full((len(draft) + 1, self._words), 0xFFFFFFFF, dtype=np.uint32)
        narrowed, accepted = False, 0
        for position in range(len(draft) + 1):
            narrowed |= constraint.fill(mask[position])
            if position == len(draft) or not mask[position, draft[position] // 32] >> np.uint32(draft[position] % 32) & np.uint32(1):
                break
            constraint.accept(draft[position])
            accepted += 1
        constraint.rollback(accepted)
        return mask if narrowed else None

    def advance(self, plan: StepPlan, result: StepResult, slots: dict[int, Key]) -> set[Key]:
        """Take over what the step sampled. Adds to ``result`` what the constraints have to say: errors, and forced tokens as the next draft.

        Returns the sequences whose constraint failed.
        """
        if not self._constraints:
            return set()
        result.errors.update(self._failed)
        for number, row in enumerate(plan.rows):
            key = slots.get(row.slot)
            constraint = None if key is None else self._constraints.get(key)
            if key is None or constraint is None or not row.sample or number in result.errors:
                continue
            try:
                for token in result.token_ids[number]:
                    constraint.accept(token)
                forced = constraint.forced()[:MAX_FORCED]
            except OctavoError as error:
                self._failed[number] = result.errors[number] = error.message
                continue
            if forced:
                result.draft[number] = forced
                self._forced.add(key)
            else:
                self._forced.discard(key)
            self._drafts[key] = result.draft.get(number, [])
        return {slots[plan.rows[number].slot] for number in self._failed}
