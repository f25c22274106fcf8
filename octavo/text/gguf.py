"""The tokenizer inside a GGUF file: ``tokenizer.ggml.*`` metadata to a codec and its facts.

Keys and their defaults: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and llama.cpp's ``llama-vocab.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import FormatError, UnsupportedModel
from octavo.text.pieces import SPACE, byte_level_bytes, byte_value
from octavo.text.pretokenizers import install, lookup
from octavo.text.rust import RustCodec
from octavo.text.spm import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, SentencePieceBPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from octavo.text.pieces import Codec
    from octavo.text.sp_file import SentencePieceFile

MAX_VOCAB = 1 << 22
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "sep_token": "seperator", "pad_token": "padding", "mask_token": "mask"}
_LLAMA_DEFAULTS = {"bos_token": 1, "eos_token": 2, "unk_token": 0}
_END_KEYS = ("eot", "eom")
# Files name one end token; chat models also end a turn with one of these. They count only if the file marks them as control tokens.
_END_TOKENS = frozenset({
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<turn|>", "<|return|>", "<|call|>",
    "<end_of_utterance>", "<EOT>", "<｜end▁of▁sentence｜>",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parsed:
    """``roles``: "bos_token" and so on to ids. ``end_ids``: every token that ends a reply, the file's own first."""

    codec: Codec
    roles: dict[str, int]
    special_ids: frozenset[int]
    end_ids: list[int]
    add_bos: bool
    add_eos: bool
    strip_leading_space: bool


def parse(metadata: Mapping[str, Any]) -> Parsed:
    """Build the codec. Raises FormatError for missing or malformed entries, UnsupportedModel for tokenizer models that are not known."""
    model = metadata.get("tokenizer.ggml.model")
    tokens = _strings(metadata, "tokenizer.ggml.tokens", MAX_VOCAB)
    types = _types(metadata, tokens)
    roles = _roles(metadata, len(tokens), _LLAMA_DEFAULTS if model == "llama" else {})
    _mark_special(types, roles, model)
    codec: Codec
    add_eos = False
    if model == "gpt2":
        codec, add_bos = _byte_level(metadata, tokens, types)
        strip = False
    elif model == "llama":
        strip = _flag(metadata, "add_space_prefix", True)
        scores = _numbers(metadata, "tokenizer.ggml.scores", len(tokens))
        codec = SentencePieceBPE(tokens, scores, types, add_space_prefix=strip, unk_token_id=roles.get("unk_token"))
        add_bos = True
    elif model == "bert":
        codec, add_bos, add_eos, strip = _wordpiece(tokens, types), True, True, True
    elif model == "t5":
        codec, add_bos, add_eos, strip = _unigram(metadata, tokens, types), False, True, True
    else:
        raise UnsupportedModel(f"tokenizer model {model!r} (tokenizer.ggml.model) is not supported; known: bert, gpt2, llama, t5")
    return Parsed(
        codec=codec,
        roles=roles,
        special_ids=frozenset(i for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN)),
        end_ids=_end_ids(metadata, tokens, types, roles),
        add_bos=_flag(metadata, "add_bos_token", add_bos),
        add_eos=_flag(metadata, "add_eos_token", add_eos),
        strip_leading_space=strip,
    )


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> tuple[RustCodec, bool]:
    from tokenizers import AddedToken, models
    from tokenizers import Tokenizer as RustTokenizer

    entry = lookup(str(metadata.get("tokenizer.ggml.pre", "default")))
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    merges: list[Any] = [tuple(merge.split(" ", 1)) for merge in _strings(metadata, "tokenizer.ggml.merges", 4 * MAX_VOCAB)]
    try:
        rust = RustTokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=entry.ignore_merges))
    except Exception as e:  # the library raises plain Exception for merges of unknown pieces
        raise FormatError(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {e}") from None
    install(rust, entry)
    for special in (True, False):
        wanted = (CONTROL, UNKNOWN) if special else (USER_DEFINED,)
        added = [AddedToken(tokens[i], normalized=False, special=special) for i, kind in enumerate(types) if kind in wanted and tokens[i]]
        (rust.add_special_tokens if special else rust.add_tokens)(added)
    return RustCodec(rust, byte_level_bytes, lambda piece: piece.encode("utf-8", "replace")), entry.add_bos


def _wordpiece(tokens: list[str], types: list[int]) -> RustCodec:
    """Files write BERT's pieces the other way about: ``▁`` begins a word, and what goes on with one has no mark. They are uncased."""
    from octavo.text.files import wordpiece

    own = {i for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN)}
    names = (t if i in own else t[len(SPACE) :] if t.startswith(SPACE) else f"##{t}" for i, t in enumerate(tokens))
    return wordpiece({name: i for i, name in enumerate(names)}, lower=True, accents=True)


