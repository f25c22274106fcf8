"""A Hugging Face model folder: configuration, tokenizer, chat template and safetensors. No code from the folder is ever run."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.checkpoint.base import RawTensor, TokenizerSource
from octavo.checkpoint.safetensors import SafetensorsFile, read_index, read_json
from octavo.errors import CheckpointError, FormatError, TensorMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "*.tiktoken", "tiktoken.model", "vocab.json", "vocab.txt",
)  # fmt: skip
MAX_TEMPLATE_BYTES = 1 << 20
_TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token")


class FolderCheckpoint:
    """Opened from headers alone. ``tokenizer.path`` is None if the folder has no tokenizer file (weights alone are still a checkpoint)."""

    def __init__(self, path: str | Path) -> None:
        folder = Path(path)
        self.path = str(path)
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"{folder} has no config.json{_what_instead(folder)}")
        self.config: Mapping[str, Any] = read_json(folder / "config.json")
        self.generation_config: Mapping[str, Any] = _optional_json(folder / "generation_config.json")
        options = _optional_json(folder / "tokenizer_config.json")
        self.chat_template = _chat_template(folder, options)
        self.tokenizer = TokenizerSource(path=_tokenizer_file(folder), options=_tokenizer_options(folder, options))
        self._tensors = _open_tensors(folder)

    def names(self) -> list[str]:
        return list(self._tensors)

    def size(self, name: str) -> tuple[tuple[int, ...], int]:
        info = self._file(name).tensors[name]
        return info.shape, info.nbytes

    def tensor(self, name: str) -> RawTensor:
        return self._file(name).raw(name)

    def array(self, name: str) -> np.ndarray:
        """A tensor of any type as numbers; bfloat16 as float32."""
        return self._file(name).array(name)

    def _file(self, name: str) -> SafetensorsFile:
        file = self._tensors.get(name)
        if file is None:
            close = get_close_matches(name, self._tensors, n=3)
            raise TensorMismatch(f"{self.path} has no tensor {name!r}" + (f"; it has {', '.join(close)}" if close else ""))
        return file

    def nbytes(self) -> int:
        return sum(file.tensors[name].nbytes for name, file in self._tensors.items())


def _open_tensors(folder: Path) -> dict[str, SafetensorsFile]:
    """Tensor name -> file that holds it."""
    if (folder / INDEX).is_file():
        weight_map = read_index(folder / INDEX)
        missing = sorted(file for file in set(weight_map.values()) if not (folder / file).is_file())
        if missing:
            raise CheckpointError(f"{folder} lacks {len(missing)} of the files that {INDEX} names: {_listed(missing)}")
        files = {file: SafetensorsFile(folder / file) for file in sorted(set(weight_map.values()))}
        for name, file in weight_map.items():
            if name not in files[file].tensors:
                raise FormatError(f"{INDEX} places tensor {name[:100]!r} in {file}, which does not hold it")
        return {name: files[file] for name, file in weight_map.items()}
    single = SafetensorsFile(_single_file(folder))
    return dict.fromkeys(single.tensors, single)


def _single_file(folder: Path) -> Path:
    if (folder / SINGLE).is_file():
        return folder / SINGLE
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        raise CheckpointError(f"{folder} has {len(found)} .safetensors files but no {INDEX}: {_listed([f.name for f in found])}")
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise CheckpointError(f"{folder} holds pickled weights only, which Octavo never loads; convert them to safetensors first")
    raise CheckpointError(f"{folder} has no {SINGLE} and no {INDEX}{_what_instead(folder)}")


def _what_instead(folder: Path) -> str:
    """What was found, for the person who pointed at the wrong folder."""
    found = sorted(entry.name for entry in folder.iterdir())
    models = [name for name in found if name.endswith(".gguf")]
    if models:
        return f"; it holds GGUF files, name one of them instead: {_listed(models)}"
    return f"; it holds {_listed(found)}" if found else "; it is empty"


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _chat_template(folder: Path, options: dict[str, Any]) -> str | None:
    """chat_template.jinja if there is one, else ``chat_template`` of tokenizer_config.json: a text, or named texts of which "default" is taken."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        size = file.stat().st_size
        if size > MAX_TEMPLATE_BYTES:
            raise FormatError(f"{file} has {size} bytes, more than the {MAX_TEMPLATE_BYTES} allowed")
        try:
            return file.read_text(encoding="utf-8") or None
        except UnicodeDecodeError as e:
            raise FormatError(f"{file} is not UTF-8: {e.reason} at byte {e.start}") from None
    template = options.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default", next(iter(named.values()), None))
    if template is not None and not isinstance(template, str):
        raise FormatError(f"chat_template of {folder / 'tokenizer_config.json'} is neither a text nor a list of named texts")
    return template or None


def _tokenizer_file(folder: Path) -> str | None:
    """The file to read the vocabulary from: the newest format that is there."""
    for pattern in TOKENIZER_FILES:
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        if found:
            return str(found[0])
    return None


def _tokenizer_options(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json with what older checkpoints keep in special_tokens_map.json and added_tokens.json.

    Special tokens may be written as objects with a ``content``; the text is what counts.
    """
    options = {**_optional_json(folder / "special_tokens_map.json"), **config}
    for key in _TOKEN_KEYS:
        value = options.get(key)
        if isinstance(value, dict):
            options[key] = value.get("content")
    added = _optional_json(folder / "added_tokens.json")
    if added and "added_tokens_decoder" not in options:
        special = {options[key] for key in _TOKEN_KEYS if isinstance(options.get(key), str)}
        options["added_tokens_decoder"] = {i: {"content": text, "special": text in special} for text, i in added.items()}
    return options
