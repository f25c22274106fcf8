"""The cpu backend against the reference backend, the same model and requests: what a change costs, as ratios that need no peer.

    python benchmarks/backends.py [MODEL] [--new-tokens 8]
"""

from __future__ import annotations

import argparse
import json
import random
import time

from protocol import prompt_ids

from octavo import LLM, SamplingParams


def rates(model: str, backend: str, new: int) -> dict[str, float]:
    """Tokens a second: prefill of 128, decode alone and in a batch of 4."""
    rng = random.Random(0)
    with LLM(model, backend=backend, max_num_seqs=8, enable_prefix_caching=False, max_model_len=512) as llm:

        def run(batch: int, prompt: int, tokens: int) -> float:
            start = time.perf_counter()
            params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens, detokenize=False)
            llm.generate([{"prompt_token_ids": prompt_ids(rng, prompt)} for _ in range(batch)], params, use_tqdm=False)
            return time.perf_counter() - start

        run(1, 16, 2)  # warm up
        found = {"prefill_128": 128 / run(1, 128, 1)}
        for batch in (1, 4):
            first = run(batch, 32, 1)
            found[f"decode_{batch}"] = batch * new / max(1e-9, run(batch, 32, new + 1) - first)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--new-tokens", type=int, default=8)
    options = parser.parse_args()
    ours, reference = (rates(options.model, backend, options.new_tokens) for backend in ("cpu", "reference"))
    ratios = {name: ours[name] / reference[name] for name in ours}
    for name, ratio in ratios.items():
        print(f"{name:12} cpu {ours[name]:8.1f} tokens/s   reference {reference[name]:8.1f}   ratio {ratio:.1f}")
    print(json.dumps({name: round(ratio, 2) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
