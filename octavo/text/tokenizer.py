"""Text to token ids and back, whatever file the vocabulary came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.errors import FormatError, InvalidParameter, UnsupportedModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from octavo.checkpoint.base import Checkpoint
    from octavo.text.pieces import Codec

TOKEN_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class _ByteTable(dict[int, bytes]):
    """Bytes of each token, filled as tokens are first seen."""

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self._piece_bytes = codec.piece_bytes

    def __missing__(self, token_id: int) -> bytes:
        value = self[token_id] = self._piece_bytes(token_id)
        return value


class Tokenizer:
    """A vocabulary and its rules. Immutable after construction and safe to share between threads.

    ``vocab_size``: ids are in [0, vocab_size); a model may have more rows in its embedding, which decode to nothing.
    ``special_token_ids``: control tokens, which ``decode`` leaves out by default. ``eos_token_ids``: every token that ends a reply.
    ``prefix_ids``, ``suffix_ids``: what ``encode`` adds around a text. ``special_tokens``: role ("bos_token", ...) to the token's text.
    ``strip_leading_space``: decoding drops the one space that encoding put before the text (SentencePiece's dummy prefix).
    """

    def __init__(
        self,
        codec: Codec,
        *,
        roles: Mapping[str, int] | None = None,
        special_token_ids: Iterable[int] = (),
        eos_token_ids: Sequence[int] = (),
        prefix_ids: Sequence[int] = (),
        suffix_ids: Sequence[int] = (),
        strip_leading_space: bool = False,
    ) -> None:
        self._codec = codec
        roles = roles or {}
        self.vocab_size = codec.size
        self.bos_token_id, self.eos_token_id = roles.get("bos_token"), roles.get("eos_token")
        self.eos_token_ids = list(eos_token_ids)
        self.special_token_ids = frozenset(special_token_ids)
        self.prefix_ids, self.suffix_ids = tuple(prefix_ids), tuple(suffix_ids)
        self.strip_leading_space = strip_leading_space
        self.special_tokens = {role: codec.piece(token_id) or "" for role, token_id in roles.items()}
        self.bytes_table: Mapping[int, bytes] = _ByteTable(codec)

    @property
    def add_bos(self) -> bool:
        """Whether ``encode`` puts the beginning-of-sequence token before a text."""
        return self.bos_token_id is not None and self.bos_token_id in self.prefix_ids

    def encode(self, text: str, add_special_tokens: bool = True, *, parse_special: bool = True) -> list[int]:
        """Token ids of ``text``. ``parse_special``: control tokens written in the text (as chat templates do) become those tokens.

        The work grows with the text; the caller bounds its length. Raises InvalidParameter if it is not a text that UTF-8 can hold.
        """
        if not isinstance(text, str):
            raise InvalidParameter(f"text must be a string, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as e:
            found = f"U+{ord(text[e.start]):04X} at character {e.start:,}"
            raise InvalidParameter(f"text holds half of a surrogate pair ({found}), which is no character") from None
        ids = self._codec.encode(text, parse_special)
        return [*self.prefix_ids, *ids, *self.suffix_ids] if add_special_tokens else ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of ``ids``; bytes that are no UTF-8 become U+FFFD. No clean-up of spaces: what is decoded is what was encoded."""
        table, skip = self.bytes_table, self.special_token_ids if skip_special_tokens else frozenset()
        data = b"".join([table[i] for i in ids if i not in skip])
        if self.strip_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text: UTF-8 bytes, possibly part of a character. Empty for an id without a vocabulary entry."""
        return self.bytes_table[token_id]

    def token_text(self, token_id: int) -> str:
        """The token alone as text; bytes that are no UTF-8 become U+FFFD."""
        return self.bytes_table[token_id].decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_token_ids

    def token_to_id(self, token: str) -> int | None:
        """Id of a vocabulary entry as the file writes it (``<|im_end|>``, ``Ġthe``, ``▁the``), or None."""
        return self._codec.piece_to_id(token)


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """Build a checkpoint's tokenizer from its tokenizer file or its GGUF metadata.

    Raises FormatError for a broken file, UnsupportedModel for a kind that Octavo does not know.
    """
    source = checkpoint.tokenizer
    if source.path is not None:
        return _from_file(source.path, source.options, checkpoint)
    if source.gguf is not None:
        return _from_gguf(source.gguf, checkpoint)
    raise FormatError(f"{checkpoint.path} holds no tokenizer")


def _from_file(path: str, options: Mapping[str, Any], checkpoint: Checkpoint) -> Tokenizer:
    from octavo.text.files import load_file

    codec, strip = load_file(path, options, checkpoint.config)
    roles = {role: token_id for role in TOKEN_ROLES if (token_id := _role_id(role, codec, options, checkpoint)) is not None}
    prefix, suffix = codec.template_ids()
    if options.get("add_bos_token") is not None:
        prefix = _frame(roles, "bos_token") if options["add_bos_token"] else []
    if options.get("add_eos_token") is not None:
        suffix = _frame(roles, "eos_token") if options["add_eos_token"] else []
    return Tokenizer(
        codec,
        roles=roles,
        special_token_ids=[token_id for token_id, (_, special) in codec.added.items() if special],
        eos_token_ids=_end_ids([roles.get("eos_token")], codec.size, checkpoint),
        prefix_ids=prefix,
        suffix_ids=suffix,
        strip_leading_space=strip,
    )


def _from_gguf(metadata: Mapping[str, Any], checkpoint: Checkpoint) -> Tokenizer:
    from octavo.text.gguf import parse

    parsed = parse(metadata)
    return Tokenizer(
        parsed.codec,
        roles=parsed.roles,
        special_token_ids=parsed.special_ids,
        eos_token_ids=_end_ids(parsed.end_ids, parsed.codec.size, checkpoint),
        prefix_ids=_frame(parsed.roles, "bos_token") if parsed.add_bos else (),
        suffix_ids=_frame(parsed.roles, "eos_token") if parsed.add_eos else (),
        strip_leading_space=parsed.strip_leading_space,
    )


def _role_id(role: str, codec: Codec, options: Mapping[str, Any], checkpoint: Checkpoint) -> int | None:
    """Id of a role: the token that ``tokenizer_config.json`` names (text, or an object with ``content``), else the model's own number."""
    named = options.get(role)
    text = named.get("content") if isinstance(named, dict) else named
    if isinstance(text, str) and (token_id := codec.piece_to_id(text)) is not None:
        return token_id
    ids = _id_list(checkpoint.config.get(f"{role}_id")) if named is None else []
    return ids[0] if ids and ids[0] < codec.size else None


def _frame(roles: Mapping[str, int], role: str) -> list[int]:
    if role not in roles:
        raise UnsupportedModel(f"the tokenizer says add_{role} but names no {role}")
    return [roles[role]]


def _end_ids(own: Iterable[int | None], vocab_size: int, checkpoint: Checkpoint) -> list[int]:
    """The tokenizer's end tokens, then the generation config's (the model config's if that has none), each once."""
    generation = checkpoint.generation_config.get("eos_token_id")
    extra = _id_list(checkpoint.config.get("eos_token_id") if generation is None else generation)
    return list(dict.fromkeys(i for i in (*own, *extra) if i is not None and i < vocab_size))


def _id_list(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [i for i in values if isinstance(i, int) and not isinstance(i, bool) and i >= 0]
