"""Starting the engine process. Standard library only, so that a command can call it first and import everything else meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.config import EngineConfig

MAX_ADDRESS = 100  # a socket path may hold 107 bytes on Linux and 103 on macOS
# The child imports from where the parent does, and never from its working directory unless the parent does so too.
BOOT = "import sys; sys.path[:] = sys.argv.pop().split({sep!r}); from octavo.engine.process import main; main(int(sys.argv.pop()))"


@dataclass(slots=True)
class EngineHandle:
    """A started engine process. ``address`` is where it expects its client; the folder goes away once the two are connected."""

    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]
    address: str
    started: float  # time.monotonic()

    def order(self, config: EngineConfig) -> None:
        """Tell a waiting process what to load. To be called once."""
        line = json.dumps({"config": asdict(config), "address": self.address}).encode()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it ended already; the client learns that from its exit
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()

    def remove_folder(self) -> None:
        """An established connection outlives its path. May be called twice."""
        self.folder.cleanup()

    def close(self) -> None:
        """Clean up after the process has ended."""
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        self.remove_folder()

    def kill(self) -> None:
        """End the process now and clean up. For a handle that no client has taken over."""
        self.process.kill()
        self.process.wait()
        self.close()


def spawn_engine(config: EngineConfig) -> EngineHandle:
    """Start an engine process for ``config`` and return at once; pass the handle to a client, which connects to it.

    Call it from a thread that lives as long as the engine should: Linux ends the child when the thread that started it ends. The child also ends
    when its standard input closes, on any system. Its standard output and error are this process's standard error.
    """
    handle = spawn_waiting()
    handle.order(config)
    return handle


def spawn_waiting() -> EngineHandle:
    """Start an engine process before it is known what it shall load; it imports what it needs meanwhile. Give it its ``order``, or ``kill`` it."""
    folder = tempfile.TemporaryDirectory(prefix="octavo-", ignore_cleanup_errors=True)  # created with mode 0700
    if len(folder.name) > MAX_ADDRESS - len("/engine"):
        folder.cleanup()
        folder = tempfile.TemporaryDirectory(prefix="octavo-", dir="/tmp", ignore_cleanup_errors=True)
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", BOOT.format(sep=os.pathsep), str(os.getpid()), paths],
            stdin=subprocess.PIPE,
            stdout=2,  # standard output belongs to the parent's own answers
        )
    except OSError:
        folder.cleanup()
        raise
    return EngineHandle(process, folder, f"ipc://{folder.name}/engine", time.monotonic())
