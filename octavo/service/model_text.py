"""The text side of a model: tokenizer, chat template, end tokens, default parameters. Read from the checkpoint without its tensors."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from octavo.checkpoint.open import open_checkpoint
from octavo.errors import RequestError
from octavo.text.chat import ChatTemplate
from octavo.text.parsers.formats import AUTO, ReasoningFormat, reasoning_format, tool_format
from octavo.text.parsers.reply import ReplyFormat
from octavo.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from octavo.config import EngineConfig
    from octavo.text.parsers.formats import ChannelFormat
    from octavo.text.tokenizer import Tokenizer

# Keys of generation_config.json that change a request's defaults, and the field each one sets.
GENERATION_DEFAULTS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True, slots=True)
class ModelText:
    """What a service needs to know about a model's text."""

    tokenizer: Tokenizer
    template: ChatTemplate
    eos_token_ids: tuple[int, ...]
    default_params: Mapping[str, Any] = field(default_factory=dict)
    think_ids: tuple[int, int] | None = None  # tokens around a reasoning model's thoughts
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO

    def chat_template(self, source: str | None = None) -> ChatTemplate:
        """The model's template, or one made from ``source``."""
        return self.template if source is None else ChatTemplate(source, self.tokenizer)

    def reply_format(self, template: ChatTemplate) -> ReplyFormat:
        """How replies to prompts of ``template`` write thoughts and tool calls. Raises ConfigError for an unknown parser."""
        return ReplyFormat(
            tool_format=tool_format(self.tool_call_parser, template.source), reasoning_format=reasoning_format(self.reasoning_parser, template.source)
        )


def load_model_text(config: EngineConfig) -> ModelText:
    """Open the checkpoint of ``config.model`` (a path) and build its tokenizer and template. Raises CheckpointError."""
    checkpoint = open_checkpoint(config.model)
    tokenizer = load_tokenizer(checkpoint)
    template = ChatTemplate(config.chat_template or checkpoint.chat_template, tokenizer)
    with suppress(RequestError):  # compiled now, while the engine loads, not by the first request; what is wrong with it concerns chats alone
        template.render([{"role": "user", "content": "Hello"}])
    settings = checkpoint.generation_config
    defaults = {name: settings[key] for key, name in GENERATION_DEFAULTS.items() if settings.get(key) is not None}
    parsers = config.tool_call_parser, config.reasoning_parser
    text = ModelText(tokenizer, template, tuple(tokenizer.eos_token_ids), defaults, None, *parsers)
    return replace(text, think_ids=think_ids(tokenizer, text.reply_format(template).reasoning_format))


def think_ids(tokenizer: Tokenizer, form: ReasoningFormat | ChannelFormat | None) -> tuple[int, int] | None:
    """Token ids of the markers around thoughts, if the vocabulary has such tokens."""
    if not isinstance(form, ReasoningFormat):
        return None
    opening, closing = tokenizer.token_to_id(form.open), tokenizer.token_to_id(form.close)
    return None if opening is None or closing is None else (opening, closing)
