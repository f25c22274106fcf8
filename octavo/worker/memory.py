"""The memory plan: what the weights left free, and how it becomes KV blocks and a longest context. Arithmetic only; nothing is allocated here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.config import AUTO, KV_CACHE_DTYPES
from octavo.errors import ConfigError, OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from octavo.backend.base import AttentionSpec, MemoryInfo
    from octavo.config import EngineConfig

KV_SHARE = 0.4  # of what is free, when the KV cache sizes itself for many requests
RESERVE = 0.05  # of what is free, never planned: allocator slack, tokenizer, message buffers
LOGIT_ROWS = 64  # hidden rows turned into logits at a time; bounds the [rows, V] arrays when prompts ask for logprobs
FLOAT = 4  # bytes of an activation


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, and what they buy. ``available`` is what the process may still take once the weights are in memory."""

    weight_bytes: int
    activation_bytes: int
    block_bytes: int
    block_size: int
    num_blocks: int
    max_model_len: int
    available: int
    total: int

    @property
    def kv_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def longest_requests(self) -> int:
        """How many requests of ``max_model_len`` tokens the cache holds at once."""
        return self.num_blocks // -(-self.max_model_len // self.block_size)

    def lines(self, config: EngineConfig, context: int) -> list[str]:
        """The plan for a person: bytes and MiB, what was chosen automatically, and the number to change."""
        per_token = self.block_bytes // self.block_size
        lines = [
            f"weights      {sized(self.weight_bytes)}",
            f"activations  {sized(self.activation_bytes)} for steps of {config.max_num_batched_tokens:,} tokens (--max-num-batched-tokens)",
            f"KV cache     {sized(self.kv_bytes)} = {self.num_blocks:,} blocks of {self.block_size} tokens, {per_token:,} bytes a token"
            + ("" if config.kv_cache_dtype == AUTO else f" in {KV_CACHE_DTYPES[config.kv_cache_dtype]}")
            + (" (chosen; --kv-cache-memory-bytes changes it)" if config.kv_cache_memory_bytes is None else ""),
            f"context      {self.max_model_len:,} tokens of the model's {context:,}; the cache holds {self.longest_requests:,} such requests at once"
            + (" (chosen; --max-model-len changes it)" if config.max_model_len is None else ""),
            f"memory       {sized(self.available)} were free after loading, of {sized(self.total)}",
        ]
        if config.max_model_len is None and self.max_model_len < context:
            need = -(-context // self.block_size) * self.block_bytes
            lines.append(f"one request of the model's full context needs {sized(need)} of KV cache")
        return lines


def check_context(config: EngineConfig, model: Mapping[str, object]) -> None:
    """Raise ConfigError if ``max_model_len`` exceeds the positions the model was made for."""
    context = _size(model, "max_position_embeddings", 0)
    if config.max_model_len is not None and 0 < context < config.max_model_len:
        raise ConfigError(f"max_model_len is {config.max_model_len:,}, the model's context is {context:,}", param="max_model_len")


def plan_memory(
    config: EngineConfig, memory: MemoryInfo, *, weight_bytes: int, activation_bytes: int, block_bytes: int, context: int
) -> MemoryPlan:
    """Choose the number of KV blocks and ``max_model_len``.

    memory: free bytes with the weights loaded. block_bytes: one block over all layers. context: positions the model was made for.
    Raises OutOfMemory if nothing fits or an explicit number cannot work.
    """
    room = int(memory.available * (1 - RESERVE)) - activation_bytes
    if room < block_bytes:
        raise OutOfMemory(
            f"{sized(memory.available)} are free after loading weights of {sized(weight_bytes)}; a step of {config.max_num_batched_tokens:,} tokens "
            f"needs {sized(activation_bytes)} and a KV block {sized(block_bytes)}: lower max_num_batched_tokens or use a smaller model"
        )
    if config.kv_cache_memory_bytes is not None:
        num_blocks, length = _given_cache(config, config.kv_cache_memory_bytes, room, block_bytes, context)
    else:
        num_blocks, length = _chosen_cache(config, room, block_bytes, context)
    return MemoryPlan(
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        block_bytes=block_bytes,
        block_size=config.block_size,
        num_blocks=num_blocks,
        max_model_len=length,
        available=memory.available,
        total=memory.total,
    )


def _given_cache(config: EngineConfig, kv_bytes: int, room: int, block_bytes: int, context: int) -> tuple[int, int]:
    """(blocks, longest request) for a cache of a stated size."""
    if kv_bytes > room:
        raise OutOfMemory(f"kv_cache_memory_bytes is {kv_bytes:,}, only {room:,} bytes are free for it", param="kv_cache_memory_bytes")
    num_blocks = kv_bytes // block_bytes
    if num_blocks == 0:
        raise OutOfMemory(f"kv_cache_memory_bytes is {kv_bytes:,}, one block takes {block_bytes:,}", param="kv_cache_memory_bytes")
    holds = num_blocks * config.block_size
    if config.max_model_len is None:
        return num_blocks, min(context, holds)
    if config.max_model_len > holds:
        need = _blocks(config.max_model_len, config) * block_bytes
        raise OutOfMemory(
            f"a request of max_model_len {config.max_model_len:,} tokens needs {need:,} bytes of KV cache, kv_cache_memory_bytes is {kv_bytes:,}: "
            f"raise it, or lower max_model_len to {holds:,}",
            param="max_model_len",
        )
    return num_blocks, config.max_model_len


def _chosen_cache(config: EngineConfig, room: int, block_bytes: int, context: int) -> tuple[int, int]:
    """(blocks, longest request): room for ``max_num_seqs`` long requests within a share of what is free, and for one in any case."""
    most = room // block_bytes
    length = min(context if config.max_model_len is None else config.max_model_len, most * config.block_size)
    if config.max_model_len is not None and length < config.max_model_len:
        need = _blocks(config.max_model_len, config) * block_bytes
        raise OutOfMemory(
            f"a request of max_model_len {config.max_model_len:,} tokens needs {need:,} bytes of KV cache, only {room:,} are free: "
            f"lower max_model_len to {length:,}",
            param="max_model_len",
        )
    one = _blocks(length, config)
    share = int(room * KV_SHARE) // block_bytes
    return max(one, min(config.max_num_seqs * one, share)), length


def _blocks(tokens: int, config: EngineConfig) -> int:
    return -(-tokens // config.block_size)


def estimate_activations(config: EngineConfig, model: Mapping[str, object], layers: tuple[AttentionSpec, ...], vocab_size: int) -> int:
    """Bytes that one step of ``max_num_batched_tokens`` tokens holds at its widest point, plus the logits of the rows that sample.

    Alive at once in a block: hidden state, residual and normed input; then either q, k, v, their rotated copies and the output, or the merged
    gate and up projections, their product and the result. Sampling keeps the logits and two working copies of them.
    """
    hidden = _size(model, "hidden_size", 0)
    inner = max(_size(model, "intermediate_size", 4 * hidden), 0)
    widest = max((spec.head_dim * (3 * spec.num_heads + 4 * spec.num_kv_heads) for spec in layers), default=0)
    per_token = 3 * hidden + max(widest, 3 * inner + hidden)
    rows = min(config.max_num_seqs, LOGIT_ROWS)
    return FLOAT * (config.max_num_batched_tokens * per_token + 3 * rows * vocab_size)


def model_bytes(model: object) -> int:
    """Bytes of everything a loaded model holds: packed weights, vectors and tables, each storage counted once."""
    seen: set[int] = set()
    total = 0
    stack = [model]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, (list, tuple)):
            stack.extend(item)
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(nbytes := getattr(item, "nbytes", None), int):  # a tensor or a packed weight
            total += nbytes
        elif type(item).__module__.startswith(("octavo.models.", "octavo.layers.")):
            stack.extend(vars(item).values() if hasattr(item, "__dict__") else ())
    return total


def _size(model: Mapping[str, object], key: str, default: int) -> int:
    value = model.get(key)
    return value if isinstance(value, int) else default


def sized(nbytes: int) -> str:
    """Exact bytes, and MiB for reading."""
    return f"{nbytes:,} bytes ({nbytes / 2**20:,.1f} MiB)"
