"""The one way to load a model: its family is imported when a checkpoint asks for it."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, cast

from octavo.errors import ConfigError, UnsupportedModel
from octavo.layers.scope import Scope
from octavo.models.config import ModelConfig
from octavo.models.families import ARCHITECTURES, BUILDERS
from octavo.parallel.local import LocalGroup
from octavo.weights.loader import WeightLoader

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.backend.base import Backend
    from octavo.checkpoint.base import Checkpoint
    from octavo.models.base import Model
    from octavo.parallel import Group


def load_model(
    checkpoint: Checkpoint,
    backend: Backend,
    *,
    group: Group | None = None,
    max_positions: int | None = None,
    weights: str = "dense",
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Build the model that ``checkpoint`` describes and load its weights; ``progress(done, total)`` in bytes.

    ``max_positions`` bounds the sequences it must compute (its position tables are that long); None is all the model was made for.
    ``weights`` is the scheme of weight matrices: see ``EngineConfig.weights``.
    Raises UnsupportedModel, FormatError (configuration), TensorMismatch (weights) or ConfigError (``max_positions`` or ``group`` do not fit).
    """
    config = ModelConfig(checkpoint.config)
    build = find_family(config)
    group = group or LocalGroup()
    loader = WeightLoader(checkpoint, backend, group, progress)
    model = build(Scope(loader, backend, group, _positions(config, max_positions), scheme=weights), config)
    loader.finish()
    return model


def find_family(config: ModelConfig) -> Callable[[Scope, ModelConfig], Model]:
    """The builder of a configuration's architecture. Raises UnsupportedModel with names that look alike."""
    names = [name for name in config.values.get("architectures") or [] if isinstance(name, str)]
    names = names or [config.text("model_type", "")]
    for name in names:
        if name in BUILDERS:
            module, builder = BUILDERS[name].split(":")
            return cast("Callable[[Scope, ModelConfig], Model]", getattr(import_module(f"octavo.models.{module}"), builder))
    close = get_close_matches(names[0], BUILDERS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise UnsupportedModel(f"architecture {names[0]!r} is not supported; {hint}known: {', '.join(ARCHITECTURES)}")


def _positions(config: ModelConfig, asked: int | None) -> int:
    most = config.integer("max_position_embeddings")
    if asked is not None and not 1 <= asked <= most:
        raise ConfigError(f"{asked} positions were asked, the model holds 1 to {most}")
    return asked or most
