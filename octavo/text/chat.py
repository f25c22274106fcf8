"""Chat messages to prompt text through a model's own Jinja template, with Hugging Face's conventions, sandboxed and bounded.

Rendering may take a second of processor time, so callers run it on a worker thread.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from octavo.errors import InvalidParameter, RequestError, TemplateError
from octavo.text.limits import Budget, LimitExceeded, check_chars
from octavo.text.messages import plain, plain_messages, plain_tools

if TYPE_CHECKING:
    from jinja2 import Template

    from octavo.text.sandbox import ChatEnvironment
    from octavo.text.tokenizer import Tokenizer

MAX_TEMPLATE_CHARS = 1 << 16
MAX_TEMPLATE_KWARGS = 64
RESERVED = frozenset({
    "messages", "tools", "add_generation_prompt", "continue_final_message", "raise_exception", "strftime_now", "namespace", "dict", "range",
    "joiner", "loop", "self", "caller", "varargs", "kwargs", "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
    "mask_token",
})  # fmt: skip
# A conversation with a call, and how its arguments look where a template prints the object as Python would.
PROBE: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "a1b2c3d4e", "type": "function", "function": {"name": "f", "arguments": {"k": "v"}}}]},
    {"role": "tool", "tool_call_id": "a1b2c3d4e", "name": "f", "content": "b"},
]
PYTHON_FORM = "{'k': 'v'}"
_NO_TEMPLATE = "the model has no chat template: start the server with --chat-template FILE, or use completions"


@cache
def _environment() -> ChatEnvironment:
    from octavo.text.sandbox import ChatEnvironment  # here, because Jinja costs 0.1 s that a process without chat need not pay

    return ChatEnvironment()


class ChatTemplate:
    """A template and the special tokens it may print. Compiled at first use; safe to share between threads.

    ``source`` None: the model has no template, and every render says so.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        self.source = source
        self._special_tokens = dict(tokenizer.special_tokens)
        self._template: Template | None = None
        self._text_arguments: bool | None = None

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: dict[str, Any] | None = None,
    ) -> str:
        """The prompt text; it holds its own special tokens, so encode it with ``add_special_tokens=False``.

        ``continue_final_message`` leaves the last message open for the model to go on with; it excludes ``add_generation_prompt``.
        ``template_kwargs`` are further variables, such as ``enable_thinking``. Raises InvalidParameter for malformed messages and
        variables, TemplateError if there is no template or it refuses, fails, or exceeds its limits. Messages are counted from 0.
        """
        variables = _template_kwargs(template_kwargs)
        chat = plain_messages(messages)
        if any("tool_calls" in message for message in chat) and self._wants_text():
            arguments_as_text(chat)
        variables |= {**self._special_tokens, "tools": plain_tools(tools), "add_generation_prompt": add_generation_prompt, "messages": chat}
        variables.setdefault("documents", None)
        if not continue_final_message:
            return self._render(variables, chat)
        if add_generation_prompt:
            raise InvalidParameter("continue_final_message and add_generation_prompt exclude each other", param="continue_final_message")
        if not isinstance(chat[-1].get("content"), str):
            raise InvalidParameter("continue_final_message needs a last message with text to continue", param="continue_final_message")
        # Random private-use characters: no message holds them and no filter changes them. The space tells whether the template trims.
        mark = "".join(chr(0xE000 + secrets.randbelow(0x1900)) for _ in range(12)) + " "
        chat[-1]["content"] += mark
        return _cut(self._render(variables, chat), mark)

    def _wants_text(self) -> bool:
        """Whether the template prints the arguments of a call as a text that it is given (DeepSeek's), and not an object (nearly all others)."""
        if self._text_arguments is None:
            try:
                self._text_arguments = PYTHON_FORM in self._render_probe(as_text=False)
            except TemplateError:
                with suppress(TemplateError):
                    self._render_probe(as_text=True)
                    self._text_arguments = True
        return bool(self._text_arguments)

    def _render_probe(self, *, as_text: bool) -> str:
        chat = plain_messages(PROBE)
        if as_text:
            arguments_as_text(chat)
        return self._render({**self._special_tokens, "messages": chat, "tools": None, "add_generation_prompt": True, "documents": None}, chat)

    def _compile(self) -> Template:
        if self._template is None:
            if self.source is None:
                raise TemplateError(_NO_TEMPLATE)
            if len(self.source) > MAX_TEMPLATE_CHARS:
                raise TemplateError(f"the chat template has {len(self.source):,} characters, the limit is {MAX_TEMPLATE_CHARS:,}")
            environment = _environment()
            environment.budget = Budget()  # constants are folded with the same filters
            try:
                self._template = environment.from_string(self.source)
            except Exception as e:  # whatever a malformed template provokes in the compiler is the template's fault
                line = getattr(e, "lineno", None)
                raise TemplateError(f"the chat template is malformed{f' at line {line}' if line else ''}: {_reason(e)}") from None
        return self._template

    def _render(self, variables: dict[str, Any], chat: list[dict[str, Any]]) -> str:
        template = self._compile()
        budget = _environment().budget = Budget()
        chunks: list[str] = []
        size = 0
        try:
            for chunk in template.generate(variables):
                budget.step()
                chunks.append(chunk)
                size += len(chunk)
                check_chars(size)
        except RequestError:
            raise
        except Exception as e:  # a template may provoke any error of Python's
            raise _explain(e, chat) from None
        return "".join(chunks)


