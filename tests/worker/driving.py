"""Drives a runner with the real scheduler, as the engine loop does, and keeps what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.core.kv.paged import PagedKVCache
from octavo.core.policy import FirstComeFirstServed
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.worker.runner import Runner
from tests.tiny_llama import CONTEXT

if TYPE_CHECKING:
    from octavo.backend.base import Backend
    from octavo.core.plan import PositionLogprobs, StepPlan, TokenDelta
    from octavo.core.sampling_params import SamplingParams
    from octavo.decode.draft import Drafter
    from octavo.models.base import Model

BLOCK = 8


@dataclass
class Output:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    error: str | None = None

    def take(self, delta: TokenDelta) -> None:
        assert self.finish_reason is None
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or []
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        self.finish_reason, self.error = delta.finish_reason, delta.error


@dataclass
class Engine:
    runner: Runner
    scheduler: Scheduler
    outputs: dict[tuple[str, int], Output] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)

    def add(self, name: str, prompt: list[int], params: SamplingParams, *, index: int = 0, emitted: list[int] | None = None) -> None:
        length = len(prompt) + (params.max_tokens or 8)
        self.outputs[name, index] = Output()
        known = prompt + (emitted or [])
        self.scheduler.add(Request(name, known, params, index=index, prompt_len=len(prompt), max_len=length))

    def run(self, steps: int = 10_000) -> dict[tuple[str, int], Output]:
        while self.scheduler.has_work and steps:
            steps -= 1
            plan = self.scheduler.schedule()
            self.runner.launch(plan)
            for delta in self.scheduler.commit(plan, self.runner.sample()):
                self.outputs[delta.request_id, delta.index].take(delta)
            self.scheduler.cache.check()
        return self.outputs


def make_engine(
    model: Model, backend: Backend, *, num_blocks: int = 64, seqs: int = 16, tokens: int = 64, caching: bool = True, drafter: Drafter | None = None,
    eager: bool = False,
) -> Engine:
    runner = Runner(
        model, backend, block_size=BLOCK, num_blocks=num_blocks, max_num_seqs=seqs, max_model_len=CONTEXT, drafter=drafter, enforce_eager=eager
    )
    cache = PagedKVCache(num_blocks, BLOCK, caching)
    return Engine(runner, Scheduler(cache, max_num_seqs=seqs, max_num_batched_tokens=tokens, policy=FirstComeFirstServed()))
