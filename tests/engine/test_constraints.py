"""Constraints in the step loop: who waits for one keeps nobody else waiting, who fails fails alone, and forced tokens travel as drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.config import EngineConfig
from octavo.core.plan import Row, StepPlan, StepResult
from octavo.core.sampling_params import SamplingParams
from octavo.core.structured import StructuredOutputsParams, Thinking
from octavo.engine.build import make_constrain
from octavo.engine.masks import Masks
from octavo.engine.messages import Abort, AddRequest, Deltas, encoder, to_engine_decoder
from octavo.errors import GrammarError
from tests.engine.fakes import VOCAB, FakeExecutor, add, finish, make_loop, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from octavo.engine.messages import ToEngine

PROMPT = [5, 6, 7]
OPEN = np.uint32(0xFFFFFFFF)


class Script:
    """Allows what it is told to, position by position; fails where ``fail_at`` says."""

    def __init__(self, allowed: list[set[int]] | None = None, forced: dict[int, list[int]] | None = None, fail_at: int = -1) -> None:
        self.allowed, self.told, self.fail_at = allowed or [], forced or {}, fail_at
        self.taken: list[int] = []

    def fill(self, mask: np.ndarray) -> bool:
        at = len(self.taken)
        if at == self.fail_at:
            raise GrammarError("the grammar cannot go on: a test")
        if at >= len(self.allowed):
            return False
        mask[:] = 0
        for token in self.allowed[at]:
            mask[token // 32] |= np.uint32(1 << token % 32)
        return True

    def accept(self, token_id: int) -> None:
        self.taken.append(token_id)

    def rollback(self, count: int) -> None:
        del self.taken[len(self.taken) - count :]

    def forced(self) -> list[int]:
        return self.told.get(len(self.taken), [])


def constrain_with(**pending: Callable[[], Any]) -> Callable[[AddRequest], Any]:
    return lambda message: pending.get(message.request_id)


def test_who_waits_for_a_grammar_keeps_nobody_waiting() -> None:
    """The gate stays closed until the other request has ended, far more steps than it needs."""
    executor, ended = FakeExecutor(), list[str]()
    run = make_loop([[add("waits", PROMPT), add("runs", PROMPT)]], executor, constrain=constrain_with(waits=lambda: Script() if ended else None))
    send = run.link.send

    def watch(message: Any) -> None:
        if isinstance(message, Deltas):
            ended.extend(d.request_id for d in message.deltas if d.finish_reason)
        send(message)

    run.link.send = watch  # type: ignore[method-assign]
    finish(run)
    assert ended == ["runs", "waits"]
    assert run.tokens["waits", 0] == run.tokens["runs", 0] == reference(PROMPT, 0, 8)


def test_a_bad_grammar_ends_its_request_with_its_kind_and_no_other() -> None:
    def bad() -> None:
        raise GrammarError("structured_outputs.regex: at 1(3)")

    run = finish(make_loop([[add("bad", PROMPT, n=2), add("good", PROMPT)]], constrain=constrain_with(bad=bad)))
    for index in range(2):
        end = run.ends["bad", index]
        assert (end.finish_reason, end.error, end.error_kind) == ("error", "structured_outputs.regex: at 1(3)", "GrammarError")
    assert run.ends["good", 0].finish_reason == "length" and run.ends["good", 0].error_kind is None


def test_a_constraint_that_fails_on_the_way_ends_its_own_sequence() -> None:
    run = finish(make_loop([[add("fails", PROMPT), add("good", PROMPT)]], constrain=constrain_with(fails=lambda: Script(fail_at=3))))
    end = run.ends["fails", 0]
    assert (end.finish_reason, end.error_kind) == ("error", "GrammarError") and "cannot go on" in str(end.error)
    assert run.tokens["fails", 0] == reference(PROMPT, 0, 3)
    assert run.tokens["good", 0] == reference(PROMPT, 0, 8)


def test_an_aborted_request_leaves_its_gate() -> None:

    def script() -> Iterator[list[ToEngine]]:
        yield [add("never", PROMPT), add("runs", PROMPT)]
        yield [Abort("never")]

    run = finish(make_loop(script(), constrain=constrain_with(never=lambda: None)))
    assert run.ends["never", 0].finish_reason == "abort" and run.tokens["runs", 0] == reference(PROMPT, 0, 8)


def test_forced_tokens_become_the_draft_of_the_next_step() -> None:
    """Masks alone: propose, fill for each position, and take back what was only tried."""
    masks = Masks(VOCAB)
    script = Script(allowed=[{3}, {4}, {5}, {6}], forced={1: [4, 5]})
    assert masks.gate(("r", 0), lambda: script)() is True
    plan = StepPlan(1)

    plan.rows = [Row(0, 0, 1, sample=True)]
    slots = {0: ("r", 0)}
    masks.propose(plan, slots)
    filled = masks.fill(plan, slots)
    assert filled is not None and filled[0].shape == (1, -(-VOCAB // 32)) and plan.drafts == {}
    result = StepResult([[3]])
    assert masks.advance(plan, result, slots) == set()
    assert result.draft == {0: [4, 5]} and script.taken == [3]

    plan = StepPlan(2, rows=[Row(0, 1, 3, sample=True, num_draft=2)])
    masks.propose(plan, slots)
    assert plan.drafts == {0: [4, 5]}
    filled = masks.fill(plan, slots)
    assert filled is not None and [int(np.bitwise_count(row).sum()) for row in filled[0]] == [1, 1, 1]
    assert [int(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0]) for row in filled[0]] == [4, 5, 6]
    assert script.taken == [3], "positions of the draft were only tried"
    masks.advance(plan, StepResult([[4, 5, 6]]), slots)
    assert script.taken == [3, 4, 5, 6]

    masks.end(("r", 0))
    assert masks.fill(plan, slots) is None and masks.advance(plan, StepResult([[1]]), slots) == set()


def test_a_draft_is_followed_only_as_far_as_it_is_allowed() -> None:

    masks = Masks(VOCAB)
    script = Script(allowed=[{3}, {9}, {5}], forced={1: [4, 5]})
    masks.gate(("r", 0), lambda: script)()
    slots = {0: ("r", 0)}
    masks.advance(StepPlan(1, rows=[Row(0, 0, 1, sample=True)]), StepResult([[3]]), slots)
    filled = masks.fill(StepPlan(2, rows=[Row(0, 1, 3, sample=True, num_draft=2)]), slots)
    assert filled is not None and int(np.bitwise_count(filled[0][0]).sum()) == 1
    assert (filled[0][1:] == OPEN).all(), "never reached"
    assert script.taken == [3]


def test_structured_outputs_cross_the_wire() -> None:

    params = SamplingParams(structured_outputs=StructuredOutputsParams(json={"b": 1, "a": {"type": "x"}}, whitespace_pattern=" "))
    message = AddRequest(request_id="r", prompt_token_ids=[1], params=params, max_len=3, thinking=Thinking(5, 4))
    back = to_engine_decoder.decode(encoder.encode(message))
    assert back == message and back.params.structured_outputs.json == '{"b": 1, "a": {"type": "x"}}'


def test_a_model_without_structured_outputs_reads_no_vocabulary() -> None:

    constrain = make_constrain(EngineConfig(model="/nowhere"), None)  # type: ignore[arg-type]
    assert constrain(add("r", PROMPT)) is None
