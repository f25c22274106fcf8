"""Sizes and counts as people write them, and back."""

from __future__ import annotations

import re

from octavo.errors import ConfigError

# As vLLM reads them: a small letter is decimal, a capital one binary; "B" and "iB" say so for bytes.
_FACTORS = {
    "": 1,
    **{letter: 1000**i for i, letter in enumerate("kmgt", 1)},
    **{letter: 1024**i for i, letter in enumerate("KMGT", 1)},
    **{f"{letter}B": 1000**i for i, letter in enumerate("KMGT", 1)},
    **{f"{letter}iB": 1024**i for i, letter in enumerate("KMGT", 1)},
    "B": 1,
    "kB": 1000,
}


def parse_size(name: str, value: str) -> int:
    """"4096", "8k" (8,000), "8K" (8,192), "2GiB", "1.5GB" ... as an integer. Raises ConfigError that names the option."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    factor = _FACTORS.get(match[2]) if match else None
    if match is None or factor is None:
        raise ConfigError(f"{name}: cannot read {value!r}; write a number such as 4096, 8k (8,000), 8K (8,192), 512MiB or 2GiB")
    number = float(match[1]) * factor if "." in match[1] else int(match[1]) * factor
    if number != int(number):
        raise ConfigError(f"{name}: {value!r} is not a whole number")
    return int(number)


def show_bytes(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError
