"""Reader of safetensors headers over a memory map, and of the index of a sharded set.

Format: https://github.com/huggingface/safetensors. Layout: header length u64 (little-endian) | JSON header | data. Each entry of the header has
dtype, shape and data_offsets relative to the data; together the tensors cover the data without holes or overlaps, which is checked.
"""

from __future__ import annotations

import json
import struct
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.checkpoint.base import RawTensor
from octavo.checkpoint.gguf import TensorInfo, map_file
from octavo.errors import CheckpointError, FormatError, UnsupportedModel

if TYPE_CHECKING:
    from pathlib import Path

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_JSON_BYTES = 100_000_000
MAX_DIMS = 8

# dtype -> (our name, bits a value). Types without a name are well-formed but not read as weights.
DTYPES: dict[str, tuple[str | None, int]] = {
    "F32": ("f32", 32), "F16": ("f16", 16), "BF16": ("bf16", 16), "F64": (None, 64), "C64": (None, 64), "BOOL": (None, 8),
    "F8_E4M3": (None, 8), "F8_E5M2": (None, 8), "F8_E8M0": (None, 8), "F8_E4M3FNUZ": (None, 8), "F8_E5M2FNUZ": (None, 8),
    "F6_E2M3": (None, 6), "F6_E3M2": (None, 6), "F4": (None, 4), "F4_E2M1_X2": (None, 8), "U8": (None, 8), "I8": (None, 8), "U16": (None, 16),
    "I16": (None, 16), "U32": (None, 32), "I32": (None, 32), "U64": (None, 64), "I64": (None, 64),
}  # fmt: skip


_NUMPY_TYPES = {
    "f32": "<f4", "f16": "<f2", "F64": "<f8", "BOOL": "u1", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8",
}  # fmt: skip


class SafetensorsFile:
    """An open file. ``tensors`` holds every entry of the header; ``format`` of one that is not f32, f16 or bf16 is its dtype as written.

    Raises CheckpointError if the file cannot be read and FormatError if it is malformed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        buffer = map_file(path)
        self._data = np.frombuffer(buffer, dtype=np.uint8)
        size = len(buffer)
        if size < 8:
            raise FormatError(f"{path} has {size} bytes; a safetensors file has at least 8")
        (length,) = struct.unpack_from("<Q", buffer, 0)
        if length > MAX_HEADER_BYTES or length > size - 8:
            raise FormatError(f"{path} announces a header of {length} bytes; at most {min(MAX_HEADER_BYTES, size - 8)} are possible")
        header = parse_json(buffer[8 : 8 + length], f"the header of {path}", unique=True)
        self.tensors = _directory(header, 8 + length, size, str(path))

    def raw(self, name: str) -> RawTensor:
        """Stored bytes of a tensor that is in ``tensors``: uint8 [rows, bytes per row]; [bytes] below two dimensions."""
        info = self.tensors[name]
        if info.format not in ("f32", "f16", "bf16"):
            raise UnsupportedModel(f"tensor {name!r} is stored as {info.format}, which Octavo does not read; it reads F32, F16 and BF16")
        data = self._data[info.start : info.start + info.nbytes]
        if len(info.shape) > 1:
            rows = prod(info.shape[:-1])
            data = data.reshape(rows, info.nbytes // rows if rows else 0)
        return RawTensor(name, info.format, info.shape, data)


    def array(self, name: str) -> np.ndarray:
        """A tensor as numbers, memory-mapped and read-only where numpy has its type; bfloat16 becomes a float32 copy.

        Raises UnsupportedModel for types that are neither integers nor floats of 16 bits or more."""
        info = self.tensors[name]
        data = self._data[info.start : info.start + info.nbytes]
        if info.format == "bf16":
            return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(info.shape)
        if info.format not in _NUMPY_TYPES:
            raise UnsupportedModel(f"tensor {name!r} is stored as {info.format}, which Octavo does not read")
        if info.start % 8:
            data = data.copy()
        return data.view(_NUMPY_TYPES[info.format]).reshape(info.shape)


def parse_json(data: bytes, what: str, unique: bool = False) -> dict[str, Any]:
    """A JSON object; ``unique`` forbids repeated keys. Raises FormatError that starts with ``what``."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique if unique else None)
    except RecursionError:
        raise FormatError(f"{what} is nested too deeply") from None
    except ValueError as e:
        raise FormatError(f"{what} is not valid JSON: {str(e)[:200]}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{what} is not a JSON object")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of at most :data:`MAX_JSON_BYTES`."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise FormatError(f"{path} has {size} bytes, more than the {MAX_JSON_BYTES} allowed")
        data = path.read_bytes()
    except OSError as e:
        raise CheckpointError(f"cannot read {path}: {e.strerror or e}") from None
    return parse_json(data, str(path))


def read_index(path: Path) -> dict[str, str]:
    """``weight_map`` of a ``*.safetensors.index.json``: tensor name -> file name. File names must be plain names inside the folder."""
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(f"{path} lacks weight_map")
    for file in set(map(str, weight_map.values())):
        if not is_plain_name(file):
            raise FormatError(f"{path} names the file {file[:100]!r}; only names of .safetensors files inside the folder are allowed")
    return {name: str(file) for name, file in weight_map.items()}


def is_plain_name(file: str) -> bool:
    return file.endswith(".safetensors") and not file.startswith(".") and not any(c in file for c in "/\\:\0")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    for key in result:
        key.encode()  # a lone surrogate is no text
    if len(result) != len(pairs):
        seen: set[str] = set()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {again[:100]!r} appears twice")
    return result


def _directory(header: dict[str, Any], base: int, size: int, path: str) -> dict[str, TensorInfo]:
    """Entries with absolute offsets; ``base`` is where the data begins."""
    tensors = {name: _entry(name, entry, base, size) for name, entry in header.items() if name != "__metadata__"}
    position = base
    for info in sorted(tensors.values(), key=lambda t: (t.start, t.start + t.nbytes)):
        if info.start != position:
            raise FormatError(f"tensor {info.name!r} starts at byte {info.start}, the one before it ends at {position}")
        position += info.nbytes
    if position != size:
        raise FormatError(f"the tensors of {path} end at byte {position}, the file has {size}")
    return tensors


def _entry(name: str, entry: Any, base: int, size: int) -> TensorInfo:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise FormatError(f"the entry of tensor {name[:100]!r} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FormatError(f"tensor {name[:100]!r} has unknown dtype {dtype!r:.60}")
    if not _counts(shape) or len(shape) > MAX_DIMS:
        raise FormatError(f"tensor {name[:100]!r} has shape {shape!r:.100}, expected at most {MAX_DIMS} whole numbers")
    if not _counts(offsets) or len(offsets) != 2:
        raise FormatError(f"tensor {name[:100]!r} has data_offsets {offsets!r:.100}, expected two whole numbers")
    start, end = base + offsets[0], base + offsets[1]
    if end > size or start > end:
        raise FormatError(f"tensor {name[:100]!r} needs bytes {start}..{end}, the file has {size}; it may be truncated")
    known, bits = DTYPES[dtype]
    need = prod(shape) * bits
    if need != (end - start) * 8:
        raise FormatError(f"tensor {name[:100]!r}, {dtype} {shape}, needs {-(-need // 8)} bytes, its data_offsets hold {end - start}")
    return TensorInfo(name, known or dtype, tuple(shape), start, end - start)


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values)
