"""The GGUF reader against the ``gguf`` package's, and its refusals of malformed files."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from octavo.checkpoint.formats import STORED_TYPES
from octavo.checkpoint.gguf import MAX_ITEMS, MAX_NESTING, GGUFFile
from octavo.errors import CheckpointError, FormatError, UnsupportedModel
from tests.checkpoint.writers import Bytes, add_tokenizer, finish, pair, tensor, text, u32, u64

if TYPE_CHECKING:
    from pathlib import Path

T = gguf.GGUFValueType
TYPES = {name: getattr(gguf.GGMLQuantizationType, name.upper()) for name in STORED_TYPES}


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    """Every value type and every tensor type that Octavo reads."""
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    numbers = {
        T.UINT8: 200, T.INT8: -100, T.UINT16: 60000, T.INT16: -30000, T.UINT32: 4_000_000_000, T.INT32: -2_000_000_000, T.FLOAT32: 0.1,
        T.UINT64: 1 << 63, T.INT64: -(1 << 62), T.FLOAT64: 1e300,
    }  # fmt: skip
    for kind, value in numbers.items():
        writer.add_key_value(f"one.{kind.name}", value, kind)
        writer.add_key_value(f"many.{kind.name}", [value, 0, value], T.ARRAY, sub_type=kind)
    writer.add_bool("one.BOOL", True)
    writer.add_array("many.BOOL", [True, False, True])
    writer.add_string("one.STRING", "naïve ☃ text")
    writer.add_array("many.STRING", ["", "a", "é" * 300, "☃", "x" * 70000, "end"])
    add_tokenizer(writer)
    rng = np.random.default_rng(0)
    for name, kind in TYPES.items():
        for dims, shape in enumerate([(512,), (3, 512), (2, 3, 256), (2, 2, 1, 256)], 1):
            if dims == 1 and STORED_TYPES[name][0] > 1:
                continue  # the writer takes quantized data as rows of bytes
            block, size = STORED_TYPES[name]
            data = rng.integers(0, 256, (*shape[:-1], shape[-1] // block * size), dtype=np.uint8)
            writer.add_tensor(f"{name}.{dims}", data, raw_dtype=kind)
    finish(writer)
    return path


def test_metadata_equals_the_gguf_package(reference: Path) -> None:
    ours, theirs = GGUFFile(reference), gguf.GGUFReader(reference)
    expected = {key: f.contents() for key, f in theirs.fields.items() if not key.startswith("GGUF.")}
    assert set(ours.metadata) == set(expected)
    for key, value in expected.items():
        got: Any = ours.metadata[key]
        if isinstance(got, np.ndarray):
            assert not got.flags.writeable or got.dtype == bool
            got = got.tolist()
        assert got == value and type(got) is type(value), key


def test_tensors_equal_the_gguf_package(reference: Path) -> None:
    ours, theirs = GGUFFile(reference), gguf.GGUFReader(reference)
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for t in theirs.tensors:
        raw = ours.raw(t.name)
        assert raw.format == t.tensor_type.name.lower()
        assert raw.shape == tuple(int(n) for n in reversed(t.shape))
        assert raw.data.dtype == np.uint8 and not raw.data.flags.writeable
        assert raw.data.ndim == (1 if len(raw.shape) == 1 else 2)
        assert raw.data.tobytes() == np.ascontiguousarray(t.data).tobytes()
        assert raw.data.base is not None  # a view, not a copy
    assert ours.nbytes() == sum(t.n_bytes for t in theirs.tensors)


def test_views_outlive_the_file_object(reference: Path) -> None:
    file = GGUFFile(reference)
    data = file.raw("f32.2").data
    expected = data.tobytes()
    del file
    assert data.tobytes() == expected


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment_is_followed(tmp_path: Path, alignment: int) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_custom_alignment(alignment)
    for i in range(3):
        writer.add_tensor(f"t{i}", np.full(5 + i, i, dtype=np.float32))
    finish(writer)
    file = GGUFFile(tmp_path / "a.gguf")
    for i in range(3):
        assert file.raw(f"t{i}").data.view("<f4").tolist() == [i] * (5 + i)


def test_version_2_is_read(reference: Path) -> None:
    data = bytearray(reference.read_bytes())
    data[4:8] = u32(2)
    reference.write_bytes(data)
    assert GGUFFile(reference).version == 2


def test_strings_are_found_without_decoding(reference: Path) -> None:
    strings = GGUFFile(reference).metadata.strings("many.STRING")
    assert strings is not None and len(strings) == 6
    assert [strings.find(s) for s in ("", "a", "☃", "end", "en", "absent")] == [0, 1, 3, 5, None, None]
    assert strings.item(2) == "é" * 300
    assert GGUFFile(reference).metadata.strings("one.STRING") is None


def test_find_ignores_a_string_that_contains_another(tmp_path: Path) -> None:
    inner = text("ab")  # length word and all, inside the first string
    path = _write(tmp_path, Bytes([pair("k", 9, u32(8) + u64(3) + text(b"zz" + inner) + text("other") + inner)]))
    strings = GGUFFile(path).metadata.strings("k")
    assert strings is not None and strings.find("ab") == 2


def test_strings_that_are_not_utf8_fail_when_asked_for(tmp_path: Path) -> None:
    path = _write(tmp_path, Bytes([pair("k", 9, u32(8) + u64(2) + text("fine") + text(b"\xff"))]))
    file = GGUFFile(path)
    with pytest.raises(FormatError, match=r"metadata k: the string at byte \d+ is not UTF-8"):
        file.metadata["k"]


def test_big_endian_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "b.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    finish(writer)
    with pytest.raises(UnsupportedModel, match="big-endian"):
        GGUFFile(tmp_path / "b.gguf")


def _write(folder: Path, content: Bytes | bytes) -> Path:
    path = folder / "made.gguf"
    path.write_bytes(content if isinstance(content, bytes) else content.build())
    return path


ONE = [tensor("t", [8])]
DATA = bytes(32)
NESTED = b"".join(u32(9) + u64(1) for _ in range(MAX_NESTING)) + u32(0) + u64(1) + b"\0"

MALFORMED: dict[str, tuple[Bytes | bytes, type[CheckpointError], str]] = {
    "empty": (b"", FormatError, "is empty"),
    "short": (b"GG", FormatError, r"not a GGUF file: it starts with b'GG'"),
    "magic": (b"GGML" + bytes(40), FormatError, "not a GGUF file"),
    "no version": (b"GGUF\3\0", FormatError, "the version needs 4 bytes, the file has 2 left"),
    "version 1": (Bytes(version=1), UnsupportedModel, "GGUF version 1; Octavo reads versions 2 and 3"),
    "version 4": (Bytes(version=4), UnsupportedModel, "GGUF version 4"),
    "tensor count": (Bytes(tensor_count=1 << 63), FormatError, r"announces 9223372036854775808 tensors; at most 0 are possible"),
    "pair count": (Bytes(pair_count=(1 << 64) - 1), FormatError, r"announces 18446744073709551615 metadata pairs"),
    "key length": (Bytes([u64(1 << 62) + b"k" * 40]), FormatError, "has 4611686018427387904 bytes, at most 65536"),
    "key beyond": (Bytes([u64(1000) + b"k" * 40], alignment=1), FormatError, r"key of metadata pair 0 needs 1000 bytes, the file has 40 left"),
    "key twice": (Bytes([pair("k", 0, b"\1"), pair("k", 0, b"\2")]), FormatError, "'k' appears twice"),
    "key utf8": (Bytes([text(b"\xff\xfe") + u32(0) + b"\1" * 20]), FormatError, "is not UTF-8"),
    "value type": (Bytes([pair("k", 13, bytes(8))]), FormatError, "'k' has unknown type 13"),
    "string beyond": (Bytes([pair("k", 8, u64((1 << 64) - 1))], alignment=1), FormatError, "needs 18446744073709551615 bytes"),
    "array type": (Bytes([pair("k", 9, u32(99) + u64(0))]), FormatError, "elements of 'k' have unknown type 99"),
    "array of numbers": (Bytes([pair("k", 9, u32(10) + u64(1 << 61))]), FormatError, "needs 18446744073709551616 bytes"),
    "array of strings": (Bytes([pair("k", 9, u32(8) + u64(MAX_ITEMS + 1))]), FormatError, "announces 16777217 elements"),
    "array wraps": (Bytes([pair("k", 9, u32(8) + u64(2) + u64((1 << 64) - 8) + text("a"))]), FormatError, "string 0 of 2 in 'k'.*beyond the end"),
    "array ends early": (Bytes([pair("k", 9, u32(8) + u64(2) + text("ab") + bytes(6))], alignment=1), FormatError, "string 1 of 2 in 'k'"),
    "array nested": (Bytes([pair("k", 9, NESTED)]), FormatError, f"nested deeper than {MAX_NESTING}"),
    "alignment 0": (Bytes([pair("general.alignment", 4, u32(0))], ONE, DATA), FormatError, "power of two"),
    "alignment 24": (Bytes([pair("general.alignment", 4, u32(24))], ONE, DATA), FormatError, "power of two up to .*, got 24"),
    "alignment huge": (Bytes([pair("general.alignment", 4, u32(1 << 31))], ONE, DATA), FormatError, "power of two"),
    "alignment text": (Bytes([pair("general.alignment", 8, text("32"))], ONE, DATA), FormatError, "power of two"),
    "no dims": (Bytes(tensors=[tensor("t", []) + bytes(8)], data=DATA), FormatError, "'t' has 0 dimensions; 1 to 4"),
    "five dims": (Bytes(tensors=[tensor("t", [1] * 5)], data=DATA), FormatError, "'t' has 5 dimensions"),
    "dims count huge": (Bytes(tensors=[text("t") + u32((1 << 32) - 1) + bytes(40)]), FormatError, "'t' has 4294967295 dimensions"),
    "zero dim": (Bytes(tensors=[tensor("t", [8, 0])], data=DATA), FormatError, "a dimension is zero"),
    "dims overflow": (Bytes(tensors=[tensor("t", [1 << 63, 1 << 63])], data=DATA), FormatError, "'t' needs bytes .*, the file has"),
    "dims wrap to zero": (Bytes(tensors=[tensor("t", [1 << 32, 1 << 32, 4])], data=DATA), FormatError, "'t' needs bytes"),
    "type unknown": (Bytes(tensors=[tensor("t", [8], 1000)], data=DATA), UnsupportedModel, "'t' is stored as unknown type 1000"),
    "type unsupported": (Bytes(tensors=[tensor("t", [256], 10)], data=DATA), UnsupportedModel, "'t' is stored as q2_k, .* it reads f32, f16"),
    "block": (Bytes(tensors=[tensor("t", [48, 2], 8)], data=DATA), FormatError, "rows of 48 values, .* block of 32"),
    "offset": (Bytes(tensors=[tensor("t", [8], 0, 12)], data=DATA), FormatError, "offset 12, .* multiple of the alignment 32"),
    "offset huge": (Bytes(tensors=[tensor("t", [8], 0, 1 << 63)], data=DATA), FormatError, "needs bytes"),
    "data short": (Bytes(tensors=[tensor("blk.3.attn_q.weight", [8])], data=DATA[:30]), FormatError, r"needs bytes 96\.\.128, the file has 126"),
    "tensor twice": (Bytes(tensors=ONE * 2, data=DATA), FormatError, "'t' appears twice"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_refused_with_numbers(tmp_path: Path, case: str) -> None:
    content, error, message = MALFORMED[case]
    with pytest.raises(error, match=message) as caught:
        GGUFFile(_write(tmp_path, content))
    assert type(caught.value) is error


def test_well_formed_hand_made_file(tmp_path: Path) -> None:
    """The base that the malformed cases differ from is itself accepted."""
    nested = u32(9) + u64(2) + (u32(0) + u64(2) + b"\1\2") + (u32(8) + u64(1) + text("x"))
    values = struct.pack("<8f", *range(8))
    file = GGUFFile(_write(tmp_path, Bytes([pair("k", 0, b"\7"), pair("n", 9, nested), pair("e", 9, u32(4) + u64(0))], ONE, values)))
    assert file.metadata["k"] == 7 and file.metadata["e"].size == 0
    assert [list(item) for item in file.metadata["n"]] == [[1, 2], ["x"]]
    assert file.raw("t").data.view("<f4").tolist() == list(range(8))


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(CheckpointError, match=f"cannot read {path}"):
            GGUFFile(path)


def test_torch_is_not_imported() -> None:
    code = "import sys, octavo.checkpoint.open, octavo.checkpoint.pull; sys.exit('torch' in sys.modules or 'gguf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
