"""Tokenizer files from before ``tokenizer.json``: SentencePiece models, tiktoken ranks, ``vocab.json`` with ``merges.txt``, WordPiece lists.

Each becomes a codec and the fact whether a decoded text loses its first space. What such a file leaves out (patterns, added tokens, lower case)
comes from ``tokenizer_config.json`` and the model's type, never from code beside it.
"""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import FormatError, UnsupportedModel
from octavo.text.pieces import byte_alphabet, byte_level_bytes
from octavo.text.pretokenizers import install, lookup
from octavo.text.rust import RustCodec, load_json, wordpiece_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenizers import Tokenizer as RustTokenizer

    from octavo.text.sp_file import SentencePieceFile

MAX_FILE_BYTES = 64 << 20
# How a model of this type cuts text before merging, by the names of octavo/text/pretokenizers.py.
_TIKTOKEN_PATTERNS = {"chatglm": "chatglm-bpe", "glm4": "glm4", "llama": "llama-bpe", "qwen": "qwen2"}


def load_file(path: str, options: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[RustCodec | SentencePieceFile, bool]:
    """Read a tokenizer file of any known kind. Raises FormatError for a malformed one, UnsupportedModel if its kind or rules are not known."""
    file = Path(path)
    if file.name == "vocab.json":
        return _byte_level(file, options), False
    if file.suffix == ".json":
        return load_json(path)
    if file.name == "vocab.txt":
        return _wordpiece(file, options), True
    data = _read(file)
    if _is_ranks(data):
        return _tiktoken(file, data, options, config), False
    from octavo.text.sp_file import SentencePieceFile

    codec = SentencePieceFile(data, added_tokens(options), path)
    return codec, codec.strips_space


def added_tokens(options: Mapping[str, Any]) -> dict[int, tuple[str, bool]]:
    """``added_tokens_decoder`` of tokenizer_config.json: id -> (text, is it a control token?). Raises FormatError."""
    entries = options.get("added_tokens_decoder") or {}
    try:
        return {int(i): (str(entry["content"]), bool(entry.get("special", False))) for i, entry in entries.items()}
    except (TypeError, ValueError, KeyError, AttributeError):
        raise FormatError("added_tokens_decoder must map ids to objects with a content") from None


def _read(file: Path) -> bytes:
    size = file.stat().st_size
    if size > MAX_FILE_BYTES:
        raise FormatError(f"{file} has {size:,} bytes, a tokenizer may have {MAX_FILE_BYTES:,}")
    return file.read_bytes()


def _text(file: Path) -> str:
    try:
        return _read(file).decode("utf-8")
    except UnicodeDecodeError as e:
        raise FormatError(f"{file} is not UTF-8: {e.reason} at byte {e.start:,}") from None


def _add_tokens(rust: RustTokenizer, options: Mapping[str, Any], file: Path) -> None:
    """Tokens beside the vocabulary take the next free ids, so they must come in order and without a gap."""
    from tokenizers import AddedToken

    for token_id, (text, special) in sorted(added_tokens(options).items()):
        token = AddedToken(text, normalized=False, special=special)
        (rust.add_special_tokens if special else rust.add_tokens)([token])
        found = rust.token_to_id(text)
        if found != token_id:
            raise FormatError(f"{file.parent / 'tokenizer_config.json'} gives {text!r} the id {token_id:,}, {file.name} leaves {found:,}")


# -- byte-level BPE: vocab.json and merges.txt


def _byte_level(file: Path, options: Mapping[str, Any]) -> RustCodec:
    """GPT-2's two files."""
    from tokenizers import Tokenizer, models

    merges_file = file.with_name("merges.txt")
    if not merges_file.is_file():
        raise FormatError(f"{file} needs merges.txt beside it")
    try:
        vocab = json.loads(_text(file))
        merges: list[Any] = [tuple(line.split(" ")) for line in _text(merges_file).split("\n") if line.strip() and not line.startswith("#version")]
        rust = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=None))
    except FormatError:
        raise
    except Exception as e:  # the library raises plain Exception and TypeError for what it cannot use
        raise FormatError(f"{file} and merges.txt are not a byte-level BPE: {e}") from None
    install(rust, lookup("gpt-2"))
    _add_tokens(rust, options, file)
    return RustCodec(rust, byte_level_bytes, lambda piece: piece.encode("utf-8", "replace"))


