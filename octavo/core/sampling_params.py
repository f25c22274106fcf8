"""Sampling parameters of one request: vLLM's names, one place that checks ranges.

Type and range checks run at construction, so a bad value raises :class:`octavo.errors.InvalidParameter` before anything is allocated.
What depends on the model (vocabulary, context) is checked by :meth:`SamplingParams.check_vocab` and the service's admission.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from octavo.core.structured import StructuredOutputsParams
from octavo.errors import InvalidParameter

GREEDY_EPS = 1e-5  # temperatures below this are greedy
MAX_N = 128
MAX_STOP = 16
MAX_STOP_CHARS = 1_024
MAX_LOGPROBS = 20
MAX_BIAS = 1_024
MAX_TOKEN_LIST = 4_096
MAX_BAD_WORDS = 256


def _number(name: str, value: Any, low: float, high: float, *, low_open: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidParameter(f"{name} must be a number, got {type(value).__name__}", param=name)
    if not math.isfinite(value) or value < low or value > high or (low_open and value == low):
        bounds = f"{'(' if low_open else '['}{low:g}, {high:g}]"
        raise InvalidParameter(f"{name} must be in {bounds}, got {value}", param=name)


def _integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidParameter(f"{name} must be an integer, got {type(value).__name__}", param=name)
    if not low <= value <= high:
        raise InvalidParameter(f"{name} must be between {low:,} and {high:,}, got {value:,}", param=name)


def _strings(name: str, value: Any, limit: int) -> None:
    if not isinstance(value, list) or not all(isinstance(s, str) for s in value):
        raise InvalidParameter(f"{name} must be a string or a list of strings", param=name)
    if len(value) > limit:
        raise InvalidParameter(f"{name} takes at most {limit} strings, got {len(value):,}", param=name)
    for s in value:
        if not s:
            raise InvalidParameter(f"{name} must not hold an empty string", param=name)
        if len(s) > MAX_STOP_CHARS:
            raise InvalidParameter(f"a string in {name} has {len(s):,} characters, the limit is {MAX_STOP_CHARS:,}", param=name)


def _token_ids(name: str, value: Any, limit: int) -> None:
    if not isinstance(value, list):
        raise InvalidParameter(f"{name} must be a list of token ids", param=name)
    if len(value) > limit:
        raise InvalidParameter(f"{name} takes at most {limit:,} token ids, got {len(value):,}", param=name)
    for i in value:
        _integer(name, i, 0, 2**31 - 1)


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens. Defaults are vLLM's, except ``max_tokens``: None means the room left in the context.

    temperature below 1e-5 is greedy. ``top_k`` 0 or -1 is off. ``logprobs=k`` returns the sampled token and the k best, raw
    (before temperature and penalties), as OpenAI does; 0 returns the sampled token alone. ``seed`` None draws one at admission.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    bad_words: list[str] = field(default_factory=list)
    ignore_eos: bool = False
    max_tokens: int | None = None
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: list[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    # Filled by the service from ``bad_words`` (each as token ids); not a user field.
    bad_words_token_ids: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            setattr(self, name, [] if value is None else [value] if isinstance(value, str) else value)
        if self.stop_token_ids is None:
            self.stop_token_ids = []
        if self.logit_bias is None:
            self.logit_bias = {}
        if self.seed == -1:
            self.seed = None
        self._check()

    def _check(self) -> None:
        _integer("n", self.n, 1, MAX_N)
        _number("presence_penalty", self.presence_penalty, -2, 2)
        _number("frequency_penalty", self.frequency_penalty, -2, 2)
        _number("repetition_penalty", self.repetition_penalty, 0, 1e6, low_open=True)
        _number("temperature", self.temperature, 0, 2)
        _number("top_p", self.top_p, 0, 1, low_open=True)
        _integer("top_k", self.top_k, -1, 2**31 - 1)
        _number("min_p", self.min_p, 0, 1)
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**64 - 1)
        _strings("stop", self.stop, MAX_STOP)
        _token_ids("stop_token_ids", self.stop_token_ids, MAX_TOKEN_LIST)
        _strings("bad_words", self.bad_words, MAX_BAD_WORDS)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter(f"min_tokens {self.min_tokens:,} exceeds max_tokens {self.max_tokens:,}", param="min_tokens")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0, MAX_LOGPROBS)
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameter(f"{name} must be true or false", param=name)
        if self.stop and not self.detokenize:
            raise InvalidParameter("stop strings need detokenize=True", param="stop")
        self._check_bias()
        self._check_structured()
        if self.allowed_token_ids is not None:
            _token_ids("allowed_token_ids", self.allowed_token_ids, 2**20)
            if not self.allowed_token_ids:
                raise InvalidParameter("allowed_token_ids must not be empty", param="allowed_token_ids")

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, dict):
            raise InvalidParameter("logit_bias must be a map from token id to bias", param="logit_bias")
        if len(self.logit_bias) > MAX_BIAS:
            raise InvalidParameter(f"logit_bias takes at most {MAX_BIAS:,} entries, got {len(self.logit_bias):,}", param="logit_bias")
        bias: dict[int, float] = {}
        for key, value in self.logit_bias.items():
            try:
                token = int(key)
            except (TypeError, ValueError):
                raise InvalidParameter(f"logit_bias key {str(key)[:40]!r} is not a token id", param="logit_bias") from None
            _integer("logit_bias", token, 0, 2**31 - 1)
            _number("logit_bias", value, -100, 100)
            bias[token] = float(value)
        self.logit_bias = bias

    def _check_structured(self) -> None:
        if isinstance(self.structured_outputs, dict):
            try:
                self.structured_outputs = StructuredOutputsParams(**self.structured_outputs)
            except TypeError as error:
                raise InvalidParameter(f"structured_outputs: {str(error).split(') ')[-1]}", param="structured_outputs") from None
        if self.structured_outputs is None:
            return
        if not isinstance(self.structured_outputs, StructuredOutputsParams):
            raise InvalidParameter("structured_outputs must be StructuredOutputsParams", param="structured_outputs")
        for name in ("ignore_eos", "min_tokens"):
            if getattr(self, name):
                raise InvalidParameter(f"{name} and structured_outputs exclude each other: the grammar says where the text ends", param=name)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_EPS

    def check_vocab(self, vocab_size: int) -> None:
        """Raise if any token id named here lies outside ``[0, vocab_size)``."""
        named = {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": self.logit_bias.keys(),
            "allowed_token_ids": self.allowed_token_ids or (),
        }
        for name, ids in named.items():
            for i in ids:
                if not 0 <= i < vocab_size:
                    raise InvalidParameter(f"{name} holds token id {i:,}, the vocabulary has {vocab_size:,} entries", param=name)

    def clone(self, **changes: Any) -> SamplingParams:
        """A copy with ``changes`` applied (and checked again)."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return SamplingParams(**(values | changes))
