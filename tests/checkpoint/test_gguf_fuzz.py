"""Damaged files end in typed errors, in bounded memory: every truncation, random corruption, and lengths that lie."""

from __future__ import annotations

import random
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from octavo.checkpoint.open import open_checkpoint
from octavo.errors import CheckpointError
from tests.checkpoint.writers import u32, u64, write_model

if TYPE_CHECKING:
    from pathlib import Path

MEMORY = 32 << 20  # bytes one open may allocate; the files have about 0.1 MiB
LIES = [u64(v) for v in (0, 1, 255, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1)]
LIES += [u32(v) for v in (0, 8, 9, 12, 13, 1 << 31, (1 << 32) - 1)]


def read_all(path: Path) -> bool:
    """Open a file and touch all that it offers. False if it was refused with a typed error; any other exception is the reader's fault."""
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError as e:
        assert str(path) in e.message and len(e.message) < 2000
        return False
    try:
        for name in checkpoint.names():
            raw = checkpoint.tensor(name)
            np.bitwise_xor.reduce(raw.data, axis=None)  # the last byte is inside the file, or this would crash
        assert checkpoint.tokenizer.gguf is not None
        for key in checkpoint.tokenizer.gguf:
            checkpoint.tokenizer.gguf[key]
    except CheckpointError as e:
        assert e.message and len(e.message) < 2000
        return False
    return True


def check_bounded(path: Path) -> bool:
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    accepted = read_all(path)
    assert tracemalloc.get_traced_memory()[1] - before < MEMORY
    return accepted


@pytest.fixture(params=["llama", "gemma3"])
def sound(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    path = tmp_path / "sound.gguf"
    write_model(path, request.param, layers=1)
    assert read_all(path)
    return path.read_bytes()


def header_size(data: bytes) -> int:
    return data.index(b"output_norm.weight") + 2000


def test_every_truncation_is_refused(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    head = header_size(sound)
    cuts = [*range(0, head, 2), *range(head, len(sound), 997)]
    for cut in cuts:
        path.write_bytes(sound[:cut])
        assert not read_all(path), f"a file cut to {cut} of {len(sound)} bytes was accepted"


def test_random_corruption_gives_typed_errors(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "corrupt.gguf"
    rng = random.Random(1)
    head = header_size(sound)
    tracemalloc.start()
    refused = 0
    try:
        for _ in range(1000):
            data = bytearray(sound)
            for _ in range(rng.randint(1, 6)):
                data[rng.randrange(head)] = rng.randrange(256)
            path.write_bytes(data)
            refused += not check_bounded(path)
    finally:
        tracemalloc.stop()
    assert refused > 100  # corruption was really found


def test_lies_about_lengths_give_typed_errors(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lies.gguf"
    rng = random.Random(2)
    head = header_size(sound)
    tracemalloc.start()
    try:
        for _ in range(1000):
            data = bytearray(sound)
            lie = rng.choice(LIES)
            at = rng.randrange(8, head)
            data[at : at + len(lie)] = lie
            path.write_bytes(data)
            check_bounded(path)
    finally:
        tracemalloc.stop()


def test_pieces_cut_out_or_repeated_give_typed_errors(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "pieces.gguf"
    rng = random.Random(3)
    head = header_size(sound)
    for _ in range(400):
        a, b = sorted((rng.randrange(8, head), rng.randrange(8, head)))
        path.write_bytes(sound[:a] + (sound[b:] if rng.random() < 0.5 else sound[a:b] * 2 + sound[b:]))
        read_all(path)
