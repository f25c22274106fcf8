"""Figures of llama.cpp on a GGUF file, as one JSON object. Run by peers.py with the peer's own interpreter.

    python -m venv PEER && PEER/bin/pip install llama-cpp-python numpy      (builds for this processor, about 12 minutes)
    PEER/bin/python benchmarks/peer_llamacpp.py MODEL.gguf [--threads 2]

For ``peers.py --isa avx2``, a build that has no wider instructions, in an environment of its own:

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_AVX512=OFF" PEER/bin/pip install llama-cpp-python

Batches go through llama.cpp's own interface, one call of llama_decode a step for all sequences; the next token is the largest logit.
"""

from __future__ import annotations

import random
import time
from importlib import metadata

import llama_cpp as lc
import numpy as np
from protocol import peer_main, prompt_ids

BATCH_TOKENS = 512
ROWS = 32


class Peer:
    def __init__(self, model: str, threads: int) -> None:
        lc.llama_log_set(_silent, None)
        lc.llama_backend_init()
        self.model = lc.llama_model_load_from_file(model.encode(), lc.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {model}")
        params = lc.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = ROWS * 256, BATCH_TOKENS, BATCH_TOKENS, ROWS
        params.kv_unified = True  # separate buffers bound a sequence to n_ctx / n_seq_max tokens, too few for a prompt of 512
        params.n_threads = params.n_threads_batch = threads
        self.context = lc.llama_init_from_model(self.model, params)
        self.vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.batch = lc.llama_batch_init(BATCH_TOKENS, 0, 1)
        enabled = (flag.partition(" = ") for flag in lc.llama_print_system_info().decode().replace("CPU :", "").split(" | "))
        self.instructions = " ".join(name.strip() for name, _, on in enabled if on.strip() == "1")
        self.rng = random.Random(0)

    def decode(self, tokens: list[tuple[int, int, int, bool]]) -> list[int]:
        """(token, position, sequence, wanted) of one call, at most BATCH_TOKENS; the likeliest next token of each wanted one."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
            batch.seq_id[i][0] = sequence
        if lc.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        rows = (np.ctypeslib.as_array(lc.llama_get_logits_ith(self.context, i), shape=(self.vocab,)) for i, t in enumerate(tokens) if t[3])
        return [int(row.argmax()) for row in rows]

    def run(self, batch: int, prompt: int, new: int) -> float:
        start = time.perf_counter()
        lc.llama_memory_clear(lc.llama_get_memory(self.context), True)
        work = [
            (token, position, sequence, position == prompt - 1)
            for sequence in range(batch)
            for position, token in enumerate(prompt_ids(self.rng, prompt))
        ]
        latest: list[int] = []
        for i in range(0, len(work), BATCH_TOKENS):
            latest += self.decode(work[i : i + BATCH_TOKENS])
        for step in range(new - 1):
            latest = self.decode([(token, prompt + step, sequence, True) for sequence, token in enumerate(latest)])
        return time.perf_counter() - start


@lc.llama_log_callback
def _silent(level: int, text: bytes, data: object) -> None:
    return None


if __name__ == "__main__":
    peer_main("llama.cpp", f"llama-cpp-python {metadata.version('llama_cpp_python')}", Peer)
