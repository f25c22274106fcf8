"""What every engine is asked, and the formulas that turn times into tokens a second. Standard library only: it runs in each peer's interpreter.

``run(batch, prompt, new)`` is the time to take ``batch`` random prompts of ``prompt`` token ids and generate ``new`` tokens for each, greedily, end
tokens ignored. Then, with everything around the model included (prefills are the median of three runs):

    prefill_512      512 / run(1, 512, 1)
    prefill_16x128   16 * 128 / run(16, 128, 1)
    decode_B         B * 64 / (run(B, 128, 65) - run(B, 128, 1))
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

BATCHES = (1, 8, 16, 32)
LOW_ID, HIGH_ID = 100, 40_000
PROMPT, NEW = 128, 64


def prompt_ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(LOW_ID, HIGH_ID) for _ in range(count)]


def figures(run: Callable[[int, int, int], float], *, batches: tuple[int, ...] = BATCHES, short: bool = False) -> dict[str, float]:
    """Tokens a second by name. ``short``: an eighth of the new tokens, for trying the scripts out."""
    new = NEW // 8 if short else NEW

    def settled(batch: int, prompt: int) -> float:
        """Time of a prefill: the median of three, since the first of a size pays for memory that nobody had touched before."""
        return sorted(run(batch, prompt, 1) for _ in range(3))[1]

    run(min(2, max(batches)), 32, 8)  # warm up
    found = {"prefill_512": 512 / settled(1, 512)}
    if max(batches) >= 16:
        found["prefill_16x128"] = 16 * PROMPT / settled(16, PROMPT)
    for batch in batches:
        first = settled(batch, PROMPT)
        found[f"decode_{batch}"] = batch * new / (run(batch, PROMPT, new + 1) - first)
    return found


def replace_block(text: str, name: str, body: str) -> str:
    """``text`` with ``body`` between the markers of ``name``; they are added at the end if they are not there."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    made = f"{begin}\n{body}\n{end}"
    if begin not in text or end not in text:
        return text.rstrip("\n") + f"\n\n{made}\n"
    head, rest = text.split(begin, 1)
    return head + made + rest.split(end, 1)[1]


class Peer(Protocol):
    """Another engine with a model loaded. ``instructions``: its own account of the sets it was built for, empty where it chooses at run time."""

    instructions: str

    def run(self, batch: int, prompt: int, new: int) -> float: ...


def peer_main(name: str, version: str, load: Callable[[str, int], Peer], more: Callable[[Peer], dict[str, float]] = lambda peer: {}) -> None:
    """A peer's command: load the model with so many threads, measure, print one JSON object. ``more``: figures that only this peer can give."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    start = time.perf_counter()
    peer = load(options.model, options.threads)
    ready = time.perf_counter() - start
    found = figures(peer.run, short=options.short) | more(peer)
    print(json.dumps({"name": name, "version": version, "load_s": ready, "instructions": peer.instructions, "figures": found}))
