"""The official client, unchanged: sync and async, streamed and whole; a stream adds up to the whole reply."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.frontends.serving import Served
from tests.service.fake import FakeClient, fixed_script, random_script

if TYPE_CHECKING:
    from collections.abc import Iterator

    from octavo.engine.messages import EngineInfo
    from octavo.service.model_text import ModelText

HELLO: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]


@pytest.fixture(scope="module")
def served(text: ModelText, info: EngineInfo) -> Iterator[Served]:
    tokens = [*range(text.tokenizer.vocab_size - 2), *text.eos_token_ids]
    with Served(FakeClient(random_script(tokens), info, chunks=lambda step: random.Random(step).randint(1, 3)), text) as s:
        yield s


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def chat_fold(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    """What a careful client makes of a stream."""
    made: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for c in chunk.choices:
            one = made.setdefault(c.index, {"role": None, "content": "", "logprobs": [], "ids": [], "end": None})
            assert one["end"] is None, "something came after finish_reason"
            if c.delta.role:
                assert one["role"] is None, "the role came twice"
                one["role"] = c.delta.role
            assert one["role"], "the role comes first"
            one["content"] += c.delta.content or ""
            one["logprobs"] += [e.model_dump() for e in c.logprobs.content] if c.logprobs else []
            one["ids"] += getattr(c, "token_ids", None) or []
            if c.finish_reason:
                one["end"] = (c.finish_reason, c.stop_reason)
    return made


@pytest.mark.parametrize("seed", range(8))
def test_chat_stream_equals_whole(client: openai.OpenAI, text: ModelText, seed: int) -> None:
    draw = random.Random(seed)
    params: dict[str, Any] = {
        "model": "fake",
        "messages": HELLO,
        "seed": seed,
        "n": draw.choice([1, 2, 3]),
        "max_completion_tokens": draw.randint(1, 60),
        "stop": draw.choice([None, "e", ["the", "t", "你"]]),
        "logprobs": draw.random() < 0.7,
        "extra_body": {"min_tokens": 1, "return_token_ids": True, "prompt_logprobs": draw.choice([None, 2])},
    }
    if params["logprobs"]:
        params["top_logprobs"] = draw.choice([0, 3])
    whole = client.chat.completions.create(**params)
    chunks = list(client.chat.completions.create(**params, stream=True, stream_options={"include_usage": True}))
    folded = chat_fold(chunks)
    assert len(folded) == params["n"] == len(whole.choices)
    for choice in whole.choices:
        one = folded[choice.index]
        assert one["content"] == choice.message.content and one["role"] == choice.message.role == "assistant"
        assert one["end"] == (choice.finish_reason, choice.stop_reason)  # type: ignore[attr-defined]
        assert one["logprobs"] == ([e.model_dump() for e in choice.logprobs.content or []] if choice.logprobs else [])
        assert one["ids"] == choice.token_ids  # type: ignore[attr-defined]
        if params["logprobs"]:
            assert len(one["logprobs"]) == len(one["ids"])
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert all(c.usage is None for c in chunks[:-1])
    assert whole.usage is not None and whole.usage.completion_tokens == sum(len(o["ids"]) for o in folded.values())
    assert whole.prompt_token_ids == chunks[0].prompt_token_ids  # type: ignore[attr-defined]
    assert getattr(whole, "prompt_logprobs", None) == getattr(chunks[0], "prompt_logprobs", None)
    assert whole.id.startswith("chatcmpl-") and {c.id for c in chunks} == {chunks[0].id} and chunks[0].object == "chat.completion.chunk"


@pytest.mark.parametrize("seed", range(8))
def test_completion_stream_equals_whole(client: openai.OpenAI, seed: int) -> None:
    draw = random.Random(seed)
    params: dict[str, Any] = {
        "model": "alias",
        "prompt": draw.choice(["the quick", ["the", "fox and"], [5, 6, 7], [[5, 6], [7, 8, 9]]]),
        "seed": seed,
        "n": draw.choice([1, 2]),
        "max_tokens": draw.randint(1, 40),
        "echo": draw.random() < 0.5,
        "logprobs": draw.choice([None, 0, 2]),
        "stop": draw.choice([None, ["e"]]),
    }
    whole = client.completions.create(**params)
    folded: dict[int, dict[str, Any]] = {}
    for chunk in client.completions.create(**params, stream=True):
        for c in chunk.choices:
            one = folded.setdefault(c.index, {"text": "", "logprobs": None, "end": None})
            one["text"] += c.text
            if c.logprobs:
                new = c.logprobs.model_dump()
                one["logprobs"] = new if one["logprobs"] is None else {k: one["logprobs"][k] + new[k] for k in new}
            one["end"] = c.finish_reason or one["end"]
    assert [c.index for c in whole.choices] == sorted(folded) == list(range(len(folded)))
    for choice in whole.choices:
        logprobs = choice.logprobs.model_dump() if choice.logprobs else None
        assert folded[choice.index] == {"text": choice.text, "logprobs": logprobs, "end": choice.finish_reason}
        if logprobs:
            assert len({len(v) for v in logprobs.values()}) == 1
            ends = [0, *(o + len(t) for o, t in zip(logprobs["text_offset"], logprobs["tokens"], strict=True))]
            assert logprobs["text_offset"] == ends[:-1]
        if params["echo"]:
            prompts = params["prompt"] if isinstance(params["prompt"], list) and isinstance(params["prompt"][0], str) else [params["prompt"]]
            if isinstance(prompts[0], str):
                assert choice.text.startswith(prompts[choice.index // params["n"]])
    assert whole.model == "alias" and whole.id.startswith("cmpl-") and whole.object == "text_completion"


def test_async_client(served: Served) -> None:
    async def scenario() -> None:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
            whole = await client.chat.completions.create(model="fake", messages=HELLO, seed=1, max_tokens=20)
            parts = [c async for c in await client.chat.completions.create(model="fake", messages=HELLO, seed=1, max_tokens=20, stream=True)]
            assert chat_fold(parts)[0]["content"] == whole.choices[0].message.content
            replies = await asyncio.gather(
                *(client.completions.create(model="fake", prompt=f"the {i}", seed=i, max_tokens=10) for i in range(20))
            )
            assert all(r.usage and r.usage.completion_tokens <= 10 for r in replies)

    asyncio.run(scenario())


def test_models(client: openai.OpenAI, info: EngineInfo) -> None:
    cards = client.models.list().data
    assert [c.id for c in cards] == ["fake", "alias"]
    assert cards[1].max_model_len == info.max_model_len and cards[1].root == "fake"  # type: ignore[attr-defined]
    assert client.models.retrieve("alias").id == "alias"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_logprobs_have_the_shape_of_openai(text: ModelText, info: EngineInfo) -> None:
    ids = text.tokenizer.encode("the fox", add_special_tokens=False)
    with Served(FakeClient(fixed_script([*ids, *text.eos_token_ids]), info), text) as s:
        client = openai.OpenAI(base_url=f"{s.url}/v1", api_key="none")
        reply = client.chat.completions.create(
            model="fake", messages=HELLO, logprobs=True, top_logprobs=2, extra_body={"stop_token_ids": [ids[-1]], "prompt_logprobs": 1}
        )
        assert reply.choices[0].logprobs is not None and reply.choices[0].logprobs.content is not None
        for token, entry in zip(ids, reply.choices[0].logprobs.content, strict=True):
            assert entry.token == text.tokenizer.token_text(token) and entry.logprob == -2.0
            assert bytes(entry.bytes or []) == text.tokenizer.token_bytes(token)
            assert [t.logprob for t in entry.top_logprobs] == [-1.0, -1.1]
        assert (reply.choices[0].finish_reason, reply.choices[0].stop_reason) == ("stop", ids[-1])  # type: ignore[attr-defined]
        prompt = reply.prompt_logprobs  # type: ignore[attr-defined]
        assert prompt[0] is None and all(len(p) == 2 for p in prompt[1:])
        none = client.chat.completions.create(model="fake", messages=HELLO, logprobs=True, max_tokens=1).choices[0].logprobs
        assert none is not None and none.content is not None and none.content[0].top_logprobs == []


def test_scoring_a_prompt_with_echo(text: ModelText, info: EngineInfo) -> None:
    """echo with max_tokens 0: the prompt and its logprobs, nothing generated."""
    prompt = "the quick fox"
    ids = text.tokenizer.encode(prompt)
    with Served(FakeClient(fixed_script([5]), info), text) as s:
        client = openai.OpenAI(base_url=f"{s.url}/v1", api_key="none")
        reply = client.completions.create(model="fake", prompt=prompt, echo=True, logprobs=1, max_tokens=0)
        (choice,) = reply.choices
        assert (choice.text, choice.finish_reason) == (prompt, "length")
        assert choice.logprobs is not None and "".join(choice.logprobs.tokens or []) == prompt
        assert choice.logprobs.token_logprobs == [None, *[-2.0] * (len(ids) - 1)]  # type: ignore[comparison-overlap]
        assert choice.logprobs.top_logprobs is not None and choice.logprobs.top_logprobs[0] is None and len(choice.logprobs.top_logprobs[1]) == 2
        assert reply.usage is not None and (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(ids), 0)


def test_usage_in_every_chunk_when_asked(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="fake",
            messages=HELLO,
            seed=3,
            max_tokens=10,
            stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},  # type: ignore[typeddict-unknown-key]
        )
    )
    counts = [c.usage.completion_tokens for c in chunks if c.usage is not None]
    assert len(counts) == len(chunks) and counts == sorted(counts) and counts[-1] > 0


def test_bad_requests_raise_the_clients_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="served: fake, alias"):
        client.chat.completions.create(model="gpt-5", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="200 tokens, 100 asked, the context holds 256"):
        client.completions.create(model="fake", prompt=[5] * 200, max_tokens=100)
