"""Configuration values with their types checked. A missing or senseless key is a FormatError that names it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar, overload

from octavo.errors import FormatError

T = TypeVar("T")
_REQUIRED: Any = object()  # a default that means there is none
_LARGEST = (1 << 31) - 1  # no size in a configuration exceeds it


class ModelConfig:
    """Reads ``config.json`` style mappings. Null counts as absent; so does a missing key, which is an error unless there is a default."""

    def __init__(self, values: Mapping[str, Any], place: str = "") -> None:
        self.values = values
        self.place = place

    @overload
    def integer(self, key: str, default: None, most: int = ...) -> int | None: ...
    @overload
    def integer(self, key: str, default: int = ..., most: int = ...) -> int: ...
    def integer(self, key: str, default: int | None = _REQUIRED, most: int = _LARGEST) -> int | None:
        """A whole number from 1 to ``most``."""
        value = self._get(key, default, (int, float))
        if value is not None and not (1 <= value <= most and value == int(value)):
            raise self._wrong(key, value, f"a whole number from 1 to {most}")
        return value if value is None else int(value)

    @overload
    def positive(self, key: str, default: None) -> float | None: ...
    @overload
    def positive(self, key: str, default: float = ...) -> float: ...
    def positive(self, key: str, default: float | None = _REQUIRED) -> float | None:
        value = self._get(key, default, (int, float))
        if value is not None and not (0 < value < math.inf):
            raise self._wrong(key, value, "a positive number")
        return value if value is None else float(value)

    def positives(self, key: str) -> tuple[float, ...]:
        """A list of positive numbers."""
        values = self._get(key, _REQUIRED, (list,))
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise self._wrong(key, value, "positive numbers")
        return tuple(map(float, values))

    def flags(self, key: str, length: int) -> list[bool] | None:
        """A list of ``length`` truth values (or 0 and 1), or None if there is none."""
        values = self._get(key, None, (list,))
        if values is not None and (len(values) != length or not all(value in (0, 1) for value in values)):
            raise self._wrong(key, values, f"a list of {length} truth values")
        return None if values is None else [bool(value) for value in values]

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._get(key, default, (bool,)))

    def text(self, key: str, default: str) -> str:
        return str(self._get(key, default, (str,)))

    def section(self, key: str) -> ModelConfig | None:
        """A nested mapping, or None if there is none."""
        value = self._get(key, None, (Mapping,))
        return None if value is None else ModelConfig(value, f"{self.place}{key}.")

    def texts(self, key: str, length: int) -> list[str] | None:
        """A list of ``length`` strings, or None if there is none."""
        value = self._get(key, None, (list,))
        if value is not None and (len(value) != length or not all(isinstance(item, str) for item in value)):
            raise self._wrong(key, value, f"a list of {length} strings")
        return value

    def _get(self, key: str, default: T, types: tuple[type, ...]) -> Any | T:
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                raise FormatError(f"the configuration lacks {self.place}{key}")
            return default
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise self._wrong(key, value, " or ".join(kind.__name__ for kind in types))
        return value

    def _wrong(self, key: str, value: Any, expected: str) -> FormatError:
        return FormatError(f"the configuration has {self.place}{key} = {str(value)[:80]!r}, expected {expected}")
