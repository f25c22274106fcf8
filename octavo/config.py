"""Engine configuration: small, frozen, resolved once. Nothing reads environment variables after this."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from octavo.errors import ConfigError

AUTO = "auto"
BACKENDS = (AUTO, "cpu", "reference")
WEIGHT_SCHEMES = (AUTO, "dense")
# What users call the types of the KV cache -> torch's name of each.
KV_CACHE_DTYPES = {
    AUTO: "float32", "float32": "float32", "float": "float32", "float16": "float16", "half": "float16", "bfloat16": "bfloat16", "int8": "int8",
    "fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What a user may choose about an engine. None or "auto" means: chosen from the model and the machine, and printed at start.

    model: catalog name, folder, or .gguf file.   max_model_len: tokens of prompt plus output one request may hold.
    kv_cache_dtype: what keys and values are stored as, of KV_CACHE_DTYPES; "auto" is float32, the exact one. 8-bit types keep a scale for each
    token and head.   kv_cache_memory_bytes: size of the KV cache.   max_num_seqs: rows of a step.   max_num_batched_tokens: tokens of a step.
    weights: "auto" computes with quantized weights as they are stored (activations become int8, groups of 32) where the backend can;
    "dense" widens them to float32 first, the exact values of their formulas.
    enforce_eager: run the model's Python code in every step; without it, decode steps are captured once and replayed in one call.
    tool_call_parser, reasoning_parser: how tool calls and thoughts are written in replies; "auto" reads it off the chat template, "none" is off.
    scheduler, kv_cache: a registered name or "module:Class".   threads: compute threads, 0 is every core this process may use.
    """

    model: str = "smollm2-135m-instruct"
    served_model_name: str | None = None
    backend: str = AUTO
    max_model_len: int | None = None
    block_size: int = 16
    kv_cache_dtype: str = AUTO
    kv_cache_memory_bytes: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    scheduler: str = "default"
    kv_cache: str = "paged"
    weights: str = AUTO
    threads: int = 0
    enforce_eager: bool = False
    seed: int = 0
    chat_template: str | None = None  # text of a template that replaces the model's own
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ConfigError(f"unknown backend {self.backend!r}; choose one of {', '.join(BACKENDS)}")
        if self.weights not in WEIGHT_SCHEMES:
            raise ConfigError(f"unknown weights {self.weights!r}; choose one of {', '.join(WEIGHT_SCHEMES)}")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise ConfigError(f"unknown kv_cache_dtype {self.kv_cache_dtype!r}; choose one of {', '.join(KV_CACHE_DTYPES)}")
        least = {"block_size": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1, "threads": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} must be at least {low}, got {getattr(self, name)}")
        for name in ("max_model_len", "kv_cache_memory_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be positive, got {value}")
        if self.block_size & (self.block_size - 1) or self.block_size > 128:
            raise ConfigError(f"block_size must be a power of two up to 128, got {self.block_size}")

    @classmethod
    def from_options(cls, **options: Any) -> EngineConfig:
        """Build from keyword options; unknown names are errors that list the known ones."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(options.keys() - known)
        if unknown:
            raise ConfigError(f"unknown option {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        return cls(**options)
