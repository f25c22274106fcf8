from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from octavo.checkpoint.open import open_checkpoint
from octavo.text.tokenizer import load_tokenizer
from tests.decode.grammars import Grammars

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def grammars(smollm2: Path) -> Grammars:
    """Grammars over SmolLM2's vocabulary: 49,152 tokens of byte-level BPE."""
    return Grammars(load_tokenizer(open_checkpoint(smollm2)))
