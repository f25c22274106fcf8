"""``octavo pull``, ``list`` and ``rm``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.checkpoint.catalog import CATALOG, find
from octavo.checkpoint.pull import cache_folder, installed, pull, remove
from octavo.frontends.cli.console import pull_progress, say
from octavo.frontends.sizes import show_bytes

if TYPE_CHECKING:
    from octavo.checkpoint.catalog import CatalogEntry


def run_pull(name: str, *, verify: bool) -> None:
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

    here = installed()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "size", "context", "licence", "installed", "description"):
        table.add_column(column, justify="right" if column in ("size", "context") else "left", no_wrap=column != "description")
    for entry in CATALOG:
        table.add_row(*_row(entry, installed=entry.name in here))
    console = Console()
    console.print(table)
    used = sum(e.size_bytes for e in CATALOG if e.name in here)
    console.print(f"cache: {cache_folder()} ({show_bytes(used)}); any .gguf file or safetensors folder can be named by its path too", highlight=False)


def _row(entry: CatalogEntry, *, installed: bool) -> tuple[str, ...]:
    return (
        entry.name, show_bytes(entry.size_bytes), f"{entry.context:,}", entry.licence, "yes" if installed else "", entry.description
    )  # fmt: skip


def run_remove(name: str) -> None:
    freed = remove(name)
    say(f"removed {find(name).name}, {show_bytes(freed)} freed")
