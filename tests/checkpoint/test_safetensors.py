"""The safetensors reader against the safetensors library, on sound and on damaged files."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from octavo.checkpoint.safetensors import MAX_HEADER_BYTES, SafetensorsFile, parse_json, read_index
from octavo.errors import CheckpointError, FormatError, UnsupportedModel

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
OTHERS = {"I64": torch.int64, "U8": torch.uint8, "BOOL": torch.bool, "F64": torch.float64, "F8_E4M3": torch.float8_e4m3fn}


def sound_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"vector": (7,), "matrix": (3, 5), "cube": (2, 3, 4), "scalar": (), "empty": (0, 4)}
    tensors = {}
    for form, dtype in DTYPES.items():
        tensors |= {f"{form}.{name}": torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    return tensors | {f"other.{name}": torch.ones(4, 2).to(dtype) for name, dtype in OTHERS.items()}


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(sound_tensors(), path, metadata={"format": "pt"})
    return path


def test_tensors_equal_the_library(sound: Path) -> None:
    file, expected = SafetensorsFile(sound), sound_tensors()
    assert file.tensors.keys() == expected.keys()
    for name, value in expected.items():
        if name.startswith("other."):
            with pytest.raises(UnsupportedModel, match=f"'{name}' is stored as {name[6:]}"):
                file.raw(name)
            continue
        raw = file.raw(name)
        assert (raw.name, raw.format, raw.shape) == (name, name.split(".")[0], tuple(value.shape))
        assert raw.data.dtype == np.uint8 and not raw.data.flags.writeable
        assert raw.data.ndim == (2 if value.ndim > 1 else 1)
        if value.ndim > 1:
            assert raw.data.shape[0] == int(np.prod(value.shape[:-1]))
        assert raw.data.tobytes() == (value.contiguous().view(torch.uint8) if value.ndim else value.reshape(1).view(torch.uint8)).numpy().tobytes()


def made(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": offsets}


DATA = bytes(8)
MALFORMED = {
    "empty": (b"", "is empty"),
    "short": (b"1234567", "has 7 bytes; .* at least 8"),
    "length beyond": (made({}, length=3), r"announces a header of 3 bytes; at most 2 are possible"),
    "length huge": (made({}, length=(1 << 64) - 1), "announces a header of 18446744073709551615 bytes"),
    "not json": (made(b"{'a'"), "is not valid JSON"),
    "not utf8": (made(b'{"\xff": 1}'), "is not valid JSON"),
    "not an object": (made([1]), "is not a JSON object"),
    "nested": (made(b"[" * 100_000), "nested too deeply"),
    "long number": (made(b'{"a":' + b"9" * 10_000 + b"}"), "is not valid JSON"),
    "twice": (made(b'{"a":{},"a":{}}'), "key 'a' appears twice"),
    "surrogate": (made(b'{"\\ud800":{}}'), "is not valid JSON"),
    "no dtype": (made({"a": {"shape": [1], "data_offsets": [0, 4]}}, DATA), "'a' lacks dtype"),
    "entry text": (made({"a": "F32"}, DATA), "'a' lacks dtype"),
    "dtype": (made({"a": entry("F31")}, DATA), "'a' has unknown dtype 'F31'"),
    "dtype list": (made({"a": entry([])}, DATA), "'a' has unknown dtype"),
    "shape negative": (made({"a": entry(shape=[-2])}, DATA), "'a' has shape"),
    "shape float": (made({"a": entry(shape=[2.0])}, DATA), "'a' has shape"),
    "shape bool": (made({"a": entry(shape=[True, 2])}, DATA), "'a' has shape"),
    "shape many": (made({"a": entry(shape=[1] * 8 + [2])}, DATA), "at most 8"),
    "offsets one": (made({"a": entry(offsets=[0])}, DATA), "two whole numbers"),
    "offsets back": (made({"a": entry(offsets=[8, 0])}, DATA), r"needs bytes \d+\.\.\d+, the file has"),
    "offsets beyond": (made({"a": entry(offsets=[0, 8])}, DATA[:5]), "it may be truncated"),
    "size": (made({"a": entry(shape=[3])}, DATA), r"'a', F32 \[3\], needs 12 bytes, its data_offsets hold 8"),
    "size overflow": (made({"a": entry(shape=[1 << 62, 4])}, DATA), "needs 73786976294838206464 bytes"),
    "hole": (made({"a": entry(shape=[1], offsets=[4, 8])}, DATA), "'a' starts at byte"),
    "overlap": (made({"a": entry(), "b": entry(shape=[1], offsets=[4, 8])}, DATA), "'b' starts at byte"),
    "rest": (made({"a": entry()}, DATA + b"x"), "end at byte .*, the file has"),
}

LENIENT = ("twice", "shape many")  # accepted by the library


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_refused_with_numbers(tmp_path: Path, case: str) -> None:
    data, message = MALFORMED[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message):
        SafetensorsFile(path)
    if data and case not in LENIENT:
        assert not library_accepts(path)


def test_header_cap(tmp_path: Path) -> None:
    path = tmp_path / "long.safetensors"
    with path.open("wb") as f:
        f.write(struct.pack("<Q", MAX_HEADER_BYTES + 1))
        f.truncate(MAX_HEADER_BYTES + 100)  # sparse
    with pytest.raises(FormatError, match=f"at most {MAX_HEADER_BYTES} are possible"):
        SafetensorsFile(path)


def test_well_formed_hand_made_file(tmp_path: Path) -> None:
    path = tmp_path / "fine.safetensors"
    path.write_bytes(made({"__metadata__": {"a": "b"}, "a": entry()}, struct.pack("<2f", 1, 2)))
    assert SafetensorsFile(path).raw("a").data.view("<f4").tolist() == [1, 2]


def library_accepts(path: Path) -> bool:
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                file.get_slice(name).get_shape()
    except (SafetensorError, OSError, ValueError):
        return False
    return True


def test_damaged_files_never_pass_where_the_library_refuses(sound: Path, tmp_path: Path) -> None:
    """Truncated, corrupted, with pieces cut out: typed errors only, bounded memory, and nothing accepted that the library refuses."""
    data, path, rng = sound.read_bytes(), tmp_path / "damaged.safetensors", random.Random(0)
    head = 8 + struct.unpack("<Q", data[:8])[0]
    tracemalloc.start()
    refused = 0
    for case in range(1800):
        changed = bytearray(data)
        if case % 3 == 0:
            changed = changed[: rng.randrange(len(data))]
        elif case % 3 == 1:
            for _ in range(rng.randint(1, 3)):
                changed[rng.randrange(head)] = rng.choice(b'0123456789{}[]",:eE-.\x00\xffFI')
        else:
            a, b = sorted((rng.randrange(8, head), rng.randrange(8, head)))
            del changed[a:b]
            if rng.random() < 0.7:
                changed[:8] = struct.pack("<Q", head - 8 - (b - a))
        path.write_bytes(changed)
        tracemalloc.reset_peak()
        try:
            file = SafetensorsFile(path)
            for name, info in file.tensors.items():
                if info.format in DTYPES:
                    np.bitwise_xor.reduce(file.raw(name).data, axis=None)
        except CheckpointError as e:
            refused += 1
            assert len(e.message) < 2000
        else:
            assert library_accepts(path), bytes(changed[:head])
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    assert refused > 1200


def test_index(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}))
    assert read_index(path) == {"a": "model-00001-of-00002.safetensors"}
    for bad in ("../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "a\\b.safetensors", "c:x.safetensors", ".safetensors", "x.bin", 7):
        path.write_text(json.dumps({"weight_map": {"a": bad}}))
        with pytest.raises(FormatError, match=r"names the file .*only names of .safetensors files inside the folder"):
            read_index(path)
    for bad_map in ({}, [], None):
        path.write_text(json.dumps({"weight_map": bad_map}))
        with pytest.raises(FormatError, match="lacks weight_map"):
            read_index(path)


def test_json_of_configurations_may_repeat_keys() -> None:
    assert parse_json(b'{"a": 1, "a": 2}', "it") == {"a": 2}
