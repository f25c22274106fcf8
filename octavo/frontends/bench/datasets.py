"""Workloads: random prompts, prompts with shared prefixes, and ShareGPT conversations from a file. Same seed, same workload."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Count = Callable[[str], int]

DATASETS = ("random", "sharegpt", "shared-prefix")
IDS, TEXT = "ids", "text"
# Words that are one token with their leading space in the byte-pair vocabularies in use; prompts made as text have about the asked length.
_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part place case week company"
    " system program question work government number night point home water room mother area money story fact month lot right study book eye job"
    " word business issue side kind head house service friend father power hour game line end member law car city community name president team"
)
WORDS = tuple(_WORDS.split(" "))
CHARS_PER_TOKEN = 4
# As vLLM filters ShareGPT: very short turns say nothing, very long ones fit few contexts.
SHORTEST, LONGEST_PROMPT, LONGEST_TOTAL = 4, 1024, 2048


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. ``prompt``: text or token ids; ``prompt_tokens`` its length (an estimate for text)."""

    prompt: str | list[int]
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What to ask for. Lengths in tokens; each is uniform in [length * (1 - range_ratio), length * (1 + range_ratio)].

    ``prefix_len`` tokens precede the random ones, drawn from ``num_prefixes`` fixed prefixes. Random ids lie in [low_id, high_id).
    """

    name: str = "random"
    num_prompts: int = 1000
    input_len: int = 1024
    output_len: int = 128
    range_ratio: float = 0.0
    prefix_len: int = 0
    num_prefixes: int = 1
    path: Path | None = None
    sharegpt_output_len: int | None = None
    seed: int = 0
    form: str = IDS
    low_id: int = 100
    high_id: int = 10_000

    def __post_init__(self) -> None:
        if self.name not in DATASETS:
            raise ConfigError(f"unknown dataset {self.name!r}; choose one of {', '.join(DATASETS)}")
        if self.name == "sharegpt" and self.path is None:
            raise ConfigError("the sharegpt dataset needs --dataset-path FILE.json")
        if self.name == "shared-prefix" and self.prefix_len < 1:
            raise ConfigError("the shared-prefix dataset needs --prefix-len of at least 1")
        if self.form not in (IDS, TEXT):
            raise ConfigError(f"--prompt-format must be {IDS} or {TEXT}, got {self.form!r}")
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"--random-range-ratio must be in [0, 1), got {self.range_ratio:g}")
        for option in ("num_prompts", "input_len", "output_len", "num_prefixes"):
            if getattr(self, option) < 1:
                raise ConfigError(f"{option} must be at least 1, got {getattr(self, option)}")
        if not 0 <= self.low_id < self.high_id:
            raise ConfigError(f"token ids must lie in a range that is not empty, got {self.low_id} to {self.high_id}")


def make_samples(workload: Workload, count: Count | None = None) -> list[Sample]:
    """The requests of ``workload``. ``count`` gives the tokens of a text; without it four characters are one. Raises ConfigError."""
    rng = random.Random(workload.seed)
    if workload.name == "sharegpt":
        return sharegpt(workload, count or estimate, rng)
    prefix_len = workload.prefix_len if workload.name == "shared-prefix" else 0
    prefixes = [_tokens(workload, prefix_len, rng) for _ in range(workload.num_prefixes)]
    return [_random_sample(workload, prefixes, rng) for _ in range(workload.num_prompts)]


def estimate(text: str) -> int:
    return max(1, round(len(text) / CHARS_PER_TOKEN))


def _random_sample(workload: Workload, prefixes: list[list[Any]], rng: random.Random) -> Sample:
    units = [*rng.choice(prefixes), *_tokens(workload, _length(workload.input_len, workload.range_ratio, rng), rng)]
    prompt = units if workload.form == IDS else " ".join(units)
    return Sample(prompt, len(units), _length(workload.output_len, workload.range_ratio, rng))


def _length(mean: int, ratio: float, rng: random.Random) -> int:
    return max(1, rng.randint(round(mean * (1 - ratio)), round(mean * (1 + ratio))))


def _tokens(workload: Workload, count: int, rng: random.Random) -> list[Any]:
    """``count`` ids, or as many words."""
    if workload.form == TEXT:
        return [rng.choice(WORDS) for _ in range(count)]
    return [rng.randrange(workload.low_id, workload.high_id) for _ in range(count)]


def sharegpt(workload: Workload, count: Count, rng: random.Random) -> list[Sample]:
    """The first question and answer of conversations, in random order. Raises ConfigError if the file holds too few that fit."""
    samples: list[Sample] = []
    for question, answer in _shuffled(_turns(workload.path), rng):
        prompt_tokens, output_tokens = count(question), workload.sharegpt_output_len or count(answer)
        if prompt_tokens < SHORTEST or output_tokens < SHORTEST or prompt_tokens > LONGEST_PROMPT or prompt_tokens + output_tokens > LONGEST_TOTAL:
            continue
        samples.append(Sample(question, prompt_tokens, output_tokens))
        if len(samples) == workload.num_prompts:
            return samples
    raise ConfigError(f"{workload.path} has {len(samples):,} conversations of a fitting length, --num-prompts asks for {workload.num_prompts:,}")


def _shuffled(turns: list[tuple[str, str]], rng: random.Random) -> list[tuple[str, str]]:
    rng.shuffle(turns)
    return turns


def _turns(path: Path | None) -> list[tuple[str, str]]:
    assert path is not None
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    try:
        conversations = [e.get("conversations") or e.get("conversation") or [] for e in entries]
        return [(str(c[0]["value"]), str(c[1]["value"])) for c in conversations if len(c) >= 2]
    except (AttributeError, KeyError, TypeError):
        raise ConfigError(f'{path} is not ShareGPT: it must be a list of {{"conversations": [{{"from", "value"}}, ...]}}') from None
