"""Captured decode steps: what runs when every row of a step computes one token.

The inputs of a step are copied to fixed memory, and the backend repeats the whole model over it without the model's Python code
(:meth:`octavo.backend.base.Backend.capture`; a CUDA graph on a GPU). There is one capture for each number of rows, made when it first occurs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from octavo.backend.base import AttentionBatch
from octavo.layers.step import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from octavo.backend.base import Backend, LayerKV
    from octavo.models.base import Model
    from octavo.worker.batch import Batch
    from octavo.worker.slots import SlotTable


class CapturedSteps:
    """Captures over the first rows of one set of input arrays, sized for every slot of ``table``."""

    def __init__(self, model: Model, backend: Backend, kv: list[LayerKV], table: SlotTable) -> None:
        self._model, self._backend, self._kv, self._block_size = model, backend, kv, table.block_size
        slots = len(table.used)
        self._token_ids = torch.zeros(slots, dtype=torch.int64, device=backend.device)
        self._positions = torch.zeros(slots, dtype=torch.int64, device=backend.device)
        self._offsets = np.arange(slots + 1, dtype=np.int32)
        self._starts = np.zeros(slots, np.int32)
        self._tables = np.zeros((slots, table.blocks.shape[1]), np.int32)
        self._steps: dict[int, Callable[[], Tensor]] = {}
        self._possible = True

    def run(self, batch: Batch) -> Tensor | None:
        """Hidden states float32 [R, H], overwritten by the next run; None where the step has to run as usual."""
        rows = len(batch.slots)
        if not self._possible or len(batch.token_ids) != rows:
            return None
        self._token_ids[:rows] = torch.from_numpy(batch.token_ids)
        self._positions[:rows] = torch.from_numpy(batch.positions)
        self._starts[:rows] = batch.starts
        self._tables[:rows, : batch.tables.shape[1]] = batch.tables
        step = self._steps.get(rows)
        if step is None:
            step = self._capture(rows)
            if step is None:
                self._possible = False
                return None
            self._steps[rows] = step
        return step()

    def _capture(self, rows: int) -> Callable[[], Tensor] | None:
        attention = AttentionBatch(self._offsets[: rows + 1], self._starts[:rows], self._tables[:rows], self._block_size)
        step = Step(self._token_ids[:rows], self._positions[:rows], self._backend.plan_attention(attention), self._kv)
        return self._backend.capture(partial(self._model, step))
