from __future__ import annotations

from tests.service.conftest import info, text

__all__ = ["info", "text"]