def arguments_as_text(chat: list[dict[str, Any]]) -> None:
    """Write the arguments of every call as JSON text, in place."""
    for message in chat:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)


def _template_kwargs(given: dict[str, Any] | None) -> dict[str, Any]:
    if not given:
        return {}
    name = "chat_template_kwargs"
    if not isinstance(given, dict) or len(given) > MAX_TEMPLATE_KWARGS:
        raise InvalidParameter(f"{name} must be an object of at most {MAX_TEMPLATE_KWARGS} entries", param=name)
    for key in given:
        if not isinstance(key, str) or not key.isidentifier() or key.startswith("_"):
            raise InvalidParameter(f"{name}: {str(key)[:40]!r} is not a variable name", param=name)
        if key in RESERVED:
            raise InvalidParameter(f"{name} must not set {key!r}", param=name)
    return {key: plain(value, f"{name}.{key}") for key, value in given.items()}


def _cut(rendered: str, mark: str) -> str:
    """The text up to the last ``mark``. A template that trims messages (the mark's space is gone) gets its last spaces trimmed likewise."""
    bare = mark.rstrip()
    at = rendered.rfind(bare)
    if at < 0:
        raise TemplateError("the chat template does not print the final message, so it cannot be continued")
    text = rendered[:at] if rendered.startswith(mark, at) else rendered[:at].rstrip()
    return text.replace(mark, "").replace(bare, "")  # of a template that prints the message more than once


def _explain(error: Exception, chat: list[dict[str, Any]]) -> TemplateError:
    from octavo.text.sandbox import Refused

    line, index = _locate(error, chat)
    message = "" if index is None else f"message {index} (role {chat[index]['role'][:40]!r})"
    at = "" if line is None else f" (line {line})"
    param = "messages" if index is None else f"messages[{index}]"
    if isinstance(error, Refused):
        return TemplateError(f"the chat template refused {message or 'the messages'}: {_reason(error)}", param=param)
    on = f" on {message}" if message else ""
    if isinstance(error, LimitExceeded):
        return TemplateError(f"the chat template asks for too much{at}{on}: {_reason(error)}")
    return TemplateError(f"the chat template failed{at}{on}: {_reason(error)}", param=param)


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "..."


def _locate(error: Exception, chat: list[dict[str, Any]]) -> tuple[int | None, int | None]:
    """(template line, index of the message at hand) from the traceback, whose template frames Jinja has rewritten to template lines."""
    places = {id(message): i for i, message in enumerate(chat)}
    line = index = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
            found = [places[id(value)] for value in trace.tb_frame.f_locals.values() if id(value) in places]
            index = found[-1] if found else index
        trace = trace.tb_next
    return line, index
