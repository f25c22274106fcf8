from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.service.fake import INFO
from tests.service.texts import make_text

if TYPE_CHECKING:
    from octavo.engine.messages import EngineInfo
    from octavo.service.model_text import ModelText


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    return make_text(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def info(text: ModelText) -> EngineInfo:
    return msgspec.structs.replace(INFO, vocab_size=text.tokenizer.vocab_size)
