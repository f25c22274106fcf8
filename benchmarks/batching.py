"""Continuous batching against one request after another, on the same engine and the same requests.

    python benchmarks/batching.py [MODEL] [--requests 32] [--prompt-tokens 32] [--new-tokens 48]

Prints both times and their ratio, and checks that both ways give the same token ids.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from octavo import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=48)
    args = parser.parse_args()
    rng = random.Random(0)
    prompts = [{"prompt_token_ids": [rng.randrange(100, 40_000) for _ in range(args.prompt_tokens)]} for _ in range(args.requests)]
    params = SamplingParams(temperature=0, max_tokens=args.new_tokens, ignore_eos=True)
    with LLM(model=args.model, max_num_seqs=args.requests, enable_prefix_caching=False, max_model_len=1024) as llm:
        llm.generate(prompts[:2], params, use_tqdm=False)  # warm up
        start = time.perf_counter()
        one_by_one = [llm.generate([p], params, use_tqdm=False)[0] for p in prompts]
        sequential = time.perf_counter() - start
        start = time.perf_counter()
        together = llm.generate(prompts, params, use_tqdm=False)
        batched = time.perf_counter() - start
    same = [a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(one_by_one, together, strict=True)]
    figures = {
        "requests": args.requests,
        "one_by_one_s": round(sequential, 2),
        "together_s": round(batched, 2),
        "speedup": round(sequential / batched, 2),
        "tokens_per_s": round(args.requests * args.new_tokens / batched, 1),
        "same_ids": all(same),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
