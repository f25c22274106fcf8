"""Configurations old and new, errors that name what is wrong, and models divided among ranks."""

from __future__ import annotations

import json
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.backend.base import BackendOptions
from octavo.backend.reference import ReferenceBackend
from octavo.checkpoint.open import open_checkpoint
from octavo.errors import ConfigError, FormatError, TensorMismatch, UnsupportedModel
from octavo.models.config import ModelConfig
from octavo.models.families import BUILDERS
from octavo.models.registry import find_family, load_model
from octavo.models.rotation import rope_parameters
from tests.models.remote_models import Baichuan
from tests.models.sequences import logits_of
from tests.models.tiny_models import GEMMA_ROPES, LLAMA3, VOCAB, Oracle, randomize

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from octavo.backend.base import Backend

    Edit = Callable[[dict[str, Any]], None]

PROMPT = [(7 * i * i + 3 * i) % VOCAB for i in range(40)]


def edited(oracle: Oracle, folder: Path, config: Edit = lambda _: None, tensors: Edit = lambda _: None) -> Path:
    """A copy of the checkpoint with its configuration and tensors changed."""
    copy = folder / "edited"
    shutil.copytree(oracle.path, copy)
    values = json.loads((copy / "config.json").read_text())
    config(values)
    (copy / "config.json").write_text(json.dumps(values))
    weights = load_file(copy / "model.safetensors")
    tensors(weights)
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy


# -- configurations of older versions of transformers


def _old_llama3(values: dict[str, Any]) -> None:
    del values["rope_parameters"]
    values["rope_theta"] = LLAMA3["rope_theta"]
    values["rope_scaling"] = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}


def _old_linear(values: dict[str, Any]) -> None:
    del values["rope_parameters"]
    values["rope_scaling"] = {"type": "linear", "factor": 4.0}


def _old_gemma(values: dict[str, Any]) -> None:
    del values["rope_parameters"], values["layer_types"], values["tie_word_embeddings"], values["_sliding_window_pattern"]
    values.update(sliding_window_pattern=3, rope_theta=1000000.0, rope_local_base_freq=10000.0)
    values["rope_scaling"] = {"rope_type": "linear", "factor": GEMMA_ROPES["full_attention"]["factor"]}


def _old_qwen2(values: dict[str, Any]) -> None:
    del values["layer_types"], values["rope_parameters"]
    values.update(rope_theta=10000.0, sliding_window=7, max_window_layers=1)


def _old_mistral(values: dict[str, Any]) -> None:
    del values["rope_parameters"], values["architectures"], values["tie_word_embeddings"]


OLD = {"llama-3": _old_llama3, "llama-linear": _old_linear, "gemma3": _old_gemma, "qwen2-window": _old_qwen2, "mistral": _old_mistral}


@pytest.mark.parametrize("family", OLD)
def test_old_configurations_mean_the_same(family: str, oracle: Callable[[str], Oracle], tmp_path: Path, reference: Backend) -> None:
    it = oracle(family)
    new = load_model(open_checkpoint(str(it.path)), reference)
    old = load_model(open_checkpoint(str(edited(it, tmp_path, config=OLD[family]))), reference)
    assert old.attention_layers == new.attention_layers
    assert torch.equal(logits_of(old, reference, PROMPT, [40]), logits_of(new, reference, PROMPT, [40]))


def test_qwen2_ignores_its_window_unless_told_to_use_it(oracle: Callable[[str], Oracle], tmp_path: Path, reference: Backend) -> None:
    changed = edited(oracle("qwen2"), tmp_path, config=lambda c: c.update(sliding_window=7, max_window_layers=1))
    assert all(spec.window is None for spec in load_model(open_checkpoint(str(changed)), reference).attention_layers)


# -- tensors that do not fit


