"""What the tests of the native module share. Importing it skips the calling module where the native module was not built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from octavo.backend.base import RawWeight
from octavo.backend.cpu import DensePanels

if TYPE_CHECKING:
    from collections.abc import Iterator

native = pytest.importorskip("octavo._native", reason="the native module is not built here")

ISAS: list[str] = native.isas()
THREADS = (1, 2, 3)


@pytest.fixture
def restored_native() -> Iterator[None]:
    """The test may choose threads and kernels; what was before comes back."""
    isa, threads, torch_threads = native.isa(), native.threads(), torch.get_num_threads()
    yield
    native.select_isa(isa)
    native.set_threads(threads)
    torch.set_num_threads(torch_threads)


def raw_f32(weight: torch.Tensor) -> RawWeight:
    data = weight.contiguous().numpy()
    return RawWeight("f32", (data.shape[0], data.shape[1]), data.view(np.uint8).reshape(data.shape[0], -1))


def pack_f32(weight: torch.Tensor) -> DensePanels:
    return DensePanels(native, [raw_f32(weight)])


def random_tensor(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bits(x: torch.Tensor) -> bytes:
    return x.contiguous().numpy().tobytes()
