"""Hub models through the real ``huggingface_hub`` library, from a hub on this machine. Each command runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from octavo.checkpoint.hub import HubModel, choose, parse
from octavo.errors import CheckpointError
from tests.checkpoint.hub_server import HubServer, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.checkpoint.hub_server import HubServer as Hub

BIG = bytes(range(256)) * 4096  # 1 MiB
REPOS = {
    "org/tensors": {
        "config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": BIG, "modeling_x.py": b"import os", "pytorch_model.bin": b"pickle",
        "onnx/model.onnx": b"x", "README.md": b"hello",
    },
    "org/quantized-GGUF": {"m-Q8_0.gguf": b"GGUF8", "m-Q4_K_M.gguf": b"GGUF4", "mmproj-m-f16.gguf": b"x", "README.md": b""},
    "org/split": {f"m-F16-0000{i}-of-00002.gguf": b"GGUF%d" % i for i in (1, 2)},
    "org/pickled": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
    "org/secret": {"config.json": b"{}", "model.safetensors": b"x"},
}  # fmt: skip
RESOLVE = "import sys; from octavo.checkpoint.pull import resolve_model; print(resolve_model(sys.argv[1], download=sys.argv[2] == 'yes'))"


@pytest.fixture
def hub() -> Iterator[Hub]:
    yield from serving(HubServer(REPOS, gated={"org/secret": "hf_right"}))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "hf"


def run(hub: Hub | None, home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """``octavo ARGS`` with this hub and cache; without a hub nobody answers."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    variables |= {"HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:9", "HF_HOME": str(home), "OCTAVO_CACHE": str(home / "octavo"), **env}
    command = ["-c", RESOLVE, *args[1:]] if args[0] == "resolve" else ["-m", "octavo", *args]
    return subprocess.run([sys.executable, *command], env=variables, capture_output=True, text=True, timeout=120, check=False)


def test_pull_takes_tensors_and_texts_and_nothing_else(hub: Hub, home: Path) -> None:
    done = run(hub, home, "pull", "org/tensors")
    assert done.returncode == 0, done.stderr
    folder = home / "hub" / "models--org--tensors" / "snapshots" / hub.commit
    assert done.stdout.strip() == str(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "model.safetensors").read_bytes() == BIG
    assert not any("resolve" in path and "main" in path for _, path, _ in hub.asked), "files were meant to be asked for by commit"


def test_a_model_in_the_cache_needs_no_hub(hub: Hub, home: Path) -> None:
    run(hub, home, "pull", "org/tensors")
    expected = run(hub, home, "resolve", "org/tensors", "no").stdout
    hub.asked.clear()
    assert expected and run(hub, home, "resolve", "org/tensors", "yes").stdout == expected
    assert hub.asked == []
    assert run(None, home, "resolve", "org/tensors", "yes").stdout == expected
    listed = run(None, home, "list").stdout
    assert "org/tensors" in listed and "org/split" not in listed
    removed = run(None, home, "rm", "org/tensors")
    assert "removed org/tensors, 1.0 MiB freed" in removed.stderr
    assert "not in the cache of the hub" in run(None, home, "rm", "org/tensors").stderr
    missing = run(None, home, "resolve", "org/tensors", "yes")
    assert "org/tensors is not in the cache and the hub cannot be reached" in missing.stderr and "`octavo pull org/tensors`" in missing.stderr


def test_pull_follows_the_branch_and_a_start_does_not(hub: Hub, home: Path) -> None:
    first = run(hub, home, "pull", "org/tensors").stdout
    hub.commit, hub.repos["org/tensors"]["model.safetensors"] = "b" * 40, BIG + b"!"
    assert run(hub, home, "resolve", "org/tensors", "yes").stdout == first
    second = run(hub, home, "pull", "org/tensors").stdout
    assert "b" * 40 in second and run(hub, home, "resolve", "org/tensors", "yes").stdout == second
    assert run(hub, home, "resolve", f"org/tensors@{'a' * 40}", "no").stdout == first


def test_a_broken_download_goes_on(hub: Hub, home: Path) -> None:
    tensors = BIG * 24  # the library writes pieces of 10 MB
    hub.repos["org/tensors"]["model.safetensors"] = tensors
    hub.break_after = 15_000_000
    done = run(hub, home, "pull", "org/tensors")
    if done.returncode:  # the library may try again by itself
        done = run(hub, home, "pull", "org/tensors")
    assert done.returncode == 0, done.stderr
    folder = home / "hub" / "models--org--tensors" / "snapshots" / hub.commit
    assert (folder / "model.safetensors").read_bytes() == tensors
    assert any(range_ and not range_.startswith("bytes=0-") for _, path, range_ in hub.asked if path.endswith(".safetensors")), hub.asked


@pytest.mark.parametrize(
    ("model", "file"),
    [("org/quantized-GGUF", "m-Q4_K_M.gguf"), ("org/quantized-GGUF:q8_0", "m-Q8_0.gguf"), ("org/split", "m-F16-00001-of-00002.gguf"),
     ("org/quantized-GGUF:Q8_0@v1", "m-Q8_0.gguf")],
)  # fmt: skip
def test_gguf_repositories(model: str, file: str, hub: Hub, home: Path) -> None:
    done = run(hub, home, "pull", model)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(f"/{hub.commit}/{file}")
    assert run(None, home, "resolve", model, "no").stdout == done.stdout


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("org/nothing", "the hub has no model org/nothing, or it is private: check the name, or set HF_TOKEN"),
        ("org/tensors@v9", "org/tensors has no revision 'v9'"),
        ("org/pickled", "org/pickled holds pickled weights only (pytorch_model.bin), which Octavo never loads"),
        ("org/quantized-GGUF:q2_k", "has no .gguf file for 'q2_k'; it has m-Q4_K_M.gguf, m-Q8_0.gguf"),
        ("org/secret", "org/secret is gated: accept its terms"),
    ],
)
def test_what_cannot_be_had_is_explained(model: str, message: str, hub: Hub, home: Path) -> None:
    done = run(hub, home, "pull", model)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_token_opens_a_gated_model(hub: Hub, home: Path) -> None:
    assert run(hub, home, "pull", "org/secret", HF_TOKEN="hf_wrong").returncode == 1
    assert run(hub, home, "pull", "org/secret", HF_TOKEN="hf_right").returncode == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/b", HubModel("a/b")), ("a/b:Q4_K_M", HubModel("a/b", "Q4_K_M")), ("a/b@v1.0", HubModel("a/b", None, "v1.0")),
        ("a/b:x@refs/pr/1", HubModel("a/b", "x", "refs/pr/1")), ("a", None), ("a/b/c", None), ("/a/b", None), ("../b", None), ("a/..", None),
        ("a/b@", None), ("a/b@../x", None), ("", None), ("a/b:", None), ("x" * 200 + "/b", None),
    ],
)  # fmt: skip
def test_ids(name: str, expected: HubModel | None) -> None:
    assert parse(name) == expected


def test_a_split_model_must_be_whole() -> None:
    with pytest.raises(CheckpointError, match="lacks 1 of the 00002 parts"):
        choose({"m-F16-00001-of-00002.gguf": 1}, HubModel("org/split"))
