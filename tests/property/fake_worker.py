"""A deterministic model behind a slot table, block tables and KV memory, and the brute-force reference it must agree with.

The KV value of position p is a hash of the value at p - 1 (as read through the block table), the token, and p. The next token is a hash of
every value read through the table, the seed, the sequence index and the position. So a block that is shared, copied, evicted or written
wrongly changes the text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.core.plan import Admit, PositionLogprobs, Row, StepPlan, StepResult

if TYPE_CHECKING:
    import random

VOCAB = 23


def kv_value(previous: int, token: int, position: int) -> int:
    return hash((previous, token, position, 0x5EED))


def next_token(values: list[int], seed: int, index: int) -> int:
    return (hash((seed, index, len(values), *values)) >> 7) % VOCAB


def score(values: list[int], token: int) -> PositionLogprobs:
    """A stand-in log-probability of ``token`` after ``values``."""
    return PositionLogprobs([token], [-float(hash((token, *values)) % 1000) / 100], [1])


def values_of(tokens: list[int]) -> list[int]:
    values: list[int] = []
    for position, token in enumerate(tokens):
        values.append(kv_value(values[-1] if values else 0, token, position))
    return values


def sequential(
    prompt: list[int], *, seed: int, index: int, max_len: int, min_tokens: int = 0, stop: frozenset[int] = frozenset()
) -> tuple[list[int], str]:
    """One sequence alone, one token at a time, no cache: (output, finish reason)."""
    values, output = values_of(prompt), []
    while True:
        token = next_token(values, seed, index)
        output.append(token)
        if token in stop and len(output) > min_tokens:
            return output, "stop"
        if len(prompt) + len(output) == max_len:
            return output, "length"
        values.append(kv_value(values[-1], token, len(values)))


@dataclass
class Seat:
    admit: Admit
    tokens: list[int]
    table: list[int]
    draft: list[int] = field(default_factory=list)


class FakeWorker:
    """Applies plans in the documented order: drops, admits, copies, rows. All writes of a step come before all reads, as in a real layer."""

    def __init__(self, num_slots: int, num_blocks: int, block_size: int, rng: random.Random, *, max_draft: int = 0) -> None:
        self.block_size, self.rng, self.max_draft = block_size, rng, max_draft
        self.seats: list[Seat | None] = [None] * num_slots
        self.memory = [[0] * block_size for _ in range(num_blocks)]
        self.fail_after: dict[tuple[str, int], int] = {}  # (request id, index) -> output tokens after which its row fails
        self.last_step = 0
        self.rows_run = self.tokens_run = self.drafts_right = self.drafts_wrong = self.copies_run = 0

    def step(self, plan: StepPlan) -> StepResult:
        assert plan.step > self.last_step
        self.last_step = plan.step
        for slot in plan.drops:
            assert self.seats[slot] is not None, f"dropped slot {slot} is empty"
            self.seats[slot] = None
        for admit in plan.admits:
            assert self.seats[admit.slot] is None, f"slot {admit.slot} is taken"
            self.seats[admit.slot] = Seat(admit, list(admit.token_ids), list(admit.block_ids))
        self._copy(plan.copies)
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        assert sum(row.count for row in plan.rows) == plan.num_tokens
        for row in plan.rows:
            self._write(row)
        result = StepResult([[] for _ in plan.rows])
        for i, row in enumerate(plan.rows):
            self._read(i, row, result)
        return result

    def _copy(self, copies: list[tuple[int, int]]) -> None:
        sources, destinations = [s for s, _ in copies], [d for _, d in copies]
        assert not set(sources) & set(destinations), "a destination is a source"
        assert len(set(destinations)) == len(destinations)
        for source, destination in copies:
            self.memory[destination] = list(self.memory[source])
        self.copies_run += len(copies)

    def _seat(self, row: Row) -> Seat:
        seat = self.seats[row.slot]
        assert seat is not None, f"row for empty slot {row.slot}"
        return seat

    def _write(self, row: Row) -> None:
        seat = self._seat(row)
        if row.blocks:
            assert row.blocks_at <= len(seat.table)
            seat.table[row.blocks_at :] = row.blocks
        known = len(seat.tokens)
        assert row.count > 0 and row.num_draft <= len(seat.draft)
        assert row.sample == (row.start + row.count >= known) and row.num_draft == max(0, row.start + row.count - known)
        text = seat.tokens + seat.draft[: row.num_draft]
        for position in range(row.start, row.start + row.count):
            previous = self._at(seat, position - 1) if position else 0
            self.memory[seat.table[position // self.block_size]][position % self.block_size] = kv_value(previous, text[position], position)
        self.rows_run += 1
        self.tokens_run += row.count

    def _at(self, seat: Seat, position: int) -> int:
        return self.memory[seat.table[position // self.block_size]][position % self.block_size]

    def _read(self, i: int, row: Row, result: StepResult) -> None:
        seat = self._seat(row)
        admit = seat.admit
        if len(seat.tokens) - admit.prompt_len >= self.fail_after.get((admit.request_id, admit.index), 10**9) and row.sample:
            result.errors[i] = "device fault"
            return
        end = row.start + row.count
        values = [self._at(seat, position) for position in range(end)]
        if admit.params.prompt_logprobs is not None:
            last = min(end, admit.prompt_len - 1)
            result.prompt_logprobs[i] = [score(values[: p + 1], seat.tokens[p + 1]) for p in range(row.start, last)]
        if not row.sample:
            return
        seed = admit.params.seed or 0
        sampled: list[int] = []
        draft = seat.draft[: row.num_draft]
        for ahead in range(row.num_draft + 1):
            upto = values[: end - row.num_draft + ahead]
            sampled.append(next_token(upto, seed, admit.index))
            if admit.params.logprobs is not None:
                result.logprobs.setdefault(i, []).append(score(upto, sampled[-1]))
            if ahead == row.num_draft or sampled[-1] != draft[ahead]:
                break
        self.drafts_right += len(sampled) - 1
        self.drafts_wrong += row.num_draft - (len(sampled) - 1)
        result.token_ids[i] = sampled
        seat.tokens += sampled
        seat.draft = self._propose(seat, seed)
        if seat.draft:
            result.draft[i] = list(seat.draft)

    def _propose(self, seat: Seat, seed: int) -> list[int]:
        """The true continuation for a while, then perhaps a wrong token."""
        if not self.max_draft:
            return []
        values, draft = values_of(seat.tokens), []
        for _ in range(self.rng.randint(0, self.max_draft)):
            token = next_token(values, seed, seat.admit.index)
            if self.rng.random() < 0.3:
                token = (token + 1) % VOCAB
            draft.append(token)
            values.append(kv_value(values[-1], token, len(values)))
        return draft
