"""The machine: a reply's text in, in pieces; content, reasoning and tool calls out, as soon as they are certain."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.text.parsers.calls import checked, skip_to
from octavo.text.parsers.formats import ChannelFormat
from octavo.text.parsers.source import SPACE, Ended, Malformed, Markers, Source
from octavo.text.parsers.values import json_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from octavo.text.parsers.formats import ReasoningFormat, ToolFormat
    from octavo.text.parsers.source import Reading

MAX_HEADER = 512
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(slots=True)
class ToolCallDelta:
    """A step of one tool call. ``name`` and ``id`` are set in its first delta, which has no arguments; ``arguments`` add up to JSON text."""

    index: int
    arguments: str = ""
    name: str | None = None
    id: str | None = None


@dataclass(slots=True)
class ReplyDelta:
    """What a piece of text added to each part of the reply."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)

    def add(self, later: ReplyDelta) -> None:
        """Append what came next."""
        self.content += later.content
        self.reasoning += later.reasoning
        for call in later.tool_calls:
            last = self.tool_calls[-1] if self.tool_calls else None
            if last is not None and last.index == call.index and last.name is None and call.name is None:
                last.arguments += call.arguments
            else:
                self.tool_calls.append(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """How the replies to one request are to be read. ``tools``: name to schema of its arguments; empty: calls are content.

    ``thinking``: the reply begins inside thoughts, see :func:`begins_thinking`. ``single``: the reply ends with its first call. ``id_seed`` makes
    the ids of the calls.
    """

    tool_format: ToolFormat | ChannelFormat | None = None
    reasoning_format: ReasoningFormat | ChannelFormat | None = None
    tools: Mapping[str, Any] = field(default_factory=dict)
    thinking: bool = False
    single: bool = False
    id_seed: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that are to be kept in the reply's text where they are special tokens."""
        made: list[str] = []
        if self.tools and self.tool_format is not None:
            made += self.tool_format.markers
        if isinstance(self.reasoning_format, ChannelFormat):
            made += self.reasoning_format.markers
        elif self.reasoning_format is not None:
            made += [self.reasoning_format.open, self.reasoning_format.close]
        return tuple(dict.fromkeys(made))


def begins_thinking(form: ReasoningFormat | ChannelFormat | None, prompt: str, final: str | None = None) -> bool:
    """Whether a reply to ``prompt`` begins inside thoughts. ``final``: the unfinished message that it goes on with, if any."""
    if form is None or isinstance(form, ChannelFormat):
        return False
    if final is not None:
        return final.rfind(form.open) > final.rfind(form.close)
    tail = prompt.rstrip()
    return tail.endswith(form.open) or (form.implicit and not tail.endswith(form.close))


class _Done(Exception):
    """The one call that a reply may hold has ended."""


class _Flow:
    """One kind of text on its way out. Blank space beside a block (a call, or thoughts) is layout: it is told only between two texts."""

    __slots__ = ("_gap", "_said", "beside", "out")

    def __init__(self, beside: bool) -> None:
        self.out: list[str] = []
        self.beside = beside  # only blank space has come since a block
        self._gap, self._said = "", False

    def say(self, text: str) -> None:
        body = text.strip(SPACE)
        if not body:
            self._gap += text
            return
        start = text.index(body[0])
        if not self.beside or self._said:
            self.out.append(self._gap + text[:start])
        self.out.append(body)
        self._gap = text[start + len(body) :]
        self._said, self.beside = True, False

    def finish(self) -> None:
        if not self.beside:
            self.out.append(self._gap)
        self._gap = ""

    def taken(self) -> str:
        text = "".join(self.out)
        self.out.clear()
        return text


class ReplyParser:
    """State of one reply. Folding what ``push`` and ``finish`` return gives the same for every cut of the text.

    No character is lost: what is neither marker nor blank space beside one is in exactly one part. A call that breaks off before its name and
    the beginning of its arguments are known is content as it stands; of one that breaks later, what follows is content.
    ``thinking``: the reply is inside its thoughts. ``done``: a ``single`` call is complete.
    """

    def __init__(self, spec: ReplyFormat) -> None:
        self.tools, self.bare = spec.tools, False
        self.thinking = self.done = False
        self._spec = spec
        self._tool = spec.tool_format if spec.tools and not isinstance(spec.tool_format, ChannelFormat) else None
        self._reasoning = spec.reasoning_format if not isinstance(spec.reasoning_format, ChannelFormat) else None
        self._source = Source()
        self._content, self._thoughts = _Flow(beside=False), _Flow(beside=True)
        self._calls: list[ToolCallDelta] = []
        self._count = 0
        self._open = False  # a call has been started and not ended
        self._closer, self._after_call = "", False  # what ends the section that is open; whether a call came last
        harmony = next((f for f in (spec.tool_format, spec.reasoning_format) if isinstance(f, ChannelFormat)), None)
        self._reader = self._until_done(self._messages(harmony) if harmony is not None else self._blocks())
        next(self._reader, None)

    def _until_done(self, reading: Reading[None]) -> Reading[None]:
        with suppress(_Done):
            yield from reading

    def push(self, text: str) -> ReplyDelta:
        """What is certain after this text."""
        if self.done:
            return ReplyDelta()
        self._source.feed(text)
        next(self._reader, None)
        return self._taken()

    def finish(self) -> ReplyDelta:
        """The text has ended: everything held back."""
        self._source.ended = True
        if not self.done:
            next(self._reader, None)
        self._thoughts.finish()
        self._content.finish()
        return self._taken()

    def _taken(self) -> ReplyDelta:
        calls, self._calls = self._calls, []
        return ReplyDelta(self._content.taken(), self._thoughts.taken(), calls)

    # --- what bodies find (Sink) ---

    def start(self, name: str, call_id: str | None = None) -> None:
        self._source.mark = None
        self._open = True
        if call_id is None or self._tool is None or self._tool.ids == "call":
            call_id = self._make_id()
        self._calls.append(ToolCallDelta(self._count, "", name, call_id))

    def arguments(self, text: str) -> None:
        if self._calls and self._calls[-1].index == self._count and self._calls[-1].name is None:
            self._calls[-1].arguments += text
        elif text:
            self._calls.append(ToolCallDelta(self._count, text))

    def end(self) -> None:
        self._open = False
        self._count += 1
        self._content.beside = True
        if self._spec.single:
            self.done = True
            raise _Done

    def _make_id(self) -> str:
        digest = hashlib.blake2b(f"{self._spec.id_seed}/{self._count}".encode(), digest_size=12)
        if self._tool is None or self._tool.ids != "short":
            return f"call_{digest.hexdigest()}"
        number, made = int.from_bytes(digest.digest()[:8], "big"), ""
        for _ in range(9):
            number, digit = divmod(number, len(_ALPHABET))
            made += _ALPHABET[digit]
        return made

    # --- formats whose blocks stand in plain text ---

    def _blocks(self) -> Reading[None]:
        reasoning, tool, source = self._reasoning, self._tool, self._source
        always = [] if tool is None else [m for m in (tool.section, tool.begin) if m]
        anywhere = Markers(always)
        first = [*always, *((tool.bare, tool.fence[0]) if tool is not None else ()), *([reasoning.open] if reasoning is not None else [])]
        self.thinking = reasoning is not None and self._spec.thinking
        fresh = True  # nothing but blank space since the beginning or the last block
        if self.thinking and reasoning is not None:
            yield from skip_to(source, reasoning.open)  # opened by the prompt and once more by the model
        while True:
            if self.thinking:
                found = yield from self._think(always)
            elif fresh:
                self._content.say((yield from source.space()))
                found = yield from source.literal(*first, *self._followers())
                fresh = False
            else:
                found = yield from self._flow(self._content, anywhere)
            if found is None:
                if source.ended and source.at >= len(source.text):
                    return
            elif reasoning is not None and found in (reasoning.open, reasoning.close):
                self.thinking, fresh = found == reasoning.open, True
                self._content.beside = True
            else:
                fresh = yield from self._call(found)

    def _followers(self) -> tuple[str, ...]:
        """Markers that may come after a call alone."""
        tool = self._tool
        if tool is None or not self._after_call:
            return ()
        return (*tool.separators, self._closer)

    def _flow(self, flow: _Flow, stops: Markers) -> Reading[str | None]:
        """Text to ``flow`` up to the stop that is returned; None at the end."""
        source = self._source
        while True:
            text, found = source.flow(stops)
            if text:
                flow.say(text)
            if found is not None or source.ended:
                return found
            yield

    def _think(self, always: list[str]) -> Reading[str | None]:
        assert self._reasoning is not None
        interrupts = always if self._tool is not None and self._tool.interrupts else []
        found = yield from self._flow(self._thoughts, Markers([self._reasoning.close, *interrupts]))
        if found is not None:
            self._thoughts.beside = True
            self.thinking = False
            self._content.beside = True
        return found

    def _call(self, found: str) -> Reading[bool]:
        """A marker of the tool format has been taken. True if a block came of it, else it has become content."""
        tool, source = self._tool, self._source
        assert tool is not None
        follows, self._after_call = self._after_call, False
        if follows and found == self._closer:
            self._closer = ""
            return True
        source.mark = source.at - len(found)
        count = self._count
        try:
            lead = found in (tool.section, tool.fence[0], *tool.separators)
            if lead:
                yield from source.space()
                begin = yield from source.expect(*filter(None, (tool.begin, tool.bare)))
            else:
                begin = found
            if begin == tool.bare:
                source.at -= len(begin)
            self.bare = begin == tool.bare and found != tool.section
            if lead and found not in tool.separators:
                self._closer = tool.section_end if found == tool.section else tool.fence[1]
            yield from tool.body.read(source, self)
        except Malformed as error:
            self._broken(found, error)
            return self._count > count
        source.mark = None
        if tool.end:
            yield from skip_to(source, tool.end)
        self._after_call = True
        return True

    def _broken(self, found: str, error: Malformed) -> None:
        """The text is no call from here on."""
        source = self._source
        if self._open:
            if isinstance(error, Ended) and (self._tool is None or self._tool.body.verbatim):
                self.arguments(source.rest())  # cut short: what is left belongs to the arguments
            self.end()
        elif source.mark is not None:
            source.at = source.mark + len(found)
            self._content.say(found)
        source.mark = None

    # --- a reply that is a sequence of messages with headers ---

    def _messages(self, form: ChannelFormat) -> Reading[None]:
        source = self._source
        heads = (form.start, form.channel, "to=")
        stops = Markers(heads[:2])
        while True:
            self._content.say((yield from source.space()))
            found = yield from source.literal(*heads)
            if found is None:
                found = yield from self._flow(self._content, stops)
            if found is None:
                return
            source.mark = source.at - len(found)
            try:
                yield from self._message(form)
            except Malformed as error:
                self._broken(found, error)

    def _message(self, form: ChannelFormat) -> Reading[None]:
        source = self._source
        yield from source.until(Markers((form.message,)), MAX_HEADER)
        header = source.text[source.mark : source.at]
        yield from source.expect(form.message)
        channel = header.partition(form.channel)[2].split(None, 1)
        recipient = header.partition("to=")[2].split(form.constrain)[0].split(form.channel)[0].split()
        if recipient and recipient[0].startswith(form.functions) and self.tools:
            name = checked(recipient[0].removeprefix(form.functions), self)
            yield from source.space()
            if (yield from source.char()) != "{":
                raise Malformed
            self.start(name)
            yield from json_value(source, self.arguments)
            self.end()
            yield from skip_to(source, *form.ends)
            return
        source.mark = None
        self.thinking = bool(channel) and channel[0] == form.thoughts
        flow = self._thoughts if self.thinking else self._content
        flow.beside = True
        found = yield from self._flow(flow, Markers((*form.ends, form.start)))
        self.thinking = False
        if found == form.start:
            source.at -= len(found)
        if found is not None:
            self._content.beside = self._thoughts.beside = True
