"""Capture for the cpu backend: record the native calls of a function once, then repeat them in one call.

Results of operations come from :func:`empty`. While a function is captured they lie in an arena whose buffers are used again as soon as their
tensor has died, so a replay touches as little memory as the function itself. A capture is checked before it is handed out: torch must have
computed nothing (views are fine), and a replay over poisoned memory must give the bits that the function gave.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

log = logging.getLogger("octavo.backend")

_ALIGNMENT = 64
_SMALLEST = 4096  # bytes; sizes of buffers are powers of two, so that captures of different sizes share them
_POISON = 0xFF  # bytes of this value are NaNs
_capturing = threading.local()


def empty(*shape: int) -> Tensor:
    """An uninitialized float32 tensor for the result of a native operation."""
    arena: Arena | None = getattr(_capturing, "arena", None)
    return torch.empty(shape) if arena is None else arena.empty(shape)


class Arena:
    """Buffers for the results of captured calls. All captures of a backend share one: two replays never overlap."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._free: dict[int, list[np.ndarray]] = {}

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """A float32 tensor in a buffer that becomes free when the tensor and all its views are gone."""
        count = math.prod(shape)
        size = max(_SMALLEST, 1 << (4 * count - 1).bit_length())
        free = self._free.setdefault(size, [])
        buffer = free.pop() if free else self._allocate(size)
        values = buffer[: 4 * count].view(np.float32)
        weakref.finalize(values, free.append, buffer).atexit = False
        return torch.from_numpy(values).view(shape)

    def poison(self) -> None:
        """Overwrite every buffer that no tensor owns."""
        for buffers in self._free.values():
            for buffer in buffers:
                buffer.fill(_POISON)

    def _allocate(self, size: int) -> np.ndarray:
        self.nbytes += size
        memory = np.empty(size + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        return memory[start : start + size]


class _Computed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which operations torch itself computes: a replay would not repeat them."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is ever compiled, and torch's compiler takes two seconds and 60 MB to import."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = [result.alias_info for result in func._schema.returns]
        if not results or any(alias is None or alias.is_write for alias in results):
            self.operations.add(str(func))
        return func(*args, **(kwargs or {}))


class Captured:
    """A recorded function. Calling it repeats the native calls and returns the same tensor each time, with the new numbers in it."""

    def __init__(self, program: Any, result: Tensor, function: Callable[[], Tensor]) -> None:
        self._program, self._result = program, result
        self._function = function  # keeps alive what the calls read

    def __call__(self) -> Tensor:
        self._program.run()
        return self._result


def capture(module: Any, arena: Arena, function: Callable[[], Tensor]) -> Captured | None:
    """See :meth:`octavo.backend.base.Backend.capture`. ``function`` runs once, its native calls a second time for the check."""
    program, computed = module.Program(), _Computed()
    _capturing.arena = arena
    program.start()
    try:
        with computed:
            result = function()
    finally:
        program.stop()
        _capturing.arena = None
    if computed.operations:
        log.info("not captured: torch computed %s", ", ".join(sorted(computed.operations)))
        return None
    expected = result.clone()
    arena.poison()
    result.fill_(math.nan)
    program.run()
    if not torch.equal(result.view(torch.int32), expected.view(torch.int32)):
        log.warning("not captured: a replay of %d calls gave other numbers than the calls themselves", len(program))
        return None

    return Captured(program, result, function)
