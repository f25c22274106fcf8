"""What each native operation takes in a decode step and in a prefill, against its floor: what bounds a missed target.

    python benchmarks/step_profile.py [MODEL] [--rows 1 8 16 32] [--context 128] [--prefill 512] [--threads 0] [--output-json FILE]

The runner computes real steps with every call of the backend timed (native time alone, by the module's own clock) and costed (octavo.backend.costs);
weights come in the order of the model, so caches help as they do when serving. Captured steps are off: they would hide the calls. The least time of
several steps counts for each operation.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from protocol import prompt_ids

from octavo.backend import costs
from octavo.backend.cpu import CpuBackend
from octavo.backend.panels import DensePanels, QuantizedPanels
from octavo.backend.peaks import best_of, measure_floors
from octavo.checkpoint.pull import resolve_model
from octavo.config import EngineConfig
from octavo.core.plan import Admit, Row, StepPlan
from octavo.core.sampling_params import SamplingParams
from octavo.kernels import native
from octavo.worker.load import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.backend.costs import Cost
    from octavo.backend.peaks import Floors
    from octavo.worker.runner import Runner

REPEATS = 5
WORKING_SET_MIB = 256


@dataclass(slots=True)
class Call:
    operation: str
    cost: Cost
    seconds: float


# What each call of the backend is named and costs; the functions bear the names of the operations.


def matmul(weight: Any, x: Any, *_: Any) -> tuple[str, Cost]:
    outputs, inputs = weight.shape
    return f"matmul {outputs}x{inputs}", costs.matmul(weight.nbytes, outputs, inputs, len(x))


def attention(_: Any, q: Any, k: Any, v: Any, kv: Any, plan: Any, spec: Any) -> tuple[str, Cost]:
    batch = plan.batch
    counts = [int(b - a) for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)]
    name = "attention" if spec.window is None else f"attention, window {spec.window}"
    return name, costs.attention(
        counts, [int(s) for s in batch.starts], spec.num_heads, spec.num_kv_heads, spec.head_dim, kv.k.dtype.itemsize, spec.window
    )


def norm(_: Any, x: Any, weight: Any, eps: float, residual: Any = None, **__: Any) -> tuple[str, Cost]:
    return "norm", costs.norm(x.numel() // len(weight), len(weight), residual=residual is not None)


def rope(_: Any, q: Any, k: Any, *__: Any, **___: Any) -> tuple[str, Cost]:
    return "rope", costs.rope(q.shape[0], q.shape[1] + k.shape[1], q.shape[2])


def act_mul(_: Any, x: Any, *__: Any) -> tuple[str, Cost]:
    return "act_mul", costs.act_mul(x.shape[0], x.shape[1] // 2)


def embed(_: Any, ids: Any, table: Any, *__: Any) -> tuple[str, Cost]:
    return "embed", costs.embed(table.nbytes, table.shape[0], table.shape[1], len(ids))


def sample(_: Any, logits: Any, *__: Any) -> tuple[str, Cost]:
    return "sample", costs.sample(*logits.shape)


def watch(calls: list[Call]) -> None:
    """From here on every operation of the cpu backend is noted in ``calls``."""
    clock = native.load().nanoseconds

    def noted(function: Callable[..., Any], describe: Callable[..., tuple[str, Cost]]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = clock()
            result = function(*args, **kwargs)
            calls.append(Call(*describe(*args, **kwargs), 1e-9 * (clock() - before)))
            return result

        return call

    for describe in (attention, norm, rope, act_mul, embed, sample):
        setattr(CpuBackend, describe.__name__, noted(getattr(CpuBackend, describe.__name__), describe))
    for weight in (DensePanels, QuantizedPanels):
        weight.matmul = noted(weight.matmul, matmul)  # type: ignore[method-assign]


def steps(runner: Runner, calls: list[Call], rows: int, context: int, count: int) -> list[list[Call]]:
    """Calls of REPEATS equal steps of ``rows`` rows with ``count`` tokens after ``context`` others."""
    rng, params = random.Random(0), SamplingParams(temperature=0.0, ignore_eos=True)
    blocks = -(-(context + count + REPEATS) // runner._table.block_size)
    for slot in range(rows):
        ids = prompt_ids(rng, context + count)
        admit = Admit(slot, f"{slot}", 0, ids, len(ids), params, [], list(range(slot * blocks, (slot + 1) * blocks)))
        before = [Row(slot, 0, context, sample=False)] if context else []
        runner.launch(StepPlan(0, rows=before, admits=[admit], num_tokens=context))
        runner.sample()
    found = []
    for number in range(REPEATS):
        calls.clear()
        runner.launch(StepPlan(number, rows=[Row(slot, context, count, sample=True) for slot in range(rows)], num_tokens=rows * count))
        result = runner.sample()
        if result.errors:
            raise SystemExit(f"a step failed: {result.errors}")
        found.append(list(calls))
    return found


def summary(title: str, repeated: list[list[Call]], floors: Floors) -> dict[str, Any]:
    """Prints and returns the operations of one step, the longest first."""
    times, least, counts, bounds = defaultdict[str, float](float), defaultdict[str, float](float), defaultdict[str, int](int), dict[str, str]()
    for same in zip(*repeated, strict=True):
        floor, bounds[same[0].operation] = same[0].cost.seconds(floors)
        times[same[0].operation] += min(call.seconds for call in same)
        least[same[0].operation] += floor
        counts[same[0].operation] += 1
    whole = sum(times.values())
    print(f"{title}: {1e3 * whole:.2f} ms in native code, floor {1e3 * sum(least.values()):.2f} ms ({sum(least.values()) / whole:.0%})")
    print(f"  {'operation':24} {'calls':>5} {'ms':>9} {'share':>7} {'floor, ms':>10} {'of floor':>9}  bound by")
    for name, seconds in sorted(times.items(), key=lambda item: -item[1]):
        figures = f"{1e3 * seconds:9.3f} {seconds / whole:7.1%} {1e3 * least[name]:10.3f} {least[name] / seconds:9.0%}"
        print(f"  {name:24} {counts[name]:5} {figures}  {bounds[name]}")
    operations = {name: {"calls": counts[name], "ms": 1e3 * times[name], "floor_ms": 1e3 * least[name], "bound": bounds[name]} for name in times}
    return {"step": title, "ms": 1e3 * whole, "operations": operations}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--context", type=int, default=128, help="tokens of each sequence before the decode step")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--output-json", type=Path)
    options = parser.parse_args()
    if native.load() is None:
        parser.error(f"this measures native code, but {native.missing_reason()}")
    longest = max(options.context, options.prefill) + 2 * REPEATS
    config = EngineConfig(model=str(resolve_model(options.model)), backend="cpu", threads=options.threads, max_num_seqs=max(*options.rows, 1),
                          max_model_len=longest, enforce_eager=True)  # fmt: skip
    worker, calls = load(config, lambda *_: None), list[Call]()
    measured = measure_floors(native.load(), worker.threads, WORKING_SET_MIB, 0.2)
    watch(calls)
    profiles = [(f"decode, {rows} x 1 after {options.context}", steps(worker.runner, calls, rows, options.context, 1)) for rows in options.rows]
    profiles.append((f"prefill of {options.prefill}", steps(worker.runner, calls, 1, 0, options.prefill)))
    floors = best_of(measured, measure_floors(native.load(), worker.threads, WORKING_SET_MIB, 0.2))
    print(f"{worker.isa}, {worker.threads} threads; limits: {floors.read_gb_s:.1f} GB/s, {floors.float_gflop_s:.0f} GFLOP/s in float32,"
          f" {floors.int8_gop_s:.0f} GOP/s in int8")  # fmt: skip
    figures = [summary(title, repeated, floors) for title, repeated in profiles]
    if options.output_json:
        options.output_json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
