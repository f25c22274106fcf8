"""Values inside tool calls, read as they come and passed on as JSON text: JSON itself (RFC 8259), and Python literals."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from octavo.text.parsers.source import Ended, Malformed

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.text.parsers.source import Reading, Source

    Write = Callable[[str], object]

MAX_DEPTH = 64
MAX_NUMBER = 400
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)
_NUMBER_CHARS = frozenset("+-.0123456789eE")
_ESCAPES = frozenset('"\\/bfnrt')
_HEX = re.compile("[0-9a-fA-F]+")
_PYTHON_PLAIN = {quote: re.compile(f"[^{quote}\\\\\n]+") for quote in "'\""}
_PYTHON_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\\": "\\", "'": "'", '"': '"', "\n": ""}
_PYTHON_HEX = {"x": 2, "u": 4, "U": 8}
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}


def json_value(source: Source, write: Write, depth: int = 0) -> Reading[None]:
    """One JSON value, passed to ``write`` in pieces as it is written. Line feeds and other control characters within texts, which JSON
    forbids and models write, are passed on escaped. Raises Malformed where the text cannot go on as JSON."""
    first = yield from source.char()
    if first == '"':
        yield from json_string(source, write)
    elif first in "{[":
        if depth >= MAX_DEPTH:
            raise Malformed
        yield from _container(source, write, depth + 1, first)
    elif first in "-0123456789":
        yield from _number(source, write)
    else:
        write((yield from source.expect("true", "false", "null")))


def json_string(source: Source, write: Write) -> Reading[None]:
    write((yield from source.expect('"')))
    while True:
        first = yield from source.char()
        plain = _PLAIN.match(source.text, source.at)
        if plain is not None:
            source.at = plain.end()
            write(plain[0])
        elif first == "\\":
            yield from _escape(source, write)
        else:
            source.at += 1
            if first == '"':
                write(first)
                return
            write(json.dumps(first)[1:-1])


def _escape(source: Source, write: Write) -> Reading[None]:
    pair = yield from source.peek(2)
    size = 2
    if pair[1:] == "u":
        size = 6
        digits = (yield from source.peek(size))[2:]
        if digits and _HEX.fullmatch(digits) is None:
            raise Malformed
    elif pair[1:] and pair[1] not in _ESCAPES:
        raise Malformed
    write((yield from source.take(size)))


def _number(source: Source, write: Write) -> Reading[None]:
    """Held until its end is known, because a part of it may be no number."""
    size = 0
    while True:
        while source.at + size < len(source.text) and source.text[source.at + size] in _NUMBER_CHARS:
            size += 1
        if size > MAX_NUMBER:
            raise Malformed
        if source.at + size < len(source.text):
            break
        if source.ended:
            raise Ended
        yield
    if _NUMBER.fullmatch(source.text, source.at, source.at + size) is None:
        raise Malformed
    write((yield from source.take(size)))


def _container(source: Source, write: Write, depth: int, opening: str) -> Reading[None]:
    closing = "}" if opening == "{" else "]"
    source.at += 1
    write(opening)
    write((yield from source.space()))
    if (yield from source.literal(closing)):
        write(closing)
        return
    while True:
        if opening == "{":
            yield from json_string(source, write)
            write((yield from source.space()))
            write((yield from source.expect(":")))
            write((yield from source.space()))
        yield from json_value(source, write, depth)
        write((yield from source.space()))
        mark = yield from source.expect(",", closing)
        write(mark)
        if mark == closing:
            return
        write((yield from source.space()))


def read_string(source: Source) -> Reading[str]:
    """The value of a JSON text."""
    pieces: list[str] = []
    yield from json_string(source, pieces.append)
    value: str = json.loads("".join(pieces))
    return value


def skip_value(source: Source) -> Reading[None]:
    yield from json_value(source, lambda piece: None)


def escaped(text: str) -> str:
    """``text`` as it stands between the quotes of a JSON text."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def loads(text: str) -> Any:
    """Strict JSON (no NaN). Raises ValueError."""

    def refuse(word: str) -> Any:
        raise ValueError(word)

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deep") from None


def python_value(source: Source, write: Write, depth: int = 0) -> Reading[None]:
    """One Python literal (text, number, True, False, None, list, tuple, dict) as JSON. Nothing is evaluated."""
    first = yield from source.char()
    if first in "'\"":
        yield from _python_string(source, write)
    elif first in "[(":
        if depth >= MAX_DEPTH:
            raise Malformed
        source.at += 1
        write("[")
        yield from python_items(source, write, "]" if first == "[" else ")", depth + 1)
        write("]")
    elif first == "{":
        if depth >= MAX_DEPTH:
            raise Malformed
        source.at += 1
        write("{")
        yield from python_items(source, write, "}", depth + 1, key=_python_key)
        write("}")
    elif first in "-0123456789":
        yield from _number(source, write)
    else:
        write(PYTHON_WORDS[(yield from source.expect(*PYTHON_WORDS))])


def python_items(
    source: Source, write: Write, closing: str, depth: int, key: Callable[[Source, Write], Reading[None]] | None = None
) -> Reading[None]:
    """Values up to ``closing``, with commas between them and perhaps after the last; ``key`` reads what stands before each value."""
    count = 0
    while True:
        yield from source.space()
        if (yield from source.literal(closing)):
            return
        if count:
            write(", ")
        if key is not None:
            yield from key(source, write)
            yield from source.space()
        yield from python_value(source, write, depth)
        count += 1
        yield from source.space()
        if (yield from source.expect(",", closing)) == closing:
            return


def _python_key(source: Source, write: Write) -> Reading[None]:
    yield from _python_string(source, write)
    yield from source.space()
    yield from source.expect(":")
    write(": ")


def _python_string(source: Source, write: Write) -> Reading[None]:
    quote = yield from source.expect("'", '"')
    plain = _PYTHON_PLAIN[quote]
    write('"')
    while True:
        first = yield from source.char()
        match = plain.match(source.text, source.at)
        if match is not None:
            source.at = match.end()
            write(escaped(match[0]))
        elif first == "\\":
            yield from _python_escape(source, write)
        elif first == quote:
            source.at += 1
            write('"')
            return
        else:
            source.at += 1  # a line feed, which Python forbids here and models write
            write("\\n")


def _python_escape(source: Source, write: Write) -> Reading[None]:
    pair = yield from source.peek(2)
    digits = _PYTHON_HEX.get(pair[1:], 0)
    if not digits:
        pair = yield from source.take(2)
        write(escaped(_PYTHON_ESCAPES.get(pair[1], pair)))
        return
    code = (yield from source.peek(2 + digits))[2:]
    if code and (_HEX.fullmatch(code) is None or int(code, 16) > 0x10FFFF):
        raise Malformed
    yield from source.take(2 + digits)
    write(json.dumps(chr(int(code, 16)))[1:-1])  # halves of surrogate pairs stay escapes
