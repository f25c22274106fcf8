"""``octavo bench latency`` and ``throughput``: the offline library, no server."""

from __future__ import annotations

import math
import random
import statistics
import time
from typing import TYPE_CHECKING, Any

from octavo.core.sampling_params import SamplingParams
from octavo.errors import ConfigError
from octavo.frontends.bench.datasets import make_samples
from octavo.frontends.bench.metrics import label, percentile
from octavo.frontends.bench.report import print_table, report, save
from octavo.frontends.cli.console import model_path, say
from octavo.frontends.llm import LLM

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from octavo.frontends.bench.datasets import Sample, Workload

LATENCY_PERCENTILES = (10.0, 25.0, 50.0, 75.0, 90.0, 99.0)
SPARE_LOW, SPARE_HIGH = 0.1, 0.9  # random ids avoid the ends of a vocabulary, where special tokens are


def open_llm(model: str, options: dict[str, Any]) -> LLM:
    say(f"loading {model} ...")
    return LLM(model=str(model_path(model)), **options)


def random_prompts(vocab_size: int, count: int, length: int, seed: int = 0) -> list[dict[str, Any]]:
    """``count`` prompts of ``length`` random token ids."""
    rng = random.Random(seed)
    low, high = int(SPARE_LOW * vocab_size), max(int(SPARE_HIGH * vocab_size), int(SPARE_LOW * vocab_size) + 1)
    return [{"prompt_token_ids": [rng.randrange(low, high) for _ in range(length)]} for _ in range(count)]


def measure_latency(llm: LLM, *, input_len: int, output_len: int, batch_size: int, warmups: int, iterations: int) -> list[float]:
    """Seconds of each of ``iterations`` runs of one batch; every run computes its prompts anew."""
    vocab, params = llm.get_tokenizer().vocab_size, SamplingParams(temperature=0, ignore_eos=True, max_tokens=output_len, detokenize=False)
    seconds = []
    for i in range(warmups + iterations):
        prompts = random_prompts(vocab, batch_size, input_len, seed=i)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
    return seconds[warmups:]


def latency_figures(seconds: Sequence[float], *, input_len: int, output_len: int, batch_size: int) -> dict[str, Any]:
    return {
        "avg_latency_s": statistics.fmean(seconds),
        "latencies_s": list(seconds),
        "percentiles_s": {label(q): percentile(seconds, q) for q in LATENCY_PERCENTILES},
        "output_tokens_per_s": batch_size * output_len / percentile(seconds, 50),
        "total_tokens_per_s": batch_size * (input_len + output_len) / percentile(seconds, 50),
    }


def run_latency(model: str, shape: dict[str, int], options: dict[str, Any], flags: dict[str, Any], output: Path | None, picture: Path | None) -> None:
    """``shape``: the keyword arguments of :func:`measure_latency`."""
    for name, value in shape.items():
        if value < (0 if name == "warmups" else 1):
            raise ConfigError(f"{name} must be positive, got {value}")
    if picture is not None:
        from octavo.frontends.bench.plot import require_matplotlib

        require_matplotlib()
    with open_llm(model, {"max_num_seqs": max(shape["batch_size"], 1), **options, "enable_prefix_caching": False}) as llm:
        seconds = measure_latency(llm, **shape)
    sizes = {name: shape[name] for name in ("input_len", "output_len", "batch_size")}
    figures = latency_figures(seconds, **sizes)
    title = f"{model}: {sizes['batch_size']} x ({sizes['input_len']} in, {sizes['output_len']} out), {len(seconds)} runs"
    rows = [("mean latency, s", figures["avg_latency_s"]), *((f"{q} latency, s", s) for q, s in figures["percentiles_s"].items())]
    rows += [("output tokens/s (median)", figures["output_tokens_per_s"]), ("input and output tokens/s", figures["total_tokens_per_s"])]
    print_table(title, ("", ""), rows)
    save(output, report("latency", flags, figures))
    if picture is not None:
        from octavo.frontends.bench.plot import plot_distributions

        plot_distributions(picture, title, {"e2el": seconds})


def measure_throughput(llm: LLM, samples: Sequence[Sample], *, use_tqdm: bool = False) -> dict[str, Any]:
    """All requests at once; end tokens are ignored, so every request gives the output it asks for."""
    prompts: list[Any] = [s.prompt if isinstance(s.prompt, str) else {"prompt_token_ids": s.prompt} for s in samples]
    params = [SamplingParams(temperature=1.0, seed=i, ignore_eos=True, max_tokens=s.output_tokens) for i, s in enumerate(samples)]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=use_tqdm)
    elapsed = time.perf_counter() - start
    failed = [o.outputs[0].error for o in outputs if o.outputs[0].finish_reason not in ("length", "stop")]
    inputs, made = sum(len(o.prompt_token_ids) for o in outputs), sum(len(o.outputs[0].token_ids) for o in outputs)
    return {
        "elapsed_s": elapsed,
        "num_requests": len(samples),
        "failed": len(failed),
        "total_input_tokens": inputs,
        "total_output_tokens": made,
        "requests_per_s": (len(samples) - len(failed)) / elapsed,
        "input_tokens_per_s": inputs / elapsed,
        "output_tokens_per_s": made / elapsed,
        "total_tokens_per_s": (inputs + made) / elapsed,
    }


def run_throughput(model: str, workload: Workload, options: dict[str, Any], flags: dict[str, Any], output: Path | None) -> None:
    with open_llm(model, options) as llm:
        tokenizer = llm.get_tokenizer()
        samples = make_samples(_within(workload, tokenizer.vocab_size), lambda text: len(tokenizer.encode(text)))
        llm.generate(random_prompts(tokenizer.vocab_size, 2, 16), SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), use_tqdm=False)
        figures = measure_throughput(llm, samples, use_tqdm=True)
    names = {
        "elapsed_s": "duration, s", "num_requests": "requests", "failed": "requests failed", "total_input_tokens": "input tokens",
        "total_output_tokens": "output tokens", "requests_per_s": "requests/s", "input_tokens_per_s": "input tokens/s",
        "output_tokens_per_s": "output tokens/s", "total_tokens_per_s": "input and output tokens/s",
    }  # fmt: skip
    print_table(model, ("", ""), [(text, figures[name]) for name, text in names.items()])
    save(output, report("throughput", flags, figures))


def _within(workload: Workload, vocab_size: int) -> Workload:
    """The same with random ids that the vocabulary has."""
    from dataclasses import replace

    low, high = math.floor(SPARE_LOW * vocab_size), math.ceil(SPARE_HIGH * vocab_size)
    return replace(workload, low_id=low, high_id=max(high, low + 1))
