"""From rows to one flat batch: token ids, positions and block tables of a step, gathered from the slot table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from octavo.core.plan import Row
    from octavo.worker.slots import SlotTable


@dataclass(slots=True)
class Batch:
    """R rows with T tokens in all. Row r owns tokens ``offsets[r]:offsets[r + 1]`` at positions ``starts[r] ...``.

    slots int64 [R], starts int32 [R], offsets int32 [R + 1], sample bool [R], num_draft int64 [R]; token_ids, positions int64 [T];
    tables int32 [R, most blocks of a row].
    """

    slots: NDArray[np.int64]
    starts: NDArray[np.int32]
    offsets: NDArray[np.int32]
    sample: NDArray[np.bool_]
    num_draft: NDArray[np.int64]
    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    tables: NDArray[np.int32]

    @property
    def counts(self) -> NDArray[np.int32]:
        return np.diff(self.offsets)


def build(rows: Sequence[Row], table: SlotTable) -> Batch:
    """Gather a batch. Rows must have passed :func:`misfits`."""
    columns = np.array([(row.slot, row.start, row.count, row.sample, row.num_draft) for row in rows], np.int64).reshape(-1, 5)
    slots, starts, counts = columns[:, 0], columns[:, 1], columns[:, 2]
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    if offsets[-1] == len(rows):  # every row is one token
        positions, owners = starts.copy(), slots
    else:
        positions = np.arange(offsets[-1], dtype=np.int64) + np.repeat(starts - offsets[:-1], counts)
        owners = np.repeat(slots, counts)
    width = -(-int((starts + counts).max()) // table.block_size)
    return Batch(
        slots=slots,
        starts=starts.astype(np.int32),
        offsets=offsets,
        sample=columns[:, 3].astype(np.bool_),
        num_draft=columns[:, 4],
        token_ids=table.tokens[owners, positions].astype(np.int64),
        positions=positions,
        tables=table.blocks[slots, :width],
    )


def select(batch: Batch, rows: NDArray[np.int64]) -> tuple[Batch, NDArray[np.int64]]:
    """The batch of some of its rows (ascending), and which tokens of the whole those are."""
    counts = batch.counts[rows]
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    tokens = np.arange(offsets[-1], dtype=np.int64) + np.repeat(batch.offsets[:-1][rows] - offsets[:-1], counts)
    part = Batch(
        slots=batch.slots[rows],
        starts=batch.starts[rows],
        offsets=offsets,
        sample=batch.sample[rows],
        num_draft=batch.num_draft[rows],
        token_ids=batch.token_ids[tokens],
        positions=batch.positions[tokens],
        tables=np.ascontiguousarray(batch.tables[rows]),
    )
    return part, tokens


def misfits(rows: Sequence[Row], table: SlotTable, num_blocks: int) -> dict[int, str]:
    """Rows that would read or write outside their slot or the cache: row number -> what is wrong. Native kernels check nothing of this."""
    spans = np.array([(row.slot, row.start, row.start + row.count, row.num_draft) for row in rows], np.int64).reshape(-1, 4)
    slots, starts, ends, drafts = spans.T
    wrong: dict[int, str] = {}
    fits = table.used[slots] & (starts >= 0) & (ends > starts) & (ends <= np.minimum(table.length[slots] + drafts, table.max_model_len))
    for r in np.flatnonzero(~fits):
        wrong[int(r)] = f"positions {starts[r]} to {ends[r]} lie outside the request's {table.length[slots[r]]} tokens"
    needed = -(-ends // table.block_size)
    for r in np.flatnonzero(fits & (needed > table.num_blocks[slots])):
        wrong[int(r)] = f"{ends[r]} tokens need {needed[r]} blocks, the request has {table.num_blocks[slots[r]]}"
    held = table.blocks[slots, : int(needed[fits].max(initial=0))]
    if held.size and (held.min() < 0 or held.max() >= num_blocks):
        for r in np.flatnonzero(fits):
            ids = held[r, : needed[r]]
            if ids.min() < 0 or ids.max() >= num_blocks:
                wrong[int(r)] = f"its block table names a block outside 0 to {num_blocks - 1}"
    return wrong
