"""The library over the real engine, on a small random checkpoint in a Hugging Face folder; transformers is the oracle."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from octavo import LLM, CheckpointError, SamplingParams
from tests.service.texts import CHATML, make_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROMPTS = ["the quick brown fox", "stop here and there", "Hello world", "the"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    place = tmp_path_factory.mktemp("tiny-llama")
    text = make_text(place)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=text.tokenizer.vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        eos_token_id=text.eos_token_ids[0],
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(place)
    names = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "chat_template": CHATML}
    (place / "tokenizer_config.json").write_text(json.dumps(names))
    (place / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "top_k": 20, "eos_token_id": text.eos_token_ids[0]}))
    return place


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), kv_cache_memory_bytes="8MiB", threads=1, max_num_seqs=8) as llm:
        yield llm


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_greedy_text_is_that_of_transformers(llm: LLM, oracle: Any) -> None:
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True), use_tqdm=False)
    for output in outputs:
        ids = torch.tensor([output.prompt_token_ids])
        with torch.inference_mode():
            theirs = oracle.generate(ids, max_new_tokens=16, min_new_tokens=16, do_sample=False, pad_token_id=0, eos_token_id=None)
        assert output.outputs[0].token_ids == theirs[0, ids.shape[1] :].tolist()


def test_logprobs_are_those_of_transformers(llm: LLM, oracle: Any) -> None:
    (output,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=1), use_tqdm=False)
    ids = output.prompt_token_ids + output.outputs[0].token_ids
    with torch.inference_mode():
        theirs = torch.log_softmax(oracle(torch.tensor([ids])).logits[0], -1)
    known = [*(output.prompt_logprobs or [])[1:], *(output.outputs[0].logprobs or [])]
    for position, token in enumerate(ids[1:]):
        entry = known[position]
        assert entry is not None and entry[token].logprob == pytest.approx(float(theirs[position, token]), abs=1e-3)
        assert entry[token].rank == int((theirs[position] > theirs[position, token]).sum()) + 1


def test_together_or_alone_sampled_text_is_the_same(llm: LLM) -> None:
    params = [SamplingParams(seed=i, max_tokens=12, temperature=1.0, n=2) for i in range(len(PROMPTS))]
    together = llm.generate(PROMPTS, params, use_tqdm=False)
    alone = [llm.generate(prompt, p, use_tqdm=False)[0] for prompt, p in zip(PROMPTS, params, strict=True)]
    assert [[c.token_ids for c in o.outputs] for o in together] == [[c.token_ids for c in o.outputs] for o in alone]
    assert together[0].outputs[0].token_ids != together[0].outputs[1].token_ids


def test_stop_strings_bad_words_and_bias(llm: LLM) -> None:
    (free,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    text = free.outputs[0].text
    stop = text[3:5]
    (stopped,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=12, stop=[stop]), use_tqdm=False)
    assert stopped.outputs[0].text == text[: text.index(stop)] and stopped.outputs[0].stop_reason == stop
    (biased,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=3, logit_bias={65: 100}), use_tqdm=False)
    assert biased.outputs[0].token_ids == [65, 65, 65]
    first = free.outputs[0].token_ids[0]
    (without,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=1, logit_bias={first: -100}), use_tqdm=False)
    assert without.outputs[0].token_ids[0] != first


def test_defaults_come_from_the_folder(llm: LLM) -> None:
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.5, top_k=20)
    (output,) = llm.chat([{"role": "user", "content": "the fox"}], SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    assert output.prompt == "<|im_start|>user\nthe fox<|im_end|>\n<|im_start|>assistant\n"


def test_a_folder_without_config_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="config"):
        LLM(str(tmp_path))


@pytest.mark.parametrize("end", ["", "import os\npid = os.fork()\nif pid:\n    assert os.waitpid(pid, 0)[1] == 0"], ids=["alone", "after a fork"])
def test_a_program_that_never_closes_its_engine_still_ends(folder: Path, end: str) -> None:
    lines = "from octavo import LLM, SamplingParams", f"llm = LLM({str(folder)!r})", "llm.generate([[5, 6]], SamplingParams(max_tokens=2))", end
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=60, stdin=subprocess.DEVNULL)
