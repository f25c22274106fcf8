"""Where the ``octavo`` command begins. For ``serve`` the engine process starts before anything else is imported, because its imports take longest."""

from __future__ import annotations

import sys

HELP = {"--help", "-h"}


def main() -> None:
    """Entry point of the ``octavo`` command."""
    waiting = None
    if sys.argv[1:2] == ["serve"] and HELP.isdisjoint(sys.argv):
        from octavo.service.launch import start_waiting

        waiting = start_waiting()
    try:
        from octavo.frontends.cli.main import run

        run(waiting)
    finally:
        if waiting is not None:
            waiting.kill()
