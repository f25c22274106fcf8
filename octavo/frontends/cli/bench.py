"""``octavo bench``: its commands and their options. What they do is in :mod:`octavo.frontends.bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from octavo.checkpoint.catalog import DEFAULT_MODEL

app = typer.Typer(
    name="bench", help="Measure latency, throughput, a server under load, start-up time and kernels.", no_args_is_help=True, rich_markup_mode="rich"
)

WORK, LOAD, ENGINE, OUT = "Workload", "Load", "Engine", "Output"

Model = Annotated[str, typer.Argument(help="Catalog name, folder or .gguf file.", metavar="[MODEL]")]
Output = Annotated[Path | None, typer.Option("--output-json", help="Write machine, versions, flags and figures here.", rich_help_panel=OUT)]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw the distributions as a PNG here; needs matplotlib.", rich_help_panel=OUT)]
MaxModelLen = Annotated[str, typer.Option(help="Context in tokens, e.g. 4096 or 8k.", rich_help_panel=ENGINE)]
CacheBytes = Annotated[str | None, typer.Option("--kv-cache-memory-bytes", help="Size of the KV cache, e.g. 2GiB.", rich_help_panel=ENGINE)]
MaxTokens = Annotated[int, typer.Option("--max-num-batched-tokens", help="Tokens of one step.", rich_help_panel=ENGINE)]
Threads = Annotated[int, typer.Option(help="Compute threads; 0: every core this process may use.", rich_help_panel=ENGINE)]
Backend = Annotated[str, typer.Option(help="auto, cpu or reference.", rich_help_panel=ENGINE)]
CacheType = Annotated[
    str, typer.Option("--kv-cache-dtype", help="auto (float32), float16, bfloat16, int8, fp8_e4m3 or fp8_e5m2.", rich_help_panel=ENGINE)
]
Weights = Annotated[str, typer.Option(help="auto computes with quantized weights as stored; dense widens them to float32.", rich_help_panel=ENGINE)]
Dataset = Annotated[str, typer.Option("--dataset-name", help="random, sharegpt or shared-prefix.", rich_help_panel=WORK)]
DatasetPath = Annotated[Path | None, typer.Option(help="JSON file of ShareGPT conversations.", rich_help_panel=WORK)]
InputLen = Annotated[int, typer.Option("--random-input-len", help="Random tokens of a prompt.", rich_help_panel=WORK)]
OutputLen = Annotated[int, typer.Option("--random-output-len", help="Tokens asked of a reply.", rich_help_panel=WORK)]
RangeRatio = Annotated[
    float, typer.Option("--random-range-ratio", help="Lengths are uniform in length * (1 - r) to length * (1 + r).", rich_help_panel=WORK)
]
PrefixLen = Annotated[int, typer.Option(help="Tokens of a shared prefix, before the random ones.", rich_help_panel=WORK)]
NumPrefixes = Annotated[int, typer.Option(help="How many prefixes the requests draw from.", rich_help_panel=WORK)]
ShareGptOutput = Annotated[int | None, typer.Option("--sharegpt-output-len", help="Ask for this many tokens each.", rich_help_panel=WORK)]
NumPrompts = Annotated[int, typer.Option(help="Requests.", rich_help_panel=WORK)]
Seed = Annotated[int, typer.Option(help="Same seed, same workload.", rich_help_panel=WORK)]


def _flags(context: typer.Context) -> dict[str, Any]:
    """What the command was asked, for the record; keys are secrets."""
    return {name: value for name, value in context.params.items() if name not in ("output_json", "plot", "api_key")}


@app.command()
def latency(
    context: typer.Context,
    model: Model = DEFAULT_MODEL,
    input_len: Annotated[int, typer.Option(help="Tokens of each prompt.", rich_help_panel=WORK)] = 32,
    output_len: Annotated[int, typer.Option(help="Tokens generated for each.", rich_help_panel=WORK)] = 128,
    batch_size: Annotated[int, typer.Option(help="Requests of the batch.", rich_help_panel=WORK)] = 8,
    num_iters_warmup: Annotated[int, typer.Option(help="Runs before the measured ones.", rich_help_panel=WORK)] = 2,
    num_iters: Annotated[int, typer.Option(help="Measured runs.", rich_help_panel=WORK)] = 10,
    max_model_len: MaxModelLen = "auto",
    kv_cache_memory_bytes: CacheBytes = None,
    kv_cache_dtype: CacheType = "auto",
    max_num_batched_tokens: MaxTokens = 512,
    threads: Threads = 0,
    backend: Backend = "auto",
    weights: Weights = "auto",
    output_json: Output = None,
    plot: Plot = None,
) -> None:
    """Time one batch of fixed lengths, again and again: mean and percentiles. Offline, prefix cache off."""
    from octavo.frontends.bench.offline import run_latency

    shape = {
        "input_len": input_len, "output_len": output_len, "batch_size": batch_size, "warmups": num_iters_warmup, "iterations": num_iters,
    }  # fmt: skip
    options = {
        "max_model_len": max_model_len, "kv_cache_memory_bytes": kv_cache_memory_bytes, "max_num_batched_tokens": max_num_batched_tokens,
        "threads": threads, "backend": backend, "weights": weights, "kv_cache_dtype": kv_cache_dtype,
    }  # fmt: skip
    run_latency(model, shape, options, _flags(context), output_json, plot)


@app.command()
def throughput(
    context: typer.Context,
    model: Model = DEFAULT_MODEL,
    dataset_name: Dataset = "random",
    dataset_path: DatasetPath = None,
    num_prompts: NumPrompts = 64,
    random_input_len: InputLen = 128,
    random_output_len: OutputLen = 64,
    random_range_ratio: RangeRatio = 0.0,
    prefix_len: PrefixLen = 0,
    num_prefixes: NumPrefixes = 1,
    sharegpt_output_len: ShareGptOutput = None,
    seed: Seed = 0,
    max_model_len: MaxModelLen = "auto",
    kv_cache_memory_bytes: CacheBytes = None,
    kv_cache_dtype: CacheType = "auto",
    max_num_seqs: Annotated[int, typer.Option(help="Sequences of one step.", rich_help_panel=ENGINE)] = 64,
    max_num_batched_tokens: MaxTokens = 512,
    enable_prefix_caching: Annotated[bool, typer.Option(help="Share the KV blocks of equal prefixes.", rich_help_panel=ENGINE)] = True,
    threads: Threads = 0,
    backend: Backend = "auto",
    weights: Weights = "auto",
    output_json: Output = None,
) -> None:
    """Give the offline library all requests at once: tokens a second, in, out and in all."""
    from octavo.frontends.bench.datasets import Workload
    from octavo.frontends.bench.offline import run_throughput

    workload = Workload(
        name=dataset_name, num_prompts=num_prompts, input_len=random_input_len, output_len=random_output_len, range_ratio=random_range_ratio,
        prefix_len=prefix_len, num_prefixes=num_prefixes, path=dataset_path, sharegpt_output_len=sharegpt_output_len, seed=seed,
    )  # fmt: skip
    options = {
        "max_model_len": max_model_len, "kv_cache_memory_bytes": kv_cache_memory_bytes, "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens, "enable_prefix_caching": enable_prefix_caching, "threads": threads, "backend": backend,
        "weights": weights, "kv_cache_dtype": kv_cache_dtype,
    }  # fmt: skip
    run_throughput(model, workload, options, _flags(context), output_json)


@app.command()
def serve(
    context: typer.Context,
    url: Annotated[str, typer.Option("--base-url", "--url", help="Any OpenAI-compatible server.", rich_help_panel=LOAD)] = "http://127.0.0.1:8000",
    api_key: Annotated[str | None, typer.Option(envvar="OCTAVO_API_KEY", help="Key of that server.", rich_help_panel=LOAD)] = None,
    model: Annotated[str | None, typer.Option(help="Model to ask for; default: the first that it lists.", rich_help_panel=LOAD)] = None,
    endpoint: Annotated[str, typer.Option(help="completions or chat.", rich_help_panel=LOAD)] = "completions",
    request_rate: Annotated[float, typer.Option(help="Requests a second; inf sends all at once.", rich_help_panel=LOAD)] = float("inf"),
    burstiness: Annotated[
        float, typer.Option(help="Shape of the gaps: 1 is Poisson, below 1 burstier, above 1 more even.", rich_help_panel=LOAD)
    ] = 1.0,
    max_concurrency: Annotated[int | None, typer.Option(help="Most requests in flight.", rich_help_panel=LOAD)] = None,
    num_warmups: Annotated[int, typer.Option(min=0, help="Requests before the measured ones.", rich_help_panel=LOAD)] = 1,
    ready_timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the server.", rich_help_panel=LOAD)] = 600.0,
    request_timeout: Annotated[float, typer.Option(min=0, help="Seconds until a request counts as failed.", rich_help_panel=LOAD)] = 3600.0,
    temperature: Annotated[float, typer.Option(help="0 is greedy; below 0 leaves it to the server.", rich_help_panel=LOAD)] = 0.0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Run to the asked length, where servers know it.", rich_help_panel=LOAD)] = False,
    extra_body: Annotated[str | None, typer.Option(help="JSON object that joins every request.", rich_help_panel=LOAD)] = None,
    dataset_name: Dataset = "random",
    dataset_path: DatasetPath = None,
    num_prompts: NumPrompts = 64,
    random_input_len: InputLen = 128,
    random_output_len: OutputLen = 64,
    random_range_ratio: RangeRatio = 0.0,
    prefix_len: PrefixLen = 0,
    num_prefixes: NumPrefixes = 1,
    sharegpt_output_len: ShareGptOutput = None,
    prompt_format: Annotated[str, typer.Option(help="ids, or text for servers that take no token ids.", rich_help_panel=WORK)] = "ids",
    tokenizer: Annotated[str | None, typer.Option(help="Model whose tokenizer counts ShareGPT's texts.", rich_help_panel=WORK)] = None,
    seed: Seed = 0,
    goodput: Annotated[
        list[str] | None, typer.Option(help="Objective in ms, such as ttft:200, tpot:50, e2el:2000; may be repeated.", rich_help_panel=OUT)
    ] = None,
    metric_percentiles: Annotated[str, typer.Option(help="Percentiles to show.", rich_help_panel=OUT)] = "90,95,99",
    save_detailed: Annotated[bool, typer.Option("--save-detailed", help="Every request's times in the JSON.", rich_help_panel=OUT)] = False,
    output_json: Output = None,
    plot: Plot = None,
) -> None:
    """Put load on a server and measure from its clients' side: TTFT, TPOT, ITL, E2EL, throughput, goodput."""
    from octavo.frontends.bench.datasets import Workload
    from octavo.frontends.bench.http import Target
    from octavo.frontends.bench.metrics import parse_goodput, parse_percentiles
    from octavo.frontends.bench.serve import ServeBench, parse_extra, run_serve

    workload = Workload(
        name=dataset_name, num_prompts=num_prompts, input_len=random_input_len, output_len=random_output_len, range_ratio=random_range_ratio,
        prefix_len=prefix_len, num_prefixes=num_prefixes, path=dataset_path, sharegpt_output_len=sharegpt_output_len, seed=seed,
        form=prompt_format,
    )  # fmt: skip
    options = ServeBench(
        target=Target.parse(url, api_key), workload=workload, model=model, endpoint=endpoint, tokenizer=tokenizer, request_rate=request_rate,
        burstiness=burstiness, max_concurrency=max_concurrency, num_warmups=num_warmups, temperature=temperature if temperature >= 0 else None,
        ignore_eos=ignore_eos, extra=parse_extra(extra_body), goals=parse_goodput(goodput or []),
        percentiles=parse_percentiles(metric_percentiles), ready_timeout=ready_timeout, request_timeout=request_timeout,
    )  # fmt: skip
    run_serve(options, _flags(context), output_json, plot, save_detailed)


