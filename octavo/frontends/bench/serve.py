"""``octavo bench serve``: load on any OpenAI-compatible server, measured from the client's side."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError, OctavoError
from octavo.frontends.bench.arrivals import arrival_times
from octavo.frontends.bench.datasets import IDS, TEXT, make_samples
from octavo.frontends.bench.http import HttpError, get_json
from octavo.frontends.bench.load import PATHS, Asking, ask, run_load
from octavo.frontends.bench.metrics import METRICS, NAMES, PERCENTILES, label, samples_of, summarize
from octavo.frontends.bench.report import print_table, report, save
from octavo.frontends.cli.console import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from octavo.frontends.bench.datasets import Sample, Workload
    from octavo.frontends.bench.http import Target
    from octavo.frontends.bench.metrics import Outcome

POLL_SECONDS = 0.2
SHOWN_ERRORS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBench:
    """Options of a run. ``model`` None: the first that the server lists. ``goals``: milliseconds by objective."""

    target: Target
    workload: Workload
    model: str | None = None
    endpoint: str = "completions"
    tokenizer: str | None = None
    request_rate: float = float("inf")
    burstiness: float = 1.0
    max_concurrency: int | None = None
    num_warmups: int = 1
    temperature: float | None = 0.0
    ignore_eos: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    goals: dict[str, float] = field(default_factory=dict)
    percentiles: Sequence[float] = PERCENTILES
    ready_timeout: float = 600.0
    request_timeout: float = 3600.0

    def __post_init__(self) -> None:
        if self.endpoint not in PATHS:
            raise ConfigError(f"--endpoint must be one of {', '.join(PATHS)}, got {self.endpoint!r}")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"--max-concurrency must be at least 1, got {self.max_concurrency}")
        if self.endpoint == "chat" and self.workload.form == IDS and self.workload.name != "sharegpt":
            object.__setattr__(self, "workload", replace(self.workload, form=TEXT))


@dataclass(slots=True)
class Run:
    """What was measured: the figures and every request."""

    model: str
    figures: dict[str, Any]
    outcomes: list[Outcome]


async def bench_serve(options: ServeBench, done: Callable[[Outcome], None] = lambda outcome: None) -> Run:
    """Wait for the server, warm it up, send the workload. Raises OctavoError if no answer comes or a warm-up request fails."""
    samples = make_samples(options.workload, token_counter(options.tokenizer))
    times = arrival_times(len(samples), options.request_rate, options.burstiness, random.Random(options.workload.seed + 1))
    listed = await wait_ready(options.target, options.ready_timeout)
    model = options.model or listed
    if model is None:
        raise ConfigError(f"{options.target.url} lists no model; name one with --model")
    asking = Asking(
        target=options.target, model=model, endpoint=options.endpoint, temperature=options.temperature, ignore_eos=options.ignore_eos,
        extra=options.extra, timeout=options.request_timeout,
    )  # fmt: skip
    await warm_up(asking, samples, options.num_warmups)
    outcomes, duration = await run_load(lambda sample, start: ask(asking, sample, start), samples, times, options.max_concurrency, done)
    figures = summarize(outcomes, duration, options.percentiles, options.goals)
    figures["token_counts"] = "server" if all(o.counted for o in outcomes if o.error is None) else "chunks"
    return Run(model, figures, outcomes)


async def wait_ready(target: Target, timeout: float) -> str | None:
    """Ask for the list of models until it is given; the first model's name. Raises OctavoError with the last refusal after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while True:
        try:
            reply = await asyncio.wait_for(get_json(target, "/v1/models"), max(1.0, end - time.monotonic()))
            models = reply.get("data") or [] if isinstance(reply, dict) else []
            return str(models[0]["id"]) if models else None
        except HttpError as error:
            if error.message.startswith(("401", "403")) or time.monotonic() > end:
                raise
        except (OSError, asyncio.TimeoutError) as error:
            if time.monotonic() > end:
                raise ConfigError(f"cannot reach {target.url}: {error or 'no answer'}") from None
        await asyncio.sleep(POLL_SECONDS)


async def warm_up(asking: Asking, samples: Sequence[Sample], count: int) -> None:
    """``count`` requests one after another. Raises OctavoError for the first that fails."""
    for i in range(count):
        outcome = await ask(asking, samples[i % len(samples)], time.perf_counter())
        if outcome.error is not None:
            raise OctavoError(f"a warm-up request failed: {outcome.error}")


