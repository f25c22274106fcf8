"""Start, restart from the journal, drain, end of the engine: no token twice, none lost, exactly one end for each sequence."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from octavo.engine.messages import Abort, AddRequest
from octavo.errors import CheckpointError, EngineDied, Overloaded
from octavo.service.admission import Limits
from octavo.service.service import Service, ServiceOptions
from tests.service.fake import FakeClient, fixed_script, random_script
from tests.service.harness import Whole, ask, collect, running

if TYPE_CHECKING:
    from octavo.engine.messages import EngineInfo
    from octavo.service.generation import Generation
    from octavo.service.model_text import ModelText


def plain(text: ModelText) -> list[int]:
    return list(range(text.tokenizer.vocab_size - 2))


@pytest.mark.parametrize("seed", range(6))
def test_streams_go_on_after_restarts_without_a_token_lost_or_repeated(text: ModelText, info: EngineInfo, seed: int) -> None:
    draw = random.Random(seed)

    def asks() -> list[Any]:
        return [
            ask(request_id="a", n=2, seed=1, max_tokens=40, logprobs=1),
            ask(request_id="b", seed=2, max_tokens=60, prompt_logprobs=0),
            ask(request_id="c", seed=3, max_tokens=50, stop=["e", "the"], n=3),
        ]

    async def calm() -> list[Whole]:
        async with running(FakeClient(random_script(plain(text)), info), text) as service:
            return [Whole(await collect(g)) for g in await service.generate_all(asks())]

    async def stormy() -> list[Whole]:
        client = FakeClient(random_script(plain(text)), info, chunks=lambda step: draw.randint(1, 3))
        async with running(client, text) as service:
            reads = [asyncio.create_task(collect(g)) for g in await service.generate_all(asks())]
            for _ in range(4):
                for _ in range(draw.randint(0, 30)):
                    await asyncio.sleep(0)
                client.die()
                await asyncio.sleep(0.002)
                client.come_back()
            return [Whole(d) for d in await asyncio.gather(*reads)]

    assert asyncio.run(calm()) == asyncio.run(stormy())


def test_a_resumed_request_carries_what_was_emitted(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(lambda r, i: [5, 6, 7, 8] if i else list(text.eos_token_ids), info, step_seconds=0.001)
        async with running(client, text) as service:
            generation = await service.generate(ask(n=2, max_tokens=9))
            first = client.sent[-1]
            while client.steps < 3:
                await anext(generation)
            client.die()
            await asyncio.sleep(0.01)
            assert service.health().status == "restarting"
            emitted = list(service.journal._entries["r"].emitted[1])
            client.come_back()
            await asyncio.sleep(0)
            rest = Whole(await collect(generation))
            again = next(m for m in reversed(client.sent) if isinstance(m, AddRequest))
            assert isinstance(first, AddRequest)
            assert (again.resumed, again.finished) == ({1: emitted}, [0])
            assert (again.params.seed, again.prompt_token_ids, again.max_len) == (first.params.seed, first.prompt_token_ids, first.max_len)
            assert rest.ends == {1: ("length", None)}
            assert service.health().status == "ready"
            assert b"octavo:engine_restarts_total{model_name=\"fake\"} 1.0" in service.metrics.render()

    asyncio.run(scenario())


def test_requests_that_come_during_a_restart_wait_for_it(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info)
        async with running(client, text) as service:
            client.die()
            await asyncio.sleep(0.005)
            waiting = asyncio.create_task(service.generate(ask(max_tokens=3)))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            client.come_back()
            assert Whole(await collect(await waiting)).ids == {0: [5, 5, 5]}
            assert sum(isinstance(m, AddRequest) for m in client.sent) == 1

    asyncio.run(scenario())


def test_an_aborted_request_is_not_resumed(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info, step_seconds=0.001)
        async with running(client, text) as service:
            generation = await service.generate(ask())
            await anext(generation)
            client.die()
            await asyncio.sleep(0.005)
            await generation.aclose()
            client.come_back()
            await asyncio.sleep(0.005)
            assert sum(isinstance(m, AddRequest) for m in client.sent) == 1
            assert client.live == {}

    asyncio.run(scenario())


def test_when_no_engine_comes_back_every_stream_ends_once(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info, step_seconds=0.001)
        async with running(client, text) as service:
            generations: list[Generation] = await service.generate_all([ask(request_id=str(i), n=i + 1) for i in range(4)])
            for g in generations:
                await anext(g)
            client.die()
            client.give_up()
            for i, g in enumerate(generations):
                whole = Whole(await collect(g))
                assert whole.ends == dict.fromkeys(range(i + 1), ("error", None))
                assert isinstance(g.failure, EngineDied)
            assert service.health().status == "dead"
            with pytest.raises(EngineDied, match="not started again"):
                await service.generate(ask())

    asyncio.run(scenario())


def test_requests_wait_while_the_model_loads(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info, start_seconds=0.05)
        service = Service(client, lambda: text, ServiceOptions(model_name="fake"))
        starting = asyncio.create_task(service.start())
        waiting = asyncio.create_task(service.generate(ask(max_tokens=2)))
        await asyncio.sleep(0.02)
        health = service.health()
        assert (health.status, health.phase) == ("loading", "loading weights 25%")
        await starting
        assert Whole(await collect(await waiting)).ids == {0: [5, 5]}
        await service.close()

    asyncio.run(scenario())


def test_waiting_for_the_model_is_bounded(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info, start_seconds=0.1)
        service = Service(client, lambda: text, ServiceOptions(model_name="fake", load_timeout=0.02))
        starting = asyncio.create_task(service.start())
        with pytest.raises(Overloaded, match=r"not ready after 0.02 s: loading, loading weights 25%"):
            await service.generate(ask())
        await starting
        await service.close()

    asyncio.run(scenario())


def test_the_line_before_a_loading_model_is_bounded(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info, start_seconds=0.05)
        service = Service(client, lambda: text, ServiceOptions(model_name="fake", limits=Limits(max_pending=2)))
        starting = asyncio.create_task(service.start())
        waiting = [asyncio.create_task(service.generate(ask(request_id=str(i), max_tokens=1))) for i in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(Overloaded, match="2 requests wait for the model"):
            await service.generate(ask())
        await starting
        await asyncio.gather(*waiting)
        await service.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("which", ["engine", "text"])
def test_a_failed_start_is_told_to_all(text: ModelText, info: EngineInfo, which: str) -> None:
    async def scenario() -> None:
        error = CheckpointError("the file is truncated: 10 of 20 bytes")

        def load() -> ModelText:
            if which == "text":
                raise error
            return text

        client = FakeClient(fixed_script([5]), info, start_error=error if which == "engine" else None, start_seconds=0.01)
        service = Service(client, load, ServiceOptions(model_name="fake"))
        waiting = asyncio.create_task(service.generate(ask()))
        with pytest.raises(CheckpointError):
            await service.start()
        with pytest.raises(CheckpointError, match="10 of 20 bytes"):
            await waiting
        assert (service.health().status, service.health().detail) == ("dead", error.message)
        await service.close()

    asyncio.run(scenario())


def test_drain_lets_live_requests_finish_and_refuses_new_ones(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info, step_seconds=0.002)
        async with running(client, text) as service:
            read = asyncio.create_task(collect(await service.generate(ask(max_tokens=10))))
            closing = asyncio.create_task(service.close(drain_seconds=5))
            await asyncio.sleep(0)
            assert service.health().status == "draining"
            with pytest.raises(Overloaded, match="shutting down"):
                await service.generate(ask(request_id="late"))
            assert Whole(await read).ends[0] == ("length", None)
            await closing

    asyncio.run(scenario())


def test_what_outlasts_the_drain_is_aborted(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info, step_seconds=0.002)
        async with running(client, text) as service:
            read = asyncio.create_task(collect(await service.generate(ask(n=2, max_tokens=200))))
            await service.close(drain_seconds=0.02)
            assert set(Whole(await read).ends.values()) == {("abort", None)}
            assert Abort("r") in client.sent

    asyncio.run(scenario())


def test_metrics_carry_the_names_of_vllm(text: ModelText, info: EngineInfo) -> None:
    async def scenario() -> None:
        client = FakeClient(fixed_script([5]), info)
        async with running(client, text, metrics_prefix="vllm", model_name="m") as service:
            await collect(await service.generate(ask([1, 2, 3], max_tokens=4)))
            page = (await service.render_metrics()).decode()
            for line in (
                'vllm:prompt_tokens_total{model_name="m"} 3.0',
                'vllm:generation_tokens_total{model_name="m"} 4.0',
                'vllm:request_success_total{finished_reason="length",model_name="m"} 1.0',
                'vllm:time_to_first_token_seconds_count{model_name="m"} 1.0',
                'vllm:inter_token_latency_seconds_count{model_name="m"} 3.0',
                'vllm:e2e_request_latency_seconds_count{model_name="m"} 1.0',
                'vllm:request_prompt_tokens_sum{model_name="m"} 3.0',
                'vllm:num_requests_running{model_name="m"} 0.0',
                'vllm:prefix_cache_queries_total{model_name="m"} 7.0',
                'vllm:kv_cache_usage_perc{model_name="m"} 0.0',
            ):
                assert line in page

    asyncio.run(scenario())


def test_counters_survive_an_engine_that_counts_from_zero_again() -> None:
    from octavo.engine.messages import Stats
    from octavo.service.metrics import Metrics

    metrics = Metrics("m")
    for value in (10, 25, 3):
        metrics.engine(Stats(preemptions=value))
    assert 'octavo:num_preemptions_total{model_name="m"} 28.0' in metrics.render().decode()
