"""What a request does to its logits before sampling: masks, biases and penalties, in vLLM's order.

    1. allowed_token_ids: everything else is forbidden      2. bad_words: the last token of a sequence whose beginning ends the output
    3. min_tokens: stop and end-of-sequence ids             4. logit_bias is added
    5. repetition_penalty over prompt and output            6. frequency_penalty, then presence_penalty over the output
    7. the grammar's mask

A forbidden token gets -inf, which no later step changes, so the masks could come in any order; biases and penalties could not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from octavo.core.sampling_params import SamplingParams

    Row = NDArray[np.float32]

_FORBIDDEN = np.float32(-np.inf)
# float32 [256, 8]: the most that the logits of eight tokens may be, for each byte of a mask.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_BOUNDS = np.where(_BITS == 1, np.float32(np.inf), _FORBIDDEN).astype(np.float32)


class TokenTally:
    """Distinct tokens and how often the output holds each: parallel arrays that grow, so a step costs what changed."""

    __slots__ = ("_counts", "_ids", "_num_prompt", "_places")

    def __init__(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        """Prompt tokens enter first, with count 0."""
        distinct = list(dict.fromkeys(prompt_ids))
        self._num_prompt = len(distinct)
        self._places = {token: place for place, token in enumerate(distinct)}
        size = max(64, 2 * len(distinct))
        self._ids, self._counts = np.zeros(size, np.int64), np.zeros(size, np.float32)
        self._ids[: len(distinct)] = distinct
        self.add(output_ids, 1)

    def add(self, token_ids: Iterable[int], by: int) -> None:
        """Count tokens once more (``by`` 1), or take that back (-1; their entries stay, at a lower count)."""
        for token in token_ids:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._ids):
                self._ids, self._counts = np.resize(self._ids, 2 * place), np.resize(self._counts, 2 * place)
                self._counts[place:] = 0
            self._ids[place] = token
            self._counts[place] += by

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Occurrences in the output, aligned with :attr:`ids`."""
        return self._counts[: len(self._places)]

    def occurs(self) -> NDArray[np.bool_]:
        """Whether prompt or output holds each token, aligned with :attr:`ids`; false for what only a rejected draft held."""
        present: NDArray[np.bool_] = self.counts > 0
        present[: self._num_prompt] = True
        return present


class LogitRules:
    """The rules of one sequence and the state they need, which follows from (params, token ids, prompt length) alone."""

    __slots__ = ("_allowed", "_bad_words", "_bias_ids", "_bias_values", "_num_output", "_params", "_stops", "_tail", "_tail_size", "_tally")

    def __init__(self, params: SamplingParams, token_ids: Sequence[int], prompt_len: int, eos_token_ids: Sequence[int], vocab_size: int) -> None:
        """Raises InvalidParameter if ``params`` names a token beyond the vocabulary."""
        params.check_vocab(vocab_size)
        self._bad_words = [word for word in params.bad_words_token_ids if word]
        for word in self._bad_words:
            if not all(0 <= token < vocab_size for token in word):
                raise InvalidParameter(f"bad_words holds token id {max(word):,}, the vocabulary has {vocab_size:,} entries", param="bad_words")
        self._params = params
        self._num_output = len(token_ids) - prompt_len
        self._allowed = None if params.allowed_token_ids is None else np.unique(np.asarray(params.allowed_token_ids, np.int64))
        # End-of-sequence ids count even under ignore_eos: min_tokens asks for that many tokens of text.
        stops = {token for token in (*params.stop_token_ids, *eos_token_ids) if 0 <= token < vocab_size}
        self._stops = np.array(sorted(stops), np.int64)
        self._bias_ids = np.array(list(params.logit_bias), np.int64)
        self._bias_values = np.array(list(params.logit_bias.values()), np.float32)
        self._tail_size = max((len(word) - 1 for word in self._bad_words), default=0)
        output = token_ids[prompt_len:]
        self._tail = list(output[len(output) - min(self._tail_size, len(output)) :])
        self._tally: TokenTally | None = None
        if _penalizes(params):
            self._tally = TokenTally(token_ids[:prompt_len] if params.repetition_penalty != 1.0 else (), output)

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        """Whether any rule but the grammar's can change a logit."""
        return bool(
            params.allowed_token_ids is not None or params.bad_words_token_ids or params.min_tokens or params.logit_bias or _penalizes(params)
        )

    def append(self, token_ids: Sequence[int]) -> None:
        """The output grew."""
        self._num_output += len(token_ids)
        if self._tail_size:
            self._tail = (self._tail + list(token_ids))[-self._tail_size :]
        if self._tally is not None:
            self._tally.add(token_ids, 1)

    def apply(self, row: Row, drafted: Sequence[int] = ()) -> None:
        """Change ``row`` (float32 [V]) in place, as if the output went on with ``drafted``."""
        params = self._params
        if self._allowed is not None:
            kept = row[self._allowed]
            row.fill(_FORBIDDEN)
            row[self._allowed] = kept
        if self._bad_words:
            self._forbid_bad_words(row, self._tail + list(drafted))
        if self._num_output + len(drafted) < params.min_tokens:
            row[self._stops] = _FORBIDDEN
        if len(self._bias_ids):
            row[self._bias_ids] += self._bias_values
        if self._tally is not None:
            self._tally.add(drafted, 1)
            _penalize(row, self._tally, params)
            self._tally.add(drafted, -1)

    def _forbid_bad_words(self, row: Row, output: list[int]) -> None:
        for word in self._bad_words:
            beginning = len(word) - 1
            if beginning <= len(output) and output[len(output) - beginning :] == word[:-1]:
                row[word[-1]] = _FORBIDDEN


def _penalizes(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


def _penalize(row: Row, tally: TokenTally, params: SamplingParams) -> None:
    """Repetition (Keskar et al., "CTRL", 2019), then frequency and presence (OpenAI), all in float32."""
    ids, counts = tally.ids, tally.counts
    values = row[ids]
    if params.repetition_penalty != 1.0:
        penalty = np.float32(params.repetition_penalty)
        values = np.where(tally.occurs(), np.where(values > 0, values / penalty, values * penalty), values)
    values -= np.float32(params.frequency_penalty) * counts
    values -= np.float32(params.presence_penalty) * (counts > 0)
    row[ids] = values


def forbid_by_mask(row: Row, mask: NDArray[np.uint32]) -> None:
    """Give -inf to tokens whose bit is clear: bit t % 32 of ``mask[t // 32]`` (uint32 [ceil(V / 32)]) belongs to token t.

    What is not a number stays so: it is never chosen either.
    """
    bounds = _BOUNDS.take(mask.astype("<u4", copy=False).view(np.uint8), axis=0).reshape(-1)
    np.minimum(row, bounds[: len(row)], out=row)
