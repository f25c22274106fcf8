"""Octavo's own side of peers.py, as one JSON object: the offline library (scheduling, sampling and Python included), then 64 streams over HTTP.

    python benchmarks/peer_octavo.py MODEL.gguf [--threads 2] [--no-http]
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from protocol import figures, prompt_ids

import octavo
from octavo import LLM, SamplingParams
from octavo.frontends.bench.startup import free_port

SERVE = ["--no-enable-prefix-caching", "--max-model-len", "1024", "--no-log-stats"]
STREAMS = ["--num-prompts", "64", "--random-input-len", "128", "--random-output-len", "64", "--ignore-eos", "--num-warmups", "4"]


def offline(model: str, threads: int, backend: str, *, short: bool) -> tuple[float, dict[str, float], float]:
    """(seconds to load, tokens a second by name, output tokens a second of the 64 requests that ``streams`` sends over HTTP)."""
    rng, start = random.Random(0), time.perf_counter()
    with LLM(model, threads=threads, backend=backend, max_num_seqs=64, enable_prefix_caching=False, max_model_len=1024) as llm:
        ready = time.perf_counter() - start

        def run(batch: int, prompt: int, new: int) -> float:
            begin = time.perf_counter()
            params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=new, detokenize=False)
            llm.generate([{"prompt_token_ids": prompt_ids(rng, prompt)} for _ in range(batch)], params, use_tqdm=False)
            return time.perf_counter() - begin

        found = figures(run, short=short)
        return ready, found, 64 * 64 / run(64, 128, 64)


def streams(model: str, threads: int, backend: str) -> dict[str, Any]:
    """Figures of ``octavo bench serve``: 64 requests at once, 128 tokens in and 64 out, on a server of this machine."""
    port = free_port()
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", str(port), "--threads", str(threads), "--backend", backend, *SERVE]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder) / "serve.json"
            bench = [sys.executable, "-m", "octavo", "bench", "serve", "--url", f"http://127.0.0.1:{port}", "--output-json", str(saved)]
            subprocess.run([*bench, "--metric-percentiles", "50,99", *STREAMS], check=True, stdout=subprocess.DEVNULL)
            found: dict[str, Any] = json.loads(saved.read_text())["figures"]
    finally:
        server.terminate()
        server.wait(60)
    if found["failed"]:
        raise SystemExit(f"{found['failed']} of 64 streams failed")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--no-http", action="store_true")
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    ready, found, inside = offline(options.model, options.threads, options.backend, short=options.short)
    result: dict[str, Any] = {"name": "Octavo", "version": octavo.__version__, "load_s": ready, "figures": found, "in_process_64": inside}
    if not options.no_http:
        http = streams(options.model, options.threads, options.backend)
        found["streams_64"] = http["output_throughput"]
        result["latency_ms"] = {f"{q}_{m}": http[f"{q}_{m}_ms"] for m in ("ttft", "itl") for q in ("p50", "p99")}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
