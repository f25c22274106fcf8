"""The offline benchmarks on a small random checkpoint, start-up of a real process, kernels in theirs, and the peers' table."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import octavo
from octavo.backend.peaks import Floors
from octavo.errors import ConfigError, OctavoError
from octavo.frontends.bench.kernels import measure_kernels
from octavo.frontends.bench.offline import latency_figures
from octavo.frontends.bench.startup import Starting, free_port, import_torch
from octavo.frontends.cli import main as cli
from tests.service.texts import CHATML, make_text

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(octavo.__file__).parent.parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    place = tmp_path_factory.mktemp("tiny-llama")
    text = make_text(place)
    config = LlamaConfig(
        vocab_size=text.tokenizer.vocab_size, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, eos_token_id=text.eos_token_ids[0], bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(place)
    names = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "chat_template": CHATML}
    (place / "tokenizer_config.json").write_text(json.dumps(names))
    return place


def octavo_command(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["bench", *arguments], prog_name="octavo")


ENGINE = ("--kv-cache-memory-bytes", "8MiB", "--threads", "1")


def test_latency_of_a_batch(folder: Path, tmp_path: Path) -> None:
    saved, picture = tmp_path / "x.json", tmp_path / "x.png"
    sizes = ("--input-len", "6", "--output-len", "4", "--batch-size", "3", "--num-iters-warmup", "1", "--num-iters", "4")
    done = octavo_command("latency", str(folder), *ENGINE, *sizes, "--output-json", str(saved), "--plot", str(picture))
    assert done.exit_code == 0, done.output
    assert "p99 latency" in done.stdout and picture.read_bytes()[:4] == b"\x89PNG"
    result = json.loads(saved.read_text())
    figures = result["figures"]
    assert result["flags"]["batch_size"] == 3 and len(figures["latencies_s"]) == 4
    assert figures["output_tokens_per_s"] == pytest.approx(12 / figures["percentiles_s"]["p50"])


def test_latency_figures_by_hand() -> None:
    f = latency_figures([1.0, 3.0, 2.0], input_len=10, output_len=5, batch_size=4)
    assert (f["avg_latency_s"], f["percentiles_s"]["p50"], f["percentiles_s"]["p25"]) == (2.0, 2.0, 1.5)
    assert (f["output_tokens_per_s"], f["total_tokens_per_s"]) == (10.0, 30.0)


@pytest.mark.parametrize("dataset", [("random",), ("shared-prefix", "--prefix-len", "16")])
def test_throughput_counts_every_token(folder: Path, tmp_path: Path, dataset: tuple[str, ...]) -> None:
    saved = tmp_path / "x.json"
    sizes = ("--num-prompts", "5", "--random-input-len", "7", "--random-output-len", "3", "--dataset-name", *dataset)
    done = octavo_command("throughput", str(folder), *ENGINE, *sizes, "--output-json", str(saved))
    assert done.exit_code == 0, done.output
    f = json.loads(saved.read_text())["figures"]
    assert (f["failed"], f["total_output_tokens"]) == (0, 15)
    assert f["total_input_tokens"] == 5 * (7 + (16 if "shared-prefix" in dataset else 0))
    assert f["total_tokens_per_s"] == pytest.approx(f["input_tokens_per_s"] + f["output_tokens_per_s"])


def test_a_batch_of_nothing_is_refused(folder: Path) -> None:
    done = octavo_command("latency", str(folder), "--batch-size", "0")
    assert isinstance(done.exception, ConfigError) and "batch_size" in str(done.exception)


# --- start-up ---


def test_startup_sees_the_stages_in_order(tmp_path: Path) -> None:
    port = free_port()
    starting = Starting([sys.executable, "-m", "tests.frontends.serve_fake", str(tmp_path), "0.01", "--port", str(port)], port)
    try:
        start = starting.measure()
    finally:
        starting.stop()
    assert 0 < start.accepting <= start.ready <= start.first_token
    assert starting.server.poll() is not None


def test_a_server_that_ends_says_why() -> None:
    starting = Starting([sys.executable, "-c", "import sys; sys.exit('no such model')"], free_port())
    try:
        with pytest.raises(OctavoError, match="octavo serve ended: no such model"):
            starting.measure()
    finally:
        starting.stop()


def test_runs_are_positive() -> None:
    done = octavo_command("startup", "--runs", "0")
    assert isinstance(done.exception, ConfigError)
    assert import_torch() > 0


# --- kernels ---


def test_kernels_are_held_against_their_floors(tmp_path: Path) -> None:
    saved = tmp_path / "x.json"
    options = ("--short", "--only", "norm", "--only", "matmul", "--working-set-mib", "4", "--threads", "1")
    done = octavo_command("kernels", *options, "--output-json", str(saved))
    assert done.exit_code == 0, done.output
    assert "read bandwidth" in done.stdout and "3072x576" in done.stdout
    f = json.loads(saved.read_text())["figures"]
    assert {o["operator"] for o in f["operators"]} == {"norm", "matmul"}
    for o in f["operators"]:
        assert o["us"] > 0 and o["of_floor"] == pytest.approx(o["floor_us"] / o["us"])
    floors = f["floors"]
    (norm,) = (o for o in f["operators"] if o["operator"] == "norm")
    assert norm["floor_us"] == pytest.approx(4 * 4 * 32 * 576 / floors["read_gb_s"] / 1e3)


def test_unknown_kernel_options_are_told() -> None:
    with pytest.raises(ConfigError, match="unknown backend"):
        measure_kernels(["--backend", "cray"])
    with pytest.raises(ConfigError, match="invalid choice"):
        measure_kernels(["--only", "conv"])


# --- the peers' table ---


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import peers  # type: ignore[import-not-found]

    return peers


def test_floors_of_linear_layers(peers: ModuleType) -> None:
    """Layers of 4,000 values in 2,000 bytes and a head of 1,000 in 1,000, at 1,000 bytes and 10,000 operations a second."""
    weights, floors = {"layers": (2000, 4000), "head": (1000, 1000)}, Floors(1e-6, 1e-6, 1e-5, "")
    middle = {"decode_1": 0.25, "decode_32": 0.5, "prefill_512": 0.625}
    assert peers.of_floor("decode_1", {"Octavo": middle["decode_1"]}, weights, floors) == "75% of bandwidth"  # 3 s a token at best
    assert peers.of_floor("decode_32", {"Octavo": middle["decode_32"]}, weights, floors) == "50% of int8"  # 1 s a token
    assert peers.of_floor("prefill_512", {"Octavo": middle["prefill_512"]}, weights, floors) == "50% of int8"  # 0.8 s a token, no head
    assert peers.of_floor("streams_64", {"Octavo": 1.0}, weights, floors) == "-" and peers.of_floor("decode_1", {}, weights, floors) == "-"


def test_weights_that_a_token_meets(peers: ModuleType, smollm2: Path) -> None:
    """SmolLM2-135M: 134.5 million values, of which 49,152 x 576 make logits and embeddings alike."""
    weights = peers.weights_of(str(smollm2))
    layer = 2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576
    assert weights["layers"][1] == 30 * layer and weights["head"][1] == 49152 * 576
    assert sum(size for size, _ in weights.values()) == pytest.approx(smollm2.stat().st_size, rel=0.03)


@pytest.fixture
def protocol(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import protocol  # type: ignore[import-not-found]

    return protocol


def rounds_of(name: str, *values: float) -> dict[str, list[dict[str, Any]]]:
    return {name: [{"name": name, "version": "1", "load_s": 1.0, "figures": {"decode_1": v, "decode_8": 2 * v}} for v in values]}


def test_ratios_are_those_of_medians(peers: ModuleType) -> None:
    rounds = rounds_of("OpenVINO GenAI", 60, 50, 70) | rounds_of("llama.cpp", 100, 90, 120) | rounds_of("Octavo", 180, 100, 160)
    assert peers.cell(rounds["Octavo"], "decode_1") == "160 (100 to 180)"
    ratios, goals = peers.verdict("decode_1", peers.medians(rounds, "decode_1"))
    assert ratios == "2.67 x OpenVINO GenAI, 1.60 x llama.cpp"
    assert goals == "1.5 x llama.cpp: met (1.60); 2.5 x OpenVINO GenAI: met (2.67)"
    assert peers.verdict("decode_8", peers.medians(rounds, "decode_8"))[1] == "2.0 x the best peer: missed (1.60)"
    assert peers.verdict("streams_64", peers.medians(rounds, "streams_64")) == ("-", "-")


def test_the_block_between_the_markers_is_replaced(protocol: ModuleType) -> None:
    text = protocol.replace_block("# Results\n\nwords\n", "peers: a", "one")
    assert text == "# Results\n\nwords\n\n<!-- peers: a -->\none\n<!-- /peers: a -->\n"
    both = protocol.replace_block(text, "peers: b", "two")
    again = protocol.replace_block(both, "peers: a", "three")
    assert "one" not in again and "three" in again and "two" in again and again.startswith("# Results\n\nwords\n")
    assert protocol.replace_block(again, "peers: a", "three") == again


def test_decode_leaves_the_prompt_out(protocol: ModuleType) -> None:
    # A machine with 1 ms a prompt token, and 10 ms a step whatever the batch.
    found = protocol.figures(lambda batch, prompt, new: 1e-3 * batch * prompt + 1e-2 * (new - 1))
    assert found["prefill_512"] == pytest.approx(1000) and found["prefill_16x128"] == pytest.approx(1000)
    assert all(math.isclose(found[f"decode_{b}"], 100 * b) for b in (1, 8, 16, 32))
