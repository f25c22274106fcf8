"""``octavo pull``, ``list``, ``rm`` and ``show``."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING

from octavo.checkpoint import hub
from octavo.checkpoint.catalog import CATALOG, find
from octavo.checkpoint.pull import cache_folder, hub_id, installed, pull, remove, resolve_model
from octavo.frontends.cli.console import pull_progress, say
from octavo.frontends.sizes import show_bytes

if TYPE_CHECKING:
    from octavo.checkpoint.catalog import CatalogEntry


_SAMPLING = frozenset({"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens"})  # of generation_config.json


def run_pull(name: str, *, verify: bool) -> None:
    on_hub = hub_id(name)
    if on_hub is not None:
        with pull_progress(str(on_hub)) as (progress, phase):
            path = hub.pull(on_hub, progress, phase)
        say(f"{on_hub} is here, whole and up to date")
        print(path)
        return
    entry = find(name)
    here = entry.name in installed()
    with pull_progress(entry.name) as (progress, phase):
        path = pull(entry.name, progress=progress, phase=phase, verify=verify)
    done = "verified" if here and verify else "was here already" if here else "pulled and verified"
    say(f"{entry.name} {done}: {show_bytes(entry.size_bytes)}, licence {entry.licence}")
    print(path)


def run_list() -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    here, of_hub = installed(), hub.installed()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "size", "context", "licence", "installed", "description"):
        table.add_column(column, justify="right" if column in ("size", "context") else "left", no_wrap=column not in ("licence", "description"))
    for entry in CATALOG:
        table.add_row(*_row(entry, installed=entry.name in here))
    for repo, (_, size) in sorted(of_hub.items()):
        table.add_row(repo, show_bytes(size), "", "", "yes", "from the hub")
    console = Console()
    console.print(table)
    used = sum(e.size_bytes for e in CATALOG if e.name in here)
    console.print(f"cache: {cache_folder()} ({show_bytes(used)}); any .gguf file or safetensors folder can be named by its path too", highlight=False)


def _row(entry: CatalogEntry, *, installed: bool) -> tuple[str, ...]:
    return (
        entry.name, show_bytes(entry.size_bytes), f"{entry.context:,}", entry.licence, "yes" if installed else "", entry.description
    )  # fmt: skip


def run_remove(name: str) -> None:
    on_hub = hub_id(name)
    freed = remove(name) if on_hub is None else hub.remove(on_hub)
    say(f"removed {find(name).name if on_hub is None else on_hub.repo}, {show_bytes(freed)} freed")


def run_show(model: str) -> None:
    """What a checkpoint says of itself, from its headers alone."""
    from octavo.checkpoint.open import open_checkpoint

    path = resolve_model(model, download=False)
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    tensors = [checkpoint.tensor(name) for name in checkpoint.names()]
    parameters = sum(prod(tensor.shape) for tensor in tensors)
    by_format = Counter[str]()
    for tensor in tensors:
        by_format[tensor.format] += tensor.data.nbytes
    formats = ", ".join(f"{name} {show_bytes(size)}" for name, size in by_format.most_common())
    rows = {
        "path": str(path),
        "architecture": ", ".join(config.get("architectures") or ()) or config.get("model_type", "?"),
        "parameters": f"{parameters:,} in {len(tensors):,} tensors",
        "weights": f"{show_bytes(checkpoint.nbytes())}: {formats}",
        "context": f"{config.get('max_position_embeddings') or 0:,} tokens",
        "layers": f"{config.get('num_hidden_layers', '?')} of {config.get('hidden_size', '?')}, vocabulary {config.get('vocab_size', '?')}",
        "chat template": f"{len(checkpoint.chat_template):,} characters" if checkpoint.chat_template else "none",
        "defaults": ", ".join(f"{k}={v}" for k, v in checkpoint.generation_config.items() if k in _SAMPLING) or "none",
    }
    for name, value in rows.items():
        print(f"{name:14}{value}")
