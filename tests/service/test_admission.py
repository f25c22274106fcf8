"""The one validator: every bad input has its typed error with the numbers, and nothing of it reaches the engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from octavo.engine.messages import AddRequest
from octavo.errors import InvalidParameter, Overloaded, PromptTooLong, RequestError, TemplateError
from octavo.service.admission import Limits
from octavo.service.model_text import ModelText
from octavo.text.chat import ChatTemplate
from tests.service.fake import FakeClient, fixed_script
from tests.service.harness import ask, collect, running

if TYPE_CHECKING:
    from octavo.engine.messages import EngineInfo

HELLO = [{"role": "user", "content": "hi"}]
BAD: list[tuple[Any, dict[str, Any], type[RequestError], str]] = [
    ("", {}, InvalidParameter, "the prompt is empty"),
    ([], {}, InvalidParameter, "the prompt is empty"),
    ([5, 10**6], {}, InvalidParameter, "token id 1,000,000, the vocabulary has"),
    ([5, -1], {}, InvalidParameter, "token id -1"),
    ([5, "x"], {}, InvalidParameter, "str 'x'"),
    ([5, True], {}, InvalidParameter, "bool"),
    ([5] * 200, {"max_tokens": 100}, PromptTooLong, "prompt has 200 tokens, 100 asked, the context holds 256"),
    ([5] * 256, {}, PromptTooLong, "prompt has 256 tokens, 1 asked, the context holds 256"),
    ([5] * 250, {"min_tokens": 10}, PromptTooLong, "prompt has 250 tokens, 10 asked"),
    ("x" * 20_000, {}, PromptTooLong, "the prompt has 20,000 bytes, a context of 256 tokens takes at most 16,384"),
    ("\ud800", {}, InvalidParameter, "surrogate"),
    ("hi", {"stop_token_ids": [10**6]}, InvalidParameter, "stop_token_ids holds token id 1,000,000"),
    ("hi", {"allowed_token_ids": [10**6]}, InvalidParameter, "allowed_token_ids"),
    ("hi", {"logit_bias": {10**6: 1.0}}, InvalidParameter, "logit_bias"),
    (HELLO, {"chat_template": "{{ raise_exception('no system role') }}"}, TemplateError, "no system role"),
    (HELLO, {"chat_template": "{% if %}"}, TemplateError, ""),
    (HELLO, {"continue_final_message": True}, InvalidParameter, "exclude each other"),
]


@pytest.mark.parametrize(("prompt", "params", "kind", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_requests_are_refused_before_they_start(
    text: ModelText, info: EngineInfo, prompt: Any, params: dict[str, Any], kind: type[RequestError], message: str
) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info)
        async with running(client, text) as service:
            with pytest.raises(kind) as caught:
                await service.generate(ask(prompt, **params))
            assert message in caught.value.message
            assert client.sent == [] and service.health().live_requests == 0
            assert len(await collect(await service.generate(ask(max_tokens=2)))) == 2

    asyncio.run(scenario())


def sent(client: FakeClient) -> list[AddRequest]:
    return [m for m in client.sent if isinstance(m, AddRequest)]


def admit(text: ModelText, info: EngineInfo, *requests: Any, **options: Any) -> list[AddRequest]:
    client = FakeClient(fixed_script([5]), info)

    async def scenario() -> None:
        async with running(client, text, **options) as service:
            for generation in await service.generate_all(requests):
                await generation.aclose()

    asyncio.run(scenario())
    return sent(client)


def test_room_left_in_the_context_is_the_default(text: ModelText, info: EngineInfo) -> None:
    open_end, bounded, full = admit(
        text, info, ask([5] * 56, request_id="a"), ask([5] * 56, request_id="b", max_tokens=10), ask([5] * 56, request_id="c", max_tokens=200)
    )
    assert (open_end.max_len, bounded.max_len, full.max_len) == (256, 66, 256)


def test_the_kv_cache_bounds_the_context_too(text: ModelText, info: EngineInfo) -> None:
    import msgspec

    small = msgspec.structs.replace(info, num_blocks=4)
    assert admit(text, small, ask([5]))[0].max_len == 64


def test_messages_are_rendered(text: ModelText, info: EngineInfo) -> None:
    made, continued = admit(
        text, info, ask(HELLO, request_id="a"),
        ask([*HELLO, {"role": "assistant", "content": "the"}], request_id="b", add_generation_prompt=False, continue_final_message=True),
    )  # fmt: skip
    decode = text.tokenizer.decode
    assert decode(made.prompt_token_ids, skip_special_tokens=False) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert decode(continued.prompt_token_ids, skip_special_tokens=False).endswith("<|im_start|>assistant\nthe")
    assert made.eos_token_ids == list(text.eos_token_ids)


def test_a_model_without_template_refuses_chat(text: ModelText, info: EngineInfo) -> None:
    bare = ModelText(text.tokenizer, ChatTemplate(None, text.tokenizer), text.eos_token_ids)
    with pytest.raises(TemplateError, match="no chat template"):
        admit(bare, info, ask(HELLO))


def test_seeds_are_drawn_and_repeatable_on_request(text: ModelText, info: EngineInfo) -> None:
    asks = [ask(request_id=str(i)) for i in range(5)]
    first = [m.params.seed for m in admit(text, info, *asks)]
    assert len({*first}) == 5 and all(isinstance(s, int) for s in first)
    assert asks[0].params.seed is None, "the caller's object stays as it was"
    again, same = ([m.params.seed for m in admit(text, info, *asks, seed=7)] for _ in range(2))
    assert again == same != first
    assert admit(text, info, ask(seed=42))[0].params.seed == 42


def test_bad_words_become_ids_with_and_without_space(text: ModelText, info: EngineInfo) -> None:
    encode = text.tokenizer.encode
    params = admit(text, info, ask(bad_words=["fox", " the"]))[0].params
    for word in ("fox", "the"):
        bare, spaced = encode(word, add_special_tokens=False), encode(" " + word, add_special_tokens=False)
        assert bare in params.bad_words_token_ids
        assert (spaced in params.bad_words_token_ids) == (len(spaced) == len(bare) and spaced[0] != bare[0])


def test_a_full_queue_refuses(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info, step_seconds=0.001)
        async with running(client, text, limits=Limits(max_queued=2)) as service:
            generations = [await service.generate(ask(request_id=str(i))) for i in range(info.max_num_seqs)]
            with pytest.raises(Overloaded, match="8 sequences are live, 3 asked, the server takes 10") as caught:
                await service.generate(ask(request_id="x", n=3))
            assert caught.value.retry_after > 0
            assert b"octavo:admission_rejections_total{model_name=\"fake\"} 1.0" in service.metrics.render()
            for g in generations:
                await g.aclose()
            await (await service.generate(ask(request_id="x", n=3))).aclose()

    asyncio.run(scenario())


def test_one_bad_prompt_of_many_stops_all_before_anything_runs(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info)
        async with running(client, text) as service:
            with pytest.raises(InvalidParameter, match="prompt 1: the prompt is empty"):
                await service.generate_all([ask(request_id="a"), ask("", request_id="b"), ask(request_id="c")])
            assert client.sent == []

    asyncio.run(scenario())


def test_an_id_that_is_live_is_refused(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info, step_seconds=0.001)
        async with running(client, text) as service:
            generation = await service.generate(ask())
            with pytest.raises(InvalidParameter, match="running already"):
                await service.generate(ask())
            await generation.aclose()

    asyncio.run(scenario())