def token_counter(model: str | None) -> Callable[[str], int] | None:
    """Counts tokens as ``model`` (catalog name, folder or file) does. None: no tokenizer was named."""
    if model is None:
        return None
    from octavo.config import EngineConfig
    from octavo.frontends.cli.console import model_path
    from octavo.service.model_text import load_model_text

    tokenizer = load_model_text(EngineConfig(model=str(model_path(model)))).tokenizer
    return lambda text: len(tokenizer.encode(text))


def run_serve(options: ServeBench, flags: dict[str, Any], output: Path | None, picture: Path | None, detailed: bool) -> None:
    """Measure, print, and write what was asked for. Status 1 if no request finished."""
    if picture is not None:
        from octavo.frontends.bench.plot import require_matplotlib

        require_matplotlib()
    with progress(options.workload.num_prompts) as advance:
        run = asyncio.run(bench_serve(options, advance))
    show_run(run, options)
    result = report("serve", flags | {"model": run.model}, run.figures)
    if detailed:
        result["requests"] = [details(o) for o in run.outcomes]
    save(output, result)
    if picture is not None:
        from octavo.frontends.bench.plot import plot_distributions

        finished = [(o.sent + o.latency, o.output_tokens) for o in run.outcomes if o.error is None]
        plot_distributions(picture, f"{run.model}, {len(run.outcomes):,} requests", samples_of(run.outcomes), finished)
    if not run.figures["completed"]:
        sys.exit(1)


def details(o: Outcome) -> dict[str, Any]:
    return {
        "prompt_tokens": o.prompt_tokens, "output_tokens": o.output_tokens, "sent": o.sent, "ttft": o.ttft, "e2el": o.latency, "itls": o.itls,
        "error": o.error,
    }  # fmt: skip


class progress:  # noqa: N801 (a context manager, used like a function)
    """A bar on standard error while requests finish."""

    def __init__(self, total: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=total, unit="request", file=sys.stderr, disable=not sys.stderr.isatty())

    def __enter__(self) -> Callable[[Any], None]:
        return lambda _: self._bar.update(1)

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def show_run(run: Run, options: ServeBench) -> None:
    """Two tables: rates, then latencies. Failures are listed by reason."""
    f = run.figures
    rows: list[tuple[str, Any]] = [
        ("requests finished", f["completed"]),
        ("requests failed", f["failed"]),
        ("duration, s", f["duration"]),
        ("input tokens", f["total_input_tokens"]),
        ("output tokens" + (" (chunks: the server reports no usage)" if f["token_counts"] == "chunks" else ""), f["total_output_tokens"]),
        ("requests/s", f["request_throughput"]),
        ("output tokens/s", f["output_throughput"]),
        ("input and output tokens/s", f["total_token_throughput"]),
        ("most requests at once", f["max_concurrent_requests"]),
    ]
    if options.goals:
        goals = ", ".join(f"{name} {limit:g} ms" for name, limit in options.goals.items())
        rows.insert(6, (f"good requests/s ({goals})", f["request_goodput"]))
    print_table(f"{run.model} at {options.target.url}", ("", ""), rows)
    quantiles = [label(q) for q in options.percentiles]
    latencies = [[NAMES[m], *(f[f"{column}_{m}_ms"] for column in ("mean", "median", *quantiles))] for m in METRICS]
    print_table("milliseconds", ("", "mean", "median", *quantiles), latencies)
    for reason, count in reasons_of(run.outcomes)[:SHOWN_ERRORS]:
        say(f"{count:,} failed: {reason}")


def reasons_of(outcomes: Sequence[Outcome]) -> list[tuple[str, int]]:
    """(an error, how often it came), most frequent first; errors that differ in numbers alone are one."""
    errors = [o.error for o in outcomes if o.error is not None]
    kinds = Counter(re.sub(r"[\d.,]+", "#", error) for error in errors)
    return [(next(e for e in errors if re.sub(r"[\d.,]+", "#", e) == kind), count) for kind, count in kinds.most_common()]


def parse_extra(text: str | None) -> dict[str, Any]:
    """--extra-body. Raises ConfigError."""
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"--extra-body must be a JSON object, got {text!r}")
    return value
