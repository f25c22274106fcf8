"""Arithmetic of the load test, by hand and against numpy; arrivals; workloads."""

from __future__ import annotations

import json
import math
import random
import statistics
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.frontends.bench.arrivals import arrival_times
from octavo.frontends.bench.datasets import TEXT, WORDS, Sample, Workload, make_samples
from octavo.frontends.bench.load import brings_tokens
from octavo.frontends.bench.metrics import Outcome, is_good, most_at_once, parse_goodput, parse_percentiles, percentile, summarize
from octavo.frontends.bench.report import plain, show
from octavo.frontends.bench.startup import Start, figures_of

if TYPE_CHECKING:
    from pathlib import Path

# --- metrics ---


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], q: float) -> None:
    assert percentile(values, q) == pytest.approx(float(np.percentile(values, q)), rel=1e-9, abs=1e-6)


def test_no_values_have_no_percentile() -> None:
    assert math.isnan(percentile([], 50))


# Three requests that finish and one that does not. TPOT of the first: (1.0 - 0.2) / 4 = 0.2; of the second: (0.7 - 0.1) / 2 = 0.3.
DONE = [
    Outcome(prompt_tokens=10, output_tokens=5, sent=0.0, ttft=0.2, latency=1.0, itls=[0.1, 0.3, 0.2, 0.2]),
    Outcome(prompt_tokens=20, output_tokens=3, sent=0.5, ttft=0.1, latency=0.7, itls=[0.4, 0.2]),
    Outcome(prompt_tokens=30, output_tokens=1, sent=1.5, ttft=0.3, latency=0.3),
]
FAILED = Outcome(prompt_tokens=40, sent=0.1, latency=5.0, error="503: busy")


def test_figures_by_hand() -> None:
    f = summarize([*DONE, FAILED], 2.0, (90.0, 99.0), {})
    assert (f["completed"], f["failed"]) == (3, 1)
    assert (f["total_input_tokens"], f["total_output_tokens"]) == (60, 9)
    assert (f["request_throughput"], f["output_throughput"], f["total_token_throughput"]) == (1.5, 4.5, 34.5)
    assert "request_goodput" not in f
    assert f["mean_ttft_ms"] == pytest.approx(200.0)
    assert f["median_ttft_ms"] == pytest.approx(200.0)
    assert f["p90_ttft_ms"] == pytest.approx(280.0)  # 0.2 + 0.8 * 0.1
    assert f["mean_tpot_ms"] == pytest.approx(250.0)  # the request of one token has no TPOT
    assert f["std_tpot_ms"] == pytest.approx(50.0)
    assert f["mean_itl_ms"] == pytest.approx(1e3 * 1.4 / 6)
    assert f["median_itl_ms"] == pytest.approx(200.0)
    assert f["p99_e2el_ms"] == pytest.approx(1e3 * (0.7 + 0.98 * 0.3))
    assert f["max_concurrent_requests"] == 3  # the failed one was in flight too


def test_goodput_wants_every_objective() -> None:
    goals = parse_goodput(["ttft:250 tpot:250", "e2el:2000"])
    assert [is_good(o, goals) for o in DONE] == [True, False, False]
    assert summarize([*DONE, FAILED], 2.0, (), goals)["request_goodput"] == 0.5
    assert summarize(DONE, 2.0, (), {"ttft": 200.0})["request_goodput"] == 1.0  # at the limit is within it


def test_nothing_finished() -> None:
    f = summarize([FAILED], 1.0, (99.0,), {"ttft": 1.0})
    assert f["request_throughput"] == 0 and f["request_goodput"] == 0 and math.isnan(f["p99_ttft_ms"])
    assert plain(f)["p99_ttft_ms"] is None


def test_requests_that_touch_are_not_at_once() -> None:
    ends = [Outcome(prompt_tokens=1, sent=float(i), latency=1.0) for i in range(4)]
    assert most_at_once(ends) == 1
    assert most_at_once([*ends, Outcome(prompt_tokens=1, sent=0.5, latency=1.0)]) == 2


@pytest.mark.parametrize("text", ["ttft", "ttft:x", "ttft:0", "ttft:-3", "itl:5", "ttft:nan", ":5"])
def test_bad_objectives_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--goodput"):
        parse_goodput([text])


def test_percentiles_are_read() -> None:
    assert parse_percentiles("50,99.9") == (50.0, 99.9)
    for text in ("", "x", "101", "-1", "50;60"):
        with pytest.raises(ConfigError, match="--metric-percentiles"):
            parse_percentiles(text)


@pytest.mark.parametrize(
    ("choice", "tokens"),
    [
        ({"text": "a", "finish_reason": None}, True),
        ({"text": "", "finish_reason": None}, True),  # half a character
        ({"text": "", "finish_reason": "length"}, False),
        ({"text": "a", "finish_reason": "length"}, True),
        ({"delta": {"role": "assistant", "content": ""}, "finish_reason": None}, False),
        ({"delta": {"role": "assistant", "content": "a"}, "finish_reason": None}, True),
        ({"delta": {"content": ""}, "finish_reason": None}, True),
        ({"delta": {}, "finish_reason": "stop"}, False),
        ({"delta": {"reasoning_content": "hm"}}, True),
    ],
)
def test_which_chunks_bring_tokens(choice: dict[str, object], tokens: bool) -> None:
    assert brings_tokens(choice) is tokens


def test_startup_pairs_each_start_with_its_import() -> None:
    f = figures_of([2.0, 3.0, 2.5], [Start(0.3, 2.0, 2.5), Start(0.4, 3.0, 3.1), Start(0.2, 2.0, 4.0)])
    assert f["over_import_torch_s"] == {"median": 0.5, "min": pytest.approx(0.1), "max": 1.5}
    assert f["accepting_s"] == {"median": 0.3, "min": 0.2, "max": 0.4}


