"""Several generations read as one stream, in the order in which their deltas arrive."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.service.generation import Generation
    from octavo.service.types import TextDelta


class Merged:
    """Asynchronous iterator of (position of the generation, delta). Ends when all have ended; closing it closes them all."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self._generations = generations
        self._reads: dict[asyncio.Task[TextDelta | None], int] = {}
        self._ready: list[asyncio.Task[TextDelta | None]] = []
        self._begun = False

    def __aiter__(self) -> Merged:
        return self

    async def __anext__(self) -> tuple[int, TextDelta]:
        if len(self._generations) == 1:  # the common case needs no tasks
            return 0, await anext(self._generations[0])
        if not self._begun:
            self._begun = True
            for position in range(len(self._generations)):
                self._read(position)
        while self._reads:
            if not self._ready:
                done, _ = await asyncio.wait(self._reads, return_when=asyncio.FIRST_COMPLETED)
                self._ready = sorted(done, key=self._reads.__getitem__)
            task = self._ready.pop(0)
            position = self._reads.pop(task)
            delta = task.result()
            if delta is None:
                continue
            self._read(position)
            return position, delta
        raise StopAsyncIteration

    def _read(self, position: int) -> None:
        self._reads[asyncio.ensure_future(_next(self._generations[position]))] = position

    async def aclose(self) -> None:
        for task in self._reads:
            task.cancel()
        if self._reads:
            await asyncio.gather(*self._reads, return_exceptions=True)
        self._reads.clear()
        self._ready.clear()
        for generation in self._generations:
            await generation.aclose()


async def _next(generation: Generation) -> TextDelta | None:
    return await anext(generation, None)
