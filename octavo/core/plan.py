"""What the scheduler and the worker say to each other: one plan down, one result up.

A row is (request, start, count): compute ``count`` tokens of a request beginning at position ``start``. Chunked prefill, prefix hits, drafts and
plain decode are the same row. A request is described whole once (``Admit``), after that only by diffs (``Row``); the worker keeps a slot table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.core.sampling_params import SamplingParams


@dataclass(slots=True)
class Admit:
    """A request that takes a worker slot. ``token_ids`` is prompt plus everything emitted so far (resume and preemption look alike)."""

    slot: int
    request_id: str
    index: int  # which of the n sequences; enters the sampling noise
    token_ids: list[int]
    prompt_len: int
    params: SamplingParams
    eos_token_ids: list[int]
    block_ids: list[int]  # block table at admission, after any copy on write


@dataclass(slots=True)
class Row:
    """``count`` tokens of the request in ``slot`` from position ``start``; the last ``num_draft`` of them are draft tokens.

    ``blocks`` replaces the slot's block table from entry ``blocks_at`` on (new blocks, or a copied one).
    ``sample`` is true when the row reaches the last known token, so its logits give a next token.
    """

    slot: int
    start: int
    count: int
    sample: bool = False
    num_draft: int = 0
    blocks_at: int = 0
    blocks: list[int] | tuple[()] = ()


@dataclass(slots=True)
class StepPlan:
    """One engine step. Order of application in the worker: ``drops``, ``admits``, ``copies``, ``drafts``, then ``rows``.

    ``drafts``: slot -> draft tokens that its row verifies where they are not the worker's own proposals.
    """

    step: int
    rows: list[Row] = field(default_factory=list)
    admits: list[Admit] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)  # (source block, destination block)
    drops: list[int] = field(default_factory=list)  # slots that no longer hold a request
    drafts: dict[int, list[int]] = field(default_factory=dict)
    num_tokens: int = 0


@dataclass(slots=True)
class PositionLogprobs:
    """Raw log-probabilities at one position: the token itself first, then the top-k by value. ``ranks`` are 1-based."""

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


@dataclass(slots=True)
class StepResult:
    """Columns aligned with ``plan.rows``; the rare ones are maps from row number.

    ``token_ids[i]`` holds what row i sampled: accepted draft tokens and one more; empty if the row does not sample.
    ``draft`` holds proposals for the next step. ``errors`` names rows that failed alone.
    """

    token_ids: list[list[int]]
    logprobs: dict[int, list[PositionLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[PositionLogprobs]] = field(default_factory=dict)  # for prompt positions start+1 .. start+count
    draft: dict[int, list[int]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class TokenDelta:
    """What one step added to one sequence. ``finish_reason`` set means: this is the sequence's one terminal event.

    finish_reason: "stop", "length", "abort" or "error"; ``stop_reason`` the stop token id when that is what stopped it.
    ``num_cached_tokens`` is the prefix hit at first admission and comes with the first delta.
    ``error_kind``: the name of the error's class in :mod:`octavo.errors`, where it is known; it says whose fault an error is.
    """

    request_id: str
    index: int
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: list[PositionLogprobs] | None = None
    num_cached_tokens: int | None = None
    error: str | None = None
    error_kind: str | None = None
