"""The slot table: what the worker remembers of each running request, as columns, so that a step is gathered without a loop over tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from octavo.core.plan import Admit, Row

NOT_WANTED = -1


class SlotTable:
    """One row a slot. Untouched pages of the big columns take no memory.

    tokens int32 [slots, max_model_len + 1]: known tokens, then draft tokens.   length int64 [slots]: known tokens.
    blocks int32 [slots, blocks of max_model_len]: block tables.                num_blocks int64 [slots]: valid entries of them.
    logprobs, prompt_logprobs int64 [slots]: number of alternatives asked, -1 if not asked.
    """

    def __init__(self, num_slots: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.tokens: NDArray[np.int32] = np.zeros((num_slots, max_model_len + 1), np.int32)
        self.blocks: NDArray[np.int32] = np.zeros((num_slots, -(-max_model_len // block_size)), np.int32)
        self.length = np.zeros(num_slots, np.int64)
        self.prompt_len = np.zeros(num_slots, np.int64)
        self.num_blocks = np.zeros(num_slots, np.int64)
        self.logprobs = np.full(num_slots, NOT_WANTED, np.int64)
        self.prompt_logprobs = np.full(num_slots, NOT_WANTED, np.int64)
        self.used = np.zeros(num_slots, np.bool_)
        self.known: list[list[int]] = [[] for _ in range(num_slots)]  # the same tokens as lists, which drafters read
        self.draft: list[list[int]] = [[] for _ in range(num_slots)]  # proposals of the last step

    def admit(self, admit: Admit) -> None:
        """Take over a request; what the slot held before is gone. Raises ValueError if it cannot be held."""
        slot, count = admit.slot, len(admit.token_ids)
        self.drop(slot)
        if count > self.max_model_len or len(admit.block_ids) > self.blocks.shape[1]:
            raise ValueError(f"{count:,} tokens in {len(admit.block_ids):,} blocks do not fit a slot of {self.max_model_len:,} tokens")
        self.tokens[slot, :count] = admit.token_ids
        self.blocks[slot, : len(admit.block_ids)] = admit.block_ids
        self.length[slot], self.prompt_len[slot] = count, admit.prompt_len
        self.num_blocks[slot] = len(admit.block_ids)
        params = admit.params
        self.logprobs[slot] = NOT_WANTED if params.logprobs is None else params.logprobs
        self.prompt_logprobs[slot] = NOT_WANTED if params.prompt_logprobs is None else params.prompt_logprobs
        self.known[slot] = list(admit.token_ids)
        self.used[slot] = True

    def drop(self, slot: int) -> None:
        """Forget the request; dropping an empty slot changes nothing."""
        self.used[slot] = False
        self.length[slot] = self.num_blocks[slot] = 0
        self.logprobs[slot] = self.prompt_logprobs[slot] = NOT_WANTED
        self.known[slot], self.draft[slot] = [], []

    def place(self, row: Row) -> None:
        """Apply a row's change of its block table, and lay its draft tokens behind the known ones."""
        slot = row.slot
        if row.blocks:
            end = row.blocks_at + len(row.blocks)
            self.blocks[slot, row.blocks_at : end] = row.blocks
            self.num_blocks[slot] = max(int(self.num_blocks[slot]), end)
        if row.num_draft:
            at = int(self.length[slot])
            self.tokens[slot, at : at + row.num_draft] = self.draft[slot][: row.num_draft]

    def append(self, slots: Sequence[int], token_ids: Sequence[Sequence[int]]) -> None:
        """The outputs of these slots grew, each by its tokens. ``known`` follows too."""
        flat = [token for tokens in token_ids for token in tokens]
        rows = np.array(slots, np.int64)
        at = self.length[rows]
        if len(flat) == len(rows):  # one token each
            self.tokens[rows, at] = flat
            self.length[rows] = at + 1
        else:
            counts = np.array([len(tokens) for tokens in token_ids], np.int64)
            steps = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
            self.tokens[np.repeat(rows, counts), np.repeat(at, counts) + steps] = flat
            self.length[rows] = at + counts
        for slot, tokens in zip(slots, token_ids, strict=True):
            self.known[slot] += tokens
