"""Where the time of a decode step goes: native code, and the Python around it by part of the engine. Target: at most 5% besides native code.

    python benchmarks/step_share.py [MODEL] [--rows 1 8 32] [--prompt-tokens 128] [--steps 48] [--threads 0] [--output-json FILE]

Runs the engine's own loop on real requests and times the calls it makes of its parts: the scheduler (``schedule``, ``commit``), the executor
(``launch``: inputs of the step and the model; ``sample``: logits, choice of tokens, bookkeeping) and the link (messages to the service, encoded as
on the wire). Native time is what the calls into octavo._native took, by that module's own clock. What remains of a part is Python. Medians over
pure decode steps, after the first ones. The service turns deltas into text in another process; that work is timed apart, on the same deltas.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from protocol import prompt_ids

from octavo.checkpoint.pull import resolve_model
from octavo.config import EngineConfig
from octavo.core.sampling_params import SamplingParams
from octavo.engine.build import build_loop
from octavo.engine.link import QueueLink
from octavo.engine.messages import AddRequest, Deltas, encoder, from_engine_decoder
from octavo.kernels import native
from octavo.service.model_text import load_model_text
from octavo.service.output import SequenceOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.engine.loop import EngineLoop

TARGET = 0.05
SKIPPED = 4  # decode steps before the measured ones: the first captures, and touches memory for the first time
PARTS = {"schedule": "scheduler: schedule", "launch": "launch: inputs, model", "sample": "sample: logits, tokens", "commit": "scheduler: commit",
         "send": "messages", "other": "the loop itself"}  # fmt: skip


class Clock:
    """Seconds of each part of a step, native and in all."""

    def __init__(self, nanoseconds: Callable[[], int]) -> None:
        self._nanoseconds = nanoseconds
        self.native, self.total = defaultdict[str, float](float), defaultdict[str, float](float)

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start, inside = time.perf_counter(), self._nanoseconds()
            try:
                return function(*args)
            finally:
                self.total[part] += time.perf_counter() - start
                self.native[part] += 1e-9 * (self._nanoseconds() - inside)

        return call


class Watched:
    """Another object whose calls named in ``parts`` are timed."""

    def __init__(self, inner: Any, clock: Clock, *parts: str) -> None:
        self._inner = inner
        self.__dict__.update({part: clock.timed(part, getattr(inner, part)) for part in parts})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def watch(loop: EngineLoop, clock: Clock) -> None:
    loop._scheduler = Watched(loop._scheduler, clock, "schedule", "commit")  # type: ignore[assignment]
    loop._executor = Watched(loop._executor, clock, "launch", "sample")  # type: ignore[assignment]
    loop._link = Watched(loop._link, clock, "send")  # type: ignore[assignment]


def measure(loop: EngineLoop, link: QueueLink, sent: list[bytes], rows: int, prompt: int, steps: int) -> tuple[dict[str, list[float]], list[bytes]]:
    """Medians by part, (native, Python) seconds of a step with ``rows`` decoding requests, and the encoded deltas of the measured steps."""
    rng, params = random.Random(0), SamplingParams(temperature=0, ignore_eos=True, max_tokens=SKIPPED + steps + 2)
    for i in range(rows):
        ids, length = prompt_ids(rng, prompt), prompt + SKIPPED + steps + 2
        loop._handle(AddRequest(request_id=f"{rows}-{i}", prompt_token_ids=ids, params=params, max_len=length))
    parts, kept = list[Clock](), list[bytes]()
    scheduler, executor, output = loop._scheduler, loop._executor, loop._link
    decoding = 0
    while loop._live:
        clock = Clock(native.load().nanoseconds)
        watch(loop, clock)
        sent.clear()
        clock.timed("step", loop.step)()
        loop._scheduler, loop._executor, loop._link = scheduler, executor, output
        deltas = [d for message in sent for d in from_engine_decoder.decode(message).deltas]
        if len(deltas) == rows and all(d.finish_reason is None for d in deltas):
            decoding += 1
            if decoding > SKIPPED + 1:  # the step that ends the last prefill counts once too
                parts.append(clock)
                kept += sent
    for clock in parts:
        for times in (clock.native, clock.total):
            times["other"] = times["step"] - sum(times[part] for part in PARTS if part != "other")
    found = {part: [statistics.median(c.native[part] for c in parts), statistics.median(c.total[part] - c.native[part] for c in parts)]
             for part in (*PARTS, "step")}  # fmt: skip
    return found, kept


def text_seconds(messages: list[bytes], model: str, steps: int) -> float:
    """Seconds a step that the service needs for decoding messages, detokenizing and stop rules."""
    tokenizer = load_model_text(EngineConfig(model=model)).tokenizer
    outputs = dict[str, SequenceOutput]()
    start = time.perf_counter()
    for message in messages:
        for delta in from_engine_decoder.decode(message).deltas:
            output = outputs.get(delta.request_id)
            if output is None:
                output = outputs[delta.request_id] = SequenceOutput(delta.request_id, 0, SamplingParams(), tokenizer, [])
            output.take(delta)
    return (time.perf_counter() - start) / max(steps, 1)


def report(rows: int, found: dict[str, list[float]], text: float) -> dict[str, Any]:
    whole = sum(found["step"])
    share = found["step"][1] / whole
    verdict = f"target at most {TARGET:.0%}: {'met' if share <= TARGET else 'missed'}"
    print(f"{rows} rows: step {1e3 * whole:.2f} ms, native {1e3 * found['step'][0]:.2f} ms, Python and scheduling {share:.1%} ({verdict})")
    for part, name in PARTS.items():
        inside, outside = found[part]
        print(f"  {name:24} native {1e3 * inside:8.3f} ms   Python {1e3 * outside:7.3f} ms   {outside / whole:6.2%} of the step")
    print(f"  {'text, in the service':24} {'':18}   Python {1e3 * text:7.3f} ms")
    parts = {part: {"native_ms": 1e3 * a, "python_ms": 1e3 * b} for part, (a, b) in found.items()}
    return {"rows": rows, "step_ms": 1e3 * whole, "python_share": share, "parts": parts, "text_ms": 1e3 * text}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--output-json", type=Path)
    options = parser.parse_args()
    if native.load() is None:
        parser.error(f"this measures native code, but {native.missing_reason()}")
    options.model = str(resolve_model(options.model))
    length = options.prompt_tokens + options.steps + 2 * SKIPPED
    config = EngineConfig(model=options.model, backend="cpu", threads=options.threads, max_num_seqs=max(options.rows), max_model_len=length,
                          enable_prefix_caching=False)  # fmt: skip
    sent = list[bytes]()
    link = QueueLink(lambda message: sent.append(encoder.encode(message)) if isinstance(message, Deltas) else None)
    loop, _ = build_loop(config, link)
    figures = []
    for rows in options.rows:
        found, messages = measure(loop, link, sent, rows, options.prompt_tokens, options.steps)
        figures.append(report(rows, found, text_seconds(messages, options.model, len(messages))))
    if options.output_json:
        options.output_json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
