"""Putting an engine together from its configuration: executor, cache, scheduler, loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.registry import resolve
from octavo.engine.admission import Limits
from octavo.engine.executor import InProcessExecutor
from octavo.engine.loop import EngineLoop
from octavo.engine.messages import Progress

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.engine.executor import Executor
    from octavo.engine.link import Link
    from octavo.engine.loop import Scheduler
    from octavo.engine.messages import EngineInfo


def build_loop(config: EngineConfig, link: Link, executor: Executor | None = None) -> tuple[EngineLoop, EngineInfo]:
    """Start the executor (this loads the model) and return a loop that is ready to run. Progress goes to ``link``.

    Raises what :meth:`octavo.engine.executor.Executor.start` raises, and ConfigError for a scheduler or cache that cannot be loaded.
    """
    for option in ("scheduler", "kv_cache", "scheduling_policy"):
        resolve(option, getattr(config, option))  # a misspelt name fails before gigabytes are read
    executor = executor or InProcessExecutor(config)
    info = executor.start(lambda phase, done, total: link.send(Progress(phase, done, total)))
    limits = Limits(info.vocab_size, info.max_model_len, info.num_blocks * info.block_size)
    return EngineLoop(link, executor, lambda: make_scheduler(config, info), limits), info


def make_scheduler(config: EngineConfig, info: EngineInfo) -> Scheduler:
    """A scheduler over an empty cache."""
    cache = resolve("kv_cache", config.kv_cache)(info.num_blocks, info.block_size, config.enable_prefix_caching)
    policy = resolve("scheduling_policy", config.scheduling_policy)()
    scheduler: Scheduler = resolve("scheduler", config.scheduler)(
        cache, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens, policy=policy
    )
    return scheduler
