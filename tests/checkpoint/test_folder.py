"""Hugging Face folders, as transformers writes them and as people break them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from octavo.checkpoint.open import open_checkpoint
from octavo.errors import CheckpointError, FormatError, TensorMismatch
from tests.checkpoint.writers import write_model

if TYPE_CHECKING:
    from pathlib import Path


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=64, **sizes)).to(torch.bfloat16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_llama().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("shard", ["1GB", "8KB"])
def test_folder_of_transformers(tmp_path: Path, shard: str) -> None:
    model = tiny_llama()
    model.save_pretrained(tmp_path / "model", max_shard_size=shard)
    assert (tmp_path / "model" / "model.safetensors.index.json").exists() == (shard == "8KB")
    checkpoint = open_checkpoint(tmp_path / "model")
    assert checkpoint.config == json.loads((tmp_path / "model" / "config.json").read_text())
    assert checkpoint.generation_config == json.loads((tmp_path / "model" / "generation_config.json").read_text())
    expected = model.state_dict()
    assert sorted(checkpoint.names()) == sorted(expected)
    for name, value in expected.items():
        raw = checkpoint.tensor(name)
        assert (raw.format, raw.shape, raw.name) == ("bf16", tuple(value.shape), name)
        assert raw.data.tobytes() == value.view(torch.uint8).numpy().tobytes()
    assert checkpoint.nbytes() == sum(value.nbytes for value in expected.values())
    assert checkpoint.chat_template is None
    assert checkpoint.tokenizer.path is None and checkpoint.tokenizer.gguf is None  # weights alone are still a checkpoint


def test_tokenizer_and_options(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    added = {"__type": "AddedToken", "content": "</s>", "lstrip": False}
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": added, "unk_token": None, "add_bos_token": True}))
    tokenizer = open_checkpoint(folder).tokenizer
    assert tokenizer.path == str(folder / "tokenizer.json")
    assert tokenizer.options == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": None, "add_bos_token": True}


def test_chat_template_places(folder: Path) -> None:
    options = folder / "tokenizer_config.json"
    for written, expected in (
        ("from options", "from options"),
        ([{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "usual"}], "usual"),
        ([{"name": "only", "template": "one"}], "one"),
        ([], None),
        ("", None),
    ):
        options.write_text(json.dumps({"chat_template": written}))
        assert open_checkpoint(folder).chat_template == expected
    (folder / "chat_template.jinja").write_text("from file ☃", encoding="utf-8")
    assert open_checkpoint(folder).chat_template == "from file ☃"
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(FormatError, match=r"chat_template.jinja is not UTF-8"):
        open_checkpoint(folder)
    (folder / "chat_template.jinja").write_bytes(b"x" * (1 << 20) + b"x")
    with pytest.raises(FormatError, match="has 1048577 bytes, more than the 1048576 allowed"):
        open_checkpoint(folder)
    (folder / "chat_template.jinja").unlink()
    options.write_text(json.dumps({"chat_template": 7}))
    with pytest.raises(FormatError, match=r"chat_template of .* is neither"):
        open_checkpoint(folder)


def test_missing_config_names_the_folder_and_what_is_there(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=rf"{folder} has no config.json; it holds generation_config.json, model.safetensors"):
        open_checkpoint(folder)
    write_model(folder / "model-q8.gguf", "llama")
    with pytest.raises(CheckpointError, match=r"it holds GGUF files, name one of them instead: model-q8.gguf"):
        open_checkpoint(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"has no config.json; it is empty"):
        open_checkpoint(tmp_path / "empty")


@pytest.mark.parametrize(("text", "message"), [("{", "is not valid JSON"), ("[]", "is not a JSON object"), ("[" * 200_000, "nested too deeply")])
def test_broken_config(folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        open_checkpoint(folder)


def test_weights_that_are_not_there(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    assert open_checkpoint(folder).names()  # the only file there is
    save_file({"a": torch.ones(2)}, folder / "second.safetensors")
    with pytest.raises(CheckpointError, match=r"has 2 .safetensors files but no model.safetensors.index.json: other.safetensors, second"):
        open_checkpoint(folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"has no model.safetensors and no model.safetensors.index.json; it holds config.json"):
        open_checkpoint(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(CheckpointError, match="pickled weights only, which Octavo never loads"):
        open_checkpoint(folder)


def test_incomplete_shards(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_llama().save_pretrained(folder, max_shard_size="8KB")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    first = sorted(set(content["weight_map"].values()))[0]
    content["weight_map"]["absent.weight"] = first
    index.write_text(json.dumps(content))
    with pytest.raises(FormatError, match=f"places tensor 'absent.weight' in {first}, which does not hold it"):
        open_checkpoint(folder)
    (folder / first).unlink()
    with pytest.raises(CheckpointError, match=rf"lacks 1 of the files that model.safetensors.index.json names: {first}"):
        open_checkpoint(folder)


def test_links_to_files_elsewhere_are_followed(folder: Path, tmp_path: Path) -> None:
    """The cache of the Hugging Face hub is made of links."""
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    assert open_checkpoint(folder).names()


def test_unknown_tensor(folder: Path) -> None:
    with pytest.raises(TensorMismatch, match=r"no tensor 'model.norm.weigth'; it has model.norm.weight"):
        open_checkpoint(folder).tensor("model.norm.weigth")


def test_paths_that_are_no_model(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for path, message in (
        (tmp_path / "absent", "there is no file or folder"),
        (tmp_path / "notes.txt", "is not a model: Octavo opens .gguf files and folders"),
        (folder / "model.safetensors", f"is a part of a model; name its folder instead: {folder}"),
        (folder / "config.json", "is a part of a model"),
        ("/dev/null", "is neither a file nor a folder"),
        ("x" * 5000, "cannot read x"),
        ("~no-such-user-here/x", "there is no file or folder ~no-such-user-here"),
    ):
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(path)


def test_gguf_without_its_suffix_is_known_by_its_content(tmp_path: Path) -> None:
    write_model(tmp_path / "blob", "llama")
    assert open_checkpoint(str(tmp_path / "blob")).config["model_type"] == "llama"


def test_release_gives_memory_back_and_the_weights_stay_readable(tmp_path: Path) -> None:
    data = torch.randn(8192, 1024)  # 32 MiB
    save_file({"w": data}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    checkpoint = open_checkpoint(tmp_path)
    raw = checkpoint.tensor("w")
    before = int(raw.data.sum(dtype=np.int64))
    resident = psutil.Process().memory_info().rss
    checkpoint.release()
    assert resident - psutil.Process().memory_info().rss > data.nbytes // 2
    assert int(raw.data.sum(dtype=np.int64)) == before
