"""Makes ``octavo._native`` of this interpreter, and of every one it starts, the instrumented build in OCTAVO_SANITIZED. See tests/sanitize.py."""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MODULE = "octavo._native"


class InstrumentedBuild(MetaPathFinder):
    def __init__(self, library: Path) -> None:
        self.library = library

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return spec_from_file_location(name, self.library) if name == MODULE else None


sys.meta_path.insert(0, InstrumentedBuild(Path(os.environ["OCTAVO_SANITIZED"])))
