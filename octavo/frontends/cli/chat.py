"""``octavo chat``: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from octavo.core.sampling_params import SamplingParams
from octavo.errors import OctavoError, PromptTooLong
from octavo.frontends.cli.console import say

if TYPE_CHECKING:
    from octavo.frontends.cli.talk import Talk

HELP = """\
/help                  this list
/reset                 forget the conversation (the system message stays)
/undo                  forget the last question and its answer
/again                 answer the last question once more
/system [TEXT]         set the system message, or remove it
/set [NAME VALUE]      show or set a parameter: temperature, top_p, top_k, min_p, max_tokens, seed, repetition_penalty; VALUE "default" unsets
/quit                  leave (also Ctrl-D)
A line that ends in \\ goes on in the next one. Ctrl-C stops an answer."""
SETTINGS: dict[str, type[int] | type[float]] = {
    "temperature": float, "top_p": float, "top_k": int, "min_p": float, "max_tokens": int, "seed": int, "repetition_penalty": float,
}  # fmt: skip


class Conversation:
    """Messages and parameters, and what the commands do to them. ``command`` returns what to print; it knows no terminal."""

    def __init__(self, system: str | None, params: dict[str, Any]) -> None:
        self.system = system
        self.params = dict(params)
        self.turns: list[dict[str, Any]] = []
        self.ended = False

    @property
    def messages(self) -> list[dict[str, Any]]:
        return ([{"role": "system", "content": self.system}] if self.system else []) + self.turns

    def undo(self) -> str | None:
        """Take back the last question with its answer; returns the question."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return str(turn["content"])
        return None

    def command(self, line: str) -> str:
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        match name:
            case "/help" | "/?":
                return HELP
            case "/reset" | "/clear":
                self.turns.clear()
                return "the conversation is empty"
            case "/undo":
                return "there is nothing to undo" if self.undo() is None else "forgotten"
            case "/system":
                self.system = rest or None
                return "system message set" if rest else "no system message"
            case "/set":
                return self._set(rest)
            case "/quit" | "/exit" | "/bye":
                self.ended = True
                return ""
        return f"unknown command {name}; /help lists them"

    def _set(self, rest: str) -> str:
        words = shlex.split(rest)
        if not words:
            return "\n".join(f"{name} = {self.params.get(name) if self.params.get(name) is not None else 'default'}" for name in SETTINGS)
        if len(words) != 2 or words[0] not in SETTINGS:
            return f"write /set NAME VALUE; names: {', '.join(SETTINGS)}"
        name, value = words
        if value == "default":
            self.params[name] = None
            return f"{name} = default"
        try:
            number: Any = SETTINGS[name](value)
            SamplingParams(**{name: number})
        except (ValueError, OctavoError) as error:
            return str(error)
        self.params[name] = number
        return f"{name} = {number}"


def run_chat(talk: Talk, system: str | None, params: dict[str, Any]) -> None:
    """Read questions and print answers until /quit or the end of the input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (line editing and history for input())

    conversation = Conversation(system, params)
    interactive = sys.stdin.isatty()
    with closing(talk):
        if interactive:
            say(f"{talk.name}; /help for commands, Ctrl-D to leave")
        while not conversation.ended:
            try:
                line = _read(interactive)
            except EOFError:
                break
            except KeyboardInterrupt:
                say("\n(Ctrl-D or /quit to leave)")
                continue
            question = _interpret(conversation, line)
            if question:
                _answer(talk, conversation, question, interactive=interactive)


def _interpret(conversation: Conversation, line: str) -> str | None:
    """The question in a line; None if it was a command, which is then carried out."""
    if not line.strip():
        return None
    if line.split()[0] == "/again":
        question = conversation.undo()
        if question is None:
            say("there is no question yet")
        return question
    if line.startswith("/"):
        told = conversation.command(line.strip())
        if told:
            say(told)
        return None
    return line


def _read(interactive: bool) -> str:
    lines = [input(">>> " if interactive else "")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input("... " if interactive else ""))
    return "\n".join(lines)


def _answer(talk: Talk, conversation: Conversation, question: str, *, interactive: bool) -> None:
    """Stream the answer. A stopped answer stays in the conversation as far as it came; a failed one leaves no trace."""
    conversation.turns.append({"role": "user", "content": question})
    answer: list[str] = []
    began = time.monotonic()
    pieces = talk.chat(conversation.messages, conversation.params)
    try:
        for piece in pieces:
            answer.append(piece)
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        say(" (stopped)")
    except OctavoError as error:
        conversation.turns.pop()
        print()
        advice = "; /reset or /undo makes room" if isinstance(error, PromptTooLong) or "context" in error.message else ""
        say(f"octavo: {error.message}{advice}")
        return
    finally:
        pieces.close()  # type: ignore[attr-defined]
    print()
    conversation.turns.append({"role": "assistant", "content": "".join(answer)})
    if interactive and talk.reply.completion_tokens:
        seconds = time.monotonic() - began
        note = ", cut at the token limit" if talk.reply.finish_reason == "length" else ""
        say(f"[{talk.reply.completion_tokens} tokens, {talk.reply.completion_tokens / seconds:.1f} per second{note}]")
