"""What a structured output must look like, as the request says it, and the limits of such requests. Pure data; :mod:`octavo.decode` compiles it."""

from __future__ import annotations

import json as jsonlib
from dataclasses import dataclass
from typing import Any

from octavo.errors import InvalidParameter

# UTF-8 bytes, entries and levels that a request may bring. A compiled grammar takes some tens of bytes for each byte of its text.
MAX_SCHEMA_BYTES = 1 << 20
MAX_SCHEMA_DEPTH = 64
MAX_GRAMMAR_BYTES = 1 << 16
MAX_GRAMMAR_DEPTH = 100  # brackets within brackets of a grammar or regular expression
MAX_RULE_DEPTH = 128  # rules that refer to rules
MAX_MULTIPLE = 10_000  # of multipleOf, as a whole number of its last decimal place
MAX_MULTIPLES = 100_000  # product of the different ones in a schema
MAX_REGEX_BYTES = 1 << 14
MAX_CHOICES = 10_000
MAX_CHOICE_BYTES = 1 << 20  # of all choices together
MAX_TAGS = 256
MAX_PATTERN_BYTES = 256  # of whitespace_pattern

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass(slots=True, kw_only=True)
class StructuredOutputsParams:
    """Exactly one of the kinds, and how JSON may be written. Names are vLLM's.

    json: a JSON schema, as a dict or as text (kept as text).   json_object: any JSON object.   regex: the whole output matches it.
    choice: one of these texts.   grammar: Lark, or GBNF as llama.cpp writes it.   structural_tag: free text in which tagged parts follow
    their schemas, ``{"structures": [{"begin", "schema", "end"}], "triggers": [...]}``, as a dict or as text (kept as text); or, where
    "separator" stands for "triggers" (with "begin", "end" and "stop_after_first"), tagged parts and no free text.
    disable_any_whitespace: JSON without spaces.   whitespace_pattern: a regular expression for the gaps of JSON instead of the default.
    disable_additional_properties: objects hold the properties that the schema names and no others, unless it says so itself.
    Sizes are checked here; what the texts say is checked when they are compiled. Raises InvalidParameter.
    """

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        if self.json_object is False:
            self.json_object = None
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise _wrong(f"takes exactly one of {', '.join(KINDS)}; got {' and '.join(given) or 'none'}")
        if self.json is not None:
            self.json = _json_text("json", self.json, (str, dict, bool))
        if self.structural_tag is not None:
            self.structural_tag = _json_text("structural_tag", self.structural_tag, (str, dict))
        if self.json_object is not None and self.json_object is not True:
            raise _wrong("json_object must be true or false", "json_object")
        _text("regex", self.regex, MAX_REGEX_BYTES)
        _text("grammar", self.grammar, MAX_GRAMMAR_BYTES)
        _text("whitespace_pattern", self.whitespace_pattern, MAX_PATTERN_BYTES)
        if self.choice is not None:
            _check_choices(self.choice)
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            if not isinstance(getattr(self, name), bool):
                raise _wrong(f"{name} must be true or false", name)
        self._check_options()

    @property
    def kind(self) -> str:
        return next(name for name in KINDS if getattr(self, name) is not None)

    def _check_options(self) -> None:
        """An option that would change nothing is refused."""
        writes_json = self.kind in ("json", "json_object", "structural_tag")
        for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
            if getattr(self, name) and not writes_json:
                raise _wrong(f"{name} concerns JSON and does nothing with {self.kind}", name)
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise _wrong("disable_any_whitespace and whitespace_pattern exclude each other", "whitespace_pattern")
        if self.disable_additional_properties and self.json_object:
            raise _wrong("disable_additional_properties would leave json_object nothing but {}", "disable_additional_properties")


@dataclass(frozen=True, slots=True)
class Thinking:
    """Where a reasoning model's thoughts end, and with them the freedom from the grammar. Token ids.

    ``open_id`` None: the prompt opened the thoughts. Else the first token may open them; if it does not, the grammar holds from there.
    """

    close_id: int
    open_id: int | None = None


def _wrong(message: str, name: str = "") -> InvalidParameter:
    param = f"structured_outputs.{name}" if name else "structured_outputs"
    return InvalidParameter(f"structured_outputs {message}" if not name else f"structured_outputs: {message}", param=param)


def _text(name: str, value: Any, limit: int) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value:
        raise _wrong(f"{name} must be a text that is not empty", name)
    _check_size(name, value, limit)


def _check_size(name: str, text: str, limit: int) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise _wrong(f"{name} has {size:,} bytes, the limit is {limit:,}", name)


def _json_text(name: str, value: Any, kinds: tuple[type, ...]) -> str:
    """Checked for its size and depth, and written as text if it came as a value. Text is parsed when it is compiled."""
    if not isinstance(value, kinds):
        raise _wrong(f"{name} must be a JSON object or its text, got {type(value).__name__}", name)
    if isinstance(value, str):
        _text(name, value, MAX_SCHEMA_BYTES)
        return value
    if depth_of(value) > MAX_SCHEMA_DEPTH:
        raise _wrong(f"{name} is nested deeper than {MAX_SCHEMA_DEPTH} levels", name)
    try:
        text = jsonlib.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _wrong(f"{name} is not JSON: {error}", name) from None
    _check_size(name, text, MAX_SCHEMA_BYTES)
    return text


def depth_of(value: Any) -> int:
    """Levels of lists and maps, counted up to one more than is allowed."""
    level, depth = [value], 0
    while level and depth <= MAX_SCHEMA_DEPTH:
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, (list, tuple)):
                below += item
        level, depth = below, depth + 1
    return depth


def _check_choices(choices: Any) -> None:
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise _wrong("choice must be a list of texts, none of them empty", "choice")
    if len(choices) > MAX_CHOICES:
        raise _wrong(f"choice has {len(choices):,} entries, the limit is {MAX_CHOICES:,}", "choice")
    size = sum(len(choice.encode("utf-8", "surrogatepass")) for choice in choices)
    if size > MAX_CHOICE_BYTES:
        raise _wrong(f"choice has {size:,} bytes, the limit is {MAX_CHOICE_BYTES:,}", "choice")
