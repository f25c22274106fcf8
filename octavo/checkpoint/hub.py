"""Models of the Hugging Face hub, in the cache that the ``huggingface_hub`` library shares with other programs.

A revision is resolved to a commit once, when the model is pulled; from then on the copy of that commit serves without the network. Only safetensors
or GGUF files are taken, and the texts around them: never pickles, never code. The library resumes broken downloads, and sends the token
(``HF_TOKEN``, or the one that ``hf auth login`` stored) to the hub alone.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.checkpoint.folder import TOKENIZER_FILES
from octavo.errors import CheckpointError, PullError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from octavo.checkpoint.base import Progress

_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96})(?::(?P<variant>[\w.-]+))?(?:@(?P<revision>[\w][\w./-]*))?")
_TEXTS = ("*.json", "*.jinja", *(name for name in TOKENIZER_FILES if not name.endswith(".json")), "merges.txt")
_INDEX = "model.safetensors.index.json"
# Which file of a GGUF repository to take when none is named: near the quality of the original first among the small ones.
_PREFERRED = ("q4_k_m", "q4_k_s", "q4_1", "q4_0", "q5_k_m", "q5_k_s", "q6_k", "q8_0", "bf16", "f16", "f32")
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class HubModel:
    """``ORG/NAME[:VARIANT][@REVISION]``. ``variant``: part of the name of a GGUF file. ``revision``: branch, tag or commit."""

    repo: str
    variant: str | None = None
    revision: str = "main"

    def __str__(self) -> str:
        return self.repo + (f":{self.variant}" if self.variant else "") + (f"@{self.revision}" if self.revision != "main" else "")


def parse(name: str) -> HubModel | None:
    """None if ``name`` cannot be a hub id."""
    match = _ID.fullmatch(name)
    if match is None or ".." in name or "--" in match["repo"]:
        return None
    return HubModel(match["repo"], match["variant"], match["revision"] or "main")


def cached(model: HubModel) -> Path | None:
    """The model in the cache: its folder, or its (first) .gguf file. None if it is not there, or not whole."""
    place = _cache_of(model)
    try:
        commit = (place / "refs" / model.revision).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        commit = model.revision
    folder = place / "snapshots" / commit
    if not folder.is_dir() or any((place / "blobs").glob("*.incomplete")):
        return None
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    try:
        wanted = choose(dict.fromkeys(names, 0), model)
    except CheckpointError:
        return None
    if _INDEX in names and not all((folder / part).is_file() for part in _indexed(folder / _INDEX)):
        return None
    return _place(folder, wanted)


def pull(model: HubModel, progress: Progress | None = None, phase: Callable[[str], None] | None = None) -> Path:
    """Bring the model, or what changed of it, into the cache. ``progress(done, total)`` in bytes. Raises CheckpointError, PullError."""
    from huggingface_hub import HfApi

    tell = phase or (lambda _: None)
    tell("ask the hub")
    try:
        info = HfApi().model_info(model.repo, revision=model.revision, files_metadata=True, timeout=20)
    except Exception as error:
        raise _explained(model, error) from None
    sizes = {file.rfilename: int(file.size or 0) for file in info.siblings or ()}
    wanted = choose(sizes, model)
    tell("download")
    try:
        folder = _download(model, str(info.sha), wanted, sum(sizes[name] for name in wanted), progress)
    except Exception as error:
        raise _explained(model, error) from None
    return _place(folder, wanted)


def choose(sizes: Mapping[str, int], model: HubModel) -> list[str]:
    """Which files of a repository make the model. Raises CheckpointError that says what there is instead."""
    here = [name for name in sizes if "/" not in name]
    gguf = sorted(name for name in sizes if name.endswith(".gguf"))
    tensors = [name for name in here if name.endswith(".safetensors") and not name.startswith("consolidated")]
    if tensors and model.variant is None:
        return sorted({*tensors, *(name for name in here if any(fnmatch(name, text) for text in _TEXTS))})
    if gguf:
        return _gguf_files(gguf, model)
    if tensors:
        raise CheckpointError(f"{model.repo} has no .gguf files; its safetensors are {model.repo}, without {model.variant!r}")
    pickled = sorted(name for name in sizes if name.endswith((".bin", ".pt", ".pth", ".ckpt")))
    if pickled:
        raise CheckpointError(f"{model.repo} holds pickled weights only ({', '.join(pickled[:3])}), which Octavo never loads")
    raise CheckpointError(f"{model.repo} holds no model: neither safetensors nor .gguf among its {len(sizes)} files")


def _gguf_files(names: list[str], model: HubModel) -> list[str]:
    variants = [name for name in names if "mmproj" not in name]
    kinds = _PREFERRED if model.variant is None else (model.variant,)
    found = ([name for name in variants if re.search(rf"(^|[-._/]){re.escape(kind)}([-._]|$)", name, re.IGNORECASE)] for kind in kinds)
    matches = next((names for names in found if names), variants if model.variant is None else [])
    if not matches:
        raise CheckpointError(f"{model.repo} has no .gguf file for {model.variant!r}; it has {', '.join(variants[:12])}")
    first = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", matches[0])
    if first is None:
        return matches[:1]
    parts = [f"{first[1]}-{number:05}-of-{first[2]}.gguf" for number in range(1, int(first[2]) + 1)]
    missing = sorted(set(parts) - set(names))
    if missing:
        raise CheckpointError(f"{model.repo} lacks {len(missing)} of the {first[2]} parts of {matches[0]}: {', '.join(missing[:3])}")
    return parts


def _cache_of(model: HubModel) -> Path:
    """The library's folder of a repository: blobs, snapshots by commit, and refs that name the commits of branches and tags."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE) / f"models--{model.repo.replace('/', '--')}"


