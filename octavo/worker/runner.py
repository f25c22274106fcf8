"""The runner: applies a plan to the slot table, runs the model once over all its rows, and samples.

``launch`` and ``sample`` are two calls so that the engine can build grammar masks while the device works. A row that fails (an error in the model,
logits that are not numbers, nothing left to choose) ends in ``StepResult.errors``; the others are computed as if it had not been there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from octavo.backend.base import AttentionBatch, KVSpec
from octavo.core.plan import Admit, Row, StepPlan, StepResult
from octavo.core.sampling_params import SamplingParams
from octavo.decode.draft import NullDrafter
from octavo.decode.logprobs import position_logprobs
from octavo.decode.sampler import Sampler
from octavo.decode.verify import verify
from octavo.layers.step import Step
from octavo.worker.batch import Batch, build, misfits, select
from octavo.worker.captured import CapturedSteps
from octavo.worker.isolate import describe, isolate
from octavo.worker.memory import LOGIT_ROWS
from octavo.worker.slots import NOT_WANTED, SlotTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from octavo.backend.base import Backend
    from octavo.core.plan import PositionLogprobs
    from octavo.decode.draft import Drafter
    from octavo.models.base import Model

NOT_A_NUMBER = "the model's output is not a number"
NO_CHOICE = "no token can be chosen: all are forbidden or not a number"


@dataclass(slots=True)
class _Launched:
    """A step between ``launch`` and ``sample``. ``numbers[r]`` is the plan's row number of batch row r; ``hidden`` float32 [T, H]."""

    plan: StepPlan
    numbers: NDArray[np.int64]
    batch: Batch | None
    hidden: Tensor | None
    errors: dict[int, str]


@dataclass(slots=True)
class _Samples:
    """What sampling found for some batch rows: draws int64 [rows, in order, 1 + num_draft each], raw logits where log-probabilities are wanted."""

    draws: NDArray[np.int64]
    raw: dict[int, Tensor] = field(default_factory=dict)  # place in ``draws`` -> float32 [V]


