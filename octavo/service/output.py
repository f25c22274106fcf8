"""Tokens of one sequence to text deltas: detokenizing, stop strings, hidden stop tokens, logprobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.service.types import Logprob, TextDelta
from octavo.text.detokenizer import Detokenizer
from octavo.text.stop import StopChecker

if TYPE_CHECKING:
    from octavo.core.plan import PositionLogprobs, TokenDelta
    from octavo.core.sampling_params import SamplingParams
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
    ``include_stop_str_in_output``.
    """

    def __init__(self, request_id: str, index: int, params: SamplingParams, tokenizer: Tokenizer, prompt_ids: list[int]) -> None:
        self.request_id, self.index = request_id, index
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self._params, self._tokenizer = params, tokenizer
        self._detokenizer = Detokenizer(tokenizer, prompt_ids, params.skip_special_tokens) if params.detokenize else None
        self._checker = StopChecker(params.stop, params.include_stop_str_in_output) if params.stop else None

    def take(self, delta: TokenDelta) -> TextDelta | None:
        """The text delta for a token delta; None when there is nothing to tell yet."""
        pieces, count, matched = self._texts(delta)
        reason, stop_reason = delta.finish_reason, delta.stop_reason
        if stop_reason not in self._params.stop_token_ids:
            stop_reason = None  # the model's own end of sequence; only what the request named is a reason to tell
        if reason is not None and matched is None:
            tail, matched = self._flush()
            pieces.append(tail)
        if matched is not None:
            reason, stop_reason = "stop", matched
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
        )  # fmt: skip

    def end(self, reason: str, error: str | None = None) -> TextDelta:
        """The terminal delta for an end that did not come from the engine; held-back text is not lost."""
        tail, _ = self._flush()
        self.finish_reason = reason
        return TextDelta(self.request_id, self.index, tail, [], finish_reason=reason, error=error)

    def _texts(self, delta: TokenDelta) -> tuple[list[str], int, str | None]:
        """Text pieces, tokens taken, and the stop string that was completed."""
        ids = delta.token_ids
        if self._detokenizer is None:
            return [], len(ids), None
        hide_last = delta.finish_reason == "stop" and not self._params.include_stop_str_in_output
        pieces: list[str] = []
        for position, token in enumerate(ids):
            if hide_last and position == len(ids) - 1:
                break
            text, matched = self._check(self._detokenizer.push([token]), self.num_tokens + position + 1)
            pieces.append(text)
            if matched is not None:
                return pieces, position + 1, matched
        return pieces, len(ids), None

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
