"""The one way to open a model on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.checkpoint.folder import FolderCheckpoint
from octavo.checkpoint.gguf import MAGIC
from octavo.checkpoint.gguf_checkpoint import GGUFCheckpoint
from octavo.checkpoint.quantized import QuantizedCheckpoint, layout_of
from octavo.errors import CheckpointError

if TYPE_CHECKING:
    from octavo.checkpoint.base import Checkpoint


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a Hugging Face folder or a GGUF file, reading headers only.

    Raises CheckpointError if there is nothing to open, FormatError if a file is malformed, UnsupportedModel if Octavo does not know what it holds.
    """
    place = Path(os.path.expanduser(path))
    try:
        return _open(place)
    except CheckpointError as e:
        if str(place) in e.message:
            raise
        raise type(e)(f"{place}: {e.message}") from None
    except OSError as e:
        raise CheckpointError(f"cannot read {place}: {e.strerror or e}") from None


def _open(place: Path) -> Checkpoint:
    if place.is_dir():
        folder = FolderCheckpoint(place)
        layout = layout_of(folder.config)
        return folder if layout is None else QuantizedCheckpoint(folder, layout)
    if not place.exists():
        raise CheckpointError(f"there is no file or folder {place}")
    if not place.is_file():
        raise CheckpointError(f"{place} is neither a file nor a folder")
    if place.suffix == ".safetensors" or place.name == "config.json":
        raise CheckpointError(f"{place} is a part of a model; name its folder instead: {place.parent}")
    if place.suffix == ".gguf" or _starts_with_magic(place):
        return GGUFCheckpoint(place)
    raise CheckpointError(f"{place} is not a model: Octavo opens .gguf files and folders with config.json and safetensors")


def _starts_with_magic(path: Path) -> bool:
    with path.open("rb") as f:
        return f.read(len(MAGIC)) == MAGIC
