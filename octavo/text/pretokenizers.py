"""Pre-tokenizers of byte-level BPE by the name that GGUF files give them (``tokenizer.ggml.pre``).

A pre-tokenizer cuts the text before merging; the wrong one gives other ids than the model was trained on, so an unknown name is an error.
Patterns are those of the models' own ``tokenizer.json`` files; names and their groups are llama.cpp's (``llama-vocab.cpp``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import UnsupportedModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = r"[^\r\n\p{L}\p{N}]?"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*|\p{{N}}" + _REST
_GPT4O = rf"{_WORD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_WORD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}" + _REST
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"""
    r"|\s+(?!\S)|\s+",
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """``patterns`` cut in turn, each within the parts that the one before left. ``nfc``: Unicode composition before anything else.

    ``ignore_merges``: a part that is a piece becomes that piece at once. ``add_bos``: default of files that do not say.
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_GROUPS: dict[tuple[str, ...], PreTokenizer] = {
    ("default",): PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ("gpt-2", "phi-2", "jais", "trillion", "exaone4", "mellum", "gigachat", "a.x-4.0"): PreTokenizer((_GPT2,)),
    ("mpt", "olmo"): PreTokenizer((_GPT2,), nfc=True),
    ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"): PreTokenizer((r"\p{N}", _GPT2)),
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"): PreTokenizer(
        (_LLAMA3,), ignore_merges=True, add_bos=True
    ),
    ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"): PreTokenizer((_LLAMA3,)),
    ("qwen2", "deepseek-r1-qwen", "megrez"): PreTokenizer((_QWEN2,), nfc=True),
    ("qwen35",): PreTokenizer((_QWEN35,), nfc=True),
    ("tekken",): PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    ("gpt-4o", "llama4"): PreTokenizer((_GPT4O,)),
    ("deepseek-v3",): PreTokenizer(_DEEPSEEK3),
}
KNOWN = {name: entry for names, entry in _GROUPS.items() for name in names}


def lookup(name: str) -> PreTokenizer:
    """Raises UnsupportedModel, listing the known names."""
    if name not in KNOWN:
        raise UnsupportedModel(f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre); known: {', '.join(sorted(KNOWN))}")
    return KNOWN[name]


def install(rust: RustTokenizer, entry: PreTokenizer) -> None:
    """Give a ``tokenizers`` BPE this pre-tokenizer, its normaliser and the byte-level decoder."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    stages: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in entry.patterns]
    rust.pre_tokenizer = pre_tokenizers.Sequence([*stages, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if entry.nfc:
        rust.normalizer = normalizers.NFC()
    rust.decoder = decoders.ByteLevel()
