"""Drives a model as the worker does, without a scheduler: sequences over shuffled block tables, rows of any count in one step."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from octavo.backend.base import AttentionBatch, KVSpec
from octavo.layers.step import Step

if TYPE_CHECKING:
    from octavo.backend.base import Backend
    from octavo.models.base import Model


@dataclass
class Sequence:
    token_ids: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)  # one [count, vocabulary] a row


class Sequences:
    """One cache and the sequences in it. Blocks are handed out in shuffled order and filled with garbage before use."""

    def __init__(self, model: Model, backend: Backend, block_size: int = 8, num_blocks: int = 256, seed: int = 0) -> None:
        self.model, self.backend, self.block_size = model, backend, block_size
        self.kv = backend.alloc_kv(KVSpec(model.attention_layers, block_size, torch.float32), num_blocks)
        for layer in self.kv:
            layer.k.fill_(37.0)
            layer.v.fill_(-53.0)
        self.free = list(range(num_blocks))
        random.Random(seed).shuffle(self.free)

    def step(self, rows: list[tuple[Sequence, int]]) -> None:
        """Compute the next ``count`` tokens of each sequence; appends the logits of all of them."""
        for sequence, count in rows:
            while len(sequence.blocks) * self.block_size < sequence.computed + count:
                sequence.blocks.append(self.free.pop())
        counts = [count for _, count in rows]
        tables = np.zeros((len(rows), max(len(sequence.blocks) for sequence, _ in rows)), np.int32)
        for table, (sequence, _) in zip(tables, rows, strict=True):
            table[: len(sequence.blocks)] = sequence.blocks
        spans = [range(sequence.computed, sequence.computed + count) for sequence, count in rows]
        batch = AttentionBatch(
            offsets=np.cumsum([0, *counts]).astype(np.int32),
            starts=np.array([span.start for span in spans], np.int32),
            tables=tables,
            block_size=self.block_size,
        )
        step = Step(
            token_ids=torch.tensor([sequence.token_ids[p] for (sequence, _), span in zip(rows, spans, strict=True) for p in span]),
            positions=torch.tensor([p for span in spans for p in span]),
            attention=self.backend.plan_attention(batch),
            kv=self.kv,
        )
        with torch.inference_mode():
            pieces = self.model.logits(self.model(step)).split(counts)
        for (sequence, count), piece in zip(rows, pieces, strict=True):
            sequence.computed += count
            sequence.logits.append(piece)


def logits_of(model: Model, backend: Backend, token_ids: list[int], counts: list[int], block_size: int = 8) -> torch.Tensor:
    """Logits of every token [tokens, vocabulary], computed alone in rows of ``counts``."""
    sequences, sequence = Sequences(model, backend, block_size), Sequence(token_ids)
    for count in counts:
        sequences.step([(sequence, count)])
    assert sequence.computed == len(token_ids)
    return torch.cat(sequence.logits)
