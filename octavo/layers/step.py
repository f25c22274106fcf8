"""What one engine step hands to a model: one object, passed as one argument, so that two models can live in one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.backend.base import AttentionPlan, LayerKV


@dataclass(slots=True)
class Step:
    """The tokens of a step, rows one after another in the order of ``attention.batch``. ``kv[i]`` belongs to attention layer i."""

    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T], of each token within its own request
    attention: AttentionPlan
    kv: list[LayerKV]
