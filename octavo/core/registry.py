"""Names of the replaceable parts of the core. Tables hold lazy import paths and nothing else."""

from __future__ import annotations

import importlib
from typing import Any

from octavo.errors import ConfigError

POLICIES = {
    "fcfs": "octavo.core.policy:FirstComeFirstServed",
    "priority": "octavo.core.policy:PriorityFirst",
    "shortest-first": "octavo.core.policy:ShortestFirst",
}
SCHEDULERS = {"default": "octavo.core.scheduler:Scheduler"}
KV_CACHES = {"paged": "octavo.core.kv.paged:PagedKVCache"}

_TABLES = {"scheduling_policy": POLICIES, "scheduler": SCHEDULERS, "kv_cache": KV_CACHES}


def resolve(option: str, name: str) -> type[Any]:
    """The class that ``name`` stands for. ``option``: "scheduling_policy", "scheduler" or "kv_cache"; ``name``: a registered name or
    "module:Class". Raises ConfigError."""
    table = _TABLES[option]
    path = table.get(name, name)
    module_name, colon, class_name = path.partition(":")
    if not colon or not module_name or not class_name:
        raise ConfigError(f"unknown {option} {name!r}; choose one of {', '.join(sorted(table))}, or name a class as module:Class")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(f"{option} {name!r} cannot be loaded: {error}") from error
    if not isinstance(found, type):
        raise ConfigError(f"{option} {name!r} is not a class")
    return found
