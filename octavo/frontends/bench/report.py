"""What every benchmark leaves behind: a table for people, a JSON object for programs, with machine, versions and flags."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import octavo
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

PACKAGES = ("torch", "numpy", "uvicorn")
ISA_FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm")


def machine() -> dict[str, Any]:
    """Processor, its relevant instruction sets, usable cores, memory in bytes, system."""
    import psutil

    name, flags = platform.processor() or platform.machine(), set[str]()
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
        fields = {key.strip(): value.strip() for key, colon, value in lines if colon}
        name = fields.get("model name", name)
        flags = set((fields.get("flags") or fields.get("Features") or "").split())
    except OSError:
        pass
    return {
        "processor": name,
        "instruction_sets": [flag for flag in ISA_FLAGS if flag in flags],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    found = {"octavo": octavo.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def report(kind: str, flags: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    """The JSON object of a benchmark."""
    return {
        "benchmark": kind,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "versions": versions(),
        "flags": flags,
        "figures": figures,
    }


def plain(value: Any) -> Any:
    """JSON has neither NaN nor infinity, and no paths."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def save(path: Path | None, result: dict[str, Any]) -> None:
    """Write ``result`` to ``path`` if there is one. Raises ConfigError if it cannot be written."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(plain(result), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def show(value: Any) -> str:
    """A figure as people read it: three to four significant digits, thousands apart."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return "-" if math.isnan(value) else "inf"
        digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """The first column is text, the others are figures."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", show_header=any(columns))
    for i, name in enumerate(columns):
        made.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        made.add_row(*(show(value) for value in row))
    return made


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Standard output; as wide as it needs to be when that is no terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    console.print(table(title, columns, rows))