class Runner:
    """One model, its KV cache and its slots.

    num_blocks: blocks of the cache. max_num_seqs: slots. max_model_len: tokens of a request, at most ``model.max_positions``.
    enforce_eager: never replay captured steps.
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        *,
        block_size: int,
        num_blocks: int,
        max_num_seqs: int,
        max_model_len: int,
        drafter: Drafter | None = None,
        kv_dtype: torch.dtype = torch.float32,
        enforce_eager: bool = False,
    ) -> None:
        if max_model_len > model.max_positions:
            raise ValueError(f"max_model_len {max_model_len} exceeds the model's {model.max_positions} positions")
        self._model, self._backend = model, backend
        self._num_blocks = num_blocks
        self._kv = backend.alloc_kv(KVSpec(tuple(model.attention_layers), block_size, kv_dtype), num_blocks)
        self._table = SlotTable(max_num_seqs, max_model_len, block_size)
        self._captured = None if enforce_eager else CapturedSteps(model, backend, self._kv, self._table)
        self._sampler = Sampler(backend, model.vocab_size, max_num_seqs)
        self._drafter: Drafter = drafter or NullDrafter()
        self._refused: dict[int, str] = {}  # slots whose request could not be taken over, and why
        self._launched: _Launched | None = None

    def warm_up(self) -> None:
        """Run one token through everything once: first use loads code and allocates. Leaves no trace."""
        admit = Admit(0, "warm-up", 0, [0], 1, SamplingParams(temperature=0.0), [], [0])
        self.launch(StepPlan(0, rows=[Row(0, 0, 1, sample=True)], admits=[admit], num_tokens=1))
        self.sample()
        self._drop(0)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        """Apply the plan's changes, then run the model over its rows."""
        self._launched = None
        self._apply(plan)
        errors = self._check(plan)
        numbers = np.array([i for i in range(len(plan.rows)) if i not in errors], np.int64)
        batch = hidden = None
        if len(numbers):
            batch = build([plan.rows[i] for i in numbers] if errors else plan.rows, self._table)
            hidden = self._forward(batch, numbers, errors)
        self._launched = _Launched(plan, numbers, batch, hidden, errors)

    @torch.inference_mode()
    def sample(self, masks: Mapping[int, NDArray[np.uint32]] | None = None) -> StepResult:
        """Tokens of the launched step. ``masks``: row number -> allowed tokens as bits, uint32 [1 + num_draft, ceil(V / 32)]."""
        launched, self._launched = self._launched, None
        if launched is None:
            raise RuntimeError("sample needs a launched step")
        result = StepResult([[] for _ in launched.plan.rows], errors=launched.errors)
        if launched.hidden is None or launched.batch is None:
            return result
        batch, hidden = launched.batch, launched.hidden
        alive = self._finite_rows(launched)
        wanting = alive[self._table.prompt_logprobs[batch.slots[alive]] != NOT_WANTED]
        self._prompt_logprobs(launched, wanting, result)
        sampling = alive[batch.sample[alive]]
        if result.errors:
            sampling = sampling[[int(n) not in result.errors for n in launched.numbers[sampling]]]
        failed: dict[int, str] = {}
        for rows, samples in isolate(sampling, lambda some: self._draw(batch, hidden, some, launched.numbers, masks or {}), failed):
            self._take(launched, rows, samples, result)
        result.errors.update((int(launched.numbers[r]), text) for r, text in failed.items())
        return result

    # -- applying a plan

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.drops:
            self._drop(slot)
        for admit in plan.admits:
            self._admit(admit)
        if plan.copies:
            self._backend.copy_blocks(self._kv, plan.copies)
        for slot, tokens in plan.drafts.items():
            self._table.draft[slot] = tokens
        for row in plan.rows:
            if row.blocks or row.num_draft:
                self._place(row)

    def _drop(self, slot: int) -> None:
        if self._table.used[slot]:
            self._drafter.end(slot)
        self._table.drop(slot)
        self._sampler.end(slot)
        self._refused.pop(slot, None)

    def _admit(self, admit: Admit) -> None:
        self._drop(admit.slot)
        try:
            self._table.admit(admit)
            self._sampler.begin(admit)
            self._drafter.begin(admit.slot, self._table.known[admit.slot])
        except Exception as error:
            self._refused[admit.slot] = describe(error)

    def _place(self, row: Row) -> None:
        try:
            self._table.place(row)
        except (ValueError, IndexError) as error:
            self._refused[row.slot] = describe(error)

    def _check(self, plan: StepPlan) -> dict[int, str]:
        if not plan.rows:
            return {}
        errors = misfits(plan.rows, self._table, self._num_blocks)
        if self._refused:
            errors |= {i: self._refused[row.slot] for i, row in enumerate(plan.rows) if row.slot in self._refused}
        return errors

    # -- the model

    def _forward(self, batch: Batch, numbers: NDArray[np.int64], errors: dict[int, str]) -> Tensor | None:
        """Hidden states float32 [T, H] of the batch; rows that fail are left at zero and noted in ``errors`` under their plan's numbers."""
        failed: dict[int, str] = {}
        everything = np.arange(len(batch.slots), dtype=np.int64)

        def compute(rows: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.int64] | None]:
            if len(rows) == len(everything):
                hidden = self._captured.run(batch) if self._captured is not None else None
                return self._run(batch) if hidden is None else hidden, None
            part, tokens = select(batch, rows)
            return self._run(part), tokens

        parts = [output for _, output in isolate(everything, compute, failed)]
        errors.update((int(numbers[r]), text) for r, text in failed.items())
        if not parts:
            return None
        if parts[0][1] is None:
            return parts[0][0]
        hidden = torch.zeros(len(batch.token_ids), parts[0][0].shape[1], dtype=parts[0][0].dtype, device=parts[0][0].device)
        for output, tokens in parts:
            hidden[torch.from_numpy(tokens)] = output
        return hidden

    def _run(self, batch: Batch) -> Tensor:
        device = self._backend.device
        attention = AttentionBatch(batch.offsets, batch.starts, batch.tables, self._table.block_size)
        step = Step(
            torch.from_numpy(batch.token_ids).to(device),
            torch.from_numpy(batch.positions).to(device),
            self._backend.plan_attention(attention),
            self._kv,
        )
        return self._model(step)

    def _finite_rows(self, launched: _Launched) -> NDArray[np.int64]:
        """Batch rows whose hidden states are numbers, at every position: what a later prefix hit would read must be sound. Others get an error."""
        assert launched.batch is not None and launched.hidden is not None
        finite = np.isfinite(launched.hidden.cpu().numpy()).all(1)
        rows = np.arange(len(launched.numbers), dtype=np.int64)
        if finite.all() and not launched.errors:
            return rows
        sound = np.logical_and.reduceat(finite, launched.batch.offsets[:-1])
        for number in launched.numbers[rows[~sound]]:
            launched.errors.setdefault(int(number), NOT_A_NUMBER)
        if launched.errors:
            sound &= np.array([int(n) not in launched.errors for n in launched.numbers])
        return rows[sound]

    # -- sampling

    def _draw(
        self, batch: Batch, hidden: Tensor, rows: NDArray[np.int64], numbers: NDArray[np.int64], masks: Mapping[int, NDArray[np.uint32]]
    ) -> _Samples:
        """Sample every position of ``rows`` from the last known token on: 1 + num_draft each."""
        ends = batch.offsets[1:][rows].astype(np.int64)
        counts = batch.num_draft[rows] + 1
        owners, steps = _samples(counts)
        sources = (ends - counts)[owners] + steps
        slots = batch.slots[rows][owners]
        drafted = {int(i): self._table.draft[slots[i]][: steps[i]] for i in np.flatnonzero(steps)}
        bits = {i: masks[n][steps[i]] for i, n in enumerate(numbers[rows][owners].tolist()) if n in masks} if masks else {}
        wanted = self._table.logprobs[slots] != NOT_WANTED
        samples = _Samples(np.empty(len(owners), np.int64))
        for at in range(0, len(owners), LOGIT_ROWS):
            piece = slice(at, min(at + LOGIT_ROWS, len(owners)))
            logits = self._logits(hidden, sources[piece])
            samples.raw |= {at + int(i): logits[i].clone() for i in np.flatnonzero(wanted[piece])}
            here = {i - at: d for i, d in drafted.items() if piece.start <= i < piece.stop}
            draws = self._sampler.sample(logits, slots[piece], here, {i - at: m for i, m in bits.items() if piece.start <= i < piece.stop})
            # Hidden states are finite, so a logit that is not has overflowed, and an infinite one would win every draw.
            chosen = logits.numpy()[np.arange(len(draws)), draws]
            samples.draws[piece] = np.where(np.isfinite(chosen), draws, -1)
        return samples

    def _logits(self, hidden: Tensor, sources: NDArray[np.int64]) -> Tensor:
        """Logits float32 [len(sources), V] in host memory, of these rows of ``hidden``."""
        chosen = hidden if len(sources) == len(hidden) else hidden[torch.from_numpy(sources).to(hidden.device)]
        return self._model.logits(chosen).cpu()

    def _take(self, launched: _Launched, rows: NDArray[np.int64], samples: _Samples, result: StepResult) -> None:
        """Verify drafts, append to the slots, fill the result, and ask for the next proposals."""
        assert launched.batch is not None
        batch, numbers, given = launched.batch, launched.numbers, launched.plan.drafts
        draws, table = samples.draws.tolist(), self._table
        at = 0
        slots, places, gains = list[int](), list[int](), list[list[int]]()
        for slot, number, drafted in zip(batch.slots[rows].tolist(), numbers[rows].tolist(), batch.num_draft[rows].tolist(), strict=True):
            first, at = at, at + drafted + 1
            tokens = draws[first:at]
            if drafted:
                tokens = verify(tokens, table.draft[slot][:drafted])
                if slot not in given:
                    self._drafter.accept(slot, drafted, len(tokens) - 1)
            if tokens[-1] < 0:
                tokens.pop()  # what came before stands; the next step meets the failure again if the row goes on
                if not tokens:
                    result.errors[number] = NO_CHOICE
                    continue
            if first in samples.raw:
                raw = torch.stack([samples.raw[first + i] for i in range(len(tokens))])
                result.logprobs[number] = position_logprobs(raw, tokens, int(table.logprobs[slot]))
            result.token_ids[number] = tokens
            self._sampler.append(slot, tokens)
            slots.append(slot)
            places.append(number)
            gains.append(tokens)
        table.append(slots, gains)
        for slot, number in zip(slots, places, strict=True):
            table.draft[slot] = draft = self._drafter.draft(slot, table.known[slot])
            if draft:
                result.draft[number] = draft

    # -- log-probabilities of the prompt

    def _prompt_logprobs(self, launched: _Launched, rows: NDArray[np.int64], result: StepResult) -> None:
        """For each row, the prompt tokens at positions start + 1 .. start + count, given all before them."""
        for r in rows.tolist():
            number = int(launched.numbers[r])
            try:
                entries = self._row_prompt_logprobs(launched, r)
            except Exception as error:
                result.errors[number] = describe(error)
                continue
            if entries:
                result.prompt_logprobs[number] = entries

    def _row_prompt_logprobs(self, launched: _Launched, r: int) -> list[PositionLogprobs]:
        assert launched.batch is not None and launched.hidden is not None
        batch, table = launched.batch, self._table
        slot, start = int(batch.slots[r]), int(batch.starts[r])
        first, end = int(batch.offsets[r]), int(batch.offsets[r + 1])
        end = min(end, first + int(table.prompt_len[slot]) - 1 - start)  # the last prompt token predicts output, not prompt
        entries: list[PositionLogprobs] = []
        for at in range(first, end, LOGIT_ROWS):
            sources = np.arange(at, min(at + LOGIT_ROWS, end), dtype=np.int64)
            targets = table.tokens[slot, sources - first + start + 1]
            entries += position_logprobs(self._logits(launched.hidden, sources), targets.tolist(), int(table.prompt_logprobs[slot]))
        return entries


def _samples(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For ``counts[i]`` samples of each row i: which row a sample belongs to, and how many of that row's precede it."""
    rows = np.arange(len(counts))
    if (counts == 1).all():
        return rows, np.zeros_like(rows)
    owners = np.repeat(rows, counts)
    return owners, np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