def test_missing_unread_and_misshaped_tensors_are_named(oracle: Callable[[str], Oracle], tmp_path: Path, reference: Backend) -> None:
    def damage(weights: dict[str, Any]) -> None:
        del weights["model.layers.1.self_attn.k_proj.weight"], weights["model.norm.weight"]
        weights["model.layers.2.mlp.up_proj.weight"] = torch.zeros(95, 64)
        weights["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
        weights["model.layers.3.mlp.up_proj.weight"] = torch.zeros(96, 64)

    with pytest.raises(TensorMismatch) as caught:
        load_model(open_checkpoint(str(edited(oracle("llama"), tmp_path, tensors=damage))), reference)
    message = str(caught.value)
    assert "2 tensors are missing: model.layers.1.self_attn.k_proj.weight, model.norm.weight;" in message
    assert "2 tensors are unread: model.layers.0.self_attn.q_proj.bias, model.layers.3.mlp.up_proj.weight;" in message
    assert "1 tensor is misshaped: model.layers.2.mlp.up_proj.weight [95, 64] where the configuration says [96, 64]" in message


def test_redundant_tensors_of_old_exporters_are_ignored(oracle: Callable[[str], Oracle], tmp_path: Path, reference: Backend) -> None:
    def add(weights: dict[str, Any]) -> None:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        for layer in range(3):
            weights[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)

    it = oracle("llama-tied-mha")
    paths = (it.path, edited(it, tmp_path, tensors=add))
    plain, redundant = (logits_of(load_model(open_checkpoint(str(path)), reference), reference, PROMPT, [40]) for path in paths)
    assert torch.equal(plain, redundant)


@pytest.mark.parametrize(("family", "prefix"), [("gpt2", "transformer."), ("bloom", "transformer."), ("opt", "model."), ("gpt-neox", "gpt_neox.")])
def test_models_saved_without_the_name_of_their_body(
    family: str, prefix: str, oracle: Callable[[str], Oracle], tmp_path: Path, reference: Backend
) -> None:
    def strip(weights: dict[str, Any]) -> None:
        for name in list(weights):
            weights[name.removeprefix(prefix)] = weights.pop(name)

    it = oracle(family)
    paths = (it.path, edited(it, tmp_path, tensors=strip))
    whole, bare = (logits_of(load_model(open_checkpoint(str(path)), reference), reference, PROMPT, [40]) for path in paths)
    assert torch.equal(whole, bare)


def test_stored_causal_masks_are_ignored(oracle: Callable[[str], Oracle], tmp_path: Path, reference: Backend) -> None:
    def add(weights: dict[str, Any]) -> None:
        for layer in range(3):
            weights[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 8, 8)
            weights[f"transformer.h.{layer}.attn.masked_bias"] = torch.zeros(())

    path = edited(oracle("gpt2"), tmp_path, tensors=add)
    assert load_model(open_checkpoint(str(path)), reference).vocab_size == VOCAB


def test_longrope_goes_by_the_length_the_model_is_loaded_for(oracle: Callable[[str], Oracle], reference: Backend) -> None:
    """Stretched from 32 positions: transformers takes the short factors for a prompt within them, Octavo if no request may exceed them."""
    it = oracle("phi3-longrope")
    model = load_model(open_checkpoint(str(it.path)), reference, max_positions=32)
    expected = it.logits(PROMPT[:30])
    assert (logits_of(model, reference, PROMPT[:30], [20, 1, 9]) - expected).abs().max() <= 5e-6 * expected.abs().max()


def test_baichuan_2_counts_every_row_of_its_head_with_length_1(tmp_path: Path, reference: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.models.baichuan.NORM_HEAD_VOCAB", VOCAB)
    model = Baichuan("BaichuanForCausalLM", rotary=False, unit_rows=True)
    randomize(model, embedding=1.0)
    model.save_pretrained(tmp_path / "baichuan")
    expected = model(torch.tensor([PROMPT])).logits[0]
    found = logits_of(load_model(open_checkpoint(str(tmp_path / "baichuan")), reference), reference, PROMPT, [40])
    assert (found - expected).abs().max() <= 5e-6 * expected.abs().max()


# -- configurations that make no sense


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"num_hidden_layers": None}, "lacks num_hidden_layers"),
        ({"max_position_embeddings": None}, "lacks max_position_embeddings"),
        ({"vocab_size": 0}, "vocab_size = '0', expected a whole number from 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = '1000000000', expected a whole number from 1 to 4096"),
        ({"num_attention_heads": "four"}, "num_attention_heads = 'four', expected"),
        ({"num_attention_heads": 2.5}, "num_attention_heads = '2.5', expected"),
        ({"num_key_value_heads": 3}, "4 num_attention_heads, which 3 num_key_value_heads do not divide"),
        ({"hidden_size": float("nan")}, "hidden_size = 'nan', expected"),
        ({"hidden_size": 62, "head_dim": None}, "hidden_size 62, which 4 num_attention_heads do not divide"),
        ({"head_dim": 7}, "rotates head_dim 7; rotary embeddings need an even one"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps = '-1.0', expected a positive number"),
        ({"attention_bias": "yes"}, "attention_bias = 'yes', expected bool"),
        ({"rope_parameters": [1]}, r"rope_parameters = '\[1\]', expected Mapping"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "lacks rope_parameters.factor"),
        ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "rope_parameters.high_freq_factor 1.0, which must exceed low_freq_factor 1.0"),
    ],
    ids=str,
)
def test_senseless_values_are_named(
    change: dict[str, Any], message: str, oracle: Callable[[str], Oracle], tmp_path: Path, reference: Backend
) -> None:
    path = edited(oracle("llama"), tmp_path, config=lambda values: values.update(change))
    with pytest.raises(FormatError, match=message):
        load_model(open_checkpoint(str(path)), reference)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["LlamaForCausalLMs"]}, "'LlamaForCausalLMs' is not supported; did you mean LlamaForCausalLM"),
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "'MambaForCausalLM' is not supported; .*known: LlamaForCausalLM"),
        ({"architectures": [], "model_type": "xyzzy"}, "'xyzzy' is not supported; known: "),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4, "factor": 2.0}}, "rope type 'spiral' is not supported; known: default"),
        ({"hidden_act": "mish"}, "activation 'mish' is not supported; known: silu"),
    ],
    ids=str,
)
def test_unknown_models_are_refused_with_what_is_known(
    change: dict[str, Any], message: str, oracle: Callable[[str], Oracle], tmp_path: Path, reference: Backend
) -> None:
    path = edited(oracle("llama"), tmp_path, config=lambda values: values.update(change))
    with pytest.raises(UnsupportedModel, match=message):
        load_model(open_checkpoint(str(path)), reference)


