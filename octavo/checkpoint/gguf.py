"""Reader of GGUF headers over a memory map: metadata and the tensor directory, every count, length and offset checked against the file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. Layout::

    magic "GGUF" | version u32 | tensors u64 | pairs u64 | pairs: key, type, value | tensors: name, dims, type, offset | padding | data

Opening costs one walk over the header. Strings of arrays are located then and decoded when they are asked for, so a process that
needs no tokenizer does not pay for one. All arithmetic on numbers from the file is on Python integers, which do not overflow.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from octavo.checkpoint.base import RawTensor
from octavo.checkpoint.formats import GGML_NAMES, STORED_TYPES, row_bytes
from octavo.errors import CheckpointError, FormatError, UnsupportedModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_TENSORS = 1 << 20
MAX_PAIRS = 1 << 16
MAX_NAME_BYTES = 1 << 16  # the format's limit for a key; tensor names are held to the same
MAX_ITEMS = 1 << 24  # strings in one array; arrays of numbers are bounded by their bytes alone
MAX_ARRAYS = 1 << 20  # in the whole file, nested ones included
MAX_NESTING = 4
MAX_DIMS = 4
MIN_PAIR_BYTES = 8 + 4 + 1  # key length, type, the smallest value
MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # name length, count of dims, one dim, type, offset

_STRING, _ARRAY, _BOOL = 8, 9, 7
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"), 4: _U32, 5: struct.Struct("<i"),
    6: struct.Struct("<f"), _BOOL: struct.Struct("<B"), 10: _U64, 11: struct.Struct("<q"), 12: struct.Struct("<d"),
}  # fmt: skip
_NUMPY = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", _BOOL: "u1", 10: "<u8", 11: "<i8", 12: "<f8"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor directory. ``shape`` is row-major (reversed from the file); ``start`` is an absolute file offset in bytes."""

    name: str
    format: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class StringArray:
    """An array of strings located in the file and not yet decoded. ``starts`` int64 [n + 1]: offset of each length word, then of the end."""

    __slots__ = ("_buffer", "_key", "starts")

    def __init__(self, buffer: mmap.mmap, starts: np.ndarray, key: str) -> None:
        self._buffer, self.starts, self._key = buffer, starts, key

    def __len__(self) -> int:
        return len(self.starts) - 1

    def item(self, index: int) -> str:
        """The string at ``index``, 0 <= index < len."""
        return self._decode(int(self.starts[index]) + 8, int(self.starts[index + 1]))

    def find(self, text: str) -> int | None:
        """Index of the first string equal to ``text``, found without decoding the others."""
        data = text.encode()
        needle = _U64.pack(len(data)) + data
        at, end = int(self.starts[0]), int(self.starts[-1])
        while (at := self._buffer.find(needle, at, end)) >= 0:
            index = int(np.searchsorted(self.starts, at))
            if self.starts[index] == at:  # else the bytes lie inside another string
                return index
            at += 1
        return None

    def to_list(self) -> list[str]:
        bounds = self.starts.tolist()
        if not len(self):
            return []
        first = bounds[0]
        data = self._buffer[first : bounds[-1]]
        try:
            return [data[a - first + 8 : b - first].decode() for a, b in pairwise(bounds)]
        except UnicodeDecodeError:
            return [self._decode(a + 8, b) for a, b in pairwise(bounds)]  # names the offset

    def _decode(self, start: int, end: int) -> str:
        try:
            return self._buffer[start:end].decode()
        except UnicodeDecodeError as e:
            raise FormatError(f"metadata {self._key}: the string at byte {start} is not UTF-8 ({e.reason} at byte {start + e.start})") from None


