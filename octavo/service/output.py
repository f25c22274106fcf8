"""Tokens of one sequence to text deltas: detokenizing, stop strings, hidden stop tokens, logprobs, the parts of a chat reply."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.service.types import Logprob, TextDelta
from octavo.text.detokenizer import Detokenizer
from octavo.text.parsers.reply import ReplyDelta, ReplyParser
from octavo.text.stop import StopChecker

if TYPE_CHECKING:
    from octavo.core.plan import PositionLogprobs, TokenDelta
    from octavo.core.sampling_params import SamplingParams
    from octavo.text.parsers.reply import ReplyFormat
    from octavo.text.tokenizer import Tokenizer


def decode_logprobs(position: PositionLogprobs, tokenizer: Tokenizer) -> dict[int, Logprob]:
    """Token id to :class:`Logprob`, the token itself first, then the best ones in order (one of them may be the token itself)."""
    decoded: dict[int, Logprob] = {}
    for token, value, rank in zip(position.token_ids, position.logprobs, position.ranks, strict=True):
        if token not in decoded:
            decoded[token] = Logprob(value, rank, tokenizer.token_text(token), tokenizer.token_bytes(token))
    return decoded


class SequenceOutput:
    """Text state of one sequence. After its end (``finish_reason`` set) further deltas are not to be given.

    A stop string may not begin in the text of the first ``min_tokens`` tokens. ``token_ids`` of a delta end with the token that completed
    the stop string, so usage and logprobs count up to it and no further. The text of a stop token is hidden unless
    ``include_stop_str_in_output``. ``reply``: how the reply is told apart into parts; its markers are kept in the text even where they are
    special tokens, and a reply that is to hold a single tool call ends with it.
    """

    def __init__(
        self, request_id: str, index: int, params: SamplingParams, tokenizer: Tokenizer, prompt_ids: list[int], reply: ReplyFormat | None = None
    ) -> None:
        self.request_id, self.index = request_id, index
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self._params, self._tokenizer = params, tokenizer
        self._parser = None if reply is None or not params.detokenize else ReplyParser(replace(reply, id_seed=f"{reply.id_seed}/{index}"))
        keep = frozenset(i for m in (reply.markers if reply is not None else ()) if (i := tokenizer.token_to_id(m)) is not None)
        self._detokenizer = Detokenizer(tokenizer, prompt_ids, params.skip_special_tokens, keep) if params.detokenize else None
        self._checker = StopChecker(params.stop, params.include_stop_str_in_output) if params.stop else None

    def take(self, delta: TokenDelta) -> TextDelta | None:
        """The text delta for a token delta; None when there is nothing to tell yet."""
        parts = None if self._parser is None else ReplyDelta()
        pieces, count, matched, thoughts = self._texts(delta, parts)
        reason, stop_reason = delta.finish_reason, delta.stop_reason
        if stop_reason not in self._params.stop_token_ids:
            stop_reason = None  # the model's own end of sequence; only what the request named is a reason to tell
        if reason is not None and matched is None:
            tail, matched = self._flush()
            pieces.append(tail)
            self._tell(tail, parts)
        if matched is not None:
            reason, stop_reason = "stop", matched
        elif self._parser is not None and self._parser.done:
            reason, stop_reason = "stop", None
        if reason is not None and self._parser is not None and parts is not None:
            parts.add(self._parser.finish())
        self.num_tokens += count
        self.finish_reason = reason
        text = "".join(pieces)
        if not (count or text or reason):
            return None
        logprobs = None
        if delta.logprobs is not None:
            logprobs = [decode_logprobs(p, self._tokenizer) for p in delta.logprobs[:count]]
        return TextDelta(
            self.request_id, self.index, text, delta.token_ids[:count], logprobs,
            finish_reason=reason, stop_reason=stop_reason, error=delta.error if reason == "error" else None,
            parts=parts, reasoning_tokens=thoughts,
        )  # fmt: skip

    def end(self, reason: str, error: str | None = None) -> TextDelta:
        """The terminal delta for an end that did not come from the engine; held-back text is not lost."""
        tail, _ = self._flush()
        self.finish_reason = reason
        parts = None
        if self._parser is not None:
            parts = self._parser.push(tail)
            parts.add(self._parser.finish())
        return TextDelta(self.request_id, self.index, tail, [], finish_reason=reason, error=error, parts=parts)

    def _tell(self, text: str, parts: ReplyDelta | None) -> int:
        """Text to the parser, what it finds to ``parts``. 1 if the text lies within thoughts, else 0."""
        if self._parser is None or parts is None:
            return 0
        before = self._parser.thinking
        parts.add(self._parser.push(text))
        return int(before and self._parser.thinking)

    def _texts(self, delta: TokenDelta, parts: ReplyDelta | None) -> tuple[list[str], int, str | None, int]:
        """Text pieces, tokens taken, the stop string that was completed, and how many tokens were thoughts."""
        ids = delta.token_ids
        thoughts = 0
        if self._detokenizer is None:
            return [], len(ids), None, 0
        hide_last = delta.finish_reason == "stop" and not self._params.include_stop_str_in_output
        pieces: list[str] = []
        for position, token in enumerate(ids):
            if hide_last and position == len(ids) - 1:
                break
            text, matched = self._check(self._detokenizer.push([token]), self.num_tokens + position + 1)
            pieces.append(text)
            thoughts += self._tell(text, parts)
            if matched is not None or (self._parser is not None and self._parser.done):
                return pieces, position + 1, matched, thoughts
        return pieces, len(ids), None, thoughts

    def _check(self, text: str, ordinal: int) -> tuple[str, str | None]:
        """``text`` through the stop checker; ``ordinal`` is the 1-based number of the token it came with."""
        if self._checker is None or ordinal <= self._params.min_tokens or not text:
            return text, None
        return self._checker.push(text)

    def _flush(self) -> tuple[str, str | None]:
        """What detokenizer and stop checker still hold."""
        if self._detokenizer is None:
            return "", None
        text, matched = self._check(self._detokenizer.finish(), self.num_tokens + 1)
        if matched is None and self._checker is not None:
            text += self._checker.finish()
        return text, matched
