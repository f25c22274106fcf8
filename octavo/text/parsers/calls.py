"""How a tool call is written: four kinds of body, each a reader configured by data. What a body finds it tells a :class:`Sink`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from octavo.text.parsers.source import Ended, Malformed, Markers
from octavo.text.parsers.values import escaped, json_value, loads, python_value, read_string, skip_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from octavo.text.parsers.source import Reading, Source
    from octavo.text.parsers.values import Write

MAX_NAME = 256
_NAME = re.compile(r"[\w.:/-]+")
_INDEX = re.compile(r":\d+$")
STRING = frozenset({"string"})
_JSON_TYPES: dict[type, frozenset[str]] = {
    bool: frozenset({"boolean"}), int: frozenset({"integer", "number"}), float: frozenset({"number"}), str: STRING, type(None): frozenset({"null"}),
    list: frozenset({"array"}), dict: frozenset({"object"}),
}  # fmt: skip
ARGUMENTS = ("arguments", "parameters")


class Sink(Protocol):
    """Where a body's findings go. ``start`` commits to the call: what was read before it can still become content, later text cannot.

    ``tools``: name to JSON schema of its arguments. ``bare``: no marker told that a call begins, so the name must be a known one.
    """

    tools: Mapping[str, Any]
    bare: bool

    def start(self, name: str, call_id: str | None = None) -> None: ...

    def arguments(self, text: str) -> None: ...

    def end(self) -> None: ...


class Body(Protocol):
    """``verbatim``: arguments are told as they stand in the text."""

    verbatim: ClassVar[bool]

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        """Read from after the opening marker up to before the closing one. Raises Malformed where the text is no call."""
        ...


def checked(name: str, sink: Sink) -> str:
    name = name.strip()
    if len(name) > MAX_NAME or _NAME.fullmatch(name) is None or (sink.bare and name not in sink.tools):
        raise Malformed
    return name


def nested_json(text: str) -> str:
    """Arguments that came as a JSON text within JSON. Raises Malformed if they are no object."""
    try:
        text.encode()
        if isinstance(loads(text), dict):
            return text
    except ValueError:
        pass
    raise Malformed


def one_or_list(source: Source, call: Callable[[], Reading[None]]) -> Reading[None]:
    """A call, or calls in brackets with commas between them."""
    yield from source.space()
    if not (yield from source.literal("[")):
        yield from call()
        return
    while True:
        yield from source.space()
        yield from call()
        yield from source.space()
        if (yield from source.expect(",", "]")) == "]":
            return


@dataclass(frozen=True, slots=True)
class Envelope:
    """``{"name": ..., "arguments": {...}}``, or a list of these. Keys in any order; also "parameters"; perhaps inside ``{"function": ...}``."""

    verbatim: ClassVar[bool] = True

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        yield from one_or_list(source, lambda: self._call(source, sink))

    def _call(self, source: Source, sink: Sink) -> Reading[None]:
        name, held, started = yield from self._object(source, sink)
        if started:
            sink.end()
        elif name is None or (held is None and sink.bare):
            raise Malformed
        else:
            sink.start(checked(name, sink))
            sink.arguments(held or "{}")
            sink.end()

    def _object(self, source: Source, sink: Sink) -> Reading[tuple[str | None, str | None, bool]]:
        """(name, arguments, whether the call was started and its arguments told) of the object that comes."""
        name, held, started = None, None, False
        yield from source.expect("{")
        while True:
            yield from source.space()
            key = yield from read_string(source)
            yield from source.space()
            yield from source.expect(":")
            yield from source.space()
            first = yield from source.char()
            if started or (key in ARGUMENTS and held is not None) or (key == "name" and name is not None):
                if key in ("id", "type"):
                    yield from skip_value(source)
                else:
                    raise Malformed
            elif key == "name":
                name = checked((yield from read_string(source)), sink)
            elif key in ARGUMENTS and first == "{" and name is not None:
                sink.start(name)
                started = True
                yield from json_value(source, sink.arguments)
            elif key in ARGUMENTS:
                held = yield from self._held(source, first)
            elif key == "function" and first == "{":
                name, held, started = yield from self._object(source, sink)
            elif key in ("id", "type"):
                yield from skip_value(source)
            else:
                raise Malformed
            yield from source.space()
            mark = yield from source.literal(",", "}")
            if mark == "}" or (mark is None and started):  # the arguments are whole; a brace less is no reason to lose them
                return name, held, started
            if mark is None:
                raise Malformed

    def _held(self, source: Source, first: str) -> Reading[str]:
        """Arguments that cannot be told as they come: the name follows, or they are text or null."""
        if first == '"':
            return nested_json((yield from read_string(source)))
        if first == "n":
            yield from source.expect("null")
            return "{}"
        if first != "{":
            raise Malformed
        pieces: list[str] = []
        yield from json_value(source, pieces.append)
        return "".join(pieces)


@dataclass(frozen=True, slots=True)
class Header:
    """The name, then its arguments as a JSON object. ``before``: what may precede the name. ``after``: what may stand between the two, one
    after the other. ``tail``: what may follow. ``prefix`` of the name is left out; ``own_id``: the whole header is the call's id.
    """

    verbatim: ClassVar[bool] = True
    ends: tuple[str, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    prefix: str = ""
    own_id: bool = False
    id_mark: str = ""  # after the name, an id between this and the first of ``after``

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        yield from source.space()
        yield from source.literal(*self.before)
        header = (yield from source.until(Markers((*self.ends, self.id_mark, "{")), MAX_NAME)).strip()
        call_id = header if self.own_id else None
        name = _INDEX.sub("", header) if self.own_id else header
        name = checked(name.removeprefix(self.prefix), sink)
        yield from source.literal(*self.ends)
        if self.id_mark and (yield from source.literal(self.id_mark)):
            call_id = (yield from source.until(Markers(self.after), MAX_NAME)).strip()
        for mark in self.after:
            yield from source.space()
            yield from source.literal(mark)
        yield from source.space()
        if (yield from source.char()) != "{":
            raise Malformed
        sink.start(name, call_id)
        yield from json_value(source, sink.arguments)
        sink.end()
        for mark in self.tail:
            yield from skip_to(source, mark)


def skip_to(source: Source, *marks: str) -> Reading[str | None]:
    """Blank space and the mark after it, taken; nothing if no mark comes. Only where there is no mark to go back to."""
    source.mark = source.at
    yield from source.space()
    found = yield from source.literal(*marks)
    if found is None:
        source.at = source.mark
    source.mark = None
    return found


@dataclass(frozen=True, slots=True)
class Either:
    """``then`` if the first character is one of ``firsts``, else ``other``."""

    verbatim: ClassVar[bool] = True
    firsts: str
    then: Body
    other: Body

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        yield from source.space()
        first = yield from source.char()
        yield from (self.then if first in self.firsts else self.other).read(source, sink)


@dataclass(frozen=True, slots=True)
class Tagged:
    """Name and arguments in tags, as in XML. Values are text as it stands, or JSON where the tool's schema wants no text.

    ``name_open`` may be empty; the name then ends where ``key_open`` or one of ``name_ends`` begins. ``close`` ends the call. ``trim``: a line feed
    after the opening tag and one before the closing tag of a value belong to the tags.
    """

    verbatim: ClassVar[bool] = False
    key_open: str
    key_close: str
    value_close: str
    name_open: str = ""
    name_ends: tuple[str, ...] = ()
    value_open: str = ""
    close: str = ""
    end: str = ""  # the format's closing marker, which may come for ``close``
    trim: bool = True

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        yield from source.space()
        if self.name_open:
            yield from source.expect(self.name_open)
        name = checked((yield from source.until(Markers((*self.name_ends, self.key_open, self.end)), MAX_NAME)), sink)
        yield from source.literal(*self.name_ends)
        yield from source.space()
        mark = yield from self._next(source)
        if mark is None:
            raise Malformed
        sink.start(name)
        sink.arguments("{")
        types = _types(sink.tools.get(name))
        count = 0
        while mark == self.key_open:
            key = (yield from source.until(Markers((self.key_close,)), MAX_NAME)).strip()
            yield from source.expect(self.key_close)
            if self.value_open:
                yield from source.space()
                yield from source.expect(self.value_open)
            sink.arguments(f'{", " if count else ""}"{escaped(key)}": ')
            yield from self._value(source, sink, types.get(key, frozenset()))
            count += 1
            yield from source.space()
            mark = yield from self._next(source)
        sink.arguments("}")
        sink.end()

    def _next(self, source: Source) -> Reading[str | None]:
        """The tag that opens the next argument, or the end of the call; the format's own closing marker is left where it is."""
        mark = yield from source.literal(self.key_open, *([self.close] if self.close else []), self.end)
        if mark is not None and mark == self.end and mark != self.close:
            source.at -= len(mark)
        return mark

    def _value(self, source: Source, sink: Sink, kinds: frozenset[str]) -> Reading[None]:
        stop = Markers((self.value_close, "\n" + self.value_close) if self.trim else (self.value_close,))
        if self.trim:
            yield from source.literal("\n")
        if kinds == STRING:
            sink.arguments('"')
            yield from _flow(source, stop, lambda text: sink.arguments(escaped(text)))
            sink.arguments('"')
            return
        pieces: list[str] = []
        try:
            yield from _flow(source, stop, pieces.append)
        except Ended:
            sink.arguments('"' + escaped("".join(pieces)))  # cut short: what came, as an unfinished text
            raise
        sink.arguments(_value_json("".join(pieces), kinds))

