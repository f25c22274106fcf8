"""Writes ``docs/models.md`` from the table of architectures: ``python docs/make_models.py``. A test fails while the file is out of date."""

from __future__ import annotations

from pathlib import Path

from octavo.checkpoint.gguf_families import FAMILIES
from octavo.layers.mlp import ACTIVATIONS
from octavo.layers.rope import KINDS
from octavo.models.families import TABLE

HEAD = """# Models

This page is written by `docs/make_models.py` from `octavo/models/families.py`. Every architecture is compared with transformers on small random
checkpoints (with a reference written down anew where transformers has none): logits in float32, the prompt whole, in ragged chunks and token by
token, on both backends; GGUF files with the folder that they were converted from.

A checkpoint is a folder with `config.json` and safetensors, or a GGUF file. The column GGUF gives `general.architecture` of the files that are
read; an empty one means that such files are not. Every architecture runs on the backends `cpu` and `reference`.

| architecture | models | safetensors | GGUF |
|---|---|---|---|
"""
TAIL = """
## Positions

Rope types: {kinds}; of a whole head or a part of it, of halves or of neighbours, in all layers or in some. Other types are refused.

`dynamic` and `longrope` depend on length. They go by the longest sequence that the model is loaded for (`--max-model-len`), not by that of each
request, so that a request's result does not depend on how its prompt was cut or cached. Load with a `--max-model-len` within the original context to
get the model as it was before stretching.

`yarn` and `dynamic` set the context to `factor` times `original_max_position_embeddings` where `max_position_embeddings` is smaller.

## Activations

In feed-forward networks, gated or not: {activations}.
"""


def page() -> str:
    """The whole of ``docs/models.md``."""
    for family in TABLE:
        if family.gguf and family.gguf not in FAMILIES:
            raise ValueError(f"{family.architecture}: no GGUF architecture {family.gguf}")
    rows = [f"| `{family.architecture}` | {family.models} | yes | {f'`{family.gguf}`' if family.gguf else ''} |\n" for family in TABLE]
    names = sorted(set(ACTIVATIONS.values()))
    return HEAD + "".join(rows) + TAIL.format(kinds=", ".join(KINDS), activations=", ".join(names))


if __name__ == "__main__":
    Path(__file__).with_name("models.md").write_text(page(), encoding="utf-8")