def test_gemma_refuses_what_it_cannot_compute(oracle: Callable[[str], Oracle], tmp_path: Path, reference: Backend) -> None:
    path = edited(oracle("gemma3"), tmp_path, config=lambda values: values.update(use_bidirectional_attention=True))
    with pytest.raises(UnsupportedModel, match="bidirectional"):
        load_model(open_checkpoint(str(path)), reference)
    values = {"layer_types": ["chunked_attention"] * 4}
    path = edited(oracle("gemma3"), tmp_path / "other", config=lambda old: old.update(values))
    with pytest.raises(UnsupportedModel, match="'chunked_attention' is not supported"):
        load_model(open_checkpoint(str(path)), reference)


def test_every_registered_name_leads_to_a_builder() -> None:
    for name in BUILDERS:
        assert callable(find_family(ModelConfig({"architectures": [name]})))


def test_rope_parameters_fall_back_to_the_family() -> None:
    assert rope_parameters(ModelConfig({}), theta=5e5).theta == 5e5
    assert rope_parameters(ModelConfig({"rope_theta": 7.0}), theta=5e5).theta == 7.0
    assert rope_parameters(ModelConfig({"rope_theta": 7.0, "rope_parameters": {"rope_theta": 9.0}})).theta == 9.0


# -- positions and ranks


def test_positions_are_bounded_by_the_model(oracle: Callable[[str], Oracle], reference: Backend) -> None:
    checkpoint = open_checkpoint(str(oracle("llama").path))
    assert load_model(checkpoint, reference, max_positions=50).max_positions == 50
    for positions in (0, 161):
        with pytest.raises(ConfigError, match=f"{positions} positions were asked, the model holds 1 to 160"):
            load_model(checkpoint, reference, max_positions=positions)


class ThreadGroup:
    """Ranks that are threads of one process; sums are added in rank order."""

    def __init__(self, rank: int, size: int, shared: dict[int, torch.Tensor], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.shared, self.barrier = rank, size, shared, barrier

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.shared[self.rank] = x
        self.barrier.wait()
        total = self.shared[0]
        for rank in range(1, self.size):
            total = total + self.shared[rank]
        self.barrier.wait()
        return total


RANKED = ["llama-biases", "gemma3", "phi3", "gpt2", "gpt-neox", "falcon-40b", "stablelm-parallel", "cohere", "bloom", "opt-350m"]


@pytest.mark.parametrize("family", RANKED)
def test_two_ranks_compute_what_one_computes(family: str, oracle: Callable[[str], Oracle]) -> None:
    it = oracle(family)
    shared: dict[int, torch.Tensor] = {}
    barrier = threading.Barrier(2, timeout=60)
    results: dict[int, torch.Tensor] = {}

    def work(rank: int) -> None:
        backend = ReferenceBackend(BackendOptions(threads=1))
        try:
            model = load_model(open_checkpoint(str(it.path)), backend, group=ThreadGroup(rank, 2, shared, barrier))
            results[rank] = logits_of(model, backend, PROMPT, [25, 1, 14])
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = it.logits(PROMPT)
    assert torch.equal(results[0], results[1])
    assert (results[0] - expected).abs().max() <= 5e-6 * expected.abs().max()


def test_progress_ends_at_the_size_of_the_file(oracle: Callable[[str], Oracle], reference: Backend) -> None:
    checkpoint = open_checkpoint(str(oracle("qwen2").path))
    seen: list[tuple[int, int]] = []
    load_model(checkpoint, reference, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, checkpoint.nbytes())
    assert seen[-1] == (checkpoint.nbytes(), checkpoint.nbytes())
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
