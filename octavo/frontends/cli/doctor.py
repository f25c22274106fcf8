"""``octavo doctor``: what this machine and this installation have, and what to do about what is missing."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from octavo.checkpoint.pull import cache_folder, installed
from octavo.frontends.sizes import show_bytes

FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16")
PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "jinja2", "msgspec", "pyzmq", "fastapi", "uvicorn", "typer", "rich", "psutil", "tqdm")
LOW_MEMORY = 1 << 30
LOW_DISK = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. ``advice`` set: something to act on; ``fatal``: Octavo cannot run like this."""

    name: str
    value: str
    advice: str = ""
    fatal: bool = False


def run_doctor() -> None:
    """Print the findings; status 1 if one of them is fatal."""
    from rich.console import Console

    console = Console(highlight=False)
    findings = examine()
    for f in findings:
        mark = "[red]✗[/]" if f.fatal else "[yellow]![/]" if f.advice else "[green]✓[/]"
        console.print(f"{mark} [bold]{f.name:<14}[/] {f.value}", soft_wrap=True)
        if f.advice:
            console.print(f"  {'':<14} → {f.advice}", soft_wrap=True)
    count = sum(bool(f.advice) for f in findings)
    console.print("\nall is well" if not count else f"\n{count} {'thing' if count == 1 else 'things'} to look at")
    if any(f.fatal for f in findings):
        sys.exit(1)


def examine() -> list[Finding]:
    return [_octavo(), _python(), _processor(), _native(), _threads(), _memory(), *_packages(), _cache()]


def _octavo() -> Finding:
    import octavo

    return Finding("octavo", f"{octavo.__version__} in {Path(octavo.__file__).parent}")


def _python() -> Finding:
    return Finding("python", f"{platform.python_version()} ({platform.python_implementation()}) on {platform.platform()}")


def cpu_flags() -> tuple[str, set[str]]:
    """(name of the processor, its feature flags) as the Linux kernel tells them; flags are empty elsewhere."""
    name, flags = platform.processor() or platform.machine(), set[str]()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = set(value.split())
                break
    except OSError:
        pass
    return name, flags


def _processor() -> Finding:
    name, flags = cpu_flags()
    have = [f for f in FEATURES if f in flags]
    if platform.machine() in ("x86_64", "AMD64") and flags and "avx2" not in flags:
        return Finding("processor", name, "it has no AVX2, so the generic kernels run; expect a fraction of the usual speed")
    return Finding("processor", f"{name}: {' '.join(have) or platform.machine()}")


def _native() -> Finding:
    """The compiled kernels. Imported by name: they are no package of ours to depend on."""
    advice = "install a C++17 compiler (apt install g++) and reinstall octavo; until then the reference backend runs, much slower"
    try:
        module = importlib.import_module("octavo._native")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "octavo._native"
        return Finding("native kernels", "not built" if missing else f"cannot be loaded: {error}", advice)
    isa = getattr(module, "isa", None)
    return Finding("native kernels", f"{isa() if callable(isa) else isa or 'loaded'} in {module.__file__}")


def _threads() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0]
    value = f"{usable} of {os.cpu_count()} cores, load {load:.1f}"
    return Finding("cores", value, f"other programs keep {load:.1f} cores busy; answers will be slower" if load > usable else "")


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    value = f"{show_bytes(memory.available)} free of {show_bytes(memory.total)}"
    return Finding("memory", value, "close programs, or choose a smaller model or --kv-cache-memory-bytes" if memory.available < LOW_MEMORY else "")


def _packages() -> list[Finding]:
    versions: list[str] = []
    missing: list[str] = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    found = [Finding("packages", ", ".join(versions))]
    if missing:
        found.append(Finding("packages", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}", fatal=True))
    return found


def _cache() -> Finding:
    import shutil

    folder = cache_folder()
    place = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(place).free
    value = f"{folder}: {len(installed())} models, {show_bytes(free)} free"
    if not os.access(place, os.W_OK):
        return Finding("model cache", value, f"{place} cannot be written; name another folder with OCTAVO_CACHE")
    return Finding("model cache", value, "make room, or name another folder with OCTAVO_CACHE" if free < LOW_DISK else "")


