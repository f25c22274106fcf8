"""Running a service over the fake engine inside a test's own event loop."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from octavo.core.sampling_params import SamplingParams
from octavo.service.service import Service, ServiceOptions
from octavo.service.types import GenerateRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from octavo.service.generation import Generation
    from octavo.service.model_text import ModelText
    from octavo.service.types import TextDelta
    from tests.service.fake import FakeClient


@asynccontextmanager
async def running(client: FakeClient, text: ModelText, **options: Any) -> AsyncIterator[Service]:
    service = Service(client, lambda: text, ServiceOptions(**({"model_name": "fake"} | options)))
    await service.start()
    try:
        yield service
    finally:
        await service.close()


def ask(prompt: Any = "the quick brown fox", request_id: str = "r", **params: Any) -> GenerateRequest:
    """A request for a text prompt, a list of ids, or a list of messages."""
    fields = {name: params.pop(name) for name in list(params) if name in GenerateRequest.__slots__}
    source = "prompt" if isinstance(prompt, str) else "messages" if prompt and isinstance(prompt[0], dict) else "prompt_token_ids"
    return GenerateRequest(request_id=request_id, params=SamplingParams(**params), **{source: prompt}, **fields)


async def collect(generation: Generation) -> list[TextDelta]:
    return [delta async for delta in generation]


class Whole:
    """The fold of a list of deltas, per sequence."""

    def __init__(self, deltas: list[TextDelta]) -> None:
        self.texts: dict[int, str] = {}
        self.ids: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[Any]] = {}
        self.ends: dict[int, tuple[str | None, Any]] = {}
        self.prompt_logprobs: list[Any] | None = None
        for d in deltas:
            assert d.index not in self.ends, "a delta came after the end of its sequence"
            self.texts[d.index] = self.texts.get(d.index, "") + d.text
            self.ids.setdefault(d.index, []).extend(d.token_ids)
            if d.logprobs is not None:
                assert len(d.logprobs) == len(d.token_ids)
                self.logprobs.setdefault(d.index, []).extend(d.logprobs)
            if d.prompt_logprobs is not None:
                assert self.prompt_logprobs is None
                self.prompt_logprobs = d.prompt_logprobs
            if d.finish_reason is not None:
                self.ends[d.index] = (d.finish_reason, d.stop_reason)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Whole) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]