def _place(folder: Path, wanted: list[str]) -> Path:
    return folder / wanted[0] if wanted[0].endswith(".gguf") else folder


def _indexed(index: Path) -> set[str]:
    from octavo.checkpoint.safetensors import read_index

    return set(read_index(index).values())


def _download(model: HubModel, commit: str, wanted: list[str], total: int, progress: Progress | None) -> Path:
    """The library downloads on this thread; another one watches the folder grow and reports."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    blobs = _cache_of(model) / "blobs"
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_SECONDS):
            if progress is not None:
                progress(min(_bytes(blobs), total), total)

    watcher = threading.Thread(target=watch, name="octavo-pull", daemon=True)
    watcher.start()
    try:
        folder = Path(snapshot_download(model.repo, revision=model.revision if model.revision == commit else commit, allow_patterns=wanted))
        _remember(folder, model.revision, commit)
    finally:
        ended.set()
        watcher.join()
    if progress is not None:
        progress(total, total)
    return folder


def _remember(folder: Path, revision: str, commit: str) -> None:
    """What the library keeps for branches and tags: ``refs/<revision>`` names the commit that was pulled."""
    if revision != commit:
        ref = folder.parents[1] / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit, encoding="ascii")


def _bytes(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # it was renamed meanwhile
            continue
    return total


def _explained(model: HubModel, error: Exception) -> Exception:
    """What the library raises, as an error for the person who typed the name."""
    from huggingface_hub import errors

    if isinstance(error, CheckpointError):
        return error
    if isinstance(error, errors.GatedRepoError):
        return PullError(f"{model.repo} is gated: accept its terms on its page of the hub, then set HF_TOKEN to a token of that account")
    if isinstance(error, errors.RepositoryNotFoundError):
        return PullError(f"the hub has no model {model.repo}, or it is private: check the name, or set HF_TOKEN")
    if isinstance(error, errors.RevisionNotFoundError):
        return PullError(f"{model.repo} has no revision {model.revision!r}")
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return PullError(
        f"{model} is not in the cache and the hub cannot be reached ({type(error).__name__}: {reason[:200]}); with a network, "
        f"`octavo pull {model}` gets it, and a folder or .gguf file from elsewhere can be named by its path"
    )


# -- what is there


def installed() -> dict[str, tuple[Path, int]]:
    """Repository -> (folder of its newest snapshot, bytes), of every model in the cache that Octavo could open."""
    found: dict[str, tuple[Path, int]] = {}
    for repo in _models():
        newest = max(repo.revisions, key=lambda revision: revision.last_modified, default=None)
        if newest is not None and any(file.file_name.endswith((".gguf", ".safetensors")) for file in newest.files):
            found[repo.repo_id] = (Path(newest.snapshot_path), repo.size_on_disk)
    return found


def remove(model: HubModel) -> int:
    """Delete every revision of the repository; returns the bytes freed. Raises CheckpointError if it is not there."""
    from huggingface_hub import scan_cache_dir

    repo = next((repo for repo in _models() if repo.repo_id == model.repo), None)
    if repo is None:
        raise CheckpointError(f"{model.repo} is not in the cache of the hub")
    strategy = scan_cache_dir().delete_revisions(*(revision.commit_hash for revision in repo.revisions))
    strategy.execute()
    return int(strategy.expected_freed_size)


def _models() -> list[Any]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return [repo for repo in scan_cache_dir().repos if repo.repo_type == "model"]
    except (CacheNotFound, OSError):
        return []
