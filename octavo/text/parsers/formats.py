"""The formats as data: which markers a model family writes around its thoughts and tool calls, and how a template tells them apart.

Sources: the chat templates and model cards that the families publish; harmony is OpenAI's response format of gpt-oss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from octavo.errors import ConfigError
from octavo.text.parsers.calls import Either, Envelope, Header, Pythonic, Tagged

if TYPE_CHECKING:
    from octavo.text.parsers.calls import Body

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Thoughts between ``open`` and ``close``. ``implicit``: they begin the reply even if neither prompt nor reply opens them."""

    name: str
    open: str
    close: str
    implicit: bool = False


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a call is written where it is enforced: ``begin``, its JSON arguments, ``end``. NAME stands for the function's name.

    ``separator`` between calls, ``section`` before the first, ``section_end`` after the last. ``once``: two calls cannot be written.
    ``needs``: a token that the vocabulary must have for this spelling.
    """

    begin: str
    end: str = ""
    separator: str = ""
    section: str = ""
    section_end: str = ""
    once: bool = False
    needs: str = ""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Calls as ``begin body end``; several may stand in a section, which ``section`` opens and ``section_end`` closes.

    ``bare``: how a body begins that no marker precedes; it counts only where a reply begins or a call has ended, and for known tools.
    ``fence``: what may stand around bare calls, as the reply's first and last text. ``separators`` may stand between two calls.
    ``interrupts``: a call ends thoughts that were not closed.
    ``spellings``: how calls are enforced, the preferred way first; empty: they cannot be.
    ``ids``: "call" (call_ and 24 hexadecimal digits), "short" (nine letters and digits, all that Mistral's templates take), "own" (the model's).
    """

    name: str
    body: Body
    begin: str = ""
    end: str = ""
    section: str = ""
    section_end: str = ""
    separators: tuple[str, ...] = ()
    bare: str = ""
    fence: tuple[str, str] = ("", "")
    interrupts: bool = False
    ids: str = "call"
    spellings: tuple[Spelling, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Every marker that may be a special token."""
        inner = getattr(self.body, "other", self.body)
        more = (*inner.ends, *inner.before, inner.id_mark, *inner.after, *inner.tail) if isinstance(inner, Header) else ()
        return tuple(m for m in (self.begin, self.end, self.section, self.section_end, *more) if m)


@dataclass(frozen=True, slots=True)
class ChannelFormat:
    """Messages with headers: ``start role channel NAME to=RECIPIENT constrain json message TEXT end``. It carries thoughts, content and calls."""

    name: str = "harmony"
    start: str = "<|start|>"
    channel: str = "<|channel|>"
    constrain: str = "<|constrain|>"
    message: str = "<|message|>"
    ends: tuple[str, ...] = ("<|end|>", "<|call|>", "<|return|>")
    thoughts: str = "analysis"
    functions: str = "functions."

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.start, self.channel, self.constrain, self.message, *self.ends)


HARMONY = ChannelFormat()

_DEEPSEEK_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK: dict[str, Any] = {
    "begin": "<｜tool▁call▁begin｜>", "end": "<｜tool▁call▁end｜>", "section": _DEEPSEEK_SECTION[0], "section_end": _DEEPSEEK_SECTION[1],
    "interrupts": True,
}  # fmt: skip


def _function_tags(begin: str, end: str) -> dict[str, Any]:
    tags = Tagged("<parameter=", ">", "</parameter>", name_open="<function=", name_ends=(">",), close="</function>", end=end)
    return {"body": tags, "begin": begin, "end": end}


TOOL_FORMATS: dict[str, ToolFormat | ChannelFormat] = {
    f.name: f
    for f in (
        ToolFormat(
            "hermes", Envelope(), "<tool_call>", "</tool_call>", bare="{", fence=("```json", "```"),  # bare and fenced: Qwen2.5-Coder
            spellings=(Spelling('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", "\n"),),
        ),
        ToolFormat(
            "llama3_json", Envelope(), separators=(";",), section="<|python_tag|>", bare="{",
            spellings=(Spelling('{"name": "NAME", "parameters": ', "}", "; "),),
        ),
        ToolFormat("pythonic", Pythonic(), section="<|python_tag|>", bare="["),
        ToolFormat("llama4_pythonic", Pythonic(), section="<|python_start|>", section_end="<|python_end|>", bare="["),
        ToolFormat(
            "mistral", Either("[{", Envelope(), Header(ends=("[ARGS]",), after=("[ARGS]",), id_mark="[CALL_ID]")), "[TOOL_CALLS]",
            interrupts=True, ids="short",
            spellings=(
                Spelling("[TOOL_CALLS]NAME[ARGS]", needs="[ARGS]"),
                Spelling('[TOOL_CALLS] [{"name": "NAME", "arguments": ', "}]", needs="[TOOL_CALLS]"),
            ),
        ),
        ToolFormat(
            "deepseek_v3", Header(before=("function<｜tool▁sep｜>",), ends=("\n",), after=("```json",), tail=("```",)),
            spellings=(Spelling("<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n", "\n```<｜tool▁call▁end｜>", "\n", *_DEEPSEEK_SECTION),),
            **_DEEPSEEK,
        ),
        ToolFormat(
            "deepseek_v31", Header(ends=("<｜tool▁sep｜>",)),
            spellings=(Spelling("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "", *_DEEPSEEK_SECTION),),
            **_DEEPSEEK,
        ),
        HARMONY,
        ToolFormat(
            "glm45",
            Tagged(
                name_ends=("\n",), key_open="<arg_key>", key_close="</arg_key>", value_open="<arg_value>", value_close="</arg_value>",
                close="</tool_call>", end="</tool_call>", trim=False,
            ),
            "<tool_call>", "</tool_call>",
        ),
        ToolFormat(
            "kimi_k2", Header(ends=("<|tool_call_argument_begin|>",), prefix="functions.", own_id=True), "<|tool_call_begin|>", "<|tool_call_end|>",
            "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", interrupts=True, ids="own",
            spellings=(  # the index in the header counts, which a grammar cannot
                Spelling(
                    "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>", "<|tool_call_end|>", "", "<|tool_calls_section_begin|>",
                    "<|tool_calls_section_end|>", once=True,
                ),
            ),
        ),
        ToolFormat(
            "granite", Envelope(), "<|tool_call|>", spellings=(Spelling('{"name": "NAME", "arguments": ', "}", ", ", "<|tool_call|>[", "]"),)
        ),
        ToolFormat(
            "phi4_mini_json", Envelope(), "<|tool_call|>", "<|/tool_call|>",
            spellings=(Spelling('{"name": "NAME", "arguments": ', "}", ", ", "<|tool_call|>[", "]<|/tool_call|>"),),
        ),
        ToolFormat("qwen3_coder", **_function_tags("<tool_call>", "</tool_call>")),
        ToolFormat("seed_oss", **_function_tags("<seed:tool_call>", "</seed:tool_call>")),
        ToolFormat(
            "minimax_m2",
            Tagged(
                name_open='name="', name_ends=('">',), key_open='<parameter name="', key_close='">', value_close="</parameter>",
                close="</invoke>", end="</minimax:tool_call>",
            ),
            "<invoke", "", "<minimax:tool_call>", "</minimax:tool_call>",
        ),
    )
}  # fmt: skip
ALIASES = {
    "granite4": "hermes", "llama4_json": "llama3_json", "qwen3_xml": "qwen3_coder", "qwen": "hermes", "openai": "harmony", "glm47": "glm45",
    "openai_gptoss": "harmony",
}  # fmt: skip

_THINK = ("<think>", "</think>")
REASONING_FORMATS: dict[str, ReasoningFormat | ChannelFormat] = {
    f.name: f
    for f in (
        ReasoningFormat("think", *_THINK),
        ReasoningFormat("deepseek_r1", *_THINK, implicit=True),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
        ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>"),
        ReasoningFormat("kimi_vl", "◁think▷", "◁/think▷"),
        ReasoningFormat("granite", "Here is my thought process:", "Here is my response:"),
        HARMONY,
    )
}
REASONING_ALIASES = {
    "qwen3": "think", "glm45": "think", "kimi_k2": "think", "hunyuan_a13b": "think", "ernie45": "think", "nemotron_v3": "think",
    "minimax_m2": "think", "deepseek_v3": "think", "openai_gptoss": "harmony", "openai": "harmony",
}  # fmt: skip

# Texts that a template must hold, all of them, for a format to be its own; the first that fits counts.
TOOL_FINGERPRINTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "<|message|>", "functions.")),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v3", ("<｜tool▁call▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁call▁begin｜>",)),
    ("seed_oss", ("<seed:tool_call>",)),
    ("minimax_m2", ("minimax:tool_call", "<invoke")),
    ("glm45", ("<arg_key>", "<tool_call>")),
    ("qwen3_coder", ("<function=", "<parameter=", "<tool_call>")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("phi4_mini_json", ("<|tool_call|>", "<|/tool_call|>")),
    ("phi4_mini_json", ("<|tool|>", "<|/tool|>")),
    ("granite", ("<|tool_call|>",)),
    ("llama4_pythonic", ("<|python_start|>",)),
    ("pythonic", ("[func_name1(",)),
    ("llama3_json", ("<|eot_id|>", '"parameters"', "ipython")),
    ("llama3_json", ("<|python_tag|>",)),
    ("hermes", ("<tool_call>",)),
)
REASONING_FINGERPRINTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "<|message|>", "analysis")),
    ("seed_oss", ("<seed:think>",)),
    ("kimi_vl", ("◁/think▷",)),
    ("mistral", ("[THINK]",)),
    ("granite", ("Here is my thought process:",)),
    ("think", ("</think>",)),
    ("think", ("<think>",)),
)

AUTO, NONE = "auto", "none"


def tool_format(name: str, template: str | None) -> ToolFormat | ChannelFormat | None:
    """The format called ``name``; "auto": the one that ``template`` shows; "none": None. Raises ConfigError for an unknown name."""
    return _choose("tool_call_parser", name, template, TOOL_FORMATS, ALIASES, TOOL_FINGERPRINTS)


def reasoning_format(name: str, template: str | None) -> ReasoningFormat | ChannelFormat | None:
    """As :func:`tool_format`, for thoughts."""
    return _choose("reasoning_parser", name, template, REASONING_FORMATS, REASONING_ALIASES, REASONING_FINGERPRINTS)


def _choose(
    option: str, name: str, template: str | None, formats: dict[str, F], aliases: dict[str, str], prints: tuple[tuple[str, tuple[str, ...]], ...]
) -> F | None:
    if name == NONE:
        return None
    if name == AUTO:
        source = template or ""
        return next((formats[found] for found, texts in prints if all(text in source for text in texts)), None)
    chosen = formats.get(aliases.get(name, name))
    if chosen is None:
        raise ConfigError(f"{option} must be auto, none or one of {', '.join(sorted({*formats, *aliases}))}; got {name!r}")
    return chosen
