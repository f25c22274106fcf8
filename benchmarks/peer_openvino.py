"""Figures of OpenVINO GenAI's continuous-batching pipeline on a GGUF file, as one JSON object. Run by peers.py with the peer's own interpreter.

    python -m venv PEER && PEER/bin/pip install openvino-genai numpy
    PEER/bin/python benchmarks/peer_openvino.py MODEL.gguf [--threads 2]
"""

from __future__ import annotations

import random
import time
from importlib import metadata

import numpy as np
import openvino as ov
import openvino_genai as og
from protocol import peer_main, prompt_ids


class Peer:
    """Greedy, end tokens ignored, prefix cache off, no text in or out."""

    instructions = ""

    def __init__(self, model: str, threads: int) -> None:
        config = og.SchedulerConfig()
        config.cache_size, config.max_num_batched_tokens, config.max_num_seqs = 2, 2048, 64
        config.enable_prefix_caching = False
        self.pipeline = og.ContinuousBatchingPipeline(model, config, "CPU", {}, {"INFERENCE_NUM_THREADS": threads})
        self.rng = random.Random(0)

    def run(self, batch: int, prompt: int, new: int) -> float:
        start, handles = time.perf_counter(), []  # a request whose handle is dropped is cancelled
        for i in range(batch):
            wanted = og.GenerationConfig()
            wanted.max_new_tokens, wanted.ignore_eos, wanted.do_sample = new, True, False
            ids = np.array([prompt_ids(self.rng, prompt)], dtype=np.int64)
            handles.append(self.pipeline.add_request(i, ov.Tensor(ids), wanted))
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        return time.perf_counter() - start


if __name__ == "__main__":
    peer_main("OpenVINO GenAI", metadata.version("openvino-genai"), Peer, lambda peer: {"streams_64": 64 * 64 / peer.run(64, 128, 64)})
