"""Captured decode steps against the same steps run as usual, in every family."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from octavo.backend.base import BackendOptions
from octavo.checkpoint.open import open_checkpoint
from octavo.core.sampling_params import SamplingParams
from octavo.models.registry import load_model
from tests.conformance.harness import make_backend
from tests.kernels.native_harness import bits
from tests.models.tiny_models import FAMILIES, VOCAB, Oracle
from tests.worker.driving import Engine, make_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.backend.base import Backend
    from octavo.models.base import Model
    from tests.worker.driving import Output

cpu = pytest.importorskip("octavo.backend.cpu")
ROWS = 7


@pytest.fixture(scope="module")
def backend() -> Backend:
    made: Backend = cpu.CpuBackend(BackendOptions(threads=2))
    return made


def outputs(engine: Engine, seed: int = 0) -> dict[tuple[str, int], Output]:
    """Requests of different lengths that join and leave: the number of rows goes up and down."""
    rng = random.Random(seed)
    for i in range(ROWS):
        params = SamplingParams(temperature=0.0, max_tokens=rng.choice([3, 9, 17, 24]), logprobs=1, ignore_eos=True)
        engine.add(f"r{i}", rng.choices(range(VOCAB), k=rng.choice([1, 5, 20])), params)
        engine.run(steps=rng.choice([0, 1, 3]))
    return engine.run()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_captured_step_gives_the_same_bits(family: str, oracle: Callable[[str], Oracle], backend: Backend) -> None:
    model = load_model(open_checkpoint(str(oracle(family).path)), backend)
    eager, captured = make_engine(model, backend, eager=True), make_engine(model, backend)
    expected, found = outputs(eager), outputs(captured)
    assert found == expected  # token ids and log-probabilities
    assert len(captured.runner._captured._steps) > ROWS // 2, "several numbers of rows were meant to be captured"  # type: ignore[union-attr]
    assert outputs(captured, seed=1) == outputs(eager, seed=1)  # now every step is a replay


def test_captured_steps_share_their_memory(oracle: Callable[[str], Oracle], backend: Backend) -> None:
    model = load_model(open_checkpoint(str(oracle("llama").path)), backend)
    arena = backend._arena  # type: ignore[attr-defined]
    outputs(make_engine(model, backend))
    before = arena.nbytes
    outputs(make_engine(model, backend))  # the first engine's results are free again
    assert arena.nbytes == before


def test_a_bad_row_fails_alone_in_a_captured_step(oracle: Callable[[str], Oracle], backend: Backend) -> None:
    model = load_model(open_checkpoint(str(oracle("llama").path)), backend)
    engine = make_engine(model, backend)
    alone = [outputs_of(model, backend, [i, i + 1]) for i in range(3)]
    for i in range(3):
        engine.add(f"r{i}", [i, i + 1], SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))
    engine.run(steps=4)
    engine.runner._table.tokens[1, :] = VOCAB  # an id that no embedding has
    found = engine.run()
    assert "outside" in (found["r1", 0].error or "")
    assert [found["r0", 0].token_ids, found["r2", 0].token_ids] == [alone[0], alone[2]]


def outputs_of(model: Model, backend: Backend, prompt: list[int]) -> list[int]:
    engine = make_engine(model, backend, eager=True)
    engine.add("r", prompt, SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))
    return engine.run()["r", 0].token_ids


def test_what_torch_computes_is_not_captured(backend: Backend) -> None:
    x, weight = torch.randn(3, 16), torch.ones(16)
    assert backend.capture(lambda: backend.norm(x, weight, 1e-6)[0] * 2) is None
    assert backend.capture(lambda: backend.norm(x.t().contiguous().t(), weight, 1e-6)[0]) is None


def test_what_a_replay_would_not_repeat_is_not_captured(backend: Backend) -> None:
    x, weight = torch.randn(3, 16), torch.ones(16)

    def function() -> torch.Tensor:
        out, _ = backend.norm(x, weight, 1e-6)
        out.numpy()[0, 0] = 1.0  # unseen by torch and by the native module
        return out

    assert backend.capture(function) is None


def test_a_capture_computes_with_the_numbers_of_its_inputs(backend: Backend) -> None:
    x, weight = torch.randn(3, 16), torch.rand(16)

    def function() -> torch.Tensor:
        y, total = backend.norm(x, weight, 1e-6)
        for _ in range(5):  # results die and their memory is used again
            y, total = backend.norm(y, weight, 1e-6, total)
        return y.view(6, 8)[1:]

    captured = backend.capture(function)
    assert captured is not None
    for seed in range(3):
        x.copy_(torch.randn(3, 16, generator=torch.Generator().manual_seed(seed)))
        assert bits(captured()) == bits(function())


def test_the_reference_backend_captures_nothing() -> None:
    assert make_backend("reference").capture(lambda: torch.zeros(1)) is None


def test_capturing_imports_no_compiler() -> None:
    """torch's would cost two seconds of every start."""
    code = """
import sys, torch
from octavo.backend.base import BackendOptions
from octavo.backend.cpu import CpuBackend
backend, x, weight = CpuBackend(BackendOptions(threads=1)), torch.ones(2, 8), torch.ones(8)
assert backend.capture(lambda: backend.norm(x, weight, 1e-6)[0]) is not None
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"
