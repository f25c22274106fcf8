"""The catalog's models load and continue as transformers does with the same dequantized weights (16 greedy tokens)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from octavo.checkpoint.open import open_checkpoint
from octavo.models.registry import load_model
from tests.models.sequences import Sequence, Sequences

if TYPE_CHECKING:
    from octavo.backend.base import Backend

# fixture -> prompt, greedy continuation by transformers in float32
GOLDEN = {
    # "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n" -> "The capital of France is Paris.<|im_end|>\n" ...
    "smollm2": (
        [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198],
        [504, 3575, 282, 4649, 314, 7042, 30, 2, 198, 2, 1, 9690, 198, 2, 198, 1],
    ),
    # "The capital of France is" -> " the capital of the country of France. It is the largest city in France and"
    "gemma3": (
        [2, 818, 5279, 529, 7001, 563],
        [506, 5279, 529, 506, 2891, 529, 7001, 236761, 1030, 563, 506, 7488, 3207, 528, 7001, 532],
    ),
    # "def fibonacci(n):\n    " -> " if n <= 0:\n         return "Invalid input"\n     elif n =="
    "qwen2_coder": (
        [750, 75698, 1445, 982, 257],
        [421, 308, 2651, 220, 15, 510, 260, 470, 330, 7928, 1946, 698, 257, 4409, 308, 621],
    ),
}


@pytest.mark.model
@pytest.mark.parametrize("name", GOLDEN)
def test_greedy_tokens_equal_those_of_transformers(name: str, request: pytest.FixtureRequest, backend: Backend) -> None:
    prompt, golden = GOLDEN[name]
    model = load_model(open_checkpoint(str(request.getfixturevalue(name))), backend, max_positions=64)
    sequence = Sequence(list(prompt))
    sequences = Sequences(model, backend, block_size=16, num_blocks=4)
    sequences.step([(sequence, len(prompt))])
    for _ in golden[1:]:
        sequence.token_ids.append(int(sequence.logits[-1][-1].argmax()))
        sequences.step([(sequence, 1)])
    assert [*sequence.token_ids[len(prompt) :], int(sequence.logits[-1][-1].argmax())] == golden
