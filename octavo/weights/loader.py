"""Stored tensors to packed weights, with an account of what was read.

Layers ask for tensors by their Hugging Face name and the shape the configuration implies; nothing is read yet. ``finish`` compares what was asked
with what the file holds, raises one error that names every difference, and only then packs. So a wrong file fails in milliseconds, before
gigabytes were read, and progress is known in bytes from the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch

from octavo.backend.base import RawWeight
from octavo.checkpoint.formats import STORED_TYPES
from octavo.errors import ConfigError, TensorMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from octavo.backend.base import Backend, PackedWeight
    from octavo.checkpoint.base import Checkpoint
    from octavo.parallel import Group

Shard = Literal["outputs", "inputs"]  # the axis of a weight [outputs, inputs] that ranks divide; None keeps it whole on every rank

_SHOWN = 10  # names an error lists before it counts the rest


class Part(NamedTuple):
    """One stored tensor: its name and the number of its outputs (rows), before sharding."""

    name: str
    outputs: int


@dataclass(frozen=True, slots=True)
class _MatrixKey:
    parts: tuple[Part, ...]
    inputs: int
    shard: Shard | None
    scheme: str


@dataclass(frozen=True, slots=True)
class _VectorKey:
    parts: tuple[Part, ...]
    shard: Shard | None


class WeightLoader:
    """Collects what layers ask for, then loads it once.

    ``progress(done, total)`` is called in bytes of the file, first with 0 and then after each packed weight.
    """

    def __init__(self, checkpoint: Checkpoint, backend: Backend, group: Group, progress: Callable[[int, int], None] | None = None) -> None:
        self.checkpoint = checkpoint
        self.backend = backend
        self.group = group
        self.progress = progress
        self._matrices: dict[_MatrixKey, list[Callable[[PackedWeight], None]]] = {}
        self._vectors: dict[_VectorKey, list[Callable[[Tensor], None]]] = {}
        self._ignored: list[str] = []

    def matrix(
        self, parts: Sequence[Part], inputs: int, place: Callable[[PackedWeight], None], *, shard: Shard | None = None, scheme: str = "dense"
    ) -> None:
        """Ask for tensors [outputs, ``inputs``], concatenated along outputs into one weight, which ``place`` receives in ``finish``.

        Asking again for the same parts (tied embeddings) gives the same packed weight. Raises ConfigError if the ranks cannot divide it.
        """
        self._check_divisible(parts, inputs, shard)
        self._matrices.setdefault(_MatrixKey(tuple(parts), inputs, shard, scheme), []).append(place)

    def vector(self, parts: Sequence[Part], place: Callable[[Tensor], None], *, shard: Shard | None = None) -> None:
        """Ask for vectors [outputs], concatenated into one float32 tensor, which ``place`` receives in ``finish``.

        ``shard`` is that of the weight the vector belongs to: a bias is divided with the outputs, and whole when the inputs are divided.
        """
        self._vectors.setdefault(_VectorKey(tuple(parts), shard), []).append(place)

    def ignore(self, *patterns: str) -> None:
        """Tensors whose names match (shell wildcards) may stay unread: redundant buffers that some exporters write."""
        self._ignored.extend(patterns)

    def finish(self) -> None:
        """Load everything asked for. Raises TensorMismatch naming missing, unread and wrongly shaped tensors; then nothing was packed."""
        sizes = self._check()
        total = sum(sizes.values())
        done = 0
        self._report(done, total)
        for vector, places in self._vectors.items():
            value = torch.cat([self._read_vector(part, vector.shard) for part in vector.parts])
            for place in places:
                place(value)
            done += sum(sizes.pop(part.name, 0) for part in vector.parts)
        self._report(done, total)
        for matrix, takers in self._matrices.items():
            weight = self.backend.pack([self._read_matrix(part, matrix.shard) for part in matrix.parts], matrix.scheme)
            for take in takers:
                take(weight)
            done += sum(sizes.pop(part.name, 0) for part in matrix.parts)
            self._report(done, total)

    # -- what the file must hold

    def _asked(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {part.name: (part.outputs,) for vector in self._vectors for part in vector.parts}
        return shapes | {part.name: (part.outputs, key.inputs) for key in self._matrices for part in key.parts}

    def _check(self) -> dict[str, int]:
        """Bytes of each asked tensor as stored, if the file holds exactly what was asked."""
        asked = self._asked()
        stored = set(self.checkpoint.names())
        missing = sorted(asked.keys() - stored)
        unread = [name for name in sorted(stored - asked.keys()) if not any(fnmatchcase(name, pattern) for pattern in self._ignored)]
        misshaped, sizes = [], {}
        for name in asked.keys() & stored:
            shape, sizes[name] = self.checkpoint.size(name)
            if tuple(shape) != asked[name]:
                misshaped.append(f"{name} {list(shape)} where the configuration says {list(asked[name])}")
        groups = ((missing, "missing"), (unread, "unread"), (sorted(misshaped), "misshaped"))
        problems = [f"{_count(len(names))} {verb}: {_some(names)}" for names, verb in groups if names]
        if problems:
            raise TensorMismatch(f"{self.checkpoint.path} does not fit its configuration: " + "; ".join(problems))
        return sizes

    def _check_divisible(self, parts: Iterable[Part], inputs: int, shard: Shard | None) -> None:
        size = self.group.size
        for part in parts:
            length = {"outputs": part.outputs, "inputs": inputs}.get(shard or "", 0)
            if length % size:
                raise ConfigError(f"{part.name} has {length} {shard}, which {size} ranks cannot divide evenly")

    # -- reading

    def _slice(self, length: int) -> slice:
        share = length // self.group.size
        return slice(self.group.rank * share, (self.group.rank + 1) * share)

    def _read_matrix(self, part: Part, shard: Shard | None) -> RawWeight:
        raw = self.checkpoint.tensor(part.name)
        outputs, inputs = raw.shape
        data = raw.data
        if shard == "outputs":
            data = data[self._slice(outputs)]
        elif shard == "inputs" and self.group.size > 1:
            if raw.columns is not None:
                raise ConfigError(f"{part.name} has its inputs in another order (act-order), which {self.group.size} ranks cannot divide")
            block, _ = STORED_TYPES[raw.format]
            if (inputs // self.group.size) % block:
                raise ConfigError(f"{part.name} has {inputs} inputs in blocks of {block} ({raw.format}), which {self.group.size} ranks cannot divide")
            inputs //= self.group.size
            data = np.ascontiguousarray(data[:, self._slice(data.shape[1])])
        return RawWeight(raw.format, (data.shape[0], inputs), data, raw.columns)

    def _read_vector(self, part: Part, shard: Shard | None) -> Tensor:
        raw = self.checkpoint.tensor(part.name)
        row = self.backend.pack([RawWeight(raw.format, (1, part.outputs), raw.data.reshape(1, -1))])
        vector = row.rows(torch.zeros(1, dtype=torch.int64, device=self.backend.device))[0].float()
        return vector[self._slice(part.outputs)].clone() if shard == "outputs" else vector

    def _report(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(done, total)


def _count(number: int) -> str:
    return "1 tensor is" if number == 1 else f"{number} tensors are"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
