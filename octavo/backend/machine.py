"""What this process may take of the machine: memory and cores, control groups included."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from octavo.backend.base import MemoryInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def host_memory(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> MemoryInfo:
    """Memory of the machine, cut down by every control group above this process (versions 1 and 2) and by ``ulimit -v``.

    File pages that the kernel can drop do not count as used: a mapped model file must not shrink its own cache.
    """
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    for limit, used in _group_memory(root, membership):
        total, available = min(total, limit), min(available, max(limit - used, 0))
    ceiling, _ = resource.getrlimit(resource.RLIMIT_AS)
    if ceiling != resource.RLIM_INFINITY:
        total, available = min(total, ceiling), min(available, max(ceiling - psutil.Process().memory_info().vms, 0))
    return MemoryInfo(total, available)


def usable_cores(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Cores this process may keep busy: its affinity mask, cut down by the processor quota of its control groups. At least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _folders(root, membership, "cpu"):
        quota, period = _quota(folder)
        if quota > 0 and period > 0:
            cores = min(cores, -(-quota // period))
    return max(cores, 1)


def _folders(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """Folders of the groups this process is in, innermost first; inside a container the outermost one visible stands for all above."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names == "":  # version 2
            base = root
        elif controller in names.split(","):
            base = root / controller
        else:
            continue
        folder = base / path.lstrip("/")
        while True:
            if folder.is_dir():
                yield folder
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent


def _group_memory(root: Path, membership: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that cannot be dropped) of every group that has a limit."""
    for folder in _folders(root, membership, "memory"):
        for limit_name, used_name, droppable in (
            ("memory.max", "memory.current", ("inactive_file", "active_file")),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
        ):
            limit, used = _integer(folder / limit_name), _integer(folder / used_name)
            if limit is not None and used is not None:
                yield limit, max(used - _cached(folder / "memory.stat", droppable), 0)


def _cached(path: Path, names: tuple[str, ...]) -> int:
    try:
        fields = dict(line.split(maxsplit=1) for line in path.read_text().splitlines() if " " in line)
        return sum(int(fields.get(name, 0)) for name in names)
    except (OSError, ValueError):
        return 0


def _quota(folder: Path) -> tuple[int, int]:
    """(microseconds of processor time, period) of a group; quota 0 means no limit."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return (0 if quota == "max" else int(quota)), int(period)
    except (OSError, ValueError):
        return _integer(folder / "cpu.cfs_quota_us") or 0, _integer(folder / "cpu.cfs_period_us") or 0


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None
