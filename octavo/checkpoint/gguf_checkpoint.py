"""A GGUF file, or a set of them that llama.cpp split, as a :class:`octavo.checkpoint.base.Checkpoint`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.checkpoint.base import RawTensor, TokenizerSource
from octavo.checkpoint.gguf import GGUFFile
from octavo.checkpoint.gguf_config import ROPE_FACTORS, find_family, generation_config, model_config, tokenizer_options
from octavo.checkpoint.gguf_families import TOP_NAMES
from octavo.errors import FormatError, TensorMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from octavo.checkpoint.gguf_families import Family

MAX_PARTS = 1024
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]*)\.(\w+)\.(weight|bias)")
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class _Stored:
    file: GGUFFile
    name: str  # in the file


class GGUFCheckpoint:
    """Hugging Face names and configuration over GGUF. ``path`` is the file, or the first of a split set.

    Tensors that the family's table does not know keep their GGUF names, so that the loader reports them as unread.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._files = open_parts(Path(path))
        main = self._files[0]
        _, self._family = find_family(main.metadata)
        self._tensors = _translate(self._files, self._family)
        names = frozenset(name for file in self._files for name in file.tensors)
        self.config: Mapping[str, Any] = model_config(main, names)
        vocab_size = self.config["vocab_size"]
        tokens = main.metadata.strings("tokenizer.ggml.tokens")
        if tokens is not None and len(tokens) > vocab_size:
            raise FormatError(f"the tokenizer has {len(tokens)} tokens, the embedding {vocab_size} rows")
        self.generation_config: Mapping[str, Any] = generation_config(main.metadata, vocab_size)
        self.tokenizer = TokenizerSource(gguf=main.metadata.select("tokenizer."), options=tokenizer_options(main.metadata, vocab_size))
        template = main.metadata.get("tokenizer.chat_template")
        self.chat_template = template if isinstance(template, str) and template else None

    def names(self) -> list[str]:
        return list(self._tensors)

    def size(self, name: str) -> tuple[tuple[int, ...], int]:
        raw = self.tensor(name)  # a view of the mapped file
        return raw.shape, int(raw.data.nbytes)

    def tensor(self, name: str) -> RawTensor:
        stored = self._tensors.get(name)
        if stored is None:
            close = get_close_matches(name, self._tensors, n=3)
            raise TensorMismatch(f"{self.path} has no tensor {name!r}" + (f"; it has {', '.join(close)}" if close else ""))
        raw = stored.file.raw(stored.name)
        undo = self._family.undo.get(_stem(stored.name))
        if undo is not None:
            raw = undo(raw, self.config)
        return RawTensor(name, raw.format, raw.shape, raw.data)

    def nbytes(self) -> int:
        return sum(stored.file.tensors[stored.name].nbytes for stored in self._tensors.values())


def open_parts(path: Path) -> list[GGUFFile]:
    """The files of a model, first one first: one, or as many as ``split.count`` says, named ``NAME-00001-of-0000N.gguf``."""
    first = GGUFFile(path)
    count = first.metadata.get("split.count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_PARTS:
        raise FormatError(f"metadata split.count is {count!r:.60}, expected a number up to {MAX_PARTS}")
    if count <= 1:
        return [first]
    match = _PART.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise FormatError(f"{path.name} is one of {count} parts; its name should be like NAME-00001-of-{count:05}.gguf")
    if first.metadata.get("split.no") != 0:
        raise FormatError(f"{path.name} is not the first of {count} parts; open {match[1]}-00001-of-{count:05}.gguf")
    files = [first]
    for number in range(1, count):
        part = GGUFFile(path.with_name(f"{match[1]}-{number + 1:05}-of-{count:05}.gguf"))
        if part.metadata.get("split.no") != number:
            raise FormatError(f"{part.path} says that it is part {part.metadata.get('split.no')!r:.20}, expected {number} (counted from 0)")
        files.append(part)
    found, announced = sum(len(file.tensors) for file in files), first.metadata.get("split.tensors.count")
    if announced is not None and announced != found:
        raise FormatError(f"{path.name} announces {announced!r:.20} tensors over all parts, they hold {found}")
    return files


def _translate(files: list[GGUFFile], family: Family) -> dict[str, _Stored]:
    tensors: dict[str, _Stored] = {}
    for file in files:
        for name in file.tensors:
            if name == ROPE_FACTORS:
                continue  # has become rope_scaling in the configuration
            translated = _hugging_face_name(name, family)
            if translated in tensors:
                raise FormatError(f"tensors {tensors[translated].name!r} and {name!r} are both {translated}")
            tensors[translated] = _Stored(file, name)
    return tensors


def _hugging_face_name(name: str, family: Family) -> str:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in family.layer_names:
        return name
    return f"model.layers.{match[1]}.{family.layer_names[match[2]]}.{match[3]}"


def _stem(name: str) -> str:
    """"attn_q" of "blk.3.attn_q.weight", "output_norm" of "output_norm.weight"."""
    return name.split(".")[-2] if "." in name else name
