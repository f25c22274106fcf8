"""The runner over a tiny Llama: right against transformers, and the same for a request whatever happens around it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from octavo.core.plan import Admit, Row, StepPlan
from octavo.core.sampling_params import SamplingParams
from octavo.worker.runner import NO_CHOICE, NOT_A_NUMBER, Runner
from tests.tiny_llama import CONTEXT, VOCAB
from tests.worker.driving import BLOCK, Engine, make_engine

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from octavo.backend.base import Backend
    from octavo.layers.step import Step
    from octavo.models.base import Model

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, seed=0)


def make_requests(count: int = 10) -> list[tuple[list[int], SamplingParams]]:
    """Prompts of many lengths, some with a common beginning; greedy and sampled, some with penalties and log-probabilities."""
    rng = random.Random(3)
    stem = [rng.randrange(VOCAB) for _ in range(3 * BLOCK + 2)]
    made = []
    for i in range(count):
        prompt = (stem if i % 3 == 0 else []) + [rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 7, 8, 9, 30]))]
        params = [
            SamplingParams(temperature=0.0, max_tokens=12),
            SamplingParams(temperature=1.0, seed=100 + i, max_tokens=12),
            SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=200 + i, max_tokens=12, repetition_penalty=1.3, logprobs=2),
        ][i % 3]
        made.append((prompt, params))
    return made


def run(engine: Engine, requests: list[tuple[list[int], SamplingParams]], order: list[int] | None = None) -> list[list[int]]:
    for i in order or range(len(requests)):
        engine.add(f"r{i}", *requests[i])
    outputs = engine.run()
    return [outputs[f"r{i}", 0].token_ids for i in range(len(requests))]


@pytest.fixture(scope="module")
def alone(model: Model, backend: Backend) -> list[list[int]]:
    return [run(make_engine(model, backend), [request])[0] for request in make_requests()]


def test_greedy_tokens_are_those_of_transformers(model: Model, backend: Backend, tiny: tuple[Path, Any]) -> None:
    requests = [(prompt, GREEDY) for prompt, _ in make_requests()]
    ours = run(make_engine(model, backend), requests)
    for (prompt, _), ids in zip(requests, ours, strict=True):
        theirs = tiny[1].generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0)[0, len(prompt) :]
        assert ids == theirs.tolist()


SETTINGS = {
    "together": {},
    "tiny chunks": {"tokens": 5, "seqs": 4},
    "one at a time": {"seqs": 1},
    "little memory": {"num_blocks": 14, "tokens": 24},
    "no prefix cache": {"caching": False, "tokens": 17},
}


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_request_gets_the_same_tokens_in_any_company(model: Model, backend: Backend, alone: list[list[int]], options: dict[str, Any]) -> None:
    engine = make_engine(model, backend, **options)
    order = list(range(len(alone)))
    random.Random(1).shuffle(order)
    assert run(engine, make_requests(), order) == alone
    if "num_blocks" in options:
        assert engine.scheduler.counters.preemptions > 0, "the cache was meant to be too small"


def test_a_warm_prefix_cache_changes_nothing(model: Model, backend: Backend, alone: list[list[int]]) -> None:
    engine = make_engine(model, backend)
    assert run(engine, make_requests()) == alone
    assert run(engine, make_requests()) == alone
    assert engine.scheduler.counters.prefix_hits > 0


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_resumed_request_goes_on_with_the_same_tokens(model: Model, backend: Backend, alone: list[list[int]], cut: int) -> None:
    engine = make_engine(model, backend)
    for i, (prompt, params) in enumerate(make_requests()):
        engine.add(f"r{i}", prompt, params, emitted=alone[i][:cut])
    outputs = engine.run()
    assert [outputs[f"r{i}", 0].token_ids for i in range(len(alone))] == [ids[cut:] for ids in alone]


def test_sequences_of_one_request_draw_their_own_noise(model: Model, backend: Backend) -> None:
    params = SamplingParams(n=4, temperature=1.0, seed=9, max_tokens=12)
    engine = make_engine(model, backend)
    for index in range(4):
        engine.add("r", [1, 2, 3, 4, 5, 6, 7, 8, 9], params, index=index)
    drawn = [tuple(engine.run()["r", index].token_ids) for index in range(4)]
    assert len(set(drawn)) == 4


class Repeater:
    """Proposes what the right answer is, with every third token spoilt; counts what became of it."""

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        self.answers, self.proposed, self.accepted, self.live = answers, 0, 0, set[int]()

    def begin(self, slot: int, token_ids: list[int]) -> None:
        self.live.add(slot)

    def draft(self, slot: int, token_ids: list[int]) -> list[int]:
        for prompt, answer in self.answers.items():
            done = len(token_ids) - len(prompt)
            if tuple(token_ids[: len(prompt)]) == prompt and token_ids[len(prompt) :] == answer[:done]:
                return [t if (done + i) % 3 else (t + 1) % VOCAB for i, t in enumerate(answer[done : done + 4])]
        return []

    def accept(self, slot: int, proposed: int, accepted: int) -> None:
        self.proposed += proposed
        self.accepted += accepted

    def end(self, slot: int) -> None:
        self.live.remove(slot)


def test_drafts_change_speed_and_no_token(model: Model, backend: Backend, alone: list[list[int]]) -> None:
    requests = make_requests()
    drafter = Repeater({tuple(prompt): ids for (prompt, _), ids in zip(requests, alone, strict=True)})
    engine = make_engine(model, backend, drafter=drafter)
    assert run(engine, requests) == alone
    assert 0 < drafter.accepted < drafter.proposed
    plain = make_engine(model, backend)
    run(plain, requests)
    assert engine.scheduler.counters.steps < plain.scheduler.counters.steps
    engine.runner.launch(engine.scheduler.schedule())  # the drops of the last step
    assert not drafter.live


def test_drafts_keep_the_logprobs(model: Model, backend: Backend, alone: list[list[int]]) -> None:
    requests = make_requests()
    drafter = Repeater({tuple(prompt): ids for (prompt, _), ids in zip(requests, alone, strict=True)})
    plain, drafted = make_engine(model, backend), make_engine(model, backend, drafter=drafter)
    run(plain, requests)
    run(drafted, requests)
    assert {k: o.logprobs for k, o in drafted.outputs.items()} == {k: o.logprobs for k, o in plain.outputs.items()}
    wanting = [o for i, o in enumerate(plain.outputs.values()) if i % 3 == 2]
    assert all([p.token_ids[0] for p in o.logprobs] == o.token_ids for o in wanting)


@pytest.mark.parametrize("tokens", [64, 7])
def test_prompt_logprobs_are_those_of_transformers(model: Model, backend: Backend, tiny: tuple[Path, Any], tokens: int) -> None:
    prompt = [random.Random(8).randrange(VOCAB) for _ in range(75)]
    engine = make_engine(model, backend, tokens=tokens)
    engine.add("r", prompt, SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=3, logprobs=1))
    output = engine.run()["r", 0]
    with torch.no_grad():
        logits = tiny[1](torch.tensor([prompt + output.token_ids])).logits[0].double().log_softmax(-1)
    assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == len(prompt) - 1
    for position, entry in enumerate([*output.prompt_logprobs, *output.logprobs]):
        token = (prompt + output.token_ids)[position + 1]
        assert entry.token_ids[0] == token
        np.testing.assert_allclose(entry.logprobs, logits[position, entry.token_ids].numpy(), atol=2e-5)
        best = 3 if position < len(prompt) - 1 else 1
        assert entry.token_ids[1:] == logits[position].topk(best).indices.tolist()


# -- rows that fail


class Faulty:
    """The model, but a step that computes the token ``poison`` raises, or gives NaN for it."""

    def __init__(self, model: Model, poison: int, *, error: Exception | None = None, logits: bool = False) -> None:
        self.model, self.poison, self.error, self.in_logits = model, poison, error, logits
        self.vocab_size, self.max_positions, self.attention_layers = model.vocab_size, model.max_positions, model.attention_layers
        self.calls = 0

    def __call__(self, step: Step) -> Tensor:
        self.calls += 1
        hit = step.token_ids == self.poison
        if self.error is not None and not self.in_logits and hit.any():
            raise self.error
        hidden = self.model(step)
        if self.error is None and hit.any():
            hidden[hit] = torch.nan
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        if self.in_logits and len(hidden) > 2:
            raise self.error or RuntimeError
        return self.model.logits(hidden)


def without(alone: list[list[int]], poison: int) -> list[int]:
    """Requests that never meet the poisoned token."""
    return [i for i, (prompt, _) in enumerate(make_requests()) if poison not in prompt + alone[i]]


POISON = 42
FAULTS = [RuntimeError("kernel fault"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), None]


@pytest.mark.parametrize("error", FAULTS, ids=["error", "memory", "allocator", "nan"])
def test_a_row_that_breaks_the_model_fails_alone(model: Model, backend: Backend, alone: list[list[int]], error: Exception | None) -> None:
    requests = make_requests()
    requests[4] = ([1, 2, POISON, 3, 4], GREEDY)
    spared = [i for i in without(alone, POISON) if i != 4]
    assert len(spared) >= 5
    engine = make_engine(Faulty(model, POISON, error=error), backend, tokens=48)
    ids = run(engine, requests)
    assert [ids[i] for i in spared] == [alone[i] for i in spared]
    assert {engine.outputs[f"r{i}", 0].finish_reason for i in spared} == {"length"}
    failed = engine.outputs["r4", 0]
    assert failed.finish_reason == "error" and failed.token_ids == []
    expected = NOT_A_NUMBER if error is None else "out of memory" if not str(error).startswith("kernel") else "RuntimeError: kernel fault"
    assert (failed.error or "").startswith(expected)


def test_not_a_number_in_an_early_chunk_never_reaches_the_prefix_cache(model: Model, backend: Backend) -> None:
    prompt = [POISON, *range(1, 40)]
    engine = make_engine(Faulty(model, POISON), backend, tokens=16)
    engine.add("bad", prompt, GREEDY)
    assert engine.run()["bad", 0].error == NOT_A_NUMBER
    assert engine.scheduler.cache.usage().blocks_used == 0
    engine.add("again", prompt, GREEDY)
    engine.run()
    assert engine.scheduler.counters.prefix_hits == 0


def test_logits_that_overflow_end_the_row(model: Model, backend: Backend, alone: list[list[int]]) -> None:
    class Overflowing(Faulty):
        def logits(self, hidden: Tensor) -> Tensor:
            logits = self.model.logits(hidden)
            if len(hidden) == 1:
                logits[0, 5] = torch.inf
            return logits

    engine = make_engine(Overflowing(model, -1), backend)
    engine.add("r", [1, 2, 3], GREEDY)
    assert engine.run()["r", 0].error == NO_CHOICE


def test_memory_for_the_logits_of_few_rows_is_enough(model: Model, backend: Backend, alone: list[list[int]]) -> None:
    """Logits of more than two rows raise MemoryError: everyone is served in smaller groups."""
    engine = make_engine(Faulty(model, -1, error=MemoryError(), logits=True), backend)
    assert run(engine, make_requests()) == alone


def test_nothing_left_to_choose_ends_the_row(model: Model, backend: Backend, alone: list[list[int]]) -> None:
    engine = make_engine(model, backend)
    requests = make_requests()
    for i, request in enumerate(requests):
        engine.add(f"r{i}", *request)
    stuck = SamplingParams(temperature=0.0, max_tokens=8, min_tokens=8, allowed_token_ids=[7], stop_token_ids=[7])
    engine.add("stuck", [1, 2], stuck)
    outputs = engine.run()
    assert outputs["stuck", 0].error == NO_CHOICE
    assert [outputs[f"r{i}", 0].token_ids for i in range(len(requests))] == alone


def test_masks_bind_their_row_alone(model: Model, backend: Backend) -> None:
    runner = Runner(model, backend, block_size=BLOCK, num_blocks=8, max_num_seqs=4, max_model_len=CONTEXT)
    prompt = [3, 1, 4, 1, 5]
    admits = [Admit(slot, f"r{slot}", 0, list(prompt), 5, GREEDY, [], [slot]) for slot in range(2)]
    rows = [Row(slot, 0, 5, sample=True) for slot in range(2)]
    runner.launch(StepPlan(1, rows=rows, admits=admits, num_tokens=10))
    mask = np.zeros((1, -(-VOCAB // 32)), np.uint32)
    mask[0, 77 // 32] = 1 << (77 % 32)
    free, bound = runner.sample({1: mask}).token_ids
    assert bound == [77]
    assert free != [77]


def test_masks_along_a_draft_bind_their_position(model: Model, backend: Backend) -> None:
    """The first two positions must give 77 and 78, which the draft proposed; the third is bound to 79."""

    class Proposer:
        def begin(self, slot: int, token_ids: list[int]) -> None: ...
        def draft(self, slot: int, token_ids: list[int]) -> list[int]:
            return [77, 78]

        def accept(self, slot: int, proposed: int, accepted: int) -> None: ...
        def end(self, slot: int) -> None: ...

    runner = Runner(model, backend, block_size=BLOCK, num_blocks=8, max_num_seqs=4, max_model_len=CONTEXT, drafter=Proposer())
    admit = Admit(0, "r", 0, [3, 1, 4], 3, GREEDY, [], [0])
    runner.launch(StepPlan(1, rows=[Row(0, 0, 3, sample=True)], admits=[admit]))
    assert runner.sample().draft == {0: [77, 78]}
    mask = np.zeros((3, -(-VOCAB // 32)), np.uint32)
    for place, token in enumerate((77, 78, 79)):
        mask[place, token // 32] = 1 << (token % 32)
    runner.launch(StepPlan(2, rows=[Row(0, 3, 3, sample=True, num_draft=2)]))
    assert runner.sample({0: mask}).token_ids == [[77, 78, 79]]


def test_prompt_logprobs_end_with_the_prompt(model: Model, backend: Backend) -> None:
    """A resumed request computes its output too, which is no prompt."""
    runner = Runner(model, backend, block_size=BLOCK, num_blocks=8, max_num_seqs=4, max_model_len=CONTEXT)
    params = SamplingParams(temperature=0.0, prompt_logprobs=0)
    admit = Admit(0, "r", 0, [3, 1, 4, 1, 5, 9], 4, params, [], [0])
    runner.launch(StepPlan(1, rows=[Row(0, 0, 6, sample=True)], admits=[admit]))
    entries = runner.sample().prompt_logprobs[0]
    assert [entry.token_ids for entry in entries] == [[1], [4], [1]]


WRONG_ROWS = {
    "beyond the known tokens": Row(0, 0, 6, sample=True),
    "negative start": Row(0, -1, 2),
    "no token": Row(0, 3, 0),
    "an empty slot": Row(3, 0, 1),
    "a missing block": Row(1, 0, 9),
    "a block outside the cache": Row(0, 0, 5, sample=True, blocks_at=0, blocks=[8]),
    "more drafts than were proposed": Row(0, 4, 3, sample=True, num_draft=2),
    "a block table too long": Row(0, 0, 5, sample=True, blocks_at=0, blocks=list(range(200))),
}


@pytest.mark.parametrize("row", WRONG_ROWS.values(), ids=WRONG_ROWS.keys())
def test_rows_that_would_read_elsewhere_are_refused(model: Model, backend: Backend, row: Row) -> None:
    runner = Runner(model, backend, block_size=BLOCK, num_blocks=8, max_num_seqs=4, max_model_len=CONTEXT)
    admits = [Admit(0, "a", 0, [1, 2, 3, 4, 5], 5, GREEDY, [], [0]), Admit(1, "b", 0, list(range(9)), 9, GREEDY, [], [1])]
    admits.append(Admit(2, "c", 0, [1, 2, 3, 4, 5], 5, GREEDY, [], [2]))
    runner.launch(StepPlan(1, rows=[row, Row(2, 0, 5, sample=True)], admits=admits))
    result = runner.sample()
    assert list(result.errors) == [0]
    assert result.token_ids[0] == [] and len(result.token_ids[1]) == 1


def test_a_request_that_cannot_be_taken_over_fails_alone(model: Model, backend: Backend) -> None:
    runner = Runner(model, backend, block_size=BLOCK, num_blocks=8, max_num_seqs=4, max_model_len=CONTEXT)
    beyond = SamplingParams(logit_bias={VOCAB: 1.0})
    admits = [Admit(0, "a", 0, [1, 2], 2, beyond, [], [0]), Admit(1, "b", 0, [1, 2], 2, GREEDY, [], [1])]
    rows = [Row(0, 0, 2, sample=True), Row(1, 0, 2, sample=True)]
    runner.launch(StepPlan(1, rows=rows, admits=admits))
    result = runner.sample()
    assert "logit_bias" in result.errors[0] and len(result.token_ids[1]) == 1
    runner.launch(StepPlan(2, rows=[Row(0, 0, 2, sample=True)], admits=[Admit(0, "c", 0, [1, 2], 2, GREEDY, [], [0])], drops=[0, 1]))
    assert not runner.sample().errors


def test_dropping_and_admitting_twice_is_harmless(model: Model, backend: Backend) -> None:
    runner = Runner(model, backend, block_size=BLOCK, num_blocks=8, max_num_seqs=4, max_model_len=CONTEXT)
    runner.warm_up()
    admit = Admit(0, "a", 0, [1, 2], 2, GREEDY, [], [0])
    runner.launch(StepPlan(1, drops=[0, 3], admits=[admit]))
    runner.launch(StepPlan(2, drops=[3], admits=[admit], rows=[Row(0, 0, 2, sample=True)]))
    assert not runner.sample().errors
    with pytest.raises(RuntimeError):
        runner.sample()


def test_more_positions_than_the_model_has_are_refused(model: Model, backend: Backend) -> None:
    with pytest.raises(ValueError, match="positions"):
        Runner(model, backend, block_size=BLOCK, num_blocks=8, max_num_seqs=4, max_model_len=CONTEXT + 1)
