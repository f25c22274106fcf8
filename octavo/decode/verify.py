"""Verification of draft tokens by equality.

The target model samples at every draft position with the noise that position would have had anyway. A draft token is right exactly if it equals
that sample, so the accepted tokens are those that decoding one by one would have given, at any temperature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def verify(samples: Sequence[int], draft: Sequence[int]) -> list[int]:
    """The tokens a row gains: samples up to and including the first that differs from the draft.

    ``samples[i]`` was drawn given ``draft[:i]``, so there is one more sample than draft tokens. With no draft the one sample comes back.
    A sample of -1 (no token could be chosen) ends the list where it stands.
    """
    if len(samples) != len(draft) + 1:
        raise ValueError(f"{len(draft)} draft tokens need {len(draft) + 1} samples, got {len(samples)}")
    matches = 0
    while matches < len(draft) and samples[matches] == draft[matches]:
        matches += 1
    return list(samples[: matches + 1])
