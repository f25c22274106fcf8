"""Peak resident memory of serving: what a server needs for a 2,048-token context and 8 sequences, against file size + KV cache + 350 MB.

    python benchmarks/memory.py [MODEL] [--context 2048] [--sequences 8] [--threads 2] [--write benchmarks/RESULTS.md]

Starts ``octavo serve``, fills every sequence's context (prompts that leave room for the tokens asked), and reads the peak of each of its processes
(VmHWM of /proc) while it still runs. Pages that a process maps from a file or shares count in each, as the system counts them. MB are 10^6 bytes.
``--write`` replaces the block between this model's markers in the file, or adds one.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
from protocol import prompt_ids, replace_block

from octavo.checkpoint.pull import resolve_model
from octavo.frontends.bench.report import machine, versions
from octavo.frontends.bench.startup import free_port

ALLOWANCE = 350e6  # bytes beside the file and the KV cache
NEW_TOKENS = 32
START_SECONDS, REPLY_SECONDS = 300.0, 600.0


def peak(pid: int) -> int:
    """Most bytes that were ever resident, for a living process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise ProcessLookupError(pid)


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=REPLY_SECONDS) as reply:
        found: dict[str, Any] = json.loads(reply.read())
        return found


def wait_ready(base: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        try:
            with urlopen(f"{base}/health", timeout=5) as reply:
                if reply.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server did not become ready")


def serve_and_fill(options: argparse.Namespace, model: str, log: Path) -> list[tuple[str, int]]:
    """(name, peak bytes) of the server's processes after ``sequences`` full contexts ran at once."""
    port = free_port()
    command = [
        sys.executable, "-m", "octavo", "serve", model, "--port", str(port), "--threads", str(options.threads), "--max-num-seqs",
        str(options.sequences), "--max-model-len", str(options.context), "--kv-cache-memory-bytes", str(options.kv_bytes),
        "--no-enable-prefix-caching",
    ]  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_ready(base, server)
        rng = random.Random(0)
        bodies = [{"prompt": prompt_ids(rng, options.context - NEW_TOKENS), "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
                  for _ in range(options.sequences)]  # fmt: skip
        with ThreadPoolExecutor(options.sequences) as pool:
            replies = list(pool.map(lambda body: post(f"{base}/v1/completions", body), bodies))
        tokens = [reply["usage"]["total_tokens"] for reply in replies]
        if tokens != [options.context] * options.sequences:
            raise SystemExit(f"contexts were not filled: {tokens} tokens")
        root = psutil.Process(server.pid)
        return [("engine" if p != root else "HTTP and text", peak(p.pid)) for p in [root, *root.children(recursive=True)]]
    finally:
        server.terminate()
        server.wait(60)


def kv_bytes(model: str, context: int, sequences: int) -> int:
    """Bytes of the cache that ``sequences`` full contexts need, by the engine's own arithmetic."""
    plan = subprocess.run([sys.executable, "-c", PLAN, model, str(context)], capture_output=True, text=True, check=True)
    return sequences * context * int(plan.stdout.split()[-1])


PLAN = """
import sys
from octavo.config import EngineConfig
from octavo.engine.executor import InProcessExecutor
model, context = sys.argv[1:]
executor = InProcessExecutor(EngineConfig(model=model, max_model_len=int(context), max_num_seqs=1, kv_cache_memory_bytes=1 << 28))
print(executor.start(lambda *_: None).kv_bytes_per_token)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--output-json", type=Path)
    options = parser.parse_args()
    model = str(resolve_model(options.model))
    options.kv_bytes = kv_bytes(model, options.context, options.sequences)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "serve.log"
        try:
            processes = serve_and_fill(options, model, log)
        except SystemExit:
            print(log.read_text(errors="replace")[-2000:], file=sys.stderr)
            raise
    name, size, total = Path(model).stem, Path(model).stat().st_size, sum(used for _, used in processes)
    limit = size + options.kv_bytes + ALLOWANCE
    verdict = "met" if total <= limit else f"missed by {1e-6 * (total - limit):,.0f} MB"
    line = (
        f"{name}, {options.sequences} sequences of {options.context:,} tokens: peak {1e-6 * total:,.0f} MB ("
        + ", ".join(f"{what} {1e-6 * used:,.0f}" for what, used in processes)
        + f"); target file {1e-6 * size:,.0f} + KV {1e-6 * options.kv_bytes:,.0f} + {1e-6 * ALLOWANCE:,.0f} = {1e-6 * limit:,.0f} MB: {verdict}."
    )
    print(line)
    figures = {"processes": dict(processes), "peak": total, "file": size, "kv": options.kv_bytes, "limit": limit}
    if options.output_json:
        options.output_json.write_text(json.dumps({"machine": machine(), "versions": versions(), "figures": figures}, indent=2) + "\n")
    if options.write:
        text = options.write.read_text() if options.write.exists() else "# Results\n"
        options.write.write_text(replace_block(text, f"memory: {name}", line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
