"""The sampler as the worker uses it: slots come and go, rows share a call, requests are resumed, and no token changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.backend.base import BackendOptions
from octavo.backend.reference import ReferenceBackend
from octavo.core.plan import Admit
from octavo.core.sampling_params import SamplingParams
from octavo.decode.sampler import Sampler
from octavo.decode.verify import verify
from octavo.errors import InvalidParameter
from tests.kernels.test_philox import scalar_noise

VOCAB, EOS = 40, [39]
PROMPT = [1, 2, 3, 2]
PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "greedy-penalized": SamplingParams(temperature=0.0, repetition_penalty=1.7, frequency_penalty=0.4, presence_penalty=0.3),
    "sampled": SamplingParams(seed=7),
    "filtered": SamplingParams(seed=8, top_k=12, top_p=0.9, min_p=0.01, temperature=1.3),
    "negative-seed": SamplingParams(seed=-5),
    "penalized": SamplingParams(seed=9, repetition_penalty=1.4, frequency_penalty=0.5, presence_penalty=-0.2),
    "ruled": SamplingParams(
        seed=10, min_tokens=6, stop_token_ids=[5], logit_bias={7: 3.0}, allowed_token_ids=list(range(30)) + EOS,
        bad_words_token_ids=[[7, 7], [8], [7, 9, 7]],
    ),
}


def new_sampler(slots: int = 8) -> Sampler:
    return Sampler(ReferenceBackend(BackendOptions(threads=1)), VOCAB, slots)


def admit(slot: int, params: SamplingParams, token_ids: list[int], index: int = 0) -> Admit:
    return Admit(slot, "r", index, list(token_ids), len(PROMPT), params, EOS, [])


def model(token_ids: list[int]) -> torch.Tensor:
    """Logits that depend on the last three tokens."""
    seed = sum((t + 1) * 41**i for i, t in enumerate(token_ids[-3:]))
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def generate(params: SamplingParams, steps: int, index: int = 0) -> list[int]:
    """Alone, one token at a time, never interrupted."""
    sampler, ids = new_sampler(), list(PROMPT)
    sampler.begin(admit(0, params, ids, index))
    for _ in range(steps):
        token = int(sampler.sample(model(ids)[None].clone(), [0])[0])
        sampler.append(0, [token])
        ids.append(token)
    return ids[len(PROMPT) :]


@pytest.mark.parametrize("name", PARAMS)
def test_company_and_slots_change_no_token(name: str) -> None:
    """Every request beside the others in a shuffled order, in slots that others used before, resumed from its tokens now and then."""
    rng = np.random.default_rng(sorted(PARAMS).index(name))
    sampler = new_sampler(len(PARAMS))
    ids = {key: list(PROMPT) for key in PARAMS}
    slots: dict[str, int] = {}
    for turn in range(24):
        if turn % 5 == 0:  # everything is preempted and comes back elsewhere
            for slot in slots.values():
                sampler.end(slot)
            slots = dict(zip(PARAMS, rng.permutation(len(PARAMS)).tolist(), strict=True))
            for key, slot in slots.items():
                sampler.begin(admit(slot, PARAMS[key], ids[key]))
        others = [key for key in PARAMS if key != name and rng.random() < 0.6]
        keys = rng.permutation([name, *others]).tolist()
        chosen = sampler.sample(torch.stack([model(ids[key]) for key in keys]), [slots[key] for key in keys])
        for key, token in zip(keys, chosen.tolist(), strict=True):
            sampler.append(slots[key], [token])
            ids[key].append(token)
    assert ids[name][len(PROMPT) :] == generate(PARAMS[name], 24)


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_drafts_change_no_token(name: str, right: float) -> None:
    """Speculation of up to 3 tokens with a drafter that is right now and then."""
    params, want = PARAMS[name], generate(PARAMS[name], 30)
    rng = np.random.default_rng(0)
    sampler, ids = new_sampler(), list(PROMPT)
    sampler.begin(admit(2, params, ids))
    calls = 0
    while len(ids) < len(PROMPT) + 20:
        done = len(ids) - len(PROMPT)
        truth = want[done : done + 3]
        draft = [t if rng.random() < right else int(rng.integers(VOCAB)) for t in truth]
        logits = torch.stack([model(ids + draft[:i]) for i in range(len(draft) + 1)])
        samples = sampler.sample(logits, [2] * (len(draft) + 1), {i: draft[:i] for i in range(1, len(draft) + 1)}).tolist()
        gained = verify(samples, draft)
        sampler.append(2, gained)
        ids += gained
        calls += 1
    out = ids[len(PROMPT) :]
    assert out == want[: len(out)]
    if right == 1.0:
        assert calls == 5


def test_noise_uses_seed_index_and_position() -> None:
    logits, ids = model(PROMPT), [*PROMPT, 4, 4]
    sampler = new_sampler()
    for slot, (seed, index) in enumerate([(7, 0), (7, 3), (-5, 0), (None, 0), (2**64 - 1, 1)]):
        sampler.begin(admit(slot, SamplingParams(seed=seed), ids, index))
    chosen = sampler.sample(logits.repeat(5, 1), range(5)).tolist()
    for token, (seed, index) in zip(chosen, [(7, 0), (7, 3), (2**64 - 5, 0), (0, 0), (2**64 - 1, 1)], strict=True):
        scores = [float(logits[t]) + scalar_noise(seed, index, len(ids), t) for t in range(VOCAB)]
        assert token == scores.index(max(scores))


def test_sequences_of_one_request_differ() -> None:
    runs = [tuple(generate(SamplingParams(seed=3), 12, index)) for index in range(4)]
    assert len(set(runs)) == 4


def test_grammar_mask_and_rows_without_rules() -> None:
    sampler = new_sampler()
    for slot in range(3):
        sampler.begin(admit(slot, SamplingParams(temperature=0.0), PROMPT))
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    mask = np.zeros(2, np.uint32)
    mask[0] = 1 << 17
    chosen = sampler.sample(logits, [0, 1, 2], masks={1: mask}).tolist()
    assert chosen == [int(before[0].argmax()), 17, int(before[2].argmax())]
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
    assert sampler.sample(before.clone(), [0, 1, 2], masks={1: mask * 0}).tolist()[1] == -1


def test_a_refused_request_leaves_the_slot_free_and_clean() -> None:
    sampler = new_sampler()
    sampler.begin(admit(0, PARAMS["ruled"], PROMPT))
    with pytest.raises(InvalidParameter, match="400"):
        sampler.begin(admit(0, SamplingParams(allowed_token_ids=[400]), PROMPT))
    sampler.begin(admit(0, SamplingParams(temperature=0.0), PROMPT))
    logits = model(PROMPT)[None]
    assert int(sampler.sample(logits.clone(), [0])[0]) == int(logits.argmax())


@pytest.mark.parametrize(
    ("samples", "draft", "gained"),
    [
        ([5], [], [5]),
        ([5, 6, 7], [5, 6], [5, 6, 7]),
        ([5, 6, 7], [5, 9], [5, 6]),
        ([5, 6, 7], [9, 6], [5]),
        ([-1], [], [-1]),
        ([5, -1, 7], [5, 3], [5, -1]),
    ],
)
def test_verify(samples: list[int], draft: list[int], gained: list[int]) -> None:
    assert verify(samples, draft) == gained


def test_verify_needs_one_sample_more_than_draft() -> None:
    with pytest.raises(ValueError, match="2 draft tokens need 3 samples, got 2"):
        verify([1, 2], [1, 2])
