"""Octavo serves large language models: paged KV cache, continuous batching, OpenAI API; on a plain CPU out of the box.

    from octavo import LLM, SamplingParams

    with LLM("smollm2-135m-instruct") as llm:
        print(llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))[0].outputs[0].text)

Names are imported when they are first used, so ``import octavo`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.core.sampling_params import SamplingParams
    from octavo.core.structured import StructuredOutputsParams
    from octavo.errors import (
        CheckpointError,
        ConfigError,
        EngineDied,
        FormatError,
        GrammarError,
        InvalidParameter,
        ModelNotFound,
        OctavoError,
        OutOfMemory,
        Overloaded,
        PromptTooLong,
        PullError,
        RequestError,
        RequestFailed,
        TemplateError,
        TensorMismatch,
        UnsupportedModel,
    )
    from octavo.frontends.llm import LLM
    from octavo.frontends.outputs import CompletionOutput, RequestOutput, ToolCall
    from octavo.service.types import Logprob

__version__ = "0.1.0"

_HOMES = {
    "LLM": "octavo.frontends.llm",
    "CompletionOutput": "octavo.frontends.outputs",
    "EngineConfig": "octavo.config",
    "Logprob": "octavo.service.types",
    "RequestOutput": "octavo.frontends.outputs",
    "SamplingParams": "octavo.core.sampling_params",
    "StructuredOutputsParams": "octavo.core.structured",
    "ToolCall": "octavo.frontends.outputs",
}

__all__ = [  # noqa: RUF022 (alphabetical, upper and lower case alike)
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "EngineConfig",
    "EngineDied",
    "FormatError",
    "GrammarError",
    "InvalidParameter",
    "LLM",
    "Logprob",
    "ModelNotFound",
    "OctavoError",
    "OutOfMemory",
    "Overloaded",
    "PromptTooLong",
    "PullError",
    "RequestError",
    "RequestFailed",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "TemplateError",
    "TensorMismatch",
    "ToolCall",
    "UnsupportedModel",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "octavo.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
