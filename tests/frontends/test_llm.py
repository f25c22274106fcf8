"""The offline library over the fake engine: vLLM's arguments and results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import octavo.frontends.llm as module
from octavo import LLM, ConfigError, InvalidParameter, OctavoError, PromptTooLong, RequestOutput, SamplingParams, TemplateError
from octavo.engine.messages import Abort, AddRequest
from octavo.service.service import Service
from tests.service.fake import FakeClient, random_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from octavo.engine.messages import EngineInfo
    from octavo.service.model_text import ModelText


@pytest.fixture
def make(text: ModelText, info: EngineInfo, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[LLM, FakeClient]]]:
    opened: list[LLM] = []

    def build(script: Any = None, **options: Any) -> tuple[LLM, FakeClient]:
        client = FakeClient(script or random_script([*range(text.tokenizer.vocab_size - 2), *text.eos_token_ids]), info)
        monkeypatch.setattr(module, "resolve_model", lambda model: Path("/models") / model)
        monkeypatch.setattr(module, "local_service", lambda config, service: Service(client, lambda: text, service))
        opened.append(LLM("fake", **options))
        return opened[-1], client

    yield build
    for llm in opened:
        llm.close()


def requests(client: FakeClient) -> list[AddRequest]:
    return [m for m in client.sent if isinstance(m, AddRequest)]


def test_results_come_in_the_order_of_the_prompts(make: Any, text: ModelText) -> None:
    llm, client = make()
    prompts = ["the", {"prompt": "quick"}, [5, 6, 7], {"prompt_token_ids": [8, 9], "prompt": "ignored beside ids"}, "fox"]
    outputs: list[RequestOutput] = llm.generate(prompts, SamplingParams(max_tokens=20), use_tqdm=False)
    encode = text.tokenizer.encode
    assert [o.prompt_token_ids for o in outputs] == [encode("the"), encode("quick"), [5, 6, 7], [8, 9], encode("fox")]
    assert [o.prompt for o in outputs] == ["the", "quick", None, None, "fox"]
    for output, request in zip(outputs, requests(client), strict=True):
        ids = client.script(request, 0)[: len(output.outputs[0].token_ids)]
        assert output.outputs[0].token_ids == ids and output.finished
        assert output.outputs[0].finish_reason in ("stop", "length")
        assert output.metrics is not None and output.metrics.num_generation_tokens == len(ids)


def test_one_prompt_is_a_list_of_one(make: Any) -> None:
    llm, _ = make()
    for prompt in ("the", {"prompt": "the"}, [5, 6]):
        assert len(llm.generate(prompt, SamplingParams(max_tokens=2), use_tqdm=False)) == 1
    assert llm.generate([], use_tqdm=False) == []


def test_params_one_each(make: Any) -> None:
    llm, client = make()
    params = [SamplingParams(max_tokens=2, seed=1), SamplingParams(max_tokens=3, seed=2, n=2)]
    first, second = llm.generate(["a", "b"], params, use_tqdm=False, priority=[4, 7])
    assert (len(first.outputs), len(second.outputs)) == (1, 2)
    assert [o.index for o in second.outputs] == [0, 1]
    assert [(m.params.seed, m.priority) for m in requests(client)] == [(1, 4), (2, 7)]
    with pytest.raises(InvalidParameter, match="sampling_params has 2 entries for 3 prompts"):
        llm.generate(["a", "b", "c"], params)
    with pytest.raises(InvalidParameter, match="priority has 1 entries for 2 prompts"):
        llm.generate(["a", "b"], priority=[1])


def test_programs_repeat_themselves(make: Any) -> None:
    def run(**options: Any) -> list[list[int]]:
        llm, _ = make(**options)
        return [o.outputs[0].token_ids for o in llm.generate(["a", "b", "a"], SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False)]

    first = run()
    assert first == run() == run(seed=0) != run(seed=1)
    assert first[0] != first[2], "each request has a seed of its own"


def test_logprobs_add_up(make: Any) -> None:
    llm, _ = make()
    (output,) = llm.generate("the quick", SamplingParams(max_tokens=4, logprobs=1, prompt_logprobs=0, ignore_eos=True), use_tqdm=False)
    (one,) = output.outputs
    assert one.cumulative_logprob == -8.0 and one.logprobs is not None
    assert [next(iter(p)) for p in one.logprobs] == one.token_ids
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)


def test_chat_renders_one_conversation_or_many(make: Any, text: ModelText) -> None:
    llm, _ = make()
    hello = [{"role": "user", "content": "hi"}]
    (one,) = llm.chat(hello, SamplingParams(max_tokens=2), use_tqdm=False)
    assert one.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert one.prompt_token_ids == text.tokenizer.encode(one.prompt, add_special_tokens=False)
    two = llm.chat([hello, [*hello, {"role": "assistant", "content": "the"}]], SamplingParams(max_tokens=2), use_tqdm=False)
    assert [o.prompt.count("<|im_start|>") for o in two] == [2, 3]
    (custom,) = llm.chat(hello, SamplingParams(max_tokens=2), use_tqdm=False, chat_template="{{ x }}!", chat_template_kwargs={"x": "the"})
    assert custom.prompt == "the!"
    with pytest.raises(TemplateError):
        llm.chat(hello, chat_template="{{ raise_exception('no') }}")


@pytest.mark.parametrize(
    ("prompts", "params", "kind", "message"),
    [
        (["a", ""], {}, InvalidParameter, "prompt 1: the prompt is empty"),
        ([[5], [10**7]], {}, InvalidParameter, "token id 10,000,000"),
        ("a", {"max_tokens": 1000}, PromptTooLong, "1 tokens, 1,000 asked, the context holds 256"),
        (5, {}, InvalidParameter, "must be text"),
        ([{"promt": "a"}], {}, InvalidParameter, "unknown keys promt; known: prompt"),
        ([{"prompt": 5}], {}, InvalidParameter, "prompt 0"),
        (["a", 5], {}, InvalidParameter, "prompt 1 must be text"),
    ],
)
def test_an_invalid_prompt_raises_before_anything_runs(make: Any, prompts: Any, params: Any, kind: type[Exception], message: str) -> None:
    llm, client = make()
    with pytest.raises(kind, match=message):
        llm.generate(prompts, SamplingParams(**params))
    assert client.sent == []


def test_a_failed_request_is_told_beside_the_others(make: Any) -> None:
    llm, client = make()
    client.failing["1"] = "a kernel failed"
    outputs = llm.generate(["a", "b", "c"], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
    assert [o.outputs[0].finish_reason for o in outputs] == ["length", "error", "length"]
    assert outputs[1].outputs[0].error == "a kernel failed"


def test_progress_is_shown_or_handed_over(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    llm, _ = make()
    llm.generate(["a", "b"], SamplingParams(max_tokens=2))
    assert "Processed prompts: 100%" in capsys.readouterr().err
    steps: list[int] = []

    class Bar:
        def __init__(self, total: int, desc: str) -> None:
            steps.append(-total)

        def update(self, count: int) -> None:
            steps.append(count)

        def close(self) -> None:
            steps.append(0)

    llm.generate(["a", "b"], SamplingParams(max_tokens=2), use_tqdm=Bar)
    assert steps == [-2, 1, 1, 0]


def test_an_interrupt_aborts_what_runs(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    llm, client = make(lambda request, index: [5])
    client.step_seconds = 0.005
    real = module.asyncio.run_coroutine_threadsafe

    def interrupted(work: Any, loop: Any) -> Any:
        future = real(work, loop)

        class Waiting:
            def result(self) -> Any:
                import time

                while not client.live:
                    time.sleep(0.001)
                raise KeyboardInterrupt

            def cancel(self) -> None:
                future.cancel()

        return Waiting()

    with monkeypatch.context() as patch:
        patch.setattr(module.asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b"], use_tqdm=False)
    llm.generate("c", SamplingParams(max_tokens=1), use_tqdm=False)
    assert {m.request_id for m in client.sent if isinstance(m, Abort)} == {"0", "1"}
    assert client.live == {}


def test_life(make: Any) -> None:
    llm, client = make()
    with llm:
        assert llm.get_tokenizer().vocab_size > 256
        assert llm.get_default_sampling_params() == SamplingParams()
    assert client.closed
    llm.close()
    with pytest.raises(OctavoError, match="closed"):
        llm.generate("a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seq": 5}, "unknown option max_num_seq; did you mean max_num_seqs?"),
        ({"frobnicate": 5}, "unknown option frobnicate; known: backend, "),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2 is not supported"),
        ({"dtype": "bfloat16"}, "computes in float32"),
        ({"trust_remote_code": True}, "never run"),
        ({"gpu_memory_utilization": 0.9}, "say kv_cache_memory_bytes instead"),
        ({"block_size": 7}, "power of two"),
        ({"max_model_len": 0}, "max_model_len must be positive"),
        ({"kv_cache_memory_bytes": "2 potatoes"}, "cannot read '2 potatoes'"),
    ],
)
def test_options_are_read_honestly(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**options)
    assert message in caught.value.message


def test_options_of_vllm_map(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.frontends.options import engine_config

    config = engine_config({
        "model": "m", "tensor_parallel_size": 1, "dtype": "float32", "enforce_eager": True, "max_model_len": "8k", "max_num_seqs": 3,
        "kv_cache_memory_bytes": "2GiB", "enable_prefix_caching": False, "trust_remote_code": False, "quantization": None,
    })  # fmt: skip
    assert (config.max_model_len, config.kv_cache_memory_bytes, config.max_num_seqs, config.enforce_eager) == (8000, 2**31, 3, True)
    assert engine_config({"model": "m", "max_model_len": "auto"}).max_model_len is None
    assert engine_config({"model": "m", "max_model_len": -1}).max_model_len is None
