"""Putting an engine together from its configuration: executor, cache, scheduler, loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.checkpoint.open import open_checkpoint
from octavo.checkpoint.pull import resolve_model
from octavo.core.registry import resolve
from octavo.engine.admission import Limits
from octavo.engine.executor import InProcessExecutor
from octavo.engine.loop import EngineLoop
from octavo.engine.messages import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.config import EngineConfig
    from octavo.decode.constraint import Constraint, Pending
    from octavo.decode.constraint.grammar import GrammarCompiler, Vocabulary
    from octavo.engine.executor import Executor
    from octavo.engine.link import Link
    from octavo.engine.loop import Scheduler
    from octavo.engine.messages import AddRequest, EngineInfo


def build_loop(config: EngineConfig, link: Link, executor: Executor | None = None) -> tuple[EngineLoop, EngineInfo]:
    """Start the executor (this loads the model) and return a loop that is ready to run. Progress goes to ``link``.

    Raises what :meth:`octavo.engine.executor.Executor.start` raises, and ConfigError for a scheduler or cache that cannot be loaded.
    """
    for option in ("scheduler", "kv_cache", "scheduling_policy"):
        resolve(option, getattr(config, option))  # a misspelt name fails before gigabytes are read
    executor = executor or InProcessExecutor(config)
    info = executor.start(lambda phase, done, total: link.send(Progress(phase, done, total)))
    limits = Limits(info.vocab_size, info.max_model_len, info.num_blocks * info.block_size)
    return EngineLoop(link, executor, lambda: make_scheduler(config, info), limits, constrain=make_constrain(config, info)), info


def make_scheduler(config: EngineConfig, info: EngineInfo) -> Scheduler:
    """A scheduler over an empty cache."""
    cache = resolve("kv_cache", config.kv_cache)(info.num_blocks, info.block_size, config.enable_prefix_caching)
    policy = resolve("scheduling_policy", config.scheduling_policy)()
    scheduler: Scheduler = resolve("scheduler", config.scheduler)(
        cache, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens, policy=policy
    )
    return scheduler


def make_constrain(config: EngineConfig, info: EngineInfo) -> Callable[[AddRequest], Pending | None]:
    """What a request's ``structured_outputs`` ask for. The grammar engine is imported, and the vocabulary read, when the first one comes."""
    compiler: GrammarCompiler | None = None

    def load() -> Vocabulary:
        from octavo.decode.constraint.grammar import read_vocabulary

        return read_vocabulary(open_checkpoint(resolve_model(config.model)), info.vocab_size)

    def constrain(message: AddRequest) -> Pending | None:
        nonlocal compiler
        if message.params.structured_outputs is None:
            return None
        if compiler is None:
            from octavo.decode.constraint.grammar import GrammarCompiler

            compiler = GrammarCompiler(load)
        compilation = compiler.start(message.params.structured_outputs)

        def pending() -> Constraint | None:
            grammar = compilation.poll()
            return None if grammar is None else grammar.constraint(message.thinking)

        return pending

    return constrain
