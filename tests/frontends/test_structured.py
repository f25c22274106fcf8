"""Structured output through the library and the engine: what the schema promises is what comes out, whatever else is going on."""

from __future__ import annotations

import datetime
import ipaddress
import json
import random
import re
import urllib.parse
import uuid
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from octavo import LLM, GrammarError, InvalidParameter, SamplingParams, StructuredOutputsParams
from tests.frontends.schemas import document_schema
from tests.frontends.tiny_smol import make_tiny_smol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# jsonschema's own checks of times need further packages; the standard library has them.
FORMATS: dict[str, Callable[[str], Any]] = {
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "date-time": datetime.datetime.fromisoformat,
    "duration": lambda text: re.fullmatch(r"P(?!$)(\d+[YMWD])*(T(?!$)(\d+[HMS])*)?", text),
    "email": lambda text: text.count("@") >= 1 and not text.startswith("@"),
    "hostname": lambda text: all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?", part) for part in text.split(".")),
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uri": lambda text: urllib.parse.urlsplit(text).scheme,
    "uuid": uuid.UUID,
}
CHECKER = jsonschema.FormatChecker(())
for name, function in FORMATS.items():
    CHECKER.checks(name, ValueError)(lambda value, function=function: not isinstance(value, str) or function(value))
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "born": {"type": "string", "format": "date"},
        "email": {"type": ["string", "null"], "maxLength": 12},
        "scores": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 100}, "minItems": 1, "maxItems": 4},
        "kind": {"enum": ["guest", "member"]},
    },
    "required": ["name", "born", "email", "scores", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    return make_tiny_smol(tmp_path_factory.mktemp("tiny-smol"), smollm2)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), kv_cache_memory_bytes="16MiB", threads=1, max_num_seqs=16) as llm:
        yield llm


def params(seed: int = 0, max_tokens: int = 400, **form: Any) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=max_tokens, structured_outputs=StructuredOutputsParams(**form))


def check(text: str, schema: Any) -> None:
    value = json.loads(text)
    jsonschema.Draft202012Validator(schema, format_checker=CHECKER).validate(value)


def validated(llm: LLM, seeds: range) -> int:
    """Outputs that came to their end, each checked. A random model has no idea of the schema: validity comes from the grammar alone."""
    schemas = [document_schema(random.Random(seed)) for seed in seeds]
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)
    asks = [params(seed, 400, json=schema, disable_any_whitespace=seed % 2 == 0) for seed, schema in zip(seeds, schemas, strict=True)]
    outputs = [o.outputs[0] for o in llm.generate(["give me some JSON"] * len(asks), asks, use_tqdm=False)]
    ended = [(output.text, schema) for output, schema in zip(outputs, schemas, strict=True) if output.finish_reason == "stop"]
    for text, schema in ended:
        check(text, schema)
    return len(ended)


def test_outputs_of_random_schemas_validate(llm: LLM) -> None:
    assert validated(llm, range(60)) >= 40  # the others were cut off by max_tokens in a long text


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_outputs_of_500_random_schemas_validate(llm: LLM) -> None:
    assert validated(llm, range(60, 860)) >= 500  # the others were cut off by max_tokens


def test_the_other_forms(llm: LLM) -> None:
    lark = 'start: "(" start ")" | DIGIT\nDIGIT: /[0-9]/\n'
    forms: list[dict[str, Any]] = [
        {"regex": r"[A-Z]{2}-[0-9]{3,5}"}, {"choice": ["red", "green", "light green"]}, {"grammar": lark}, {"json_object": True},
    ]  # fmt: skip
    for seed in range(3):
        texts = [o.outputs[0].text for o in llm.generate(["x"] * 4, [params(seed, 60, **form) for form in forms], use_tqdm=False)]
        assert re.fullmatch(r"[A-Z]{2}-[0-9]{3,5}", texts[0])
        assert texts[1] in ("red", "green", "light green")
        assert re.fullmatch(r"(\(+)[0-9](\)+)|[0-9]|\(*", texts[2])
        assert texts[3].startswith("{")


def test_wrong_forms_fail_alone(llm: LLM) -> None:
    with pytest.raises(GrammarError, match=r"\$\.items\.uniqueItems"):
        llm.generate(["a", "b"], [params(regex="a"), params(json={"items": {"uniqueItems": True}})], use_tqdm=False)
    assert llm.generate("a", params(regex="ab"), use_tqdm=False)[0].outputs[0].text == "ab"
    for name, value in {"ignore_eos": True, "min_tokens": 2}.items():
        with pytest.raises(InvalidParameter, match=f"^{name}"):
            SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"), **{name: value})
    with pytest.raises(InvalidParameter, match="structured_outputs"):
        SamplingParams(structured_outputs={"rgx": "a"})  # type: ignore[arg-type]
    assert SamplingParams(structured_outputs={"regex": "a"}).structured_outputs == StructuredOutputsParams(regex="a")  # type: ignore[arg-type]


def test_same_bytes_alone_together_and_preempted(folder: Path, llm: LLM) -> None:
    """Promise 1, with forced tokens verified as drafts on the way: neither the batch nor a preemption changes a token."""
    asks = [params(seed, json=PERSON, disable_any_whitespace=seed % 2 == 0, max_tokens=200) for seed in range(12)]
    prompts = [f"person {i % 3}" for i in range(12)]
    alone = [llm.generate(p, a, use_tqdm=False)[0].outputs[0] for p, a in zip(prompts, asks, strict=True)]
    together = [o.outputs[0] for o in llm.generate(prompts, asks, use_tqdm=False)]
    assert [o.token_ids for o in together] == [o.token_ids for o in alone]
    for output in alone:
        assert output.finish_reason == "stop"
        check(output.text, PERSON)
    with LLM(str(folder), kv_cache_memory_bytes=16 * 16 * 2 * 16 * 4 * 2, max_model_len=256, threads=1, max_num_seqs=16) as small:
        tight = [o.outputs[0] for o in small.generate(prompts, asks, use_tqdm=False)]
        assert small.get_metrics()["num_preemptions"] > 0
    assert [o.token_ids for o in tight] == [o.token_ids for o in alone]


def steps(llm: LLM) -> int:
    return llm._run(llm._service.stats()).steps


def test_forced_tokens_save_steps_and_change_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.engine import masks

    text = "It is what it is, and that is that; nothing else may come here."
    asks = [params(seed, grammar=f'start: "{text}" /[a-z]{{3}}/ "{text}"') for seed in range(3)]

    def run() -> tuple[list[list[int]], int]:
        before = steps(llm)
        ids = [list(o.outputs[0].token_ids) for o in llm.generate(["x"] * 3, asks, use_tqdm=False)]
        return ids, steps(llm) - before

    run()  # the prompt is cached and the grammar compiled
    drafted, few = run()
    monkeypatch.setattr(masks, "MAX_FORCED", 0)
    plain, many = run()
    assert drafted == plain and few < many / 2, (few, many)
    spelled = llm.get_tokenizer().decode(drafted[0])
    assert spelled.startswith(text) and spelled.endswith(text)


def test_logprobs_and_n_with_a_grammar(llm: LLM) -> None:
    ask = SamplingParams(n=3, temperature=1.0, seed=4, logprobs=2, max_tokens=100, structured_outputs=StructuredOutputsParams(json=PERSON))
    outputs = llm.generate("x", ask, use_tqdm=False)[0].outputs
    assert len({o.text for o in outputs}) == 3
    for output in outputs:
        assert output.logprobs is not None and len(output.logprobs) == len(output.token_ids)
        if output.finish_reason == "stop":
            check(output.text, PERSON)
