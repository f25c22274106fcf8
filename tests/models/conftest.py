"""Fixtures of the model tests: random checkpoints with transformers' answers, and every backend that this machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.harness import BACKENDS, make_backend
from tests.models.tiny_models import Oracle, make_oracle

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.backend.base import Backend


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Oracle]:
    """Gives the oracle of a family by its name in ``tiny_models.FAMILIES``; each is made once."""
    folder, made = tmp_path_factory.mktemp("tiny"), {}

    def get(name: str) -> Oracle:
        if name not in made:
            made[name] = make_oracle(name, folder)
        return made[name]

    return get


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return make_backend(request.param)


@pytest.fixture(scope="session")
def reference() -> Backend:
    return make_backend("reference", threads=1)
