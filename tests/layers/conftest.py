from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from octavo.backend.base import BackendOptions
from octavo.backend.reference import ReferenceBackend
from octavo.layers.scope import Scope
from octavo.parallel.local import LocalGroup
from octavo.weights.loader import WeightLoader
from tests.weights.memory_checkpoint import MemoryCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from octavo.parallel import Group


@pytest.fixture(scope="session")
def backend() -> ReferenceBackend:
    return ReferenceBackend(BackendOptions(threads=1))


@pytest.fixture
def scope_of(backend: ReferenceBackend) -> Callable[..., Scope]:
    """A root scope over arrays; ``scope.loader.finish()`` loads what layers asked for."""

    def make(arrays: dict[str, np.ndarray], group: Group | None = None) -> Scope:
        group = group or LocalGroup()
        return Scope(WeightLoader(MemoryCheckpoint(arrays), backend, group), backend, group, max_positions=64)

    return make
