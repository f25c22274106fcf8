"""Octavo and its peers in turn on one machine, the same file, round by round; medians, ranges and ratios as a table.

    python benchmarks/peers.py MODEL.gguf --openvino PEER/bin/python --llamacpp PEER2/bin/python [--rounds 3] [--write benchmarks/RESULTS.md]
    python benchmarks/peers.py MODEL.gguf --isa avx2 --openvino PEER/bin/python --llamacpp AVX2_BUILD/bin/python --write benchmarks/RESULTS.md

Each engine runs in a process of its own (benchmarks/peer_*.py), one after another, so that none takes time from another; protocol.py says what is
asked. ``streams_64`` is 64 requests at once, 128 tokens in and 64 out: over HTTP for Octavo, in process for OpenVINO GenAI. ``--write`` replaces
the block of this model between its two markers in the file, or adds one; ``--output-json`` keeps every round. Figures of a machine that does
something else at the same time mean nothing: the load is part of the table.

``--isa avx2`` keeps every engine from wider instructions, in a block of its own: Octavo and OpenVINO by their environment (OCTAVO_ISA, and
ONEDNN_MAX_CPU_ISA, which bounds oneDNN's kernels but not those of OpenVINO's own, such as attention, that ask the processor), llama.cpp by a build
without them, whose own account of its instructions is checked. The ``floor`` column holds Octavo's linear layers against the machine with all
threads: the larger of weight bytes over read bandwidth and multiply-adds over the int8 peak of the kernel set.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from protocol import replace_block

from octavo.backend import costs
from octavo.backend.peaks import Floors, best_of
from octavo.checkpoint.open import open_checkpoint
from octavo.checkpoint.pull import resolve_model
from octavo.frontends.bench.report import machine, versions

HERE = Path(__file__).resolve().parent
ROWS = {
    "prefill_512": "prefill, 512 tokens", "prefill_16x128": "prefill, 16 x 128", "decode_1": "decode, 1 sequence", "decode_8": "decode, 8",
    "decode_16": "decode, 16", "decode_32": "decode, 32", "streams_64": "64 streams, 128 in / 64 out, output tokens/s",
}  # fmt: skip
# Ratio to the best peer, or to the one named, that each row must reach.
TARGETS: dict[str, dict[str, float]] = {
    "prefill_512": {"best": 1.3}, "prefill_16x128": {"best": 1.3}, "decode_1": {"llama.cpp": 1.5, "OpenVINO GenAI": 2.5}, "decode_8": {"best": 2.0},
    "decode_16": {"best": 1.8}, "decode_32": {"best": 1.7}, "streams_64": {"OpenVINO GenAI": 1.5},
}  # fmt: skip
OURS = "Octavo"
# Environment that keeps the engines which choose at run time from instructions beyond a set.
ISA_LIMITS = {"": {}, "avx2": {"OCTAVO_ISA": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2"}}
# Rows that have a floor: tokens of one pass over the weights.
FLOOR_TOKENS = {"decode_1": 1, "decode_8": 8, "decode_16": 16, "decode_32": 32, "prefill_512": 512, "prefill_16x128": 512}
LIMIT_SECONDS = 1800

Rounds = dict[str, list[dict[str, Any]]]


def run_one(python: str, script: str, model: str, options: list[str], isa: str) -> dict[str, Any] | None:
    """The JSON object of one engine's run; None if it cannot run this model."""
    command = [python, str(HERE / script), model, *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS, env={**os.environ, **ISA_LIMITS[isa]})
    if run.returncode:
        print(f"{script} failed: {run.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    if isa == "avx2" and "AVX512" in result.get("instructions", ""):
        print(f"{script} does not count: that build uses AVX-512; make one with the flags that its docstring names", file=sys.stderr)
        return None
    return result


def measure(engines: dict[str, list[str]], model: str, rounds: int, isa: str = "") -> Rounds:
    """Results by engine name, in the order of ``engines`` within each round."""
    found: Rounds = {}
    for number in range(rounds):
        for script, (python, *options) in engines.items():
            start = time.perf_counter()
            result = run_one(python, script, model, options, isa)
            print(f"round {number + 1}: {script} {time.perf_counter() - start:.0f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
            if result is not None:
                found.setdefault(result["name"], []).append(result)
    return found


def medians(rounds: Rounds, row: str) -> dict[str, float]:
    return {name: statistics.median(r["figures"][row] for r in runs) for name, runs in rounds.items() if all(row in r["figures"] for r in runs)}


def cell(runs: list[dict[str, Any]], row: str) -> str:
    values = [r["figures"][row] for r in runs if row in r["figures"]]
    if not values:
        return "-"
    low, high = (f"{value:,.0f}" for value in (min(values), max(values)))
    return f"{statistics.median(values):,.0f} ({low} to {high})" if len(values) > 1 else f"{values[0]:,.0f}"


def floors_of(threads: int, isa: str) -> Floors:
    """Limits of the machine with that many threads, for the kernel set that Octavo uses; measured in a process of its own."""
    code = f"from octavo.kernels import native; n = native.load(); n.set_threads({threads}); print(n.isa(), *n.peaks(256 << 20, 0.2))"
    environment = {**os.environ, **ISA_LIMITS[isa]}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=HERE.parent)
    name, *rates = run.stdout.split()
    read, floats, ints = (1e-9 * float(rate) for rate in rates)
    return Floors(read, floats, ints, name)


def weights_of(model: str) -> dict[str, tuple[int, int]]:
    """(stored bytes, values) of the matrices in the layers, and of the one that makes logits."""
    checkpoint = open_checkpoint(Path(model))
    matrices = [t for t in map(checkpoint.tensor, checkpoint.names()) if len(t.shape) == 2]
    heads = [t for t in matrices if "lm_head" in t.name] or [t for t in matrices if "embed_tokens" in t.name]
    layers = [t for t in matrices if "lm_head" not in t.name and "embed_tokens" not in t.name]
    return {part: (sum(t.data.nbytes for t in some), sum(math.prod(t.shape) for t in some)) for part, some in (("layers", layers), ("head", heads))}


def of_floor(row: str, middle: dict[str, float], weights: dict[str, tuple[int, int]], floors: Floors) -> str:
    """Share of the attainable speed that Octavo reached, counting the linear layers alone; a prefill makes logits of one token only."""
    if row not in FLOOR_TOKENS or OURS not in middle:
        return "-"
    tokens = FLOOR_TOKENS[row]
    parts = [weights["layers"], *([weights["head"]] if row.startswith("decode") else [])]
    size, values = sum(b for b, _ in parts), sum(v for _, v in parts)
    seconds, bound = costs.Cost(size, 2.0 * tokens * values, int8=size < costs.INT8_BYTES * values).seconds(floors)
    return f"{middle[OURS] * seconds / tokens:.0%} of {bound}"


def verdict(row: str, middle: dict[str, float]) -> tuple[str, str]:
    """(ratio to each peer, each target and whether it is met)."""
    peers = {name: value for name, value in middle.items() if name != OURS}
    if OURS not in middle or not peers:
        return "-", "-"
    ratios = {name: middle[OURS] / value for name, value in peers.items()}
    goals = []
    for against, least in TARGETS[row].items():
        ratio = min(ratios.values()) if against == "best" else ratios.get(against)
        if ratio is not None:
            goals.append(f"{least} x {against if against != 'best' else 'the best peer'}: {'met' if ratio >= least else 'missed'} ({ratio:.2f})")
    return ", ".join(f"{ratio:.2f} x {name}" for name, ratio in ratios.items()), "; ".join(goals) or "-"


def table(rounds: Rounds, weights: dict[str, tuple[int, int]], floors: Floors) -> list[str]:
    names = list(rounds)
    lines = ["| tokens/s, median (range) | " + " | ".join(names) + " | floor | ratio | target |", "|---|" + "---|" * (len(names) + 3)]
    for row, text in ROWS.items():
        middle = medians(rounds, row)
        cells = [*(cell(rounds[name], row) for name in names), of_floor(row, middle, weights, floors), *verdict(row, middle)]
        lines.append(f"| {text} | " + " | ".join(cells) + " |")
    loads = (f"{statistics.median(r['load_s'] for r in rounds[name]):.1f}" for name in names)
    return [*lines, "| load, s | " + " | ".join(loads) + " | | | |"]


def latencies(rounds: Rounds) -> list[str]:
    ours = [r["latency_ms"] for r in rounds.get(OURS, []) if "latency_ms" in r]
    if not ours:
        return []
    middle = {name: statistics.median(r[name] for r in ours) for name in ours[0]}
    shown = ", ".join(f"{m.upper()} p50 {middle[f'p50_{m}']:,.0f} ms, p99 {middle[f'p99_{m}']:,.0f} ms" for m in ("ttft", "itl"))
    inside = statistics.median(r["in_process_64"] for r in rounds[OURS])
    return ["", f"Octavo's 64 streams over HTTP: {shown}. The same requests through the library, without HTTP: {inside:,.0f} output tokens/s."]


def block(model: str, rounds: Rounds, floors: Floors, options: argparse.Namespace) -> str:
    """Markdown: what was run where, the table, the latencies."""
    here, ours = machine(), versions()
    engines = ", ".join(f"{name} {runs[0]['version']}" for name, runs in rounds.items())
    return "\n".join([
        f"### {Path(model).stem}{f', {options.isa} only' if options.isa else ''}", "",
        f"{time.strftime('%Y-%m-%d', time.gmtime())}; {here['processor']}, {here['cores']} cores ({', '.join(here['instruction_sets'])}),"
        f" {here['system']}; {engines}; Python {ours['python']}, torch {ours.get('torch', '-')}.",
        f"{options.rounds} {'round' if options.rounds == 1 else 'rounds'}, {options.threads} threads, backend {options.backend};"
        f" load of the machine before the first run {options.load:.1f}. Limits ({floors.method}): {floors.read_gb_s:.1f} GB/s,"
        f" {floors.float_gflop_s:.0f} GFLOP/s, {floors.int8_gop_s or 0:.0f} GOP/s in int8.", "",
        *table(rounds, weights_of(model), floors), *latencies(rounds),
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a .gguf file, or a catalog name")
    parser.add_argument("--openvino", metavar="PYTHON", help="interpreter that has openvino-genai")
    parser.add_argument("--llamacpp", metavar="PYTHON", help="interpreter that has llama-cpp-python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--backend", default="auto", help="Octavo's")
    parser.add_argument("--isa", choices=list(ISA_LIMITS), default="", help="widest instruction set for all engines")
    parser.add_argument("--write", type=Path, help="markdown file whose block is replaced")
    parser.add_argument("--output-json", type=Path)
    parser.add_argument("--no-http", action="store_true", help="leave the 64 streams over HTTP out")
    parser.add_argument("--short", action="store_true", help="an eighth of the new tokens: to try this script out")
    options = parser.parse_args()
    options.load = os.getloadavg()[0]
    model = str(resolve_model(options.model))
    common = ["--threads", str(options.threads), *(["--short"] if options.short else [])]
    engines = {"peer_openvino.py": [options.openvino, *common], "peer_llamacpp.py": [options.llamacpp, *common]}
    engines = {script: command for script, command in engines.items() if command[0]}
    engines["peer_octavo.py"] = [sys.executable, *common, "--backend", options.backend, *(["--no-http"] if options.no_http else [])]
    floors = floors_of(options.threads, options.isa)
    rounds = measure(engines, model, options.rounds, options.isa)
    body = block(model, rounds, best_of(floors, floors_of(options.threads, options.isa)), options)
    print(body)
    if options.output_json:
        options.output_json.write_text(json.dumps({"machine": machine(), "versions": versions(), "load": options.load, "rounds": rounds}, indent=2))
    if options.write:
        text = options.write.read_text() if options.write.exists() else "# Results\n"
        options.write.write_text(replace_block(text, f"peers: {Path(model).stem}{options.isa and ' ' + options.isa}", body))
    return 0 if OURS in rounds else 1


if __name__ == "__main__":
    sys.exit(main())
