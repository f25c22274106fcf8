"""An executor without a model: the next token is a fixed function of all tokens before it, so any trace has one right answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from octavo.core.kv.paged import PagedKVCache
from octavo.core.plan import PositionLogprobs, StepPlan, StepResult, TokenDelta
from octavo.core.policy import FirstComeFirstServed
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.engine.admission import Limits
from octavo.engine.loop import EngineLoop
from octavo.engine.messages import AddRequest, Deltas, EngineInfo, Shutdown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np

    from octavo.engine.messages import FromEngine, ToEngine

VOCAB = 97
CONTEXT = 64
BLOCK = 4


def next_token(token_ids: list[int], index: int) -> int:
    total = index * 5 + 11
    for i in token_ids:
        total = (total * 31 + i) % 1_000_003
    return 2 + total % (VOCAB - 2)


def reference(prompt: list[int], index: int, count: int) -> list[int]:
    """What a sequence must emit, computed one token at a time."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, index))
    return tokens[len(prompt) :]


class FakeExecutor:
    """``before_launch`` and ``before_sample`` see each plan and may raise; ``row_errors`` names rows that fail alone, by request id."""

    def __init__(self) -> None:
        self.slots: dict[int, tuple[str, int, list[int]]] = {}
        self.plans: list[StepPlan] = []
        self.masks: list[Mapping[int, np.ndarray] | None] = []
        self.before_launch: Callable[[StepPlan], None] = lambda plan: None
        self.before_sample: Callable[[StepPlan], None] = lambda plan: None
        self.row_errors: set[str] = set()

    def start(self, report: Callable[[str, int, int], None]) -> EngineInfo:
        report("weights", 1, 2)
        return EngineInfo(
            model_type="fake", backend="fake", isa="", threads=1, vocab_size=VOCAB, max_model_len=CONTEXT, block_size=BLOCK, num_blocks=64,
            max_num_seqs=8, max_num_batched_tokens=16, weight_bytes=0, activation_bytes=0, kv_bytes=0, kv_bytes_per_token=0,
        )  # fmt: skip

    def launch(self, plan: StepPlan) -> None:
        self.before_launch(plan)
        for slot in plan.drops:
            self.slots.pop(slot, None)
        for admit in plan.admits:
            self.slots[admit.slot] = (admit.request_id, admit.index, list(admit.token_ids))
        self.plans.append(replace(plan, rows=[replace(row) for row in plan.rows]))  # the scheduler uses its rows again

    def sample(self, masks: Mapping[int, np.ndarray] | None = None) -> StepResult:
        plan = self.plans[-1]
        self.before_sample(plan)
        self.masks.append(masks)
        result = StepResult([[] for _ in plan.rows])
        for number, row in enumerate(plan.rows):
            request_id, index, tokens = self.slots[row.slot]
            if request_id in self.row_errors:
                result.errors[number] = "this row failed"
            elif row.sample:
                assert row.start + row.count == len(tokens)
                token = next_token(tokens, index)
                tokens.append(token)
                result.token_ids[number] = [token]
                result.logprobs[number] = [PositionLogprobs([token], [-1.0], [1])]
        return result

    def close(self) -> None:
        self.slots.clear()


class ScriptLink:
    """Feeds the messages of a script, one list a turn; then, once the loop would sleep, a Shutdown. Keeps what was sent."""

    def __init__(self, script: Iterator[list[ToEngine]] | list[list[ToEngine]]) -> None:
        self._script = iter(script)
        self.sent: list[FromEngine] = []
        self.sleeps = 0

    def receive(self, timeout: float | None) -> list[ToEngine]:
        try:
            return next(self._script)
        except StopIteration:
            if timeout is None:
                self.sleeps += 1
                return [Shutdown()]
            return []

    def send(self, message: FromEngine) -> None:
        self.sent.append(message)


@dataclass
class Run:
    """One loop driven to its end, and what each sequence got."""

    loop: EngineLoop
    executor: FakeExecutor
    link: ScriptLink
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    ends: dict[tuple[str, int], TokenDelta] = field(default_factory=dict)


def make_scheduler(num_blocks: int = 64, *, seqs: int = 8, tokens: int = 16) -> Scheduler:
    return Scheduler(PagedKVCache(num_blocks, BLOCK), max_num_seqs=seqs, max_num_batched_tokens=tokens, policy=FirstComeFirstServed())


def make_loop(script: Iterator[list[ToEngine]] | list[list[ToEngine]], executor: FakeExecutor | None = None, **options: object) -> Run:
    executor, link = executor or FakeExecutor(), ScriptLink(script)
    factory = options.pop("make_scheduler", make_scheduler)
    loop = EngineLoop(link, executor, factory, Limits(VOCAB, CONTEXT, 64 * BLOCK), **options)  # type: ignore[arg-type]
    return Run(loop, executor, link)


def finish(run: Run) -> Run:
    """Run to the end, and hold every sequence to one terminal delta with nothing after it."""
    run.loop.run()
    for message in run.link.sent:
        if isinstance(message, Deltas):
            for delta in message.deltas:
                key = delta.request_id, delta.index
                assert key not in run.ends, f"{key} got {delta} after its end"
                run.tokens.setdefault(key, []).extend(delta.token_ids)
                if delta.finish_reason is not None:
                    run.ends[key] = delta
    assert run.tokens.keys() == run.ends.keys(), "a sequence has no end"
    return run


def add(request_id: str, prompt: list[int], *, n: int = 1, count: int = 8, **fields: object) -> AddRequest:
    params = fields.pop("params", None) or SamplingParams(n=n, temperature=0.0, seed=1)
    return AddRequest(request_id=request_id, prompt_token_ids=prompt, params=params, max_len=len(prompt) + count, **fields)  # type: ignore[arg-type]
