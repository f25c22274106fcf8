"""Fixtures shared by all tests: real checkpoints from the catalog, pulled once into the user's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def _pull(name: str) -> Path:
    from octavo.checkpoint.pull import pull

    return pull(name)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, GGUF Q4_1 (Llama architecture, byte-level BPE, ChatML)."""
    return _pull("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M, GGUF Q4_K_M (sliding windows, QK norm, SentencePiece)."""
    return _pull("gemma3-270m")


@pytest.fixture(scope="session")
def qwen2_coder() -> Path:
    """Qwen2.5-Coder 0.5B instruct, GGUF Q4_K_M (Qwen2 architecture, tool template)."""
    return _pull("qwen2.5-coder-0.5b-instruct")
