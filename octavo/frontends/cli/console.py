"""What commands print while they work. Standard error, so that standard output holds answers alone."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from octavo.checkpoint.pull import resolve_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def say(text: str = "") -> None:
    print(text, file=sys.stderr, flush=True)


def model_path(model: str) -> Path:
    """The file or folder of ``model``; a catalog model that is missing is pulled, with a progress bar. Raises CheckpointError, PullError."""
    from octavo.errors import PullError

    try:
        return resolve_model(model, download=False)
    except PullError:
        with pull_progress(model) as (progress, phase):
            return resolve_model(model, progress=progress, phase=phase)


@contextmanager
def pull_progress(name: str) -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """A progress bar on standard error: a function for (bytes done, bytes in all), and one for what begins."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("[bold]{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield (
            lambda done, total: bar.update(task, completed=done, total=total or None),
            lambda phase: bar.update(task, description=f"{name}: {phase}"),
        )
