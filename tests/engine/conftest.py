"""A tiny checkpoint that a real engine can load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from octavo.config import EngineConfig
from tests.tiny_llama import make_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    make_tiny_llama(folder)
    return folder


@pytest.fixture
def config(tiny_folder: Path) -> EngineConfig:
    return EngineConfig(model=str(tiny_folder), threads=1, max_num_seqs=8, kv_cache_memory_bytes=1 << 20)
