"""Streams: whole == folded deltas, stop strings, ends, usage, logprobs; against a brute-force reading of the token sequence."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.messages import Abort
from tests.service.fake import FakeClient, fixed_script, random_script
from tests.service.harness import Whole, ask, collect, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.engine.messages import EngineInfo
    from octavo.service.model_text import ModelText


async def run(client: FakeClient, text: ModelText, request: Any) -> tuple[Whole, Any]:
    async with running(client, text) as service:
        generation = await service.generate(request)
        whole = Whole(await collect(generation))
        assert len(service.journal) == 0
        return whole, generation.usage


def uneven(seed: int) -> Callable[[int], int]:
    return lambda step: random.Random(seed * 1000 + step).randint(1, 5)


def expected(text: ModelText, ids: list[int], *, stops: list[str], include: bool, skip: bool, min_tokens: int) -> tuple[int, str, str | None]:
    """(tokens used, text, stop string) by decoding every prefix afresh and looking for the stop strings in it."""
    hold = "\ufffd"
    decode = lambda part: text.tokenizer.decode(part, skip_special_tokens=skip)  # noqa: E731
    end = text.eos_token_ids[0]
    body = ids[:-1] if ids[-1] == end and not include else ids
    start = 0
    for count in range(1, len(body) + 1):
        shown = decode(body[:count])
        certain = shown.rstrip(hold) if shown.endswith(hold) and decode(body).find(shown) != 0 else shown
        if count <= min_tokens:
            start = len(certain)
            continue
        found = [(certain.find(s, start) + len(s), certain.find(s, start), s) for s in stops if certain.find(s, start) >= 0]
        if found:
            stop_end, begin, stop = min(found)
            return count, certain[: stop_end if include else begin], stop
    return len(ids), decode(body), None


# Whole characters only: what the detokenizer does with broken ones is tested with the detokenizer.
WORDS = ["the", " quick", " fox", "stop", " here", "st", "op", "END", " of", "\n", "e", "n", "d"]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    stops=st.lists(st.sampled_from(["stop", "op h", "END", "the quick", "\n", "eo", "foxst", "nd"]), max_size=3, unique=True),
    include=st.booleans(),
    skip=st.booleans(),
    min_tokens=st.integers(0, 6),
    max_tokens=st.integers(7, 30),
    n=st.integers(1, 3),
    logprobs=st.sampled_from([None, 0, 2]),
)
def test_stream_equals_whole(
    text: ModelText,
    info: EngineInfo,
    seed: int,
    stops: list[str],
    include: bool,
    skip: bool,
    min_tokens: int,
    max_tokens: int,
    n: int,
    logprobs: int | None,
) -> None:
    tokens = sorted({i for w in WORDS for i in text.tokenizer.encode(w, add_special_tokens=False)} | {text.eos_token_ids[0]})
    params = {
        "seed": seed, "stop": stops, "include_stop_str_in_output": include, "skip_special_tokens": skip,
        "min_tokens": min_tokens, "max_tokens": max_tokens, "n": n, "logprobs": logprobs,
    }  # fmt: skip
    script = random_script(tokens)
    one, usage = asyncio.run(run(FakeClient(script, info), text, ask(**params)))
    many, usage_many = asyncio.run(run(FakeClient(script, info, chunks=uneven(seed)), text, ask(**params)))
    assert one == many
    assert usage == usage_many
    assert usage.completion_tokens == sum(len(ids) for ids in one.ids.values())
    client = FakeClient(script, info)
    asyncio.run(run(client, text, ask(**params)))
    request = client.sent[0]
    for index in range(n):
        ids = script(request, index)[:max_tokens]  # type: ignore[arg-type]
        end = next((k + 1 for k, i in enumerate(ids) if i == text.eos_token_ids[0] and k + 1 > min_tokens), len(ids))
        count, whole, stop = expected(text, ids[:end], stops=stops, include=include, skip=skip, min_tokens=min_tokens)
        assert one.ids[index] == ids[:count]
        assert one.texts[index] == whole
        reason = "stop" if stop is not None or (ids[end - 1] == text.eos_token_ids[0] and end > min_tokens) else "length"
        assert one.ends[index] == (reason, stop)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), max_tokens=st.integers(1, 40))
def test_random_bytes_survive_any_cut(text: ModelText, info: EngineInfo, seed: int, max_tokens: int) -> None:
    """Tokens that are single bytes: the stream adds up to the decode of the whole, whatever the steps."""
    script = random_script(list(range(text.tokenizer.vocab_size - 2)))
    client = FakeClient(script, info, chunks=uneven(seed))
    whole, _ = asyncio.run(run(client, text, ask(seed=seed, max_tokens=max_tokens)))
    assert whole.texts[0] == text.tokenizer.decode(script(client.sent[0], 0)[:max_tokens])  # type: ignore[arg-type]
    assert whole.ends[0] == ("length", None)


def ids_of(text: ModelText, value: str) -> list[int]:
    return text.tokenizer.encode(value, add_special_tokens=False)


def test_stop_string_across_tokens_ends_the_sequence_and_tells_the_engine(text: ModelText, info: EngineInfo) -> None:
    script = fixed_script(ids_of(text, "the quick") + ids_of(text, "ST") + ids_of(text, "OPPED and more and more"))
    client = FakeClient(script, info)
    whole, usage = asyncio.run(run(client, text, ask(stop=["STOP"], max_tokens=60)))
    assert whole.texts[0] == "the quick"
    assert whole.ends[0] == ("stop", "STOP")
    assert Abort("r", 0) in client.sent
    assert text.tokenizer.decode(whole.ids[0]).startswith("the quickSTOP")
    assert usage.completion_tokens == len(whole.ids[0]) < 60


def test_a_stop_string_that_never_completes_is_not_lost(text: ModelText, info: EngineInfo) -> None:
    ids = ids_of(text, "the STO")
    whole, _ = asyncio.run(run(FakeClient(fixed_script(ids), info), text, ask(stop=["STOP"], max_tokens=len(ids))))
    assert whole.texts[0] == "the STO"
    assert whole.ends[0] == ("length", None)


def test_the_end_token_is_counted_and_not_shown(text: ModelText, info: EngineInfo) -> None:
    ids = [*ids_of(text, "the fox"), *text.eos_token_ids]
    whole, usage = asyncio.run(run(FakeClient(fixed_script(ids), info), text, ask(skip_special_tokens=False)))
    assert whole.texts[0] == "the fox"
    assert whole.ids[0] == ids and usage.completion_tokens == len(ids)
    assert whole.ends[0] == ("stop", None)
    shown, _ = asyncio.run(
        run(FakeClient(fixed_script(ids), info), text, ask(skip_special_tokens=False, include_stop_str_in_output=True))
    )
    assert shown.texts[0] == "the fox<|im_end|>"


def test_a_stop_token_is_named(text: ModelText, info: EngineInfo) -> None:
    ids = ids_of(text, "the quick fox")
    whole, _ = asyncio.run(run(FakeClient(fixed_script(ids), info), text, ask(stop_token_ids=[ids[2]])))
    assert whole.ends[0] == ("stop", ids[2])
    assert whole.texts[0] == text.tokenizer.decode(ids[:2])


def test_detokenize_off_gives_ids_alone(text: ModelText, info: EngineInfo) -> None:
    whole, _ = asyncio.run(run(FakeClient(fixed_script([5, 6, 7]), info), text, ask(detokenize=False, max_tokens=3)))
    assert (whole.texts[0], whole.ids[0]) == ("", [5, 6, 7])


def test_logprobs_are_decoded(text: ModelText, info: EngineInfo) -> None:
    ids = ids_of(text, "the fox")
    client = FakeClient(fixed_script(ids), info, chunks=lambda step: 2)
    whole, _ = asyncio.run(run(client, text, ask(logprobs=2, prompt_logprobs=1, max_tokens=len(ids))))
    for token, position in zip(ids, whole.logprobs[0], strict=True):
        assert list(position) == [token, token + 1, token + 2]
        assert (position[token].rank, position[token].logprob) == (3, -2.0)
        assert position[token].bytes == text.tokenizer.token_bytes(token)
        assert position[token].decoded_token == text.tokenizer.token_text(token)
    prompt = ids_of(text, "the quick brown fox")
    assert whole.prompt_logprobs is not None and len(whole.prompt_logprobs) == len(prompt)
    assert whole.prompt_logprobs[0] is None
    assert [next(iter(p)) for p in whole.prompt_logprobs[1:]] == prompt[1:]


def test_usage_tells_cached_tokens(text: ModelText, info: EngineInfo) -> None:
    prompt = list(range(40))
    _, usage = asyncio.run(run(FakeClient(fixed_script([5]), info), text, ask(prompt, max_tokens=2, n=2)))
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.total_tokens) == (40, 4, 32, 44)


@pytest.mark.parametrize("way", ["aclose", "cancel", "forget"])
def test_a_reader_that_goes_away_frees_its_request(text: ModelText, info: EngineInfo, way: str) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info, step_seconds=0.001)
        async with running(client, text) as service:
            generation = await service.generate(ask(n=2))
            await anext(generation)
            if way == "aclose":
                await generation.aclose()
            elif way == "cancel":

                async def read() -> None:
                    async with generation:
                        async for _ in generation:
                            pass

                task = asyncio.create_task(read())
                await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            else:
                del generation
                gc.collect()
                await asyncio.sleep(0)
            assert client.sent[-1] == Abort("r")
            assert len(service.journal) == 0 and service.health().live_requests == 0
            assert client.live == {}

    asyncio.run(scenario())


def test_abort_ends_every_sequence_once(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script(ids_of(text, "the")), info, step_seconds=0.001)
        async with running(client, text) as service:
            generation = await service.generate(ask(n=3))
            await anext(generation)
            assert service.abort("r") and not service.abort("r")
            whole = Whole(await collect(generation))
            assert set(whole.ends.values()) == {("abort", None)} and len(whole.ends) == 3

    asyncio.run(scenario())


def test_an_abort_leaves_ended_sequences_alone(text: ModelText, info: EngineInfo) -> None:
    """Sequence 0 ends by itself; what comes from outside ends the other one, and only that."""

    async def scenario() -> None:
        client = FakeClient(lambda r, index: [5] if index else [5, *text.eos_token_ids], info, step_seconds=0.001)
        async with running(client, text) as service:
            generation = await service.generate(ask(n=2))
            while client.steps < 4:
                await asyncio.sleep(0.001)
            service.abort("r")
            assert Whole(await collect(generation)).ends == {0: ("stop", None), 1: ("abort", None)}

    asyncio.run(scenario())


def test_an_engine_error_ends_that_request_alone(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script(ids_of(text, "the")), info)
        client.failing["bad"] = "a kernel failed"
        async with running(client, text) as service:
            bad, good = await service.generate_all([ask(request_id="bad", max_tokens=5), ask(request_id="good", max_tokens=5)])
            (delta,) = await collect(bad)
            assert (delta.finish_reason, delta.error) == ("error", "a kernel failed")
            assert bad.failure is not None and bad.failure.status == 500
            assert Whole(await collect(good)).ends[0] == ("length", None)

    asyncio.run(scenario())


def test_a_request_whose_text_cannot_be_decoded_fails_alone(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(lambda request, index: [10**9] if request.request_id == "bad" else [5], info)
        async with running(client, text) as service:
            bad, good = await service.generate_all([ask(request_id="bad", max_tokens=5, logprobs=1), ask(request_id="good", max_tokens=5)])
            broken = bad._live.outputs[0]

            def explode(*_: object) -> None:
                raise KeyError("no such token")

            broken.take = explode  # type: ignore[method-assign, assignment]
            assert [d.finish_reason for d in await collect(bad)] == ["error"]
            assert Whole(await collect(good)).ends[0] == ("length", None)
            assert Abort("bad") in client.sent

    asyncio.run(scenario())
