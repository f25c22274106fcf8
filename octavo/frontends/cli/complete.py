"""``octavo complete``."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from octavo.frontends.cli.console import say

if TYPE_CHECKING:
    from octavo.frontends.cli.talk import Talk


def run_complete(talk: Talk, prompt: str, params: dict[str, Any]) -> None:
    """Print the continuation of ``prompt``. Ctrl-C stops it; what was printed stays."""
    with closing(talk):
        if prompt == "-":
            prompt = sys.stdin.read()
        pieces = talk.complete(prompt, params)
        try:
            for piece in pieces:
                print(piece, end="", flush=True)
            print()
        except KeyboardInterrupt:
            print()
            say("stopped")
            sys.exit(130)
        finally:
            pieces.close()  # type: ignore[attr-defined]
