"""Masks, biases and penalties against transformers' processors and direct float32 formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from octavo.core.sampling_params import SamplingParams
from octavo.decode.penalties import LogitRules, TokenTally, forbid_by_mask
from octavo.errors import InvalidParameter

VOCAB = 50
EOS = [48]


def logits_row(seed: int = 0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def applied(params: SamplingParams, prompt: list[int], output: list[int], drafted: tuple[int, ...] = (), seed: int = 0) -> torch.Tensor:
    row = logits_row(seed).numpy().copy()
    LogitRules(params, prompt + output, len(prompt), EOS, VOCAB).apply(row, drafted)
    return torch.from_numpy(row)


def direct(params: SamplingParams, prompt: list[int], output: list[int], seed: int = 0) -> torch.Tensor:
    """The order of the module's docstring, over dense vectors."""
    x = logits_row(seed)
    if params.allowed_token_ids is not None:
        keep = torch.zeros(VOCAB, dtype=torch.bool)
        keep[params.allowed_token_ids] = True
        x[~keep] = -torch.inf
    for word in params.bad_words_token_ids:
        if output[len(output) - len(word) + 1 :] == word[:-1] or len(word) == 1:
            x[word[-1]] = -torch.inf
    if len(output) < params.min_tokens:
        x[list(params.stop_token_ids) + EOS] = -torch.inf
    for token, bias in params.logit_bias.items():
        x[token] += bias
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=VOCAB).float()
    seen = torch.bincount(torch.tensor(prompt + output, dtype=torch.int64), minlength=VOCAB) > 0
    factor = torch.where(seen, torch.tensor(params.repetition_penalty), torch.tensor(1.0))
    x = torch.where(x > 0, x / factor, x * factor)
    x -= torch.tensor(params.frequency_penalty) * counts
    return x - torch.tensor(params.presence_penalty) * (counts > 0)


@pytest.mark.parametrize("penalty", [0.5, 1.3, 10.0])
def test_repetition_penalty_is_transformers(penalty: float) -> None:
    prompt, output = [1, 2, 2, 3], [3, 7, 7, 9]
    oracle = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits_row()[None])[0]
    assert torch.equal(applied(SamplingParams(repetition_penalty=penalty), prompt, output), oracle)


@pytest.mark.parametrize("output", [[], [4], [5, 4], [4, 5], [9, 4, 5, 6], [4, 5, 6, 7]])
def test_bad_words_are_transformers(output: list[int]) -> None:
    """Only the output counts: the prompt below ends with the beginning of a bad word."""
    words = [[7], [4, 5], [4, 5, 6, 8], [5, 9]]
    oracle = logits_row()[None]
    # transformers bans a lone word at once and needs some input for the longer ones.
    oracle = NoBadWordsLogitsProcessor(words, eos_token_id=torch.tensor([1000]))(torch.tensor([output or [0]]), oracle)[0]
    assert torch.equal(applied(SamplingParams(bad_words_token_ids=words), [1, 4], output), oracle)


@pytest.mark.parametrize("num_output", [0, 2, 3, 5])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_min_tokens_is_transformers(num_output: int, ignore_eos: bool) -> None:
    tokens = torch.arange(4 + num_output)[None]
    oracle = MinNewTokensLengthLogitsProcessor(4, 3, [6, *EOS], device="cpu")(tokens, logits_row()[None])[0]
    params = SamplingParams(min_tokens=3, stop_token_ids=[6], ignore_eos=ignore_eos)
    assert torch.equal(applied(params, list(range(4)), list(range(4, 4 + num_output))), oracle)


def test_logit_bias_is_transformers() -> None:
    bias = {3: 2.5, 17: -100.0, 49: 0.125}
    oracle = SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()])(torch.tensor([[1, 2]]), logits_row()[None])[0]
    assert torch.equal(applied(SamplingParams(logit_bias=bias), [1], [2]), oracle)


