"""From a configuration to a runner that serves: open, import, load, plan, allocate, warm up; each phase timed.

Nothing here imports torch at the top: the model file is found and checked, and its pages are on their way from the disk, before torch is loaded.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.checkpoint.open import open_checkpoint
from octavo.checkpoint.pull import resolve_model
from octavo.config import KV_CACHE_DTYPES
from octavo.errors import OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from octavo.backend.base import Backend
    from octavo.checkpoint.base import Checkpoint
    from octavo.config import EngineConfig
    from octavo.models.base import Model
    from octavo.worker.memory import MemoryPlan
    from octavo.worker.runner import Runner

    Report = Callable[[str, int, int], None]  # phase, done, total (0: unknown)

log = logging.getLogger("octavo.worker")

READ_AHEAD = 1 << 30  # bytes of a file that the system is asked to read in advance
WATCH_EVERY = 64 << 20  # bytes of weights between two looks at the free memory
LEAST_FREE = 0.02  # share of the memory that loading must leave, so that it ends with an error and not with the process


@dataclass(frozen=True, slots=True)
class Worker:
    """A loaded model and what is to be told about it. ``phases``: name and seconds of each start-up phase."""

    runner: Runner
    plan: MemoryPlan
    model_type: str
    backend: str
    isa: str
    threads: int
    vocab_size: int
    fallbacks: tuple[str, ...]
    phases: list[tuple[str, float]]
    notes: list[str]


class Phases:
    """Times the phases of a start and reports each as it begins."""

    def __init__(self, report: Report) -> None:
        self.times: list[tuple[str, float]] = []
        self._report = report

    @contextmanager
    def __call__(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Gives a progress function (done, total) for the phase."""
        began = time.perf_counter()
        self._report(name, 0, 0)
        yield lambda done, total: self._report(name, done, total)
        self.times.append((name, time.perf_counter() - began))


def load(config: EngineConfig, report: Report) -> Worker:
    """Load ``config.model`` and everything around it. Raises CheckpointError, ConfigError, OutOfMemory."""
    phases = Phases(report)
    with phases("open model") as progress:
        path = resolve_model(config.model, progress=progress)
        checkpoint = open_checkpoint(path)
        read_ahead(path)
    with phases("import torch"):
        import torch

        from octavo.worker.memory import check_context

        torch.set_grad_enabled(False)
    check_context(config, checkpoint.config)
    with phases("backend"):
        backend = make_backend(config)
    with phases("weights") as progress:
        model = load_weights(config, checkpoint, backend, progress)
    with phases("KV cache"):
        runner, plan = make_runner(config, checkpoint, backend, model)
    with phases("warm-up"):
        runner.warm_up()
    return Worker(
        runner=runner,
        plan=plan,
        model_type=str(checkpoint.config.get("model_type", "")),
        backend=backend.name,
        isa=instruction_set(backend),
        threads=int(getattr(backend, "threads", torch.get_num_threads())),
        vocab_size=model.vocab_size,
        fallbacks=tuple(backend.fallbacks),
        phases=phases.times,
        notes=plan.lines(config, int(checkpoint.config.get("max_position_embeddings") or model.max_positions)),
    )


def read_ahead(path: Path) -> None:
    """Ask the system to read the weights while other things are set up. It may decline."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    if hasattr(os, "posix_fadvise"):
        for file in files:
            with file.open("rb") as f:
                os.posix_fadvise(f.fileno(), 0, min(file.stat().st_size, READ_AHEAD), os.POSIX_FADV_WILLNEED)


def make_backend(config: EngineConfig) -> Backend:
    """The backend of ``config``, with every core this process may use unless told otherwise."""
    from octavo.backend import create_backend
    from octavo.backend.base import BackendOptions

    return create_backend(config.backend, BackendOptions(threads=config.threads))


def instruction_set(backend: Backend) -> str:
    """Name of the kernel set in use; empty for a backend without native kernels."""
    native = getattr(backend, "native", None)
    return "" if native is None else str(native.isa())


def load_weights(config: EngineConfig, checkpoint: Checkpoint, backend: Backend, progress: Callable[[int, int], None]) -> Model:
    """The model with its weights. Raises OutOfMemory before the machine is out of memory."""
    from octavo.models.registry import load_model
    from octavo.worker.memory import sized

    looked = 0

    def watch(done: int, total: int) -> None:
        nonlocal looked
        progress(done, total)
        if done - looked >= WATCH_EVERY:
            looked = done
            memory = backend.memory()
            if memory.available < memory.total * LEAST_FREE:
                raise OutOfMemory(f"only {sized(memory.available)} are free with {sized(done)} of the model's {sized(total)} loaded")

    return load_model(checkpoint, backend, max_positions=config.max_model_len, weights=config.weights, progress=watch)


def make_runner(config: EngineConfig, checkpoint: Checkpoint, backend: Backend, model: Model) -> tuple[Runner, MemoryPlan]:
    """Plan the memory that the weights left, and allocate the cache."""
    import torch

    from octavo.backend.base import KVSpec
    from octavo.worker.memory import estimate_activations, model_bytes, plan_memory
    from octavo.worker.runner import Runner

    layers = tuple(model.attention_layers)
    dtype = getattr(torch, KV_CACHE_DTYPES[config.kv_cache_dtype])
    plan = plan_memory(
        config,
        backend.memory(),
        weight_bytes=model_bytes(model) or checkpoint.nbytes(),
        activation_bytes=estimate_activations(config, checkpoint.config, layers, model.vocab_size),
        block_bytes=KVSpec(layers, config.block_size, dtype).block_bytes(),
        context=model.max_positions,
    )
    runner = Runner(
        model,
        backend,
        block_size=plan.block_size,
        num_blocks=plan.num_blocks,
        max_num_seqs=config.max_num_seqs,
        max_model_len=plan.max_model_len,
        kv_dtype=dtype,
        enforce_eager=config.enforce_eager,
    )
    return runner, plan