def test_figures_are_shown_with_the_digits_that_matter() -> None:
    assert [show(v) for v in (1234.5, 123.45, 1.234, 0.01234, math.nan, 12345, "x")] == ["1,234", "123.5", "1.23", "0.012", "-", "12,345", "x"]


# --- arrivals ---


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_gaps_have_the_asked_mean_and_spread(burstiness: float) -> None:
    rate, count = 20.0, 40_000
    times = arrival_times(count, rate, burstiness, random.Random(3))
    gaps = [b - a for a, b in pairwise(times)]
    assert times[0] == 0 and min(gaps) >= 0
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(1 / rate, rel=0.03)
    assert statistics.pstdev(gaps) / mean == pytest.approx(burstiness**-0.5, rel=0.03)


def test_poisson_counts_are_poisson() -> None:
    """Arrivals in windows of one second at 5 a second: mean and variance are both 5."""
    times = arrival_times(50_000, 5.0, 1.0, random.Random(0))
    counts = np.bincount(np.array(times, int))[:-1]
    assert counts.mean() == pytest.approx(5, rel=0.03)
    assert counts.var() == pytest.approx(5, rel=0.06)


def test_an_infinite_rate_is_a_burst() -> None:
    assert arrival_times(3, math.inf, 1.0, random.Random(0)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("rate", "burstiness"), [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, 0.0), (1.0, math.inf)])
def test_bad_rates_are_refused(rate: float, burstiness: float) -> None:
    with pytest.raises(ConfigError, match=r"--request-rate|--burstiness"):
        arrival_times(2, rate, burstiness, random.Random(0))


# --- workloads ---


def ids(sample: Sample) -> list[int]:
    assert isinstance(sample.prompt, list)
    return sample.prompt


def test_random_lengths_stay_in_their_range_and_repeat_with_the_seed() -> None:
    workload = Workload(num_prompts=400, input_len=100, output_len=10, range_ratio=0.5, low_id=7, high_id=9)
    samples = make_samples(workload)
    lengths, outputs = {s.prompt_tokens for s in samples}, {s.output_tokens for s in samples}
    assert min(lengths) >= 50 and max(lengths) <= 150 and len(lengths) > 50
    assert outputs == set(range(5, 16))
    assert all(len(ids(s)) == s.prompt_tokens and set(ids(s)) <= {7, 8} for s in samples)
    assert make_samples(workload) == samples
    assert make_samples(Workload(num_prompts=400, input_len=100, output_len=10, range_ratio=0.5, low_id=7, high_id=9, seed=1)) != samples


def test_without_a_range_every_length_is_the_same() -> None:
    assert {(s.prompt_tokens, s.output_tokens) for s in make_samples(Workload(num_prompts=20, input_len=9, output_len=4))} == {(9, 4)}


def test_prefixes_are_shared() -> None:
    samples = make_samples(Workload(name="shared-prefix", num_prompts=50, input_len=5, output_len=3, prefix_len=12, num_prefixes=3))
    assert len({tuple(ids(s)[:12]) for s in samples}) == 3
    assert len({tuple(ids(s)[12:]) for s in samples}) == 50
    assert all(s.prompt_tokens == 17 for s in samples)


def test_prompts_as_text() -> None:
    (sample,) = make_samples(Workload(num_prompts=1, input_len=6, output_len=3, form=TEXT))
    assert isinstance(sample.prompt, str) and len(sample.prompt.split(" ")) == 6 and set(sample.prompt.split(" ")) <= set(WORDS)


def conversation(question: str, answer: str) -> dict[str, object]:
    return {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}


def test_sharegpt_takes_first_turns_of_fitting_length(tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    fitting = [conversation(f"q{i} " + "x" * 40, "y" * 80) for i in range(3)]
    path.write_text(json.dumps([*fitting, conversation("hi", "y" * 80), conversation("x" * 5000, "y" * 80), {"conversations": []}]))
    samples = make_samples(Workload(name="sharegpt", num_prompts=3, path=path))
    assert sorted(str(s.prompt)[:2] for s in samples) == ["q0", "q1", "q2"]
    assert {(s.prompt_tokens, s.output_tokens) for s in samples} == {(11, 20)}  # four characters a token
    words = make_samples(Workload(name="sharegpt", num_prompts=1, path=path, sharegpt_output_len=7), lambda text: len(text.split()) + 5)
    assert (words[0].prompt_tokens, words[0].output_tokens) == (7, 7)
    with pytest.raises(ConfigError, match="has 3 conversations of a fitting length, --num-prompts asks for 4"):
        make_samples(Workload(name="sharegpt", num_prompts=4, path=path))


@pytest.mark.parametrize("content", ["", "{}x", '{"a": 1}', "[1]", '[{"conversations": [{"x": 1}, {}]}]', "7"])
def test_files_that_are_not_sharegpt(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"bad\.json"):
        make_samples(Workload(name="sharegpt", num_prompts=1, path=path))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "wiki"}, "unknown dataset"),
        ({"name": "sharegpt"}, "--dataset-path"),
        ({"name": "shared-prefix"}, "--prefix-len"),
        ({"range_ratio": 1.0}, "--random-range-ratio"),
        ({"num_prompts": 0}, "num_prompts"),
        ({"form": "xml"}, "--prompt-format"),
        ({"low_id": 9, "high_id": 9}, "not empty"),
    ],
)
def test_workloads_that_make_no_sense(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Workload(**fields)  # type: ignore[arg-type]
