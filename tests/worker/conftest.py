"""A tiny Llama, in Octavo and in transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from octavo.backend.base import BackendOptions
from octavo.backend.reference import ReferenceBackend
from octavo.checkpoint.open import open_checkpoint
from octavo.models.registry import load_model
from tests.tiny_llama import make_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

    from octavo.backend.base import Backend
    from octavo.models.base import Model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("tiny-llama")
    return folder, make_tiny_llama(folder)


@pytest.fixture(scope="session")
def backend() -> Backend:
    return ReferenceBackend(BackendOptions(threads=1))


@pytest.fixture(scope="session")
def model(tiny: tuple[Path, Any], backend: Backend) -> Model:
    return load_model(open_checkpoint(tiny[0]), backend)