def test_allowed_token_ids() -> None:
    row = applied(SamplingParams(allowed_token_ids=[5, 49, 5]), [1], [2])
    assert torch.equal(torch.nonzero(row.isfinite()).flatten(), torch.tensor([5, 49]))
    assert torch.equal(row[[5, 49]], logits_row()[[5, 49]])


tokens = st.integers(0, VOCAB - 1)
penalty = st.sampled_from([-2.0, -0.3, 0.0, 0.0, 0.7, 2.0])
all_params = st.builds(
    SamplingParams,
    presence_penalty=penalty,
    frequency_penalty=penalty,
    repetition_penalty=st.sampled_from([0.6, 1.0, 1.0, 1.8]),
    min_tokens=st.integers(0, 6),
    stop_token_ids=st.lists(tokens, max_size=3),
    logit_bias=st.dictionaries(tokens, st.floats(-100, 100, width=32), max_size=4),
    allowed_token_ids=st.none() | st.lists(tokens, min_size=1, max_size=20),
    bad_words_token_ids=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), max_size=4),
)


@settings(max_examples=300, deadline=None)
@given(params=all_params, prompt=st.lists(tokens, min_size=1, max_size=12), output=st.lists(st.integers(0, 7), max_size=12), data=st.data())
def test_incremental_state_equals_the_direct_formulas(params: SamplingParams, prompt: list[int], output: list[int], data: st.DataObject) -> None:
    """Admitted anywhere in the output, grown in any pieces, with drafts tried and thrown away in between."""
    at = data.draw(st.integers(0, len(output)))
    rules = LogitRules(params, prompt + output[:at], len(prompt), EOS, VOCAB)
    while at < len(output):
        rules.apply(logits_row().numpy().copy(), data.draw(st.lists(tokens, max_size=3)))
        more = data.draw(st.integers(1, len(output) - at))
        rules.append(output[at : at + more])
        at += more
    drafted = data.draw(st.lists(st.integers(0, 7), max_size=3))
    for extra in (drafted, []):  # a rejected draft leaves no trace
        row = logits_row(3).numpy().copy()
        rules.apply(row, extra)
        assert torch.equal(torch.from_numpy(row), direct(params, prompt, output + extra, 3))
    if not LogitRules.needed(params):
        assert torch.equal(torch.from_numpy(row), logits_row(3))


def test_rejected_drafts_are_not_repetitions() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    rules = LogitRules(params, [1, 2], 1, EOS, VOCAB)
    rules.apply(logits_row().numpy().copy(), [9, 9, 30])
    row = logits_row().numpy().copy()
    rules.apply(row)
    assert torch.equal(torch.from_numpy(row), direct(params, [1], [2]))


def test_tally_grows() -> None:
    tally = TokenTally([3, 3, 4], [])
    tally.add(list(range(1000)) + [7] * 5, 1)
    counts = dict(zip(tally.ids.tolist(), tally.counts.tolist(), strict=True))
    assert counts == {i: 6 if i == 7 else 1 for i in range(1000)}


@pytest.mark.parametrize("field", ["allowed_token_ids", "logit_bias", "stop_token_ids", "bad_words_token_ids"])
def test_tokens_beyond_the_vocabulary_are_refused(field: str) -> None:
    value = {"logit_bias": {VOCAB: 1.0}, "bad_words_token_ids": [[1, VOCAB]]}.get(field, [VOCAB])
    with pytest.raises(InvalidParameter, match="50"):
        LogitRules(SamplingParams(**{field: value}), [1], 1, EOS, VOCAB)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 100])
def test_mask_bits(vocab: int) -> None:
    allowed = np.random.default_rng(vocab).random(vocab) < 0.5
    mask = np.zeros(-(-vocab // 32), np.uint32)
    for t in np.flatnonzero(allowed).tolist():
        mask[t // 32] |= np.uint32(1 << (t % 32))
    row = np.arange(vocab, dtype=np.float32)
    forbid_by_mask(row, mask)
    np.testing.assert_array_equal(row, np.where(allowed, np.arange(vocab), -np.inf).astype(np.float32))
