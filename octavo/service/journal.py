"""Live requests, in the form in which a restarted engine can take them up again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from octavo.engine.messages import AddRequest


@dataclass(slots=True)
class Entry:
    """One live request: as it was sent, what each sequence has emitted, and which sequences have ended."""

    request: AddRequest
    emitted: list[list[int]]
    finished: set[int] = field(default_factory=set)


class Journal:
    """Prompt ids, parameters (with the drawn seed) and emitted ids of every live request, in memory.

    Because output depends on these alone, an engine that starts over continues each request with the very next token.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    @property
    def num_sequences(self) -> int:
        """Sequences that have not ended."""
        return sum(len(e.emitted) - len(e.finished) for e in self._entries.values())

    def open(self, request: AddRequest) -> None:
        self._entries[request.request_id] = Entry(request, [[] for _ in range(request.params.n)])

    def record(self, request_id: str, index: int, token_ids: list[int]) -> None:
        """The sequence emitted these tokens, and their text has been taken over by its stream."""
        self._entries[request_id].emitted[index].extend(token_ids)

    def finish(self, request_id: str, index: int) -> None:
        """The sequence ended; the entry goes with its last sequence."""
        entry = self._entries[request_id]
        entry.finished.add(index)
        if len(entry.finished) == len(entry.emitted):
            del self._entries[request_id]

    def drop(self, request_id: str) -> None:
        self._entries.pop(request_id, None)

    def resumptions(self) -> list[AddRequest]:
        """What to send to an engine that knows nothing: every live request with what it had emitted, oldest first."""
        return [
            msgspec.structs.replace(
                entry.request,
                resumed={i: list(ids) for i, ids in enumerate(entry.emitted) if ids and i not in entry.finished},
                finished=sorted(entry.finished),
            )
            for entry in self._entries.values()
        ]
