"""vLLM's constructor arguments, read honestly: what Octavo has is mapped, what asks for nothing passes, everything else is an error."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.frontends.sizes import parse_size

# vLLM's name -> (the values that ask for nothing beyond what Octavo does, what to say about others).
NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "data_parallel_size": ((1,), "one engine runs in this process"),
    "disable_log_stats": ((True, False), ""),
    "dtype": (("auto", "float32", "float"), "on a CPU Octavo computes in float32"),
    "enable_chunked_prefill": ((True,), "prompts are always computed in chunks of max_num_batched_tokens"),
    "load_format": (("auto", "gguf", "safetensors"), "the format follows from the file"),
    "pipeline_parallel_size": ((1,), "one engine runs in this process"),
    "quantization": ((None, "gguf"), "the format of the weights follows from the file"),
    "revision": ((None,), "models come from a file, a folder or the catalog"),
    "runner": (("auto", "generate"), "only text generation is served"),
    "tensor_parallel_size": ((1,), "one engine runs in this process"),
    "tokenizer": ((None,), "the tokenizer comes with the model"),
    "tokenizer_mode": (("auto",), "the tokenizer comes with the model"),
    "trust_remote_code": ((False,), "code from model folders is never run"),
}
ADVICE = {
    "gpu_memory_utilization": "say kv_cache_memory_bytes instead",
    "cpu_offload_gb": "weights are memory-mapped",
    "swap_space": "preempted requests are computed again",
}


def engine_config(options: dict[str, Any]) -> EngineConfig:
    """Options by EngineConfig's and vLLM's names. Raises ConfigError that names the option and lists the known ones."""
    known = {f.name for f in fields(EngineConfig)}
    chosen: dict[str, Any] = {}
    for name, value in options.items():
        if name in known:
            chosen[name] = value
        elif name in NEUTRAL:
            accepted, why = NEUTRAL[name]
            if not any(value == a and type(value) is type(a) for a in accepted) and str(value) not in ("torch.float32",):
                raise ConfigError(f"{name}={value!r} is not supported: {why}")
        else:
            close = get_close_matches(name, known, n=1)
            hint = ADVICE.get(name) or (f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known | NEUTRAL.keys()))}")
            raise ConfigError(f"unknown option {name}; {hint}")
    for name in ("max_model_len", "kv_cache_memory_bytes"):
        if isinstance(chosen.get(name), str):
            chosen[name] = None if chosen[name] in ("auto", "-1") else parse_size(name, chosen[name])
    if chosen.get("max_model_len") == -1:  # vLLM's word for auto
        chosen["max_model_len"] = None
    return EngineConfig.from_options(**chosen)
