"""The ``octavo`` command. Each command imports what it needs when it runs, so that none pays for another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.checkpoint.catalog import DEFAULT_MODEL
from octavo.errors import OctavoError
from octavo.frontends.cli.bench import app as bench

if TYPE_CHECKING:
    from octavo.service.launch import EngineHandle

app = typer.Typer(
    name="octavo",
    help="Serve, chat with and manage large language models. MODEL is a catalog name (see [b]octavo list[/b]), a folder or a .gguf file.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(bench)

SERVER, MEMORY, SCHEDULING, MACHINE = "Server", "Model and memory", "Scheduling", "Machine"

Model = Annotated[str, typer.Argument(help="Catalog name, folder, .gguf file or hub id (ORG/NAME).", metavar="[MODEL]")]
ModelOption = Annotated[str, typer.Option("--model", "-m", help="Catalog name, folder, .gguf file or hub id (ORG/NAME).")]
Url = Annotated[str | None, typer.Option(help="Talk to a running server instead, e.g. http://127.0.0.1:8000.")]
Key = Annotated[str | None, typer.Option("--api-key", envvar="OCTAVO_API_KEY", help="Key of that server.", show_envvar=True)]
Temperature = Annotated[float | None, typer.Option("--temperature", "-t", help="0 is greedy; default: the model's own, else 1.")]
TopP = Annotated[float | None, typer.Option(help="Keep the most likely tokens up to this probability.")]
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens to generate; default: the room left in the context.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same answer.")]
MaxModelLen = Annotated[str, typer.Option(help="Context in tokens, e.g. 4096 or 8k; auto fits model and machine.", rich_help_panel=MEMORY)]
CacheBytes = Annotated[str | None, typer.Option("--kv-cache-memory-bytes", help="Size of the KV cache, e.g. 2GiB.", rich_help_panel=MEMORY)]
CacheType = Annotated[
    str, typer.Option("--kv-cache-dtype", help="auto (float32), float16, bfloat16, int8, fp8_e4m3 or fp8_e5m2.", rich_help_panel=MEMORY)
]
Threads = Annotated[int, typer.Option(help="Compute threads; 0: every core this process may use.", rich_help_panel=MACHINE)]
Backend = Annotated[str, typer.Option(help="auto, cpu or reference.", rich_help_panel=MACHINE)]
Weights = Annotated[
    str, typer.Option(help="auto computes with quantized weights as stored, in int8; dense widens them to float32 first.", rich_help_panel=MACHINE)
]
ToolParser = Annotated[str, typer.Option(help="How the model writes tool calls; auto: as its template shows; none: off.", rich_help_panel=MEMORY)]
ReasoningParser = Annotated[str, typer.Option(help="How the model marks its thoughts; auto, none, or a name.", rich_help_panel=MEMORY)]
AutoTools = Annotated[bool, typer.Option(help="Let the model decide whether to call tools when a request does not say.", rich_help_panel=SERVER)]
TemplateFile = Annotated[Path | None, typer.Option("--chat-template", help="File with a Jinja template to use instead.", rich_help_panel=MEMORY)]


def _version(asked: bool) -> None:
    if asked:
        from octavo import __version__

        typer.echo(f"octavo {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
) -> None:
    """Options that every command has."""


@app.command()
def serve(
    context: typer.Context,
    model: Model = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Address to listen on; others than this machine's own need a key.", rich_help_panel=SERVER)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.", rich_help_panel=SERVER)] = 8000,
    served_model_name: Annotated[list[str] | None, typer.Option(help="Name in the API; may be repeated.", rich_help_panel=SERVER)] = None,
    api_key: Annotated[
        list[str] | None, typer.Option(help="Key that requests must bring; may be repeated. Better: set OCTAVO_API_KEY.", rich_help_panel=SERVER)
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen on any address without a key.", rich_help_panel=SERVER)] = False,
    max_model_len: MaxModelLen = "auto",
    kv_cache_memory_bytes: CacheBytes = None,
    kv_cache_dtype: CacheType = "auto",
    block_size: Annotated[int, typer.Option(help="Tokens a KV block holds, a power of two.", rich_help_panel=MEMORY)] = 16,
    enable_prefix_caching: Annotated[bool, typer.Option(help="Share the KV blocks of equal prefixes.", rich_help_panel=MEMORY)] = True,
    kv_cache: Annotated[str, typer.Option(help='Cache to use, or "module:Class".', rich_help_panel=MEMORY)] = "paged",
    chat_template: TemplateFile = None,
    tool_call_parser: ToolParser = "auto",
    reasoning_parser: ReasoningParser = "auto",
    enable_auto_tool_choice: AutoTools = True,
    trust_request_chat_template: Annotated[
        bool, typer.Option("--trust-request-chat-template", help="Let requests bring a template.", rich_help_panel=SERVER)
    ] = False,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences of one step.", rich_help_panel=SCHEDULING)] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens of one step.", rich_help_panel=SCHEDULING)] = 512,
    max_queued: Annotated[int, typer.Option(help="Sequences that may wait; beyond, requests get a 503.", rich_help_panel=SCHEDULING)] = 1024,
    scheduling_policy: Annotated[str, typer.Option(help="Order of requests: fcfs, priority, ...", rich_help_panel=SCHEDULING)] = "fcfs",
    scheduler: Annotated[str, typer.Option(help='Scheduler to use, or "module:Class".', rich_help_panel=SCHEDULING)] = "default",
    threads: Threads = 0,
    backend: Backend = "auto",
    weights: Weights = "auto",
    enforce_eager: Annotated[bool, typer.Option("--enforce-eager", help="Never replay captured decode steps.", rich_help_panel=MACHINE)] = False,
    seed: Annotated[int | None, typer.Option(help="Start of the seeds of requests without one; default: random.", rich_help_panel=SERVER)] = None,
    metrics_prefix: Annotated[str, typer.Option(help="Prefix of metric names; vllm serves existing dashboards.", rich_help_panel=SERVER)] = "octavo",
    root_path: Annotated[str, typer.Option(help="Path under which a proxy shows this server.", rich_help_panel=SERVER)] = "",
    drain_timeout: Annotated[float, typer.Option(min=0, help="Seconds live requests may go on when asked to stop.", rich_help_panel=SERVER)] = 30.0,
    load_timeout: Annotated[float, typer.Option(min=0, help="Seconds a request waits for a model that loads.", rich_help_panel=SERVER)] = 300.0,
    uvicorn_log_level: Annotated[str, typer.Option(help="critical, error, warning, info, debug or trace.", rich_help_panel=SERVER)] = "warning",
    log_stats: Annotated[bool, typer.Option(help="A line on throughput every 10 s while busy.", rich_help_panel=SERVER)] = True,
) -> None:
    """Serve a model over the OpenAI API.

    The server listens at once; requests that come while the model loads wait for it. Ctrl-C lets live requests finish, twice stops at once.
    """
    from octavo.frontends.cli.serve import ServeOptions, run_server
    from octavo.frontends.options import engine_config

    config = engine_config({
        "model": model, "max_model_len": max_model_len, "kv_cache_memory_bytes": kv_cache_memory_bytes, "kv_cache_dtype": kv_cache_dtype,
        "block_size": block_size, "enable_prefix_caching": enable_prefix_caching, "kv_cache": kv_cache, "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens, "scheduling_policy": scheduling_policy, "scheduler": scheduler, "threads": threads,
        "backend": backend, "weights": weights, "enforce_eager": enforce_eager, "chat_template": _template(chat_template),
        "tool_call_parser": tool_call_parser, "reasoning_parser": reasoning_parser,
    })  # fmt: skip
    run_server(
        config,
        ServeOptions(
            host=host, port=port, names=tuple(served_model_name or ()), api_keys=tuple(api_key or ()), insecure=insecure,
            trust_request_chat_template=trust_request_chat_template, auto_tool_choice=enable_auto_tool_choice, max_queued=max_queued, seed=seed,
            metrics_prefix=metrics_prefix, root_path=root_path, drain_timeout=drain_timeout, load_timeout=load_timeout,
            log_level=uvicorn_log_level, log_stats=log_stats,
        ),
        context.obj,
    )  # fmt: skip


@app.command()
def chat(
    model: Model = DEFAULT_MODEL,
    url: Url = None,
    api_key: Key = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="System message.")] = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    max_tokens: MaxTokens = None,
    seed: Seed = None,
    max_model_len: MaxModelLen = "auto",
    kv_cache_memory_bytes: CacheBytes = None,
    kv_cache_dtype: CacheType = "auto",
    chat_template: TemplateFile = None,
    threads: Threads = 0,
    backend: Backend = "auto",
    weights: Weights = "auto",
) -> None:
    """Chat in the terminal, with a model in this machine or with a running server (--url). /help lists what can be typed."""
    from octavo.frontends.cli.chat import run_chat
    from octavo.frontends.cli.talk import open_talk

    talk = open_talk(
        url, api_key,
        model=model, max_model_len=max_model_len, kv_cache_memory_bytes=kv_cache_memory_bytes, kv_cache_dtype=kv_cache_dtype, threads=threads,
        backend=backend, weights=weights, chat_template=_template(chat_template),
    )  # fmt: skip
    run_chat(talk, system, {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed})


@app.command()
def complete(
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads standard input.")],
    model: ModelOption = DEFAULT_MODEL,
    url: Url = None,
    api_key: Key = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    max_tokens: MaxTokens = None,
    seed: Seed = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text to stop at; may be repeated.")] = None,
    max_model_len: MaxModelLen = "auto",
    kv_cache_memory_bytes: CacheBytes = None,
    kv_cache_dtype: CacheType = "auto",
    threads: Threads = 0,
    backend: Backend = "auto",
    weights: Weights = "auto",
) -> None:
    """Continue a text and print the continuation as it comes."""
    from octavo.frontends.cli.complete import run_complete
    from octavo.frontends.cli.talk import open_talk

    talk = open_talk(
        url, api_key, model=model, max_model_len=max_model_len, kv_cache_memory_bytes=kv_cache_memory_bytes, kv_cache_dtype=kv_cache_dtype,
        threads=threads, backend=backend, weights=weights,
    )  # fmt: skip
    run_complete(talk, prompt, {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed, "stop": stop})


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="Catalog name, or hub id: ORG/NAME, with :Q4_K_M for one of its .gguf files and @REVISION.")],
    verify: Annotated[bool, typer.Option("--verify", help="Check the digest of a catalog file that is already there.")] = False,
) -> None:
    """Download a model of the catalog or the Hugging Face hub into the cache; a hub model that is there is brought up to date."""
    from octavo.frontends.cli.models import run_pull

    run_pull(name, verify=verify)


@app.command(name="list")
def list_models() -> None:
    """Show the catalog and what is installed."""
    from octavo.frontends.cli.models import run_list

    run_list()


@app.command()
def rm(name: Annotated[str, typer.Argument(help="Catalog name or hub id.")]) -> None:
    """Delete a model from the cache."""
    from octavo.frontends.cli.models import run_remove

    run_remove(name)


@app.command()
def show(model: Model = DEFAULT_MODEL) -> None:
    """Tell what a model is: architecture, size, formats, context, defaults. Reads headers alone."""
    from octavo.frontends.cli.models import run_show

    run_show(model)


@app.command()
def doctor() -> None:
    """Look at this machine and this installation, and say what could be better."""
    from octavo.frontends.cli.doctor import run_doctor

    run_doctor()


def _template(path: Path | None) -> str | None:
    """Text of a template file."""
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {path}: {error}", param_hint="--chat-template") from None


def run(waiting: EngineHandle | None = None) -> None:
    """Run the command line. ``waiting``: an engine process that ``serve`` may use.

    An error of ours is one line on standard error and status 1; wrong usage is status 2.
    """
    try:
        app(prog_name="octavo", obj=waiting)
    except OctavoError as error:
        if "--debug" in sys.argv[1:2]:
            raise
        print(f"octavo: {error.message}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
