"""From logits to token ids: per-slot parameters as columns, rules for the rows that have any, then the backend's sampling.

Noise is Gumbel-max with Philox4x32-10 keyed by the request's seed and counted by (token id // 4, sequence index, position): see
:mod:`octavo.kernels.philox`. It depends on nothing else, so neither the batch, nor a restart, nor a draft changes a token. ``position`` is the
one the sampled token will take, that is the number of tokens before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.backend.base import SampleBatch
from octavo.decode.penalties import LogitRules, forbid_by_mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from octavo.backend.base import Backend
    from octavo.core.plan import Admit

_SEED_MASK = 2**64 - 1


class Sampler:
    """Sampling state of every slot. ``begin`` derives it from prompt and output alone, so a resumed request goes on as if nothing had happened."""

    def __init__(self, backend: Backend, vocab_size: int, max_slots: int) -> None:
        """``vocab_size`` is the number of logits of a row."""
        self._backend, self._vocab_size = backend, vocab_size
        self._temperature = np.zeros(max_slots, np.float32)
        self._top_k = np.zeros(max_slots, np.int32)
        self._top_p = np.ones(max_slots, np.float32)
        self._min_p = np.zeros(max_slots, np.float32)
        self._seed = np.zeros(max_slots, np.uint64)
        self._index = np.zeros(max_slots, np.uint32)
        self._length = np.zeros(max_slots, np.int64)  # tokens known: prompt and output
        self._rules: list[LogitRules | None] = [None] * max_slots
        self._has_rules = np.zeros(max_slots, np.bool_)

    def begin(self, admit: Admit) -> None:
        """A request took ``admit.slot``. A seed of None counts as 0: who admits requests has drawn one by then.

        Raises InvalidParameter if its parameters name a token beyond the vocabulary; the slot is then left as after :meth:`end`.
        """
        slot, params = admit.slot, admit.params
        self.end(slot)
        if LogitRules.needed(params):
            self._rules[slot] = LogitRules(params, admit.token_ids, admit.prompt_len, admit.eos_token_ids, self._vocab_size)
            self._has_rules[slot] = True
        self._temperature[slot] = params.temperature
        self._top_k[slot] = max(params.top_k, 0)
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        self._seed[slot] = (params.seed or 0) & _SEED_MASK
        self._index[slot] = admit.index
        self._length[slot] = len(admit.token_ids)

    def append(self, slot: int, token_ids: Sequence[int]) -> None:
        """The slot's output grew by these tokens."""
        self._length[slot] += len(token_ids)
        rules = self._rules[slot]
        if rules is not None:
            rules.append(token_ids)

    def end(self, slot: int) -> None:
        """The slot was freed."""
        self._rules[slot] = None
        self._has_rules[slot] = False
        self._temperature[slot] = 0.0
        self._length[slot] = 0

    def sample(
        self,
        logits: Tensor,
        slots: Sequence[int] | NDArray[np.int64],
        drafted: Mapping[int, Sequence[int]] | None = None,
        masks: Mapping[int, NDArray[np.uint32]] | None = None,
    ) -> NDArray[np.int64]:
        """Sample row i of ``logits`` (float32 [R, V] in host memory, changed in place) for ``slots[i]`` -> int64 [R].

        ``drafted[i]``: draft tokens taken as the output's continuation at row i (a slot with d draft tokens has d + 1 rows, with 0 .. d of them).
        ``masks[i]``: allowed tokens of row i as bits, uint32 [ceil(V / 32)]. A result of -1 means that no token can be chosen: all were forbidden
        or not a number. Take raw log-probabilities before this call.
        """
        rows = np.asarray(slots, np.int64)
        position: NDArray[np.int64] = self._length[rows]
        for i, tokens in (drafted or {}).items():
            position[i] += np.int64(len(tokens))
        if self._has_rules[rows].any() or masks:
            self._apply_rules(logits.numpy(), rows, drafted or {}, masks or {})
        batch = SampleBatch(
            temperature=self._temperature[rows], top_k=self._top_k[rows], top_p=self._top_p[rows], min_p=self._min_p[rows],
            seed=self._seed[rows], index=self._index[rows], position=position.astype(np.uint64),
        )
        return self._backend.sample(logits, batch)

    def _apply_rules(
        self,
        logits: NDArray[np.float32],
        rows: NDArray[np.int64],
        drafted: Mapping[int, Sequence[int]],
        masks: Mapping[int, NDArray[np.uint32]],
    ) -> None:
        for i in np.flatnonzero(self._has_rules[rows]).tolist():
            rules = self._rules[rows[i]]
            if rules is not None:
                rules.apply(logits[i], drafted.get(i, ()))
        for i, mask in masks.items():
            forbid_by_mask(logits[i], mask)