def _flow(source: Source, stop: Markers, write: Write) -> Reading[None]:
    """Text up to ``stop``, told as it comes; the stop is taken."""
    while True:
        yield from source.char()
        text, found = source.flow(stop)
        write(text)
        if found is not None:
            return
        if source.at < len(source.text):
            yield


def _types(schema: Any) -> dict[str, frozenset[str]]:
    """Argument to the JSON types that it may have; empty: any."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return {name: _kinds(kind) for name, kind in properties.items()} if isinstance(properties, dict) else {}


def _kinds(schema: Any) -> frozenset[str]:
    if not isinstance(schema, dict):
        return frozenset()
    named = schema.get("type")
    if isinstance(named, (str, list)):
        return frozenset(n for n in ([named] if isinstance(named, str) else named) if isinstance(n, str))
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        kinds = [_kinds(option) for option in options]
        return frozenset().union(*kinds) if all(kinds) else frozenset()
    values = schema.get("enum")
    return STRING if isinstance(values, list) and values and all(isinstance(v, str) for v in values) else frozenset()


def _value_json(text: str, kinds: frozenset[str]) -> str:
    """A value as JSON: JSON of a type that the schema allows if it is that, else text. Python's words for constants count where they fit."""
    plain = text.strip()
    if "boolean" in kinds and plain.lower() in ("true", "false"):
        return plain.lower()
    if "null" in kinds and plain == "None":
        return "null"
    try:
        value = loads(plain)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    fits = not kinds & STRING or kinds & _JSON_TYPES[type(value)]
    return json.dumps(value if fits else text, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Pythonic:
    """``[name(key=literal, ...), ...]``, as Python would call it; without brackets, calls follow on lines of their own. Nothing is evaluated."""

    verbatim: ClassVar[bool] = False

    def read(self, source: Source, sink: Sink) -> Reading[None]:
        yield from one_or_list(source, lambda: self._call(source, sink))

    def _call(self, source: Source, sink: Sink) -> Reading[None]:
        name = checked((yield from source.until(Markers("("), MAX_NAME)), sink)
        yield from source.expect("(")
        count = 0
        while True:
            yield from source.space()
            if (yield from source.literal(")")):
                break
            key = (yield from source.until(Markers("="), MAX_NAME)).strip()
            if not key.isidentifier():
                raise Malformed
            yield from source.expect("=")
            yield from source.space()
            if not count:
                sink.start(name)
            sink.arguments(f'{", " if count else "{"}"{escaped(key)}": ')
            yield from python_value(source, sink.arguments)
            count += 1
            yield from source.space()
            if (yield from source.expect(",", ")")) == ")":
                break
        if not count:
            sink.start(name)
        sink.arguments("}" if count else "{}")
        sink.end()
