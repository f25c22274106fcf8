"""Drafters propose tokens that the target model then verifies by equality, so they change speed and never one byte."""

from __future__ import annotations

from typing import Protocol


class Drafter(Protocol):
    """Four verbs. The null drafter proposes nothing, so nobody asks whether speculation is on."""

    def begin(self, slot: int, token_ids: list[int]) -> None:
        """A request with these known tokens took the slot."""
        ...

    def draft(self, slot: int, token_ids: list[int]) -> list[int]:
        """Proposals to follow ``token_ids`` (all known tokens of the slot); may be empty."""
        ...

    def accept(self, slot: int, proposed: int, accepted: int) -> None:
        """Of ``proposed`` tokens the first ``accepted`` were right."""
        ...

    def end(self, slot: int) -> None:
        """The slot was freed."""
        ...


class NullDrafter:
    """No speculation."""

    def begin(self, slot: int, token_ids: list[int]) -> None:
        return None

    def draft(self, slot: int, token_ids: list[int]) -> list[int]:
        return []

    def accept(self, slot: int, proposed: int, accepted: int) -> None:
        return None

    def end(self, slot: int) -> None:
        return None