@app.command()
def startup(
    context: typer.Context,
    model: Model = DEFAULT_MODEL,
    runs: Annotated[int, typer.Option(help="Measured starts.")] = 5,
    serve_option: Annotated[list[str] | None, typer.Option(help="Passed on to octavo serve, e.g. --serve-option=--threads=2.")] = None,
    output_json: Output = None,
) -> None:
    """Time octavo serve until it accepts connections, is ready, and has streamed a token, beside import torch alone."""
    from octavo.frontends.bench.startup import run_startup

    run_startup(model, runs, serve_option or [], _flags(context), output_json)


@app.command()
def kernels(
    context: typer.Context,
    short: Annotated[bool, typer.Option("--short", help="Fewer shapes, less time each.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Operators: matmul, attention, norm, rope, act_mul, embed, sample, copy_blocks.")] = None,
    working_set_mib: Annotated[int | None, typer.Option(help="Operands cycle through this much memory; default 256, short 64.")] = None,
    scheme: Annotated[str, typer.Option(help="Weight layout: auto is what computes fastest, dense is float32.")] = "auto",
    threads: Threads = 0,
    backend: Backend = "auto",
    output_json: Output = None,
) -> None:
    """Hold each operator against its floor: bytes over measured read bandwidth, operations over measured peak."""
    from octavo.frontends.bench.kernels import run_kernels

    arguments = ["--backend", backend, "--threads", str(threads), "--scheme", scheme]
    arguments += [*(["--short"] if short else []), *(["--only", *only] if only else [])]
    arguments += ["--working-set-mib", str(working_set_mib)] if working_set_mib is not None else []
    run_kernels(arguments, _flags(context), output_json)
