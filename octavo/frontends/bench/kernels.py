"""``octavo bench kernels``: shows what ``python -m octavo.backend.bench`` measures. A process of its own: this side never imports torch."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError, OctavoError
from octavo.frontends.bench.report import print_table, report, save
from octavo.frontends.cli.console import say

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "octavo.backend.bench"


def measure_kernels(arguments: list[str]) -> dict[str, Any]:
    """The figures of the module, see there. Raises ConfigError for what it refuses, OctavoError if it fails."""
    run = subprocess.run([sys.executable, "-m", MODULE, *arguments], capture_output=True, text=True, check=False)
    if run.returncode == 2:
        raise ConfigError(run.stderr.strip().splitlines()[-1])
    if run.returncode:
        raise OctavoError(f"{MODULE} failed: {run.stderr.strip()[-500:]}")
    figures: dict[str, Any] = json.loads(run.stdout)
    return figures


def run_kernels(arguments: list[str], flags: dict[str, Any], output: Path | None) -> None:
    say("measuring the machine, then each operator ...")
    figures = measure_kernels(arguments)
    show_kernels(figures)
    save(output, report("kernels", flags, figures))


def show_kernels(figures: dict[str, Any]) -> None:
    floors = figures["floors"]
    rows = [
        ("read bandwidth, GB/s", floors["read_gb_s"]),
        ("float32 multiply-add peak, GFLOP/s", floors["float_gflop_s"]),
        ("int8 multiply-add peak, GOP/s", "not measured (no native module)" if floors["int8_gop_s"] is None else floors["int8_gop_s"]),
    ]
    title = f"this machine, {figures['threads']} threads, working set {figures['working_set_mib']} MiB ({floors['method']})"
    print_table(title, ("", ""), rows)
    isa = f" ({figures['isa']})" if figures["isa"] else ""
    columns = ("operator", "shape", "time, us", "GB/s", "GOP/s", "floor, us", "bound by", "of floor")
    lines = [
        (o["operator"], o["shape"], o["us"], o["gb_s"], o["gop_s"], o["floor_us"], o["bound"], f"{o['of_floor']:.0%}") for o in figures["operators"]
    ]
    print_table(f"{figures['backend']} backend{isa}", columns, lines)