class Metadata(Mapping[str, Any]):
    """Key-value pairs of the file. Values: int, float, bool, str; numpy arrays (read-only) for numbers; lists of str for strings.

    String arrays are decoded at the first look-up; :meth:`strings` gives them undecoded.
    """

    __slots__ = ("_decoded", "_values")

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if not isinstance(value, StringArray | list):
            return value
        if key not in self._decoded:
            self._decoded[key] = _plain(value)
        return self._decoded[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values  # without decoding anything

    def strings(self, key: str) -> StringArray | None:
        """The string array under ``key``, or None if there is none."""
        value = self._values.get(key)
        return value if isinstance(value, StringArray) else None

    def select(self, prefix: str) -> Metadata:
        """The pairs whose key starts with ``prefix``, keys unchanged."""
        return Metadata({key: value for key, value in self._values.items() if key.startswith(prefix)})


def _plain(value: Any) -> Any:
    if isinstance(value, StringArray):
        return value.to_list()
    return [_plain(item) for item in value] if isinstance(value, list) else value


class GGUFFile:
    """An open GGUF file. Views that :meth:`raw` returns keep the memory map alive.

    Raises CheckpointError if the file cannot be read, FormatError if it is malformed, UnsupportedModel for versions and tensor types
    that Octavo does not read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._buffer = map_file(path)
        self._data = np.frombuffer(self._buffer, dtype=np.uint8)
        header = _Header(self._buffer)
        self.release = partial(release_pages, self._buffer)
        self.version = header.version
        self.metadata = Metadata(header.pairs)
        self.tensors: dict[str, TensorInfo] = header.tensors

    def raw(self, name: str) -> RawTensor:
        """Stored bytes of a tensor that is in ``tensors``: uint8 [rows, bytes per row]; [bytes] for one dimension."""
        info = self.tensors[name]
        data = self._data[info.start : info.start + info.nbytes]
        if len(info.shape) > 1:
            data = data.reshape(prod(info.shape[:-1]), -1)
        return RawTensor(name, info.format, info.shape, data)

    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info.nbytes for info in self.tensors.values())


def release_pages(buffer: mmap.mmap) -> None:
    """Give back the memory that a map's pages take in this process; touching them again brings them back from the file."""
    if hasattr(mmap, "MADV_DONTNEED"):
        buffer.madvise(mmap.MADV_DONTNEED)


def map_file(path: str | Path) -> mmap.mmap:
    """Read-only memory map of a whole file."""
    try:
        with Path(path).open("rb") as f:
            return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise FormatError(f"{path} is empty") from None
    except OSError as e:
        raise CheckpointError(f"cannot read {path}: {e.strerror or e}") from None


class _Header:
    """One pass over the header. ``pos`` is the offset of the next byte; nothing is read beyond ``size``."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self.buffer, self.size, self.pos = buffer, len(buffer), 0
        self.version = self._magic_and_version()
        tensors = self._count("tensors", MAX_TENSORS, MIN_TENSOR_BYTES)
        pairs = self._count("metadata pairs", MAX_PAIRS, MIN_PAIR_BYTES)
        self.arrays = 0
        self.pairs: dict[str, Any] = {}
        for i in range(pairs):
            self._pair(i)
        alignment = self._alignment()
        directory = [self._tensor(i) for i in range(tensors)]
        self.tensors = self._place(directory, -(-self.pos // alignment) * alignment, alignment)

    def _fail(self, text: str) -> NoReturn:
        raise FormatError(f"{text} (at byte {self.pos} of {self.size})")

    def _need(self, count: int, what: str) -> None:
        if count > self.size - self.pos:
            self._fail(f"{what} needs {count} bytes, the file has {self.size - self.pos} left")

    def _scalar(self, form: struct.Struct, what: str) -> Any:
        self._need(form.size, what)
        (value,) = form.unpack_from(self.buffer, self.pos)
        self.pos += form.size
        return value

    def _magic_and_version(self) -> int:
        magic = self.buffer[:4]
        if magic != MAGIC:
            self._fail(f"not a GGUF file: it starts with {magic!r} instead of {MAGIC!r}")
        self.pos = 4
        version: int = self._scalar(_U32, "the version")
        if version & 0xFFFF == 0 and version >> 16:
            raise UnsupportedModel("this GGUF file is big-endian; Octavo reads little-endian files")
        if version not in VERSIONS:
            raise UnsupportedModel(f"GGUF version {version}; Octavo reads versions {' and '.join(map(str, VERSIONS))}")
        return version

    def _count(self, what: str, most: int, least_bytes: int) -> int:
        count: int = self._scalar(_U64, f"the number of {what}")
        if count > most or count * least_bytes > self.size - self.pos:
            self._fail(f"the file announces {count} {what}; at most {min(most, (self.size - self.pos) // least_bytes)} are possible")
        return count

    def _string(self, what: str, most: int | None = None) -> str:
        length: int = self._scalar(_U64, f"the length of {what}")
        if most is not None and length > most:
            self._fail(f"{what} has {length} bytes, at most {most} are allowed")
        self._need(length, what)
        start, self.pos = self.pos, self.pos + length
        try:
            return self.buffer[start : self.pos].decode()
        except UnicodeDecodeError as e:
            self.pos = start + e.start
            self._fail(f"{what} is not UTF-8 ({e.reason})")

    def _pair(self, index: int) -> None:
        key = self._string(f"the key of metadata pair {index}", MAX_NAME_BYTES)
        if key in self.pairs:
            self._fail(f"metadata key {key!r} appears twice")
        kind: int = self._scalar(_U32, f"the type of {key!r}")
        self.pairs[key] = self._value(kind, key, 0)

    def _value(self, kind: int, key: str, depth: int) -> Any:
        if kind == _STRING:
            return self._string(f"the value of {key!r}")
        if kind == _ARRAY:
            return self._array(key, depth + 1)
        form = _SCALARS.get(kind)
        if form is None:
            self._fail(f"the value of {key!r} has unknown type {kind}")
        value = self._scalar(form, f"the value of {key!r}")
        return bool(value) if kind == _BOOL else value

    def _array(self, key: str, depth: int) -> Any:
        if depth > MAX_NESTING:
            self._fail(f"the arrays of {key!r} are nested deeper than {MAX_NESTING}")
        self.arrays += 1
        if self.arrays > MAX_ARRAYS:
            self._fail(f"the metadata holds more than {MAX_ARRAYS} arrays")
        kind: int = self._scalar(_U32, f"the element type of {key!r}")
        count: int = self._scalar(_U64, f"the length of {key!r}")
        if kind in _SCALARS:
            return self._numbers(kind, count, key)
        if kind not in (_STRING, _ARRAY):
            self._fail(f"the elements of {key!r} have unknown type {kind}")
        least = 8 if kind == _STRING else 12
        if count > MAX_ITEMS or count * least > self.size - self.pos:
            self._fail(f"{key!r} announces {count} elements; at most {min(MAX_ITEMS, (self.size - self.pos) // least)} are possible")
        if kind == _STRING:
            return self._strings(count, key)
        return [self._array(key, depth + 1) for _ in range(count)]

    def _numbers(self, kind: int, count: int, key: str) -> np.ndarray:
        nbytes = count * _SCALARS[kind].size
        self._need(nbytes, f"the array {key!r} of {count} numbers")
        values = np.frombuffer(self.buffer, dtype=_NUMPY[kind], count=count, offset=self.pos) if count else np.empty(0, _NUMPY[kind])
        self.pos += nbytes
        return values != 0 if kind == _BOOL else values

    def _strings(self, count: int, key: str) -> StringArray:
        """Walk the length words: the one loop of the reader whose speed matters (a vocabulary has hundreds of thousands)."""
        buffer, pos, size = self.buffer, self.pos, self.size
        unpack = _U64.unpack_from
        starts = [pos]
        append = starts.append
        last = size - 8
        for _ in range(count):
            if pos > last:
                break
            pos += unpack(buffer, pos)[0] + 8
            append(pos)
        if len(starts) <= count or pos > size:
            index = len(starts) - 2 if pos > size else len(starts) - 1
            self.pos = starts[max(index, 0)]
            self._fail(f"string {max(index, 0)} of {count} in {key!r} ends at byte {pos if pos > size else pos + 8}, beyond the end of the file")
        self.pos = pos
        return StringArray(buffer, np.array(starts, dtype=np.int64), key)

    def _alignment(self) -> int:
        value = self.pairs.get("general.alignment", DEFAULT_ALIGNMENT)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
            self._fail(f"general.alignment must be a power of two up to {MAX_ALIGNMENT}, got {value!r:.40}")
        return value

    def _tensor(self, index: int) -> TensorInfo:
        """A directory entry whose ``start`` is still relative to the data section."""
        name = self._string(f"the name of tensor {index}", MAX_NAME_BYTES)
        count: int = self._scalar(_U32, f"the number of dimensions of {name!r}")
        if not 1 <= count <= MAX_DIMS:
            self._fail(f"tensor {name!r} has {count} dimensions; 1 to {MAX_DIMS} are allowed")
        dims = [self._scalar(_U64, f"dimension {i} of {name!r}") for i in range(count)]
        kind: int = self._scalar(_U32, f"the type of {name!r}")
        start: int = self._scalar(_U64, f"the offset of {name!r}")
        if 0 in dims:
            self._fail(f"tensor {name!r} has shape {dims}: a dimension is zero")
        form = GGML_NAMES.get(kind, f"unknown type {kind}")
        if form not in STORED_TYPES:
            raise UnsupportedModel(f"tensor {name!r} is stored as {form}, which Octavo does not read; it reads {', '.join(STORED_TYPES)}")
        per_row = row_bytes(form, dims[0])
        if per_row is None:
            self._fail(f"tensor {name!r} is {form} with rows of {dims[0]} values, which is not a multiple of its block of {STORED_TYPES[form][0]}")
        return TensorInfo(name, form, tuple(reversed(dims)), start, per_row * prod(dims[1:]))

    def _place(self, directory: list[TensorInfo], base: int, alignment: int) -> dict[str, TensorInfo]:
        placed: dict[str, TensorInfo] = {}
        for t in directory:
            if t.name in placed:
                raise FormatError(f"tensor {t.name!r} appears twice")
            if t.start % alignment:
                raise FormatError(f"tensor {t.name!r} starts at offset {t.start}, which is not a multiple of the alignment {alignment}")
            start = base + t.start
            if start + t.nbytes > self.size:
                raise FormatError(f"tensor {t.name!r} needs bytes {start}..{start + t.nbytes}, the file has {self.size}; it may be truncated")
            placed[t.name] = TensorInfo(t.name, t.format, t.shape, start, t.nbytes)
        return placed
