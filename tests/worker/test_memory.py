"""The arithmetic of the memory plan, and what a process may take of its machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from octavo.backend.base import AttentionSpec, KVSpec, MemoryInfo
from octavo.backend.machine import host_memory, usable_cores
from octavo.config import EngineConfig
from octavo.errors import ConfigError, OutOfMemory
from octavo.worker.memory import KV_SHARE, RESERVE, check_context, estimate_activations, model_bytes, plan_memory

if TYPE_CHECKING:
    from pathlib import Path

    from octavo.models.base import Model
    from octavo.worker.memory import MemoryPlan

MIB = 1 << 20
GIB = 1 << 30
BLOCK_BYTES = 16 * 1024  # 1 KiB a token in blocks of 16


def plan(
    available: int = 4 * GIB, *, context: int = 2048, block_bytes: int = BLOCK_BYTES, activations: int = 100 * MIB, **options: Any
) -> MemoryPlan:
    memory = MemoryInfo(8 * GIB, available)
    return plan_memory(
        EngineConfig(**options), memory, weight_bytes=GIB, activation_bytes=activations, block_bytes=block_bytes, context=context
    )


def test_plenty_of_memory_holds_every_slot_at_full_length() -> None:
    made = plan()
    assert made.max_model_len == 2048
    assert made.num_blocks == 64 * 2048 // 16
    assert made.longest_requests == 64
    assert made.kv_bytes == 64 * 2048 * 1024


def test_many_slots_get_a_share_of_what_is_free() -> None:
    made = plan(max_num_seqs=512, context=32768)
    room = int(4 * GIB * (1 - RESERVE)) - 100 * MIB
    assert made.num_blocks == int(room * KV_SHARE) // BLOCK_BYTES
    assert made.max_model_len == 32768


def test_one_long_request_may_take_more_than_the_share() -> None:
    context = 3 * GIB // 1024
    made = plan(context=context)
    assert made.max_model_len == context
    assert made.kv_bytes == 3 * GIB
    assert made.longest_requests == 1


def test_a_context_that_does_not_fit_is_cut_to_the_longest_that_does() -> None:
    made = plan(200 * MIB, context=131072, block_bytes=16 * 64 * 1024, activations=50 * MIB)
    room = int(200 * MIB * (1 - RESERVE)) - 50 * MIB
    assert made.num_blocks == room // (16 * 64 * 1024)
    assert made.max_model_len == made.num_blocks * 16
    lines = "\n".join(made.lines(EngineConfig(), 131072))
    assert f"{131072 * 64 * 1024:,} bytes" in lines and "--max-model-len" in lines


def test_the_plan_stays_within_what_is_free() -> None:
    for available in (151 * MIB, 300 * MIB, GIB, 64 * GIB):
        for context in (512, 8192, 1 << 20):
            made = plan(available, context=context, max_num_seqs=1000)
            assert made.kv_bytes + made.activation_bytes <= available
            assert made.num_blocks * 16 >= made.max_model_len >= 16 or made.max_model_len == context


def test_a_stated_cache_decides_the_length() -> None:
    made = plan(kv_cache_memory_bytes=100 * BLOCK_BYTES + 5)
    assert (made.num_blocks, made.max_model_len) == (100, 1600)
    assert plan(kv_cache_memory_bytes=1000 * BLOCK_BYTES).max_model_len == 2048


def test_a_stated_length_decides_the_cache() -> None:
    made = plan(max_model_len=100)
    assert (made.num_blocks, made.max_model_len) == (64 * 7, 100)


REFUSED = {
    "cache beyond what is free": ({"kv_cache_memory_bytes": 4 * GIB}, "kv_cache_memory_bytes"),
    "cache below a block": ({"kv_cache_memory_bytes": BLOCK_BYTES - 1}, "kv_cache_memory_bytes"),
    "length beyond the stated cache": ({"kv_cache_memory_bytes": 10 * BLOCK_BYTES, "max_model_len": 161}, "lower max_model_len to 160"),
    "length beyond what is free": ({"available": 300 * MIB, "context": 1 << 20, "max_model_len": 1 << 19}, "lower max_model_len to"),
    "no room for a block": ({"available": 100 * MIB}, "max_num_batched_tokens"),
}


@pytest.mark.parametrize(("options", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_numbers_that_cannot_work_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(OutOfMemory, match=named):
        plan(**options)


def test_the_length_an_error_advises_works() -> None:
    with pytest.raises(OutOfMemory) as caught:
        plan(300 * MIB, context=1 << 20, max_model_len=1 << 19)
    advised = int(caught.value.message.rsplit(" ", 1)[1].replace(",", ""))
    assert plan(300 * MIB, context=1 << 20, max_model_len=advised).max_model_len == advised
    with pytest.raises(OutOfMemory):
        plan(300 * MIB, context=1 << 20, max_model_len=advised + 1)


def test_a_length_beyond_the_models_context_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"4,096.*2,048"):
        check_context(EngineConfig(max_model_len=4096), {"max_position_embeddings": 2048})
    check_context(EngineConfig(max_model_len=2048), {"max_position_embeddings": 2048})
    check_context(EngineConfig(), {})


def test_activations_by_hand() -> None:
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0)
    config = EngineConfig(max_num_batched_tokens=10, max_num_seqs=3)
    found = estimate_activations(config, {"hidden_size": 32, "intermediate_size": 100}, (spec,), vocab_size=1000)
    assert found == 4 * (10 * (3 * 32 + 3 * 100 + 32) + 3 * 3 * 1000)
    wide = AttentionSpec(num_heads=64, num_kv_heads=2, head_dim=8, scale=1.0)
    found = estimate_activations(config, {"hidden_size": 32, "intermediate_size": 100}, (wide,), vocab_size=1000)
    assert found == 4 * (10 * (3 * 32 + 8 * (3 * 64 + 4 * 2)) + 3 * 3 * 1000)


def test_model_bytes_count_every_weight_once(model: Model, tiny: tuple[Path, Any]) -> None:
    weights = sum(p.numel() * 4 for p in tiny[1].parameters())
    found = model_bytes(model)
    tables = 128 * 12 * 4  # positions x head size
    assert weights <= found <= weights + 8 * tables


def test_block_bytes_are_those_of_the_cache() -> None:
    specs = (AttentionSpec(4, 2, 8, 1.0), AttentionSpec(4, 1, 8, 1.0))
    assert KVSpec(specs, 16, torch.float32).block_bytes() == 2 * (2 + 1) * 8 * 16 * 4


# -- control groups


def group(root: Path, path: str, **files: object) -> None:
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


def membership(root: Path, text: str) -> Path:
    path = root / "self"
    path.write_text(text)
    return path


def test_version_2_the_tightest_group_counts(tmp_path: Path) -> None:
    group(tmp_path / "g", "a", memory__max=900 * MIB, memory__current=100 * MIB)
    group(tmp_path / "g", "a/b", memory__max="max", memory__current=50 * MIB)
    stat = f"anon 1\ninactive_file {300 * MIB}\nactive_file {MIB}"
    group(tmp_path / "g", "a/b/c", memory__max=600 * MIB, memory__current=500 * MIB, memory__stat=stat)
    found = host_memory(tmp_path / "g", membership(tmp_path, "0::/a/b/c\n"))
    assert found == MemoryInfo(600 * MIB, 401 * MIB)


def test_version_2_inside_a_container(tmp_path: Path) -> None:
    """Its own group is mounted as the root; the path in /proc leads nowhere."""
    group(tmp_path / "g", ".", memory__max=500 * MIB, memory__current=100 * MIB, cpu__max="150000 100000")
    here = membership(tmp_path, "0::/docker/123\n")
    assert host_memory(tmp_path / "g", here) == MemoryInfo(500 * MIB, 400 * MIB)
    assert usable_cores(tmp_path / "g", here) == min(2, usable_cores(tmp_path / "none", here))


def test_version_1(tmp_path: Path) -> None:
    files = {"memory__limit_in_bytes": 500 * MIB, "memory__usage_in_bytes": 450 * MIB, "memory__stat": f"total_inactive_file {200 * MIB}"}
    group(tmp_path / "g", "memory/job", **files)
    group(tmp_path / "g", "cpu/job", cpu__cfs_quota_us=100000, cpu__cfs_period_us=100000)
    here = membership(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/job\n9:name=systemd:/x\n")
    assert host_memory(tmp_path / "g", here) == MemoryInfo(500 * MIB, 250 * MIB)
    assert usable_cores(tmp_path / "g", here) == 1


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    found = host_memory(tmp_path / "none", tmp_path / "none")
    assert 0 < found.available <= found.total
    assert usable_cores(tmp_path / "none", tmp_path / "none") >= 1


def test_a_full_group_leaves_nothing(tmp_path: Path) -> None:
    group(tmp_path / "g", ".", memory__max=100, memory__current=500)
    assert host_memory(tmp_path / "g", membership(tmp_path, "0::/\n")).available == 0