# -- tiktoken


def _is_ranks(data: bytes) -> bool:
    """Lines of a token in base64 and its rank. A SentencePiece model begins with a field tag, 0x0a."""
    head = data.split(b"\n", 1)[0].split()
    return len(head) == 2 and head[1].isdigit() and not data.startswith(b"\n")


def _ranks(file: Path, data: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise FormatError(f"{file}, line {number:,}: expected a token in base64 and its rank") from None
    if set(ranks.values()) != set(range(len(ranks))) or not all(bytes([b]) in ranks for b in range(256)):
        raise FormatError(f"{file}: ranks must run from 0 to {len(ranks) - 1:,} and every single byte must have one")
    return ranks


def _tiktoken(file: Path, data: bytes, options: Mapping[str, Any], config: Mapping[str, Any]) -> RustCodec:
    """Always join the neighbours whose union has the lowest rank: as merges, every way to make a token, in order of its rank."""
    from tokenizers import Tokenizer, models

    kind = str(config.get("model_type", ""))
    if kind not in _TIKTOKEN_PATTERNS:
        known = ", ".join(sorted(_TIKTOKEN_PATTERNS))
        raise UnsupportedModel(f"{file} has tiktoken's format, which leaves open how text is cut, and {kind!r} is not a model known: {known}")
    ranks = _ranks(file, data)
    shown = {byte: char for char, byte in byte_alphabet().items()}
    names = {token: "".join(shown[b] for b in token) for token in ranks}
    merges: list[tuple[str, str]] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        ways = [(token[:at], token[at:]) for at in range(1, len(token)) if token[:at] in ranks and token[at:] in ranks]
        merges += [(names[left], names[right]) for left, right in sorted(ways, key=lambda way: (ranks[way[0]], ranks[way[1]]))]
    rust = Tokenizer(models.BPE(vocab={names[token]: rank for token, rank in ranks.items()}, merges=merges, ignore_merges=True))
    install(rust, lookup(_TIKTOKEN_PATTERNS[kind]))
    _add_tokens(rust, options, file)
    return RustCodec(rust, byte_level_bytes, lambda piece: piece.encode("utf-8", "replace"))


# -- WordPiece


def _wordpiece(file: Path, options: Mapping[str, Any]) -> RustCodec:
    """BERT's list of pieces, a line each; the number of the line is the id."""
    vocab = {piece: i for i, piece in enumerate(_text(file).rstrip("\n").split("\n"))}
    lower = bool(options.get("do_lower_case", True))
    return wordpiece(vocab, lower=lower, accents=options.get("strip_accents"), han=bool(options.get("tokenize_chinese_chars", True)))


def wordpiece(vocab: dict[str, int], *, lower: bool, accents: bool | None, han: bool = True) -> RustCodec:
    """BERT's WordPiece (Devlin et al., 2018) over ``vocab``; continuations begin with ``##``. Frames texts in [CLS] and [SEP].

    ``accents``: strip them (None: if ``lower``). ``han``: every Chinese character is a word. Raises FormatError without the four special pieces.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    missing = [piece for piece in special if piece not in vocab]
    if missing:
        raise FormatError(f"the WordPiece vocabulary lacks {', '.join(missing)}")
    rust = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    rust.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=han, strip_accents=accents, lowercase=lower)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    rust.post_processor = processors.BertProcessing(("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
    rust.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in [*special, "[MASK]"] if piece in vocab])
    return RustCodec(rust, wordpiece_bytes, wordpiece_bytes)
