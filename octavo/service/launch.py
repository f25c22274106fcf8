"""Putting the parts together: an engine in its own process or on a thread of this one, and the service over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.engine.spawn import spawn_engine, spawn_waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.config import EngineConfig
    from octavo.engine.spawn import EngineHandle as EngineHandle
    from octavo.service.model_text import ModelText
    from octavo.service.service import Service, ServiceOptions


@dataclass(slots=True)
class EngineProcess:
    """An engine process that was started first, so that its imports run beside this process's."""

    config: EngineConfig
    handle: EngineHandle

    def kill(self) -> None:
        """For a process that no service took over, or that must end at once."""
        self.handle.kill()


def start_engine(config: EngineConfig, waiting: EngineHandle | None = None) -> EngineProcess:
    """Start the engine process, or give one that is ``waiting`` its order; returns at once. Standard library only, so a command can call it
    before it imports anything else."""
    if waiting is None:
        return EngineProcess(config, spawn_engine(config))
    waiting.order(config)
    return EngineProcess(config, waiting)


def start_waiting() -> EngineHandle:
    """Start an engine process before its configuration is known; see :func:`octavo.engine.spawn.spawn_waiting`."""
    return spawn_waiting()


def process_service(engine: EngineProcess, options: ServiceOptions) -> Service:
    """A service whose engine runs in a process that is started again if it dies."""
    from octavo.engine.supervisor import SupervisedClient
    from octavo.service.service import Service

    return Service(SupervisedClient(engine.config, engine.handle), _text_loader(engine.config), options)


def local_service(config: EngineConfig, options: ServiceOptions) -> Service:
    """A service whose engine runs on a thread of this process. Its step loop imports torch when it starts."""
    from octavo.engine.client import InProcessClient
    from octavo.service.service import Service

    return Service(InProcessClient(config), _text_loader(config), options)


def _text_loader(config: EngineConfig) -> Callable[[], ModelText]:
    def load() -> ModelText:
        from octavo.service.model_text import load_model_text  # on the loading thread: it takes 0.1 s that the server's start need not wait for

        return load_model_text(config)

    return load
