"""Who runs a plan. The engine knows the worker only through this protocol, so it can sit in this process or in several others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from octavo.engine.messages import EngineInfo, PhaseTime
from octavo.errors import EngineDied

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from octavo.config import EngineConfig
    from octavo.core.plan import StepPlan, StepResult
    from octavo.worker.runner import Runner

    Report = Callable[[str, int, int], None]  # phase, done, total (0: unknown)


class Executor(Protocol):
    """Runs one step at a time: ``launch``, then ``sample``. An exception from either concerns that step alone; the next plan may follow."""

    def start(self, report: Report) -> EngineInfo:
        """Load the model and reserve the cache. ``report`` hears of progress. Raises CheckpointError, ConfigError, OutOfMemory."""
        ...

    def launch(self, plan: StepPlan) -> None:
        """Apply the plan and start computing it."""
        ...

    def sample(self, masks: Mapping[int, np.ndarray] | None = None) -> StepResult:
        """Wait for the launched step and choose its tokens. ``masks``: see :meth:`octavo.engine.masks.Masks.fill`."""
        ...

    def close(self) -> None:
        """Free what ``start`` took. May be called twice."""
        ...


class InProcessExecutor:
    """The worker on the caller's thread. torch is imported in ``start``, not before."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._runner: Runner | None = None

    def start(self, report: Report) -> EngineInfo:
        from octavo.worker.load import load

        worker = load(self._config, report)
        self._runner = worker.runner
        plan = worker.plan
        return EngineInfo(
            model_type=worker.model_type,
            backend=worker.backend,
            isa=worker.isa,
            threads=worker.threads,
            vocab_size=worker.vocab_size,
            max_model_len=plan.max_model_len,
            block_size=plan.block_size,
            num_blocks=plan.num_blocks,
            max_num_seqs=self._config.max_num_seqs,
            max_num_batched_tokens=self._config.max_num_batched_tokens,
            weight_bytes=plan.weight_bytes,
            activation_bytes=plan.activation_bytes,
            kv_bytes=plan.kv_bytes,
            kv_bytes_per_token=plan.block_bytes // plan.block_size,
            fallbacks=list(worker.fallbacks),
            phases=[PhaseTime(name, seconds) for name, seconds in worker.phases],
            notes=list(worker.notes),
        )

    def launch(self, plan: StepPlan) -> None:
        self._started().launch(plan)

    def sample(self, masks: Mapping[int, np.ndarray] | None = None) -> StepResult:
        return self._started().sample(masks)

    def close(self) -> None:
        self._runner = None

    def _started(self) -> Runner:
        if self._runner is None:
            raise EngineDied("the executor is not started")
        return self._runner