def _unigram(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> SentencePieceFile:
    """SentencePiece's unigram model (Kudo, 2018) with the character map that the file carries: rebuilt for the library that defines it."""
    from octavo.text.sp_file import SentencePieceFile, unigram_proto

    charsmap = metadata.get("tokenizer.ggml.precompiled_charsmap")
    proto = unigram_proto(
        tokens,
        _numbers(metadata, "tokenizer.ggml.scores", len(tokens)),
        types,
        charsmap=b"" if charsmap is None else bytes(int(b) & 0xFF for b in charsmap),
        dummy_prefix=_flag(metadata, "add_space_prefix", True),
        tidy=_flag(metadata, "remove_extra_whitespaces", False),
    )
    return SentencePieceFile(proto, {}, "the file's unigram vocabulary")


def _strings(metadata: Mapping[str, Any], key: str, limit: int) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or set(map(type, value)) != {str}:
        raise FormatError(f"{key} must be an array of strings with at least one entry")
    if len(value) > limit:
        raise FormatError(f"{key} has {len(value):,} entries, the limit is {limit:,}")
    return value


def _numbers(metadata: Mapping[str, Any], key: str, count: int) -> list[Any]:
    value: Any = metadata.get(key)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list) or len(value) != count:
        found = f"{len(value):,}" if isinstance(value, list) else "no"
        raise FormatError(f"{key} must have one number for each of the {count:,} tokens, it has {found}")
    if not set(map(type, value)) <= {int, float}:
        raise FormatError(f"{key} must hold numbers")
    return value


def _types(metadata: Mapping[str, Any], tokens: list[str]) -> list[int]:
    """Piece types; without the key, byte pieces are told by their text."""
    key = "tokenizer.ggml.token_type"
    if key in metadata:
        return list(_numbers(metadata, key, len(tokens)))
    llama = metadata.get("tokenizer.ggml.model") == "llama"
    return [BYTE if llama and byte_value(token) is not None else NORMAL for token in tokens]


def _roles(metadata: Mapping[str, Any], count: int, defaults: dict[str, int]) -> dict[str, int]:
    roles = {role: i for role, i in defaults.items() if i < count}
    for role, name in _ROLES.items():
        token_id = _token_id(metadata, name, count)
        if token_id is not None:
            roles[role] = token_id
    return roles


def _token_id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    """Id under ``tokenizer.ggml.<name>_token_id``; ids beyond the vocabulary are what converters write for "none"."""
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return int(value) if value is not None and 0 <= int(value) < count else None


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    return bool(metadata.get(f"tokenizer.ggml.{name}", default))


def _mark_special(types: list[int], roles: dict[str, int], model: str | None) -> None:
    """The tokens that frame a text are control tokens even where the file, or its lack of types, says ordinary."""
    kinds = {"bos_token": CONTROL, "eos_token": CONTROL}
    if model == "llama":  # byte-level vocabularies have no use for an unknown token, and files name any id
        kinds["unk_token"] = UNKNOWN
    for role, kind in kinds.items():
        token_id = roles.get(role)
        if token_id is not None and types[token_id] == NORMAL:
            types[token_id] = kind


def _end_ids(metadata: Mapping[str, Any], tokens: list[str], types: list[int], roles: dict[str, int]) -> list[int]:
    named = [roles.get("eos_token"), *(_token_id(metadata, name, len(tokens)) for name in _END_KEYS)]
    by_text = {tokens[i]: i for i, kind in enumerate(types) if kind == CONTROL and tokens[i] in _END_TOKENS}
    if "<|return|>" in by_text and "<|call|>" in by_text:
        by_text.pop("<|end|>", None)  # there it ends a message within a reply, not the reply
    return list(dict.fromkeys(i for i in (*named, *by_text.values()) if i is not None))
